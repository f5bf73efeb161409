"""clingo's side: a program and its facts are grounded, and what follows is read."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
from time import perf_counter

import clingo

from bench.views.digests import columns_of, digest
from bench.views.inputs import graph, rules, tree
from bench.views.job import Report

CLOSURE = "path(X,Y) :- edge(X,Y). path(X,Z) :- path(X,Y), edge(Y,Z)."
GENERATIONS = """
same(X,Y) :- parent(X,P), parent(Y,P).
same(X,Y) :- parent(X,A), same(A,B), parent(Y,B).
"""


def grounded(text: str) -> tuple[clingo.Control, float]:
    """The grounded program, and seconds."""
    start = perf_counter()
    control = clingo.Control(["--warn=none"])
    control.add("base", [], text)
    control.ground([("base", [])])
    return control, perf_counter() - start


def pairs(control: clingo.Control, name: str) -> list[tuple[int, ...]]:
    """The rows of a predicate of two numbers."""
    found = control.symbolic_atoms.by_signature(name, 2)
    return [tuple(a.number for a in atom.symbol.arguments) for atom in found if atom.is_fact]


def facts(name: str, rows: Iterable[tuple[int, int]]) -> str:
    """Rows as facts of a program."""
    return " ".join(f"{name}({a},{b})." for a, b in rows)


def edges(text: str, given: str, wanted: str, rows: list[tuple[int, int]]) -> Report:
    """The load alone: a change would be grounded anew."""
    control, seconds = grounded(f"{text}\n{facts(given, rows)}")
    return Report({"load_s": seconds}, {"loaded": digest(columns_of(pairs(control, wanted)))})


def loading(count: int) -> Report:
    """A program of many rules, from its text to the answer."""
    below, rows = rules(count)
    text = ["p0(X,Y) :- e0(X,Y)."]
    text += [f"p{i}(X,Z) :- p{j}(X,Y), e{k}(Y,Z)." for i, j, k in below]
    text += [facts(f"e{k}", rows) for k in range(10)]
    control, seconds = grounded("\n".join(text))
    found = [(i, *pair) for i in range(count) for pair in pairs(control, f"p{i}")]
    return Report({"answer_s": seconds}, {"derived": digest(columns_of(found))})


def main() -> None:
    """Run the job named on the command line."""
    job, *sizes = sys.argv[1:]
    numbers = [int(size) for size in sizes]
    match job.split("-")[0]:
        case "closure":
            report = edges(CLOSURE, "edge", "path", graph(numbers[0], numbers[1]))
        case "generations":
            report = edges(GENERATIONS, "parent", "same", tree(numbers[0]))
        case _:
            report = loading(*numbers)
    sys.stdout.write(json.dumps(asdict(report)) + "\n")


if __name__ == "__main__":
    main()
