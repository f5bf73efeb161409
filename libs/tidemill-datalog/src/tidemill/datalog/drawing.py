"""The strata of a program as a drawing: which predicate is derived from which, and how."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from xml.sax.saxutils import escape

from tidemill.datalog.ast import NextTick
from tidemill.datalog.checked import CheckedProgram

_HEIGHT, _GAP, _MARGIN, _CHARACTER, _LAYER = 30, 24, 20, 8, 110


@dataclass(frozen=True, slots=True)
class Arrow:
    """`target` is derived from `source`; `how` is "", `not`, `aggregate`, `@next` or `@async`."""

    source: str
    target: str
    how: str


def arrows_of(checked: CheckedProgram) -> list[Arrow]:
    """Every dependency of a program once, in the order of the text."""
    found: dict[Arrow, None] = {}
    for rule in checked.rules:
        for atom in rule.atoms:
            if rule.temporal is not None:
                how = "@next" if isinstance(rule.temporal, NextTick) else "@async"
            elif atom.negated:
                how = "not"
            else:
                how = "aggregate" if rule.aggregates else ""
            found[Arrow(atom.predicate, rule.predicate, how)] = None
    return list(found)


def layers_of(checked: CheckedProgram) -> list[tuple[str, list[str]]]:
    """The inputs, then each stratum with its predicates: (title, names)."""
    derived = set(checked.derived)
    read = {atom.predicate for rule in checked.rules for atom in rule.atoms}
    layers = [("inputs", sorted(read - derived))]
    for stratum in sorted({checked.strata.get(name, 0) for name in derived}):
        names = sorted(name for name in derived if checked.strata.get(name, 0) == stratum)
        layers.append((f"stratum {stratum}", names))
    return [layer for layer in layers if layer[1]]


def svg_of(checked: CheckedProgram) -> str:
    """The drawing as SVG, laid out here: strata from the bottom to the top, arrows upwards."""
    layers = layers_of(checked)
    places: dict[str, tuple[float, float, float]] = {}
    width = 200.0
    for number, (_, names) in enumerate(layers):
        y = _MARGIN + (len(layers) - 1 - number) * _LAYER + 34.0
        x = float(_MARGIN + _GAP)
        for name in names:
            wide = _CHARACTER * len(name) + 20.0
            places[name] = (x, y, wide)
            x += wide + _GAP
        width = max(width, x + _MARGIN)
    height = _MARGIN * 2 + len(layers) * _LAYER
    body = [*_layer_boxes(layers, width), *_arrow_lines(arrows_of(checked), places)]
    for name, (x, y, wide) in places.items():
        body.append(
            f'<rect x="{x:g}" y="{y:g}" width="{wide:g}" height="{_HEIGHT}" rx="6" fill="#fff" '
            f'stroke="#345"/><text x="{x + wide / 2:g}" y="{y + 20:g}" text-anchor="middle">'
            f"{escape(name)}</text>"
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        'font-family="monospace" font-size="13"><defs><marker id="tip" viewBox="0 0 8 8" refX="8" '
        'refY="4" markerWidth="8" markerHeight="8" orient="auto"><path d="M0,0L8,4L0,8z"/></marker>'
        "</defs>" + "".join(body) + "</svg>\n"
    )


def _layer_boxes(layers: list[tuple[str, list[str]]], width: float) -> Iterable[str]:
    for number, (title, _) in enumerate(layers):
        y = _MARGIN + (len(layers) - 1 - number) * _LAYER
        yield (
            f'<rect x="{_MARGIN}" y="{y}" width="{width - 2 * _MARGIN:g}" height="{_LAYER - 20}" '
            f'fill="#f4f6f8" stroke="#cbd"/><text x="{_MARGIN + 8}" y="{y + 18}" fill="#567">'
            f"{escape(title)}</text>"
        )


def _arrow_lines(
    arrows: list[Arrow], places: dict[str, tuple[float, float, float]]
) -> Iterable[str]:
    dashes = {"not": "6 4", "@next": "2 4", "@async": "2 4"}
    for arrow in arrows:
        x1, y1, wide1 = places[arrow.source]
        x2, y2, wide2 = places[arrow.target]
        dash = f' stroke-dasharray="{dashes[arrow.how]}"' if arrow.how in dashes else ""
        thick = 2 if arrow.how == "aggregate" else 1
        start, end = (x1 + wide1 / 2, y1), (x2 + wide2 / 2, y2 + _HEIGHT)
        if y1 <= y2:
            bend = max(start[0], end[0]) + 40
            path = (
                f"M{x1 + wide1:g},{y1 + 15:g}C{bend:g},{y1 - 20:g} {bend:g},{y2 + 50:g} "
                f"{x2 + wide2:g},{y2 + 15:g}"
            )
        else:
            path = f"M{start[0]:g},{start[1]:g}L{end[0]:g},{end[1]:g}"
        yield (
            f'<path d="{path}" fill="none" stroke="#345" stroke-width="{thick}"{dash} '
            'marker-end="url(#tip)"/>'
        )
