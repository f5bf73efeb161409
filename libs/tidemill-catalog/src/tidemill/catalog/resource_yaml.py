"""Documents of resources as people write them."""

from __future__ import annotations

from io import StringIO
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import LiteralScalarString


def _as_written(value: Any) -> Any:
    """The value with texts of several lines, such as programs, as blocks."""
    if isinstance(value, dict):
        return {name: _as_written(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_as_written(each) for each in value]
    return LiteralScalarString(value) if isinstance(value, str) and "\n" in value else value


def yaml_of(document: dict[str, Any]) -> str:
    """The document as YAML."""
    writer = YAML()
    writer.default_flow_style = False
    writer.width = 1_000
    stream = StringIO()
    writer.dump(_as_written(document), stream)
    return stream.getvalue()
