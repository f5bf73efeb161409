"""Why a record is present, and why one is not, as text for people and a tree for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from tidemill.arrangement.looks import look, with_looks
from tidemill.datalog.allowance import Allowance
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.proofs import Proof
from tidemill.datalog.records import Record
from tidemill.datalog.ticking import TickHistory, why_in_ticks, why_not_in_ticks
from tidemill.datalog.values import equal
from tidemill.datalog.why import rule_text, why
from tidemill.datalog.why_not import Reason as NotBecause
from tidemill.datalog.why_not import why_not
from tidemill.host.questions.histories import Columns, presences_of
from tidemill.rpc.messages import Explanation, Json

Inputs: TypeAlias = "Mapping[str, Columns]"
Letters: TypeAlias = "Sequence[Record]"
"""Events that came late and were refused."""
Found: TypeAlias = "Proof | Explanation"
"""A proof that may go on in other views, or what there is to say instead."""

PARTS_MAX = 10_000
TREE_CHARS_MAX = 16 << 20
"""Characters of a proof as a tree, which repeats shared parts; longer ones are sent as text."""


def proof(
    program: CheckedProgram, inputs: Inputs, record: Record, at: int, allowance: Allowance
) -> Found:
    """A proof tree down to inputs."""
    with presences_of(inputs, allowance) as present:
        found = why(program, present, record, at, allowance=allowance)
    if found is None:
        return Explanation(f"{record} is not present at {at}; ask why-not")
    return found


def inputs_in(proof: Proof) -> list[Proof]:
    """The parts of a proof that are inputs. Cost: O(parts), with looks."""
    return [each for each in with_looks(proof.every_part()) if each.kind == "input"]


def proved(asked: Record, found: Proof, at: int) -> Explanation:
    """The proof; where other values ride beside the fact than were asked about, that is said
    first.
    """
    other = _told_otherwise(asked, found.record, at)
    return Explanation(f"{other}\n{found.render()}" if other else found.render(), _tree(found))


def _told_otherwise(asked: Record, present: Record | None, at: int) -> str:
    """Says that the fact is there with other values, or another end, than those asked about; empty
    where it is not so.
    """
    held = {} if present is None else dict(present.parafacts)
    other = any(
        lattice not in held or not equal(held[lattice], value) for lattice, value in asked.parafacts
    )
    if asked.expires is not None and present is not None:
        other = other or asked.expires != present.expires
    return f"{asked} is not present at {at}: present is {present}" if other else ""


def _asks_more(record: Record) -> bool:
    """Whether more is asked of a record than whether its fact is there."""
    return bool(record.parafacts) or record.expires is not None


def proof_in_ticks(
    history: TickHistory, record: Record, at: int, node: int, allowance: Allowance
) -> Found:
    """A proof tree over ticks, down to inputs and to what was handed on before the history."""
    found = why_in_ticks(history, record, at, node, allowance=allowance)
    if found is not None:
        return found
    if not history.fresh and history.nodes[node].number_at(at) is None:
        return Explanation(
            f"no tick ran between {history.begin} and {at}: what is present was handed on by ticks "
            "before, and of them nothing is kept"
        )
    return Explanation(f"{record} is not present at {at}; ask why-not")


def absence_in_ticks(
    history: TickHistory, letters: Letters, record: Record, at: int, node: int, upper: int,
    allowance: Allowance,
) -> Explanation:  # fmt: skip
    """One reason for each rule that could derive the record, each in the tick that it would come
    from.
    """
    told = _asks_more(record)
    present = why_in_ticks(history, record, at, node, allowance=allowance) if told else None
    if present is not None and (other := _told_otherwise(record, present.record, at)):
        return Explanation(other)
    found = why_not_in_ticks(
        history, record, at, node, upper=upper, letters=letters, allowance=allowance
    )
    return _explained(history.program, record, found)


def _tree(found: Proof) -> Json:
    """The proof as nested objects, built from the leaves up; None if it is too big for that."""
    made: dict[int, dict[str, Json]] = {}
    sizes: dict[int, tuple[int, int]] = {}
    waiting = [found]
    while waiting:
        part = waiting[-1]
        look()
        missing = [each for each in part.premises() if id(each) not in made]
        if missing:
            waiting += missing
            continue
        waiting.pop()
        children: list[Json] = [made[id(each)] for each in part.premises()]
        fact = part.text if part.record is None else str(part.record)
        # NB: as a tree, in which what two parts share stands twice: doubled at each step it has no
        # end.
        below = [sizes[id(each)] for each in part.premises()]
        parts = 1 + sum(number for number, _ in below)
        chars = len(fact) + len(part.rule_text) + sum(length for _, length in below)
        if parts > PARTS_MAX or chars > TREE_CHARS_MAX:
            return None
        sizes[id(part)] = parts, chars
        made[id(part)] = {
            "fact": fact,
            **({"view" if part.kind == "view" else "tick": part.place} if part.place else {}),
            "rule": part.rule,
            "kind": part.kind,
            "text": part.rule_text,
            "children": children,
        }
    return made[id(found)]


def absence(
    program: CheckedProgram, inputs: Inputs, letters: Letters, record: Record, at: int, upper: int,
    allowance: Allowance,
) -> Explanation:  # fmt: skip
    """One reason for each rule that could derive the record."""
    told = _asks_more(record) and at < upper
    with presences_of(inputs, allowance) as facts:
        present = why(program, facts, record, at, allowance=allowance) if told else None
        if present is not None and (other := _told_otherwise(record, present.record, at)):
            return Explanation(other)
        found = why_not(
            program, facts, record, at, upper=upper, letters=letters, allowance=allowance
        )
    return _explained(program, record, found)


def _explained(program: CheckedProgram, record: Record, found: Sequence[NotBecause]) -> Explanation:
    nodes: list[Json] = [
        {
            "fact": reason.render(),
            "rule": reason.rule,
            "text": "" if reason.rule is None else rule_text(program, reason.rule),
            "kind": reason.reason,
            "children": [],
        }
        for reason in found
    ]
    return Explanation(
        "\n".join(reason.render() for reason in found),
        {"fact": str(record), "rule": None, "children": nodes},
    )
