"""The forms of output that options choose from."""

from __future__ import annotations

from enum import StrEnum


class Rows(StrEnum):
    """Output formats of rows."""

    table = "table"
    json = "json"
    csv = "csv"
    arrow = "arrow"


class Output(StrEnum):
    """Output formats of lists of resources."""

    wide = "wide"
    yaml = "yaml"
    json = "json"
