"""docs/reference/grammar.md: grammar, types, functions, lattices, failures, codes, limits."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib.resources import files

from tidemill.datalog import check_safety, functions, inputs, lattices, parser, values
from tidemill.testkit.reference import codes
from tidemill.testkit.reference.pages import (
    code,
    first_line,
    head,
    paragraphs,
    said_of_constants,
    table,
)
from tidemill.time import texts

_KINDS = {"E": "Syntax", "S": "Static checks", "W": "Warnings"}
_LIMITS = (
    (parser, "DEPTH_MAX"),
    (check_safety, "ATOMS_MAX"),
    (values, "TEXT_MAX"),
    (values, "FLOAT_EXACT_MAX"),
    (texts, "MARKS_MAX"),
)


def grammar() -> str:
    """The parser's grammar without its comments and the names of its tree."""
    text = files("tidemill.datalog").joinpath("grammar.lark").read_text()
    text = re.sub(r"^//.*\n+", "", text, flags=re.M)
    text = re.sub(r" +-> \w+", "", text)
    return re.sub(r"^\?", "", text, flags=re.M).strip()


def signature(name: str, evaluate: object) -> str:
    """The call of a function.

    `…` stands for any number of further arguments; one in brackets may be left out.
    """
    assert callable(evaluate)
    parameters = inspect.signature(evaluate).parameters.values()
    shown = [
        f"{p.name.rstrip('s')}, …"
        if p.kind is p.VAR_POSITIONAL
        else p.name
        if p.default is p.empty
        else f"[{p.name}]"
        for p in parameters
    ]
    return f"{name}({', '.join(shown)})"


def _limits() -> Iterator[tuple[str, str, str]]:
    for module, name in _LIMITS:
        said = said_of_constants(module)[name]
        yield code(name), f"{getattr(module, name):,}", said


def page() -> str:
    """The whole page."""
    said = said_of_constants(values)
    reasons = [(name, getattr(values, name)) for name in said]
    lines = head(
        "Grammar, functions and codes",
        "The [meaning of programs](language.md) is a page of rules, and the "
        "[tutorial](../tutorial/tidelog.md) shows programs that run. This page lists the words.",
    )
    lines += [
        "## Grammar",
        "",
        "The notation is that of the parser, Lark.",
        "",
        "```ebnf",
        grammar(),
        "```",
    ]
    lines += ["", "## Types", ""]
    lines += table(("type", "values"), ((code(n), says) for n, says in inputs.TYPES.items()))
    lines += ["", "## Values and operators", *paragraphs(values.__doc__ or "")]
    lines += ["", "## Functions", *paragraphs((functions.__doc__ or "").partition("\n\n")[2]), ""]
    lines += table(
        ("function", "value"),
        (
            (code(signature(name, each.evaluate)), first_line(each.evaluate))
            for name, each in functions.FUNCTIONS.items()
        ),
    )
    lines += ["", "## Lattices", *paragraphs((lattices.__doc__ or "").partition("\n\n")[2]), ""]
    lines += table(
        ("lattice", "values written", "what is seen"),
        [
            *((code(f"@{name}"), "1", says) for name, says in lattices.INSTANTS.items()),
            *(
                (code(f"@{name}"), str(each.arity), each.meaning)
                for name, each in sorted(lattices.LATTICES.items())
            ),
        ],
    )
    lines += ["", "## Failures", ""]
    lines += [
        "A solution whose expression fails is dropped, and `VIEW/errors` records the reason.",
        "",
    ]
    lines += table(
        ("reason", "when"),
        ((code(text), said[name]) for name, text in reasons if isinstance(text, str)),
    )
    for letter, title in _KINDS.items():
        lines += ["", f"## {title}", ""]
        rows = ((c, says) for c, says in codes.CODES.items() if c[0] == letter)
        lines += table(("code", "meaning"), rows)
    lines += ["", "## Limits", ""]
    lines += table(("constant", "value", "meaning"), _limits())
    return "\n".join(lines) + "\n"
