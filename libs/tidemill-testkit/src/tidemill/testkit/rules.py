"""Rules of the formalism, what each promises, and what proves it.

`python -m tidemill.testkit.rules` writes docs/reference/formalism.md from the markers `rule(...)`
of the tests and the recorded mutants.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

from tidemill.testkit.mutants.recorded import Mutant, family_of, recorded

PAGE = "docs/reference/formalism.md"

FAMILIES: Mapping[str, str] = {
    "F": "Collections and frontiers",
    "L": "Life of an id",
    "S": "Duties of storage",
    "C": "Duties of compute",
    "K": "Capabilities",
    "CR": "Create",
    "SU": "SubscribeAt",
    "UP": "UpdateAndDowngrade",
    "AC": "AcquireCapabilities",
    "MV": "MaintainView",
    "D": "Durability",
    "P": "Invariants of durable collections",
    "G": "Reclocking",
    "A": "Arrangements",
    "R": "The language",
}

PROMISES: Mapping[str, str] = {
    "F1": "a collection is a multiset at each time, kept as (data, time, diff)",
    "F2": "a diff is the change from the time before; what adds up to zero is no update",
    "F3": "collections and updates determine each other",
    "F4": "the state always carries the updates with since and upper",
    "F5": "at and after since the accumulation is exact",
    "F6": "before since times may be advanced to it, and nothing else is lost",
    "F7": "since passes no live read capability, no retention, and not upper",
    "F8": "what is before upper is complete: no later append touches it",
    "F9": "every later update is at or after upper",
    "F10": "upper advances only to what is certain and durable",
    "F11": "between since and upper every reader gets the same contents",
    "F12": "before since there is an error that names since and who moved it, never a guess",
    "F13": "from upper on there is no answer: wait, or NotYet",
    "F14": "neither frontier ever goes back",
    "F15": "frontiers are antichains everywhere; empty is not absent",
    "L0": "an id that was never bound is unknown to every command",
    "L1": "a new collection has since equal to upper",
    "L2a": "upper advances by updates, by internal writers, by the last writer's leaving",
    "L2b": "since advances by downgrade, drop, expiry, retention",
    "L2c": "since is at or before upper, always",
    "L3": "since at empty is the end: nothing follows",
    "L4": "an id never means another collection, also after its end",
    "L5": "only bound ids are listed",
    "S1": "users, sources and the system itself write, each by its own way",
    "S2": "updates are explicit triples with since and upper",
    "S3": "all updates between the two come back after any failure",
    "S4": "upper is announced only once it is sealed and durable",
    "C1": "at each time the output is the view of the inputs at that time",
    "C2": "views report both frontiers as sources do",
    "C3": "since of a view moves only as its readers allow",
    "C4": "upper of a view is no further than its inputs justify",
    "K1": "a read capability keeps since from passing it",
    "K2": "upper is the meet of the live write capabilities",
    "K3": "a capability is an unguessable id: who presents it has the right",
    "K4": "a capability that is not valid as stated is refused with the reason",
    "K5": "capabilities are durable",
    "K6": "a clone has the same right and a life of its own",
    "K7": "a capability can be given to another party and used there",
    "K8": "a downgrade goes forward, or is refused with both frontiers",
    "K9": "a drop gives the right up, and a second drop is unknown",
    "K10": "what is not confirmed has no visible effect",
    "K11": "putting off and batching costs freshness, never correctness",
    "K12": "after its lease a capability is expired in every use",
    "K13": "what users do not write has no write capability",
    "K14": "what was lost is acquired anew",
    "K15": "since and upper follow from the live capabilities and the retention, at once",
    "CR1": "Create answers capabilities at equal frontiers",
    "CR2": "what a collection holds is decided by its description",
    "CR3": "what was promised between since and upper can be reproduced",
    "CR4": "a used id is AlreadyUsed",
    "SU1": "snapshot and stream add up to the collection at each time",
    "SU2": "a stream says how far it has come",
    "SU3": "at a time that is not definite a subscription waits",
    "SU4": "either end may cancel, and nothing stays behind",
    "SU5": "a client that crashes and resumes misses nothing and sees nothing twice",
    "SU6": "without snapshot, filtered, projected: as the client would do it",
    "SU7": "a bad capability or a time before since is refused at the first step",
    "UP1": "updates and downgrade happen together or not at all",
    "UP2": "an update outside its interval is refused, and nothing is applied",
    "UP3": "negative diffs are legal, a negative multiplicity in a snapshot is Corrupt with the row",
    "UP4": "no updates advance upper too",
    "UP5": "a stale frontier is the value UpperMismatch with the held one",
    "UP6": "a retry of an unknown outcome applies once",
    "AC1": "acquired capabilities are at the current since and upper",
    "AC2": "of an ended collection they are empty, and that is no error",
    "AC3": "who did not create a collection can read it",
    "MV1": "a view is installed with all its outputs or not at all",
    "MV2": "a view begins where all its inputs can be read",
    "MV3": "each output of a view has its own id and frontiers",
    "MV4": "of replicas one writes each interval and the others adopt it",
    "MV5": "the history of inputs is held for as long as an output may need it",
    "MV6": "outputs of views are read like any collection",
    "MV7": "an output that is not durable is rebuilt after a restart",
    "D1": "every storage command is durable on return",
    "D2": "every compute command is durable on return",
    "D3": "what diagnosis says agrees with what the commands show",
    "P1": "reads between since and upper are the same for all, for ever",
    "P2": "upper and since never go back",
    "P3": "of those who append at one upper one wins",
    "P4": "acknowledged appends survive crashes",
    "P5": "a repeated append applies once",
    "P6": "compaction changes no accumulation at or after since",
    "P7": "a snapshot and what follows it have no gap and no repeat, across compaction",
    "P8": "no object that a held version names is deleted",
    "P9": "who is paused or dead blocks nobody once the lease is over",
    "P10": "an end is final",
    "G1": "each bound update comes once, at the least time whose binding covers it",
    "G2": "nothing comes behind a frontier that was announced",
    "G3": "the output follows the slower of bindings and source",
    "G4": "the output frontier never goes back",
    "G5": "movement of one partition releases nothing of another",
    "G6": "compacting the bindings and then reclocking is reclocking and then compacting",
    "G7": "contents do not depend on whether data or bindings come first",
    "G8": "bindings that no answer needs any more take no memory",
    "G9": "duplicates keep their multiplicity",
    "G10": "frontiers in between depend on scheduling, messages and the last frontier do not",
    "G11": "an instant is at or past what covers offsets exactly if its answer holds them",
    "G12": "bindings are known at every instant at which the rows of their source can be read",
    "G13": "a record is at the same instant in all sources that share their bindings, or where the later one begins",
    "G14": "nobody who mints takes back what another one has bound",
    "A1": "compaction changes no accumulation beyond the logical frontier",
    "A2": "a cut at or beyond the physical frontier holds exactly what is before it",
    "A3": "batches stay few, and what one insert reads of merges is bounded",
    "A4": "a clone of a handle holds what the handle holds",
    "A5": "what a handle holds is readable for it, whatever others release",
    "A6": "an import gives each update once",
    "R1": "an event is its predicate, arguments and time: the same one twice is one",
    "R2": "a variable that comes twice takes equal values, any other expression in an atom is a condition",
    "R3": "of alternative derivations the parafacts merge, and the latest expiry counts",
    "R4": "what a join derives has the latest time and the earliest expiry of what it matched",
    "R5": "atoms join what is present together, on intervals without their end",
    "R6": "skew never widens presence",
    "R7": "one event may satisfy several atoms",
    "R8": "upper of a stream is its largest time less the skew: what is at it comes in",
    "R9": "answers do not depend on the order of arrival within the skew",
    "R10": "a late event is rejected and told, or present from upper on with its own time",
    "R11": "an atom that names a parafact matches what carries it, with an equal value",
    "R12": "a parafact that the head writes takes the place of what was passed",
    "R13": "an action fires once for each event, whatever becomes of it",
    "R14": "what ~ names is not passed",
    "R15": "a stated fact is timeless and always present",
    "R16": "all expressions of a guard have to hold",
    "R17": "a name that where defines is a condition in an atom, not a match",
    "R18": "whole numbers are divided toward zero, and the remainder matches",
    "R19": "an expression that fails drops its solution, is told, and the rest goes on",
    "R21": "a head that names a lattice aggregates over the solutions of its rule",
    "R22": "aggregates count solutions, and averages meet as over all contributions",
    "R24": "a change of an aggregate retracts the old value",
    "R25": "a time that the head writes tells groups apart",
    "R26": "a clock ticks at its offset and every period after it, as upper reaches it",
    "R27": "a recursion comes to one fixed point, and may not match parafacts of itself",
    "R28": "what not matches is bound elsewhere",
    "R29": "a variable is not both in the fact of a head and in a parafact",
    "R33": "whole numbers in a column of floats are floats",
    "R35": "a recursion that computes values needs a guard that bounds them",
}


@cache
def marked_tests(root: Path) -> dict[str, list[tuple[str, str]]]:
    """Rule id → (file, test) of every test with the marker `rule(id)`, in the order of the
    files.

    Cost of the first call: seconds, since all tests of the checkout are parsed.
    """
    found: dict[str, list[tuple[str, str]]] = {}
    for file in sorted([*root.glob("libs/*/tests/*.py"), *root.glob("services/*/tests/*.py")]):
        for rule, test in _marked(ast.parse(file.read_text())):
            found.setdefault(rule, []).append((file.relative_to(root).as_posix(), test))
    return found


def _marked(tree: ast.Module) -> Iterator[tuple[str, str]]:
    tables = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for decorator in node.decorator_list:
            for rule in dict.fromkeys(_rules_in(decorator, tables)):
                yield rule, node.name


def _rules_in(expression: ast.expr, tables: Mapping[str, ast.expr]) -> Iterator[str]:
    """The rules of a marker, or of the markers in a table of parameters."""
    for part in ast.walk(expression):
        if isinstance(part, ast.Call) and _name(part.func) == "rule":
            yield from (str(a.value) for a in part.args if isinstance(a, ast.Constant))
        elif isinstance(part, ast.Name) and part.id in tables:
            yield from _rules_in(tables[part.id], {})


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def unproved(tests: Mapping[str, object]) -> list[str]:
    """Rules that must have a test and have none."""
    return [rule for rule in PROMISES if rule not in tests]


def unknown(tests: Iterable[str]) -> list[str]:
    """Ids of these families in markers that no rule has."""
    return sorted(rule for rule in tests if family_of(rule) in FAMILIES and rule not in PROMISES)


def page(tests: Mapping[str, list[tuple[str, str]]], mutants: Iterable[Mutant]) -> str:
    """docs/reference/formalism.md as it ought to be."""
    lines = [
        "# The formalism, rule by rule",
        "",
        "Each rule, what it promises, the tests that name it (`python -m pytest -k NAME`), and its",
        "mutants: changes of the code that break it, each with the test that then fails",
        "(`make mutants`). Made by `make formalism` from the markers `rule(...)` and the recorded",
        "mutants; a test checks that it is complete and current.",
    ]
    broken: dict[str, list[str]] = {}
    for mutant in mutants:
        killer = mutant.test_function.removeprefix("test_")
        said = f"{mutant.breaks} (`{Path(mutant.file).name}`: `{killer}`)"
        broken.setdefault(mutant.rule, []).append(said)
    for family, title in FAMILIES.items():
        lines += [
            "",
            f"## {title}",
            "",
            "| rule | promise | tests | mutants |",
            "|---|---|---|---|",
        ]
        for rule, promise in PROMISES.items():
            if family_of(rule) == family:
                names = sorted({test.removeprefix("test_") for _, test in tests.get(rule, [])})
                named = ", ".join(f"`{n}`" for n in names) or "—"
                lines.append(
                    f"| {rule} | {promise} | {named} | {'; '.join(broken.get(rule, '—'))} |"
                )
    files = sorted({file for rule in PROMISES for file, _ in tests.get(rule, [])})
    lines += ["", "## Files", "", *(f"* [{file}](../../{file})" for file in files)]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the page of the checkout that this file belongs to."""
    root = next(p for p in Path(__file__).resolve().parents if (p / "infra").is_dir())
    tests = marked_tests(root)
    (root / PAGE).write_text(page(tests, recorded()))
    for rule in [*unproved(tests), *unknown(tests)]:
        sys.stderr.write(f"no test proves, or no rule is, {rule}\n")


if __name__ == "__main__":
    main()
