"""Declarations of tests to a server: documents of resources, and secrets in files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

HEAD = "apiVersion: tidemill.dev/v1alpha1\n"
"""First line of a document."""


def document(kind: str, name: str, spec: str) -> str:
    """One of the documents of a file."""
    return f"---\n{HEAD}kind: {kind}\nmetadata: {{name: {name}}}\nspec: {spec}\n"


def program_view(name: str, program: str, more: str = "") -> str:
    """A file with one view, whose program is a block from line 6 and column 5 on; `more` goes
    before it.
    """
    lines = "".join(f"    {line}\n" for line in program.split("\n"))
    return f"{HEAD}kind: View\nmetadata: {{name: {name}}}\nspec:\n{more}  program: |\n{lines}"


FLIGHTS = document("Table", "flights", "{columns: [{name: plane, type: text}]}") + document(
    "View", "planes", '{program: "seen(p) := flights(p);"}'
)
"""A table and a view over it."""


def told_to(sink: str) -> str:
    """An action that tells a sink each row of FLIGHTS."""
    return f'{{view: planes, goal: "seen(p)", fireFrom: beginning, sink: {sink}}}'


def planted(folder: Path, names: Iterable[str], text: str) -> dict[str, object]:
    """The settings of secrets, each in a file of the folder: `text`, a hyphen and its name."""
    for name in names:
        (folder / name).write_text(f"{text}-{name}\n")
    return {name: {"file": str(folder / name), "hosts": ["127.0.0.1"]} for name in names}
