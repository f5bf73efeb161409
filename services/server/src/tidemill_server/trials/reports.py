"""Outcomes of cases as a file of JUnit, which systems of continuous integration show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from tidemill.runtime.problems import Position


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one case: lines that say what is wrong, none if it passed."""

    position: Position
    name: str
    wrong: Sequence[str]
    seconds: float


def write_junit(verdicts: Sequence[Verdict], path: Path) -> None:
    """Write one suite with a test case for each verdict. Raises: OSError."""
    failed = sum(bool(each.wrong) for each in verdicts)
    suite = ElementTree.Element(
        "testsuite", name="tidemill test", tests=str(len(verdicts)), failures=str(failed), errors="0",
        time=f"{sum(each.seconds for each in verdicts):.3f}",
    )  # fmt: skip
    for each in verdicts:
        case = ElementTree.SubElement(
            suite, "testcase", classname=each.position.file, name=each.name,
            line=str(each.position.line), time=f"{each.seconds:.3f}",
        )  # fmt: skip
        if each.wrong:
            failure = ElementTree.SubElement(case, "failure", message=_legal(each.wrong[0]))
            failure.text = _legal("\n".join(each.wrong))
    ElementTree.indent(suite)
    path.write_bytes(ElementTree.tostring(suite, "utf-8", xml_declaration=True) + b"\n")


def _legal(text: str) -> str:
    """The text without characters that XML has none for."""
    return "".join(c if c in "\n\t" or c.isprintable() else repr(c)[1:-1] for c in text)
