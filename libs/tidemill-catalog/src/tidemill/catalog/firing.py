"""Refusals of actions: what they fire from, and what they say, against what they watch."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator

from tidemill.errors import UsageError
from tidemill.runtime.resources import ActionSpec, SinkSpec
from tidemill.runtime.templates import ARGUMENT, PROOF, fill, placeholders_in, within_json
from tidemill.time import Frontier, sole_time


def proves(sink: SinkSpec) -> bool:
    """Whether a text of a sink has the proof in it."""
    return any(PROOF in placeholders_in(text) for _, text in _templates(sink))


def refuse_template(sink: SinkSpec, arguments: Collection[str], *, eager: bool) -> None:
    """Refuse texts of a sink that do not fit the goal.

    Raises: UsageError for a placeholder without a value, and for a body of JSON that is none.
    """
    if eager and proves(sink):
        raise UsageError(
            f"${{{PROOF}}} is of definite events, and an eager action fires before: leave it out, or "
            "leave eager out",
            reason="Template",
        )
    for field, text in _templates(sink):
        for placeholder in placeholders_in(text):
            name = placeholder.removeprefix(ARGUMENT)
            if placeholder != name and name not in arguments:
                says = f"{field}: there is no argument {name} to tell; there is {', '.join(arguments) or 'none'}"
                raise UsageError(says, reason="Template")
    http = sink.http
    if http is not None and http.body is not None and http.is_json:
        try:
            json.loads(fill(http.body, dict.fromkeys(placeholders_in(http.body), "0"), within_json))
        except ValueError as error:
            says = f"body: no JSON, whatever fills it: {error}; write placeholders between quotes"
            raise UsageError(says, reason="Template") from None


def _templates(sink: SinkSpec) -> Iterator[tuple[str, str]]:
    if sink.http is not None and sink.http.body is not None:
        yield "body", sink.http.body
    for summarised in (sink.alertmanager, sink.pager_duty):
        if summarised is not None:
            yield "summary", summarised.summary
            yield "description", summarised.description
    for told in (sink.slack, sink.email):
        if told is not None:
            yield "text", told.text
    if sink.email is not None:
        yield "subject", sink.email.subject


def refuse_forgotten(
    spec: ActionSpec, watched: str, since: Frontier, instead: str = "write"
) -> None:
    """Raises: UsageError if an action is to fire from before what is known of the collection that
    it watches.
    """
    asked = spec.fire_from
    if isinstance(asked, int) and not since.empty and not since.less_equal(asked):
        first = sole_time(since)
        raise UsageError(
            f"{asked} is forgotten: {watched} is known from {first} on; {instead} fireFrom: beginning for all "
            f"that is known, or {first} or later",
            reason="FireFrom", since=first,
        )  # fmt: skip
