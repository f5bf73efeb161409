"""Pages of docs/ as programs: blocks, files that a reader saves, commands that a reader runs.

    PageRun(folder, {"localhost:9092": broker}).run(page)

A page is followed from top to bottom. A block below a line that ends with "`NAME`:" is a file to
save. A block of `sh` is run; a block of `text` below it is everything that it prints.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

from tidemill.testkit.command_host import command_host
from tidemill.testkit.up import UpProcess

DOCS = Path(__file__).resolve().parents[5] / "docs"
"""The folder of all pages."""
COMMAND_S_MAX = 240.0
"""Patience only: a command takes a second, or many on a machine that is busy."""
HTTP = "localhost:7475"
"""The HTTP address of a server on the pages; the server of a run has a free port."""

_FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^##+ (.+)$", re.MULTILINE)
_NAME = re.compile(r"`([^`\s]+)`:\s*$")
_OPERATOR = re.compile(r"\d?[<>]|[|&;]")
_ANYTHING = "…"
_SERVER = "tidemill up"


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: language, words behind it, text, heading above it, name of its file."""

    kind: str
    words: tuple[str, ...]
    text: str
    heading: str
    file: str | None


def blocks_of(page: str) -> list[Block]:
    """The fenced blocks of a page, in order."""
    headings = [(match.start(), match[1]) for match in _HEADING.finditer(page)]
    found = []
    for match in _FENCE.finditer(page):
        above = [heading for start, heading in headings if start < match.start()]
        name = _NAME.search(page[: match.start()].rstrip())
        file = name[1] if name is not None and match[1] not in ("sh", "text") else None
        heading = above[-1] if above else ""
        found.append(Block(match[1], tuple(match[2].split()), match[3], heading, file))
    return found


def shell_of(page: str) -> dict[str, str]:
    """The shell blocks of a page by the heading above them, joined."""
    found: dict[str, str] = {}
    for block in blocks_of(page):
        if block.kind == "sh":
            found[block.heading] = found.get(block.heading, "") + block.text
    return found


def commands_of(text: str, program: str) -> Iterator[list[str]]:
    """The arguments of each line of a shell's text that calls a program, or waits `until` it works.

    A redirection, a pipe, or another operator ends them.
    """
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        called = words[1:] if words[:1] == ["until"] else words
        if called[:1] == [program]:
            yield list(takewhile(lambda word: not _OPERATOR.match(word), called[1:]))


def defined_in(page: str, name: str) -> Any:
    """The class or function that the Python of a page, named below docs/, defines under a name."""
    for block in blocks_of((DOCS / page).read_text()):
        if block.kind == "python" and re.search(
            rf"^(class|def) {name}\b", block.text, re.MULTILINE
        ):
            names: dict[str, Any] = {}
            exec(block.text, names)
            return names[name]
    raise LookupError(f"{page} defines no {name}")


def answers(expected: str, printed: str) -> bool:
    """Whether the expected lines were printed; `…` stands for any text within a line."""
    wanted, found = (
        [line.rstrip() for line in t.strip("\n").splitlines()] for t in (expected, printed)
    )
    return len(wanted) == len(found) and all(
        re.fullmatch(".*".join(map(re.escape, line.split(_ANYTHING))), said)
        for line, said in zip(wanted, found, strict=True)
    )


@dataclass
class PageRun:
    """A reader who follows a page in an empty folder, on a server of the reader's own.

    `addresses` replace those of the page. A block `tidemill up …` starts the server, or ends the
    one that runs and starts it again.
    """

    folder: Path
    addresses: Mapping[str, str] = field(default_factory=dict)
    ran: int = 0
    _commands: Path = Path()
    _server: UpProcess | None = None
    _groups: list[int] = field(default_factory=list)

    def run(self, page: str, before: str = "", after: str = "") -> None:
        """Follow the page from the heading `after`, up to the heading `before`, if there are any.

        Raises: AssertionError at the first block that does not do as the page says.
        """
        headings = [block.heading for block in blocks_of(page)]
        first = headings.index(after) if after else 0
        blocks = blocks_of(page)[first : headings.index(before) if before else None]
        with ExitStack() as closing:
            if "tidemill " in page:
                self._commands = closing.enter_context(command_host())
            closing.callback(self.close)
            for block, below in zip(blocks, [*blocks[1:], None], strict=True):
                if block.file is not None:
                    (self.folder / block.file).write_text(self._placed(block.text))
                elif block.kind == "sh" and block.text.startswith(_SERVER):
                    self._serve(shlex.split(block.text, comments=True)[2:])
                elif block.kind == "sh":
                    shown = below is not None and below.kind == "text"
                    self._type(block.text, below.text if shown and below is not None else None)

    def close(self) -> None:
        """End the server, and what blocks have left in the background."""
        if self._server is not None and self._server.running:
            self._server.stop(signal.SIGKILL)
        for group in self._groups:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)

    def _serve(self, arguments: Sequence[str]) -> None:
        if self._server is not None:
            self._server.stop(signal.SIGINT)
        else:
            self._server = UpProcess(self.folder, *arguments)
        self._server.start()
        self._server.address("http")

    def _type(self, text: str, expected: str | None) -> None:
        """Run a block. It fails exactly where the page shows a line of `tidemill: `."""
        environment = dict(os.environ, LC_ALL="C.UTF-8")  # noqa: TID251  of a reader's shell
        environment.pop(
            "PYTHONDONTWRITEBYTECODE", None
        )  # each command would compile all it imports
        folders = (str(self._commands), str(Path(sys.executable).parent), environment["PATH"])
        environment["PATH"] = ":".join(folders)
        if self._server is not None:
            environment["TIDEMILL_ADDRESS"] = self._server.address("grpc")
        shell = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", self._placed(text)], cwd=self.folder, text=True,
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, process_group=0,
        )  # fmt: skip
        self._groups.append(shell.pid)
        printed, _ = shell.communicate(timeout=COMMAND_S_MAX)
        self.ran += 1
        refused = expected is not None and bool(re.search(r"^tidemill: ", expected, re.MULTILINE))
        assert (shell.returncode != 0) == refused, f"{text}\n{printed}"
        if expected is not None:
            assert answers(expected, printed), f"{text}\n{printed}\n--- expected\n{expected}"

    def _placed(self, text: str) -> str:
        """The text with the addresses of this run."""
        http = {} if self._server is None else {HTTP: self._server.address("http").split("//")[1]}
        for written, address in {**http, **self.addresses}.items():
            text = text.replace(written, address)
        return text
