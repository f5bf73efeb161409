"""Cases of kind `reject`: programs that must be refused at load, with the code and the place."""

from __future__ import annotations

from typing import Any

from tidemill.datalog.check import check
from tidemill.datalog.diagnostics import ProgramErrors
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.parser import parse


def schema_inputs(schema: dict[str, Any]) -> InputSchemas:
    """The closed catalogue that the `schema` of a case describes."""
    return InputSchemas(
        {
            name: InputSchema(
                name,
                described["kind"],
                tuple(described.get("columns", {}).items()),
                described.get("timeline", "default"),
            )
            for name, described in schema.items()
        }
    )


def run_reject(case: dict[str, Any]) -> list[str]:
    """Differences between the first mistake found and the expected one."""
    if "schema" in case:
        inputs = schema_inputs(case["schema"])
    else:
        events = case.get("inputs") == "events"
        inputs = InputSchemas(closed=False, default_kind="events" if events else "relation")
    expected = case["error"]
    try:
        check(parse(case["program"]), inputs)
    except ProgramErrors as refused:
        first = refused.diagnostics[0]
        found: dict[str, Any] = {
            "code": first.code,
            "line": first.line,
            "col": first.column,
            "cycle": sorted(set(first.cycle)),
        }
        differences = []
        for name, wanted in expected.items():
            value = sorted(set(wanted)) if name == "cycle" else wanted
            if found.get(name) != value:
                differences.append(f"error.{name}: - {value} + {found.get(name)}")
        return differences
    return [f"error.code: - {expected['code']} + accepted"]
