"""Explanations as trees. Nothing here recurses: a proof may be deeper than any stack."""

from __future__ import annotations

import json
from collections.abc import Mapping

from rich.text import Text
from rich.tree import Tree

from tidemill.client.rendering import cell
from tidemill.rpc.messages import Json

CHILDREN = "children"


def drawn(text: str, tree: Json, depth: int) -> Tree | Text:
    """The first `depth` levels of the tree, drawn; its text where it has no tree."""
    if not isinstance(tree, dict):
        return Text(text)
    root = Tree(_label(tree), guide_style="dim")
    pending: list[tuple[Tree, Json, int]] = [(root, tree, 1)]
    while pending:
        branch, node, level = pending.pop()
        children = _children(node)
        if children and level >= depth:
            below = _size(node) - 1
            branch.add(Text(f"… {below} more below: --depth N draws them, --json has all", "dim"))
            continue
        for child in children:
            if isinstance(child, dict):
                pending.append((branch.add(_label(child)), child, level + 1))
            else:
                branch.add(Text(cell(child)))
    return root


def nested_json(tree: Json) -> str:
    """The tree as JSON text, of any depth of children."""
    pieces: list[str] = []
    # A stack of parts to write, the next one last: text as it is, or a node in a tuple of one.
    pending: list[str | tuple[Json]] = [(tree,)]
    while pending:
        match pending.pop():
            case str() as text:
                pieces.append(text)
            case (dict() as node,) if _children(node):
                own = {key: value for key, value in node.items() if key != CHILDREN}
                head = json.dumps(own, ensure_ascii=False)
                comma = ", " if own else ""
                pieces.append(f'{head[:-1]}{comma}"{CHILDREN}": [')
                pending.append("]}")
                for number, child in reversed(list(enumerate(_children(node)))):
                    pending += [(child,), ", "] if number else [(child,)]
            case (node,):
                pieces.append(json.dumps(node, ensure_ascii=False))
    return "".join(pieces)


def _children(node: Json) -> list[Json]:
    children = node.get(CHILDREN) if isinstance(node, dict) else None
    return children if isinstance(children, list) else []


def _size(tree: Json) -> int:
    """Number of nodes in the tree."""
    size, pending = 0, [tree]
    while pending:
        size += 1
        pending += _children(pending.pop())
    return size


def _label(node: Mapping[str, Json]) -> Text:
    """The fact, the rule by its text where that is known, and what else the node says."""
    label = Text(cell(node.get("fact", "")), style="bold")
    rule = node.get("text") or node.get("rule")
    if isinstance(rule, str):
        label.append(f"   by {cell(rule)}", style="not bold dim")
    if node.get("kind") not in (None, "", "derived", "blocked"):  # the fact says of what
        kind = cell(node["kind"])
        label.append(f"   {_IN_WORDS.get(kind, kind)}", style="not bold cyan")
    for key, value in node.items():
        if key not in _SHOWN and value not in (None, "", [], {}):
            label.append(f"   {key}: {cell(value)}", style="not bold cyan")
    return label


_IN_WORDS = {
    "values_differ": "other values", "no_match": "nothing there", "not_together": "never together",
    "guard_false": "guard is false", "not_definite": "not definite yet", "no_tick": "no tick",
    "handed": "handed on", "view": "of another view", "present": "it is there",
}  # fmt: skip
"""Kinds of nodes as people say them, where programs have another word."""
_SHOWN = frozenset({"fact", "rule", "text", "kind", CHILDREN})
