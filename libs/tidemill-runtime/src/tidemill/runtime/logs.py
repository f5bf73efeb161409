"""Structured logs: one event per line with its values, for people or for machines.

Libraries that use the logging module come out in the same form. ERROR asks somebody to act now,
WARNING is read first in an incident, INFO is a change of state.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from enum import Enum
from typing import Any, TextIO

import msgspec

from tidemill.runtime.breaking import trace

_RICH = sys.modules.get("rich")
sys.modules["rich"] = None  # type: ignore[assignment]
# structlog loads rich if it can, for tracebacks with locals, which are not written here: 4 MB of
# each process. An import that finds None says that there is none.
import structlog  # noqa: E402
from structlog.typing import ExcInfo  # noqa: E402

if _RICH is None:
    del sys.modules["rich"]
else:
    sys.modules["rich"] = _RICH

QUIET_LIBRARIES = ("aiokafka", "asyncio", "py4j", "aiohttp")
"""These say at INFO what nobody acts on."""
SILENT_LIBRARIES = ("aiokafka.consumer.group_coordinator",)
"""These log as ERROR each try that they repeat; a failure that stays is raised, and told by us."""

_GRPC = "grpc._cython.cygrpc"
_TRACES = ("exception", "stack")


class Style(Enum):
    """Output format of events."""

    CONSOLE = "console"
    JSON = "json"


def configure(style: Style | str, level: str = "info", stream: TextIO | None = None) -> None:
    """Write all events of this process at `level` and above to `stream` (stderr).

    May be called again; the last call counts.
    """
    target = stream or sys.stderr
    shared: list[Any] = [  # structlog types a processor by Any
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    destination = logging.StreamHandler(target)
    destination.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_rendering(Style(style), target),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers = [destination]
    root.setLevel(level.upper())
    for name in QUIET_LIBRARIES:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    for name in SILENT_LIBRARIES:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    logging.getLogger(_GRPC).addFilter(_is_no_departure)


def get_logger(component: str) -> structlog.stdlib.BoundLogger:
    """The logger of a component; `bind` gives one that adds values to every event."""
    logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(component)
    return logger


# NB: tracebacks have neither locals nor texts of foreign errors: either would say passwords, and
# rows.
def _rendering(style: Style, target: TextIO) -> list[Any]:  # structlog types a processor by Any
    if style is Style.CONSOLE:
        return [
            _escaped,
            structlog.dev.ConsoleRenderer(colors=target.isatty(), exception_formatter=_write_trace),
        ]
    return [structlog.processors.ExceptionRenderer(_trace_of), _to_json]


def _is_no_departure(record: logging.LogRecord) -> bool:
    """Whether a record is something else than that a client went away while it was answered."""
    kind = record.exc_info[0] if record.exc_info else None
    return kind is None or kind.__name__ != "ExecuteBatchError"


def _escaped(logger: Any, name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """The event with escapes for what would move the terminal of its reader: users name things."""
    for key, value in event.items():
        if isinstance(value, str) and not value.isprintable():
            kept = "\n" if key in _TRACES else ""
            event[key] = "".join(
                each if each.isprintable() or each in kept else _escape(each) for each in value
            )
    return event


def _escape(letter: str) -> str:
    return letter.encode("unicode_escape").decode()


def _trace_of(exc_info: ExcInfo) -> str:
    return trace(exc_info[1])


def _write_trace(out: TextIO, exc_info: ExcInfo) -> None:
    out.write(f"\n{_trace_of(exc_info)}")


def _to_json(logger: object, method: str, event: MutableMapping[str, Any]) -> str:
    """One line; what has no JSON form of its own is written as its text."""
    return msgspec.json.encode({name: _plain(value) for name, value in event.items()}).decode()


def _plain(value: object) -> object:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return str(value)
