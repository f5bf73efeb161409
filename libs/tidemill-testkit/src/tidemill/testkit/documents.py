"""What tests declare to a server: documents of resources, and secrets in files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def document(kind: str, name: str, spec: str) -> str:
    """One of the documents of a file."""
    head = "---\napiVersion: tidemill.dev/v1alpha1\n"
    return f"{head}kind: {kind}\nmetadata: {{name: {name}}}\nspec: {spec}\n"


FLIGHTS = document("Table", "flights", "{columns: [{name: plane, type: text}]}") + document(
    "View", "planes", '{program: "seen(p) := flights(p);"}'
)
"""A table and a view over it."""


def told_to(sink: str) -> str:
    """What an action is that tells a sink each row of FLIGHTS."""
    return f'{{view: planes, goal: "seen(p)", fireFrom: beginning, sink: {sink}}}'


def planted(folder: Path, names: Iterable[str], text: str) -> dict[str, object]:
    """The settings of secrets, each in a file of the folder: `text`, a hyphen and its name."""
    for name in names:
        (folder / name).write_text(f"{text}-{name}\n")
    return {name: {"file": str(folder / name), "hosts": ["127.0.0.1"]} for name in names}
