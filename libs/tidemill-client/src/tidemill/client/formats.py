"""The forms of output that options choose from."""

from __future__ import annotations

from enum import StrEnum


class Rows(StrEnum):
    """How rows are written."""

    table = "table"
    json = "json"
    csv = "csv"
    arrow = "arrow"


class Output(StrEnum):
    """How resources are listed."""

    wide = "wide"
    yaml = "yaml"
    json = "json"
