"""Compare answers with what a case expects, field by field, and run the steps of a script."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tidemill.errors import TidemillError
from tidemill.testkit.conformance.values import (
    Domain,
    Json,
    canonical,
    read_frontier,
    read_time,
    read_times,
    read_updates,
)
from tidemill.time import U64_TIME

FRONTIERS = frozenset(
    [
        "frontier",
        "since",
        "upper",
        "lower",
        "hold",
        "read",
        "write",
        "source",
        "as_of",
        "logical",
        "physical",
        "appended",
        "mismatch",
        "join_f",
        "meet_f",
        "covers_upper",
    ]
)
"""Fields that are frontiers: compared as sets of times."""


def differences(
    expect: Mapping[str, Json],
    answers: Mapping[str, Json],
    domain: Domain = U64_TIME,
    domains: Mapping[str, Domain] | None = None,
) -> list[str]:
    """Expected fields that the `answers` do not give, both written as a case file writes them.

    Only fields present in `expect` count; one without an answer is a difference. Times are of
    `domain`, except in the fields named by `domains`.
    """
    found: list[str] = []
    for field, wanted in expect.items():
        if field not in answers:
            found.append(f"{field}: expected {_short(wanted)}, not answered")
            continue
        times = (domains or {}).get(field, domain)
        if _normal(field, wanted, times) != _normal(field, answers[field], times):
            found.append(f"{field}: expected {_short(wanted)}, got {_short(answers[field])}")
    return found


def run_steps(
    steps: Iterable[Mapping[str, Json]],
    perform: Callable[[Mapping[str, Json]], Mapping[str, Json]],
    observe: Callable[[Mapping[str, Json]], Mapping[str, Json]] = lambda step: {},
    domain: Domain = U64_TIME,
    domains: Mapping[str, Domain] | None = None,
) -> list[str]:
    """Perform the steps in order on one state; the differences of the first step that has any.

    `perform` answers a step or raises a TidemillError; `observe` adds what can be seen of the
    state afterwards, also after an error. A step that ends in an error its `expect` does not name
    is a difference.
    """
    for number, step in enumerate(steps, 1):
        expect = step.get("expect", {})
        error: TidemillError | None = None
        answers: dict[str, Json] = {}
        try:
            answers.update(perform(step))
        except TidemillError as raised:
            error = raised
        if expect:
            answers = {**observe(step), **answers}
        found = error_differences(expect, error)
        rest = {field: value for field, value in expect.items() if field not in ("error", "reason")}
        found += differences(rest, answers, domain, domains)
        if found:
            name = step.get("op")
            return [f"step {number}{f' {name}' if name else ''}: {line}" for line in found]
    return []


def run_single(
    case: Mapping[str, Json],
    answer: Callable[[], Mapping[str, Json]],
    domain: Domain = U64_TIME,
    domains: Mapping[str, Domain] | None = None,
) -> list[str]:
    """The differences of a case that is one step, with its `expect` in the case itself."""
    step = {"expect": case["expect"]}
    found = run_steps([step], lambda step: answer(), domain=domain, domains=domains)
    return [line.removeprefix("step 1: ") for line in found]


def error_differences(expect: Mapping[str, Json], error: TidemillError | None) -> list[str]:
    """Whether a step that raised `error`, or nothing, did as its `expect` says."""
    wanted = expect.get("error")
    if error is None:
        return [] if wanted is None else [f"error: expected {wanted}, got none"]
    name = type(error).__name__
    if wanted is None:
        return [f"error: expected none, got {name}: {error}"]
    if wanted not in {ancestor.__name__ for ancestor in type(error).__mro__}:
        return [f"error: expected {wanted}, got {name}: {error}"]
    reason = getattr(error, "reason", None)
    if "reason" in expect and expect["reason"] != reason:
        return [f"reason: expected {expect['reason']}, got {reason}"]
    return []


def _normal(field: str, value: Json, domain: Domain) -> object:
    """A form of `value` that is equal for equal answers of this field."""
    if field in FRONTIERS:
        return None if value is None else frozenset(read_frontier(domain, value))
    if field in ("outputs", "resume"):
        return {
            name: None if times is None else frozenset(read_frontier(domain, times))
            for name, times in value.items()
        }
    if field in ("updates", "stored", "held"):
        return _summed((update[:2], update[2]) for update in read_updates(domain, value))
    if field in ("consolidated", "messages"):
        return Counter(read_updates(domain, value))
    if field == "contents":
        pairs = [(canonical(data), multiplicity) for data, multiplicity in value]
        return Counter(pairs)
    if field == "changes":
        return _summed((read_time(domain, time), n) for time, n in value)
    if field == "bindings":
        # Of `domain`, the source's, bound to ours.
        return _summed(((read_time(domain, f), read_time(U64_TIME, t)), n) for f, t, n in value)
    if field in ("elements", "active"):
        return frozenset(read_times(domain, value))
    if field == "times":
        return [None if time is None else read_time(domain, time) for time in value]
    return canonical(value)


def _summed(counted: Iterable[tuple[Any, int]]) -> dict[Any, int]:
    sums: Counter[Any] = Counter()
    for key, n in counted:
        sums[key] += n
    return {key: n for key, n in sums.items() if n}


def _short(value: Json) -> str:
    text = canonical(value)
    return text if len(text) <= 400 else text[:400] + "…"
