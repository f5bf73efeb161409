"""Threads that wait for each other, so that what all of them ask is answered together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Condition
from typing import TypeAlias

from tidemill.testkit.conformance.values import CaseError

Question: TypeAlias = "tuple[bytes, bytes]"
Answers: TypeAlias = "Callable[[Sequence[Question]], Sequence[bytes]]"


@dataclass(slots=True)
class _Asked:
    questions: Sequence[Question]
    answers: Sequence[bytes] | None = None
    failed: str = ""


class Meeting:
    """Questions are answered once each member has asked or left. For `members` threads."""

    def __init__(self, members: int) -> None:
        self._members = members
        self._changed = Condition()
        self._asked: list[_Asked] = []

    def ask(self, questions: Sequence[Question]) -> Sequence[bytes]:
        """The answers, in their order. Raises: CaseError where there are none."""
        asked = _Asked(questions)
        with self._changed:
            self._asked.append(asked)
            self._changed.notify_all()
            self._changed.wait_for(lambda: asked.answers is not None or asked.failed)
        if asked.answers is None:
            raise CaseError(asked.failed)
        return asked.answers

    def leave(self) -> None:
        """One member asks nothing more."""
        with self._changed:
            self._members -= 1
            self._changed.notify_all()

    def serve(self, answers: Answers) -> None:
        """Answer in this thread until all have left."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: len(self._asked) == self._members)
                asked, self._asked = self._asked, []
            if not asked:
                return
            found, failed = [], ""
            try:
                found = list(answers([each for one in asked for each in one.questions]))
            except Exception as error:  # whatever ends a job fails the cases that wait for it
                failed = f"crashed: {type(error).__name__}: {error}"
            with self._changed:
                for one in asked:
                    if failed:
                        one.failed = failed
                        continue
                    one.answers = found[: len(one.questions)]
                    found = found[len(one.questions) :]
                self._changed.notify_all()
