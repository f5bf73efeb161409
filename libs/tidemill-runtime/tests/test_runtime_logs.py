"""Events are one line each, whoever says them."""

from __future__ import annotations

import io
import json
import logging
import time
from collections.abc import Iterator

import pytest
import structlog

from tidemill.runtime import logs
from tidemill.time.antichain import frontier


@pytest.fixture(autouse=True)
def untouched_logging() -> Iterator[None]:
    root = logging.getLogger()
    before, level = root.handlers, root.level
    yield
    root.handlers = before
    root.setLevel(level)
    structlog.reset_defaults()


def test_json_events_hold_their_values_and_those_of_libraries_too() -> None:
    written = io.StringIO()
    logs.configure("json", stream=written)
    log = logs.get_logger("ingest").bind(source="flights")
    log.info("partition opened", partition=3, upper=frontier(7))
    log.debug("not written")
    logging.getLogger("grpc").warning("channel %s", "lost")
    logging.getLogger("aiokafka").info("not written")
    logging.getLogger("aiokafka.consumer.group_coordinator").error("tried again: not written")
    try:
        raise ValueError("cause")
    except ValueError:
        log.exception("append failed")
    events = [json.loads(line) for line in written.getvalue().splitlines()]
    assert all(event.pop("timestamp").endswith("Z") for event in events)
    assert events[:2] == [
        {
            "event": "partition opened", "level": "info", "logger": "ingest",
            "source": "flights", "partition": 3, "upper": "[7]",
        },
        {"event": "channel lost", "level": "warning", "logger": "grpc"},
    ]  # fmt: skip
    assert events[2]["exception"].endswith("ValueError")
    assert len(events) == 3


def test_console_events_are_for_people() -> None:
    written = io.StringIO()
    logs.configure(logs.Style.CONSOLE, "debug", written)
    logs.get_logger("remap").debug("minted", time=5)
    assert "minted" in written.getvalue()
    assert "time=5" in written.getvalue()
    assert "\x1b" not in written.getvalue()


def test_an_unknown_style_is_refused() -> None:
    with pytest.raises(ValueError, match="xml"):
        logs.configure("xml")


@pytest.mark.parametrize("style", ["console", "json"])
def test_s6_a_traceback_is_plain_and_says_no_locals(style: str) -> None:
    written = io.StringIO()
    logs.configure(style, stream=written)

    def fail(password: str) -> None:
        raise ValueError("cause")

    begun = time.process_time()
    for _ in range(50):
        try:
            fail("S3CR3T-" + "of-the-pod")
        except ValueError:
            logs.get_logger("http").exception("failed")
    assert time.process_time() - begun < 50 * 0.02
    assert written.getvalue().count("builtins.ValueError") == 50
    assert "S3CR3T-of-the-pod" not in written.getvalue()


def test_a_value_moves_no_terminal() -> None:
    written = io.StringIO()
    logs.configure("console", stream=written)
    logs.get_logger("audit").info("failed", target="\x1b[2J\x07\u202e", who="eve")
    assert r"target=\x1b[2J\x07\u202e" in written.getvalue()
    assert "\x1b[2J" not in written.getvalue()


def test_a_message_of_a_library_moves_no_terminal_and_letters_stay() -> None:
    written = io.StringIO()
    logs.configure("console", stream=written)
    logging.getLogger("foreign").warning("name %s", "\x1b[31m\nüber")
    log = logs.get_logger("audit")
    log.info("failed\r", target="\tüber", stack="at\nüber\x1b[2J")
    assert r"name \x1b[31m\nüber" in written.getvalue()
    assert r"failed\r" in written.getvalue()
    assert r"target=\tüber" in written.getvalue()
    assert "at\nüber\\x1b[2J" in written.getvalue()
    assert "\x1b" not in written.getvalue()


class ExecuteBatchError(Exception):
    """An error by the name that gRPC gives to an answer of which the client has gone away."""


@pytest.mark.parametrize(("kind", "lines"), [(ExecuteBatchError, 0), (ValueError, 1)])
def test_s6_a_client_that_goes_away_is_no_error(kind: type[Exception], lines: int) -> None:
    """A cancelled stream wrote a traceback of ten lines; a user may cancel 2,000 a second."""
    written = io.StringIO()
    logs.configure("json", stream=written)
    try:
        raise kind
    except kind:
        logging.getLogger("grpc._cython.cygrpc").exception("raised in core by servicer method")
    assert written.getvalue().count("\n") == lines
