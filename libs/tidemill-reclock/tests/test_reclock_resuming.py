"""Resume points and the feedback of committed frontiers against their formulas."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.errors import UsageError
from tidemill.reclock import (
    CommitFeedback,
    RemapTrace,
    resume_as_of,
    resume_points,
    resume_source,
)
from tidemill.testkit.generators import DOMAINS, remap_histories
from tidemill.testkit.twins.reclocking import bindings_of_history, remap_at
from tidemill.time import U64_TIME, Antichain, frontier

any_domain = pytest.mark.parametrize("domain", DOMAINS, ids=lambda domain: domain.name)
laws = settings(max_examples=60, deadline=None)

uppers = st.one_of(st.just(frontier()), st.integers(0, 25).map(frontier))


@any_domain
@given(
    data=st.data(),
    outputs=st.dictionaries(st.sampled_from("ABC"), uppers),
    since=st.integers(0, 25),
)
@laws
def test_outputs_resume_where_they_stopped_and_the_source_where_the_last_did(
    domain: Any, data: st.DataObject, outputs: dict[str, Any], since: int
) -> None:
    bindings = bindings_of_history(data.draw(remap_histories(domain)))
    as_of = resume_as_of(outputs.values(), frontier(since))
    open_times = [max(max(t - 1, 0), since) for upper in outputs.values() for t in upper]
    assert as_of == frontier(*open_times)
    remap: RemapTrace[Any] = RemapTrace(domain, *as_of)
    remap.insert(bindings, frontier())
    points = resume_points(remap, outputs)
    minimum = Antichain.minimum(domain)
    for name, upper in outputs.items():
        if upper.empty:
            assert points[name].empty
        elif upper.precedes(as_of):
            assert points[name] == minimum
        else:
            assert points[name] == remap_at(domain, bindings, *[t - 1 for t in upper])
    elements = [element for point in points.values() for element in point]
    assert resume_source(points.values(), domain) == Antichain.of(domain, elements)


@any_domain
@given(data=st.data(), as_of=st.sampled_from([0, 0, 4]))
@laws
def test_committed_uppers_flow_back_and_only_what_they_need_is_kept(
    domain: Any, data: st.DataObject, as_of: int
) -> None:
    bindings = bindings_of_history(data.draw(remap_histories(domain)))
    feedback: CommitFeedback[Any] = CommitFeedback(domain, as_of, "AB")
    committed = {"A": frontier(0), "B": frontier(0)}
    known = frontier(0)
    for _ in range(data.draw(st.integers(0, 6))):
        if data.draw(st.booleans()):
            name, upper = data.draw(st.sampled_from("AB")), data.draw(uppers)
            committed[name] = committed[name].join(upper, U64_TIME)
            feedback.commit(name, committed[name])
        else:
            upper = known.join(data.draw(uppers), U64_TIME)
            fresh = [b for b in bindings if known.less_equal(b[1]) and not upper.less_equal(b[1])]
            feedback.bind(fresh, upper)
            known = upper
        points = {
            name: _expected(domain, bindings, as_of, upper, known)
            for name, upper in committed.items()
        }
        assert {name: feedback.point(name) for name in committed} == points
        if None in points.values():
            assert feedback.source() is None
        else:
            elements = [e for point in points.values() for e in point or ()]
            assert feedback.source() == Antichain.of(domain, elements)
        least = committed["A"].meet(committed["B"])
        closed = [t for _, t, _ in bindings if not known.less_equal(t)]
        ahead = least.meet(known)
        assert feedback.retained <= (
            0 if least.empty else sum(1 for t in closed if ahead.less_equal(t) or t <= as_of)
        )


def _expected(
    domain: Any, bindings: list[Any], as_of: int, upper: Any, known: Any
) -> Antichain[Any] | None:
    if upper.empty:
        return Antichain(domain)
    (reached,) = upper.meet(known)
    return None if reached <= as_of else remap_at(domain, bindings, reached - 1)


def test_commits_do_not_go_back_and_outputs_are_known() -> None:
    feedback: CommitFeedback[int] = CommitFeedback(U64_TIME, 0, ["A"])
    feedback.commit("A", frontier(5))
    with pytest.raises(UsageError):
        feedback.commit("A", frontier(4))
    with pytest.raises(UsageError):
        feedback.commit("B", frontier(4))
    assert feedback.source() is None
