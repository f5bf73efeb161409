"""Poison: bad input beside the load at every entrance. Each piece has its fate by the definitions.

A record or a line of a file becomes a dead letter. A row, a document or an upload is refused and
leaves nothing. An announcement is passed over. A file that its source cannot go on with stops that
source alone.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from random import Random  # noqa: TID251  seeded
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from tidemill.client.rows import table_of
from tidemill.errors import (
    DeadlinePassed,
    Exhausted,
    Indeterminate,
    TidemillError,
    Unavailable,
    UsageError,
)
from tidemill.rpc.messages import ResourceDocument
from tidemill.runtime.log import Entry, Log
from tidemill.runtime.metrics import ANNOUNCEMENTS_PASSED_OVER as PASSED_OVER
from tidemill.testkit.service_faults.cluster import (
    BOOK,
    CREW,
    DROP,
    FLIGHTS,
    GRAIN,
    METER,
    PARTITIONS,
    SPOIL,
    WEB,
    Cluster,
)
from tidemill.testkit.service_faults.load import Load
from tidemill.testkit.service_faults.machine import Patience
from tidemill.testkit.service_faults.oracle import Rows, Topic, difference
from tidemill.testkit.service_faults.outcome import FAULT, FELT, Outcome
from tidemill.testkit.service_faults.watching import rows_of

STEP_S = 0.5
COMMITS = "tidemill.commits"
UPLOAD_S = 10.0
AWAY = (Unavailable, Indeterminate, DeadlinePassed)
HUGE = 2**63
Asked = Callable[[Callable[[Any], Awaitable[Any]]], Awaitable[Any]]
"""Asks any process, again until one answers."""

ROWS: Mapping[str, str] = MappingProxyType(
    {
        FLIGHTS: '{"plane": "N1", "delay": @, "at": 1, "id": 1}',
        METER: '{"n": @, "k": 1}',
        BOOK: '{"seats": @}',
        CREW: '{"op": "r", "before": null, "after": {"id": @, "plane": "N1"}}',
    }
)
MARKED: Mapping[str, str] = MappingProxyType(
    {
        FLIGHTS: '{"plane": "@", "delay": 1, "at": 1, "id": 1}',
        CREW: '{"op": "r", "before": null, "after": {"id": 1, "plane": "@"}}',
    }
)
KEYS: Mapping[str, bytes | None] = MappingProxyType(
    {
        "no key": None,
        "a key that is no UTF-8": b"P\xff",
        "a key of marks": "a\u0301".encode() + "\u0316".encode() * 40,
    }
)
"""Values in the place of the name of a plane, before a row that can be read."""
CELLS: Mapping[str, bytes] = MappingProxyType(
    {
        "NaN": b"NaN",
        "an overflow": b"9223372036854775808",
        "a number beyond all floats": b"1e400",
        "a number of 9,000 digits": b"1" * 9_000,
        "a deep list": b"[" * 20_000 + b"]" * 20_000,
        "a huge cell": b'"' + b"x" * 300_000 + b'"',
        "a NUL": b"\x00",
        "a NUL in a text": rb'"\u0000"',
        "null": b"null",
    }
)
"""Values in the place of a whole number."""


def records(topic: str) -> dict[str, bytes]:
    """Every kind of poisoned record of a topic of JSON, by name."""
    before, _, after = ROWS[topic].partition("@")
    made = {name: before.encode() + cell + after.encode() for name, cell in CELLS.items()}
    marked = MARKED.get(topic, "").replace("@", "a" + "\u0301\u0316" * 20_000)
    return {
        **made, "garbage": b"\xff\xfe\x00{", "half a row": b'{"plane": "N', "another row": b'[{"n": 1}]',
        **({"combining marks": marked.encode()} if marked else {}),
    }  # fmt: skip


def _number(value: int) -> bytes:
    """A whole number as Avro writes it."""
    zigzag, written = (value << 1) ^ (value >> 63), bytearray()
    while zigzag > 0x7F:
        written.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    return bytes([*written, zigzag])


_MAGIC = b"\0\0\0\0\1"


def grain(number: int) -> bytes:
    """A record that can be read."""
    return _MAGIC + _number(number) + _number(1) + b"\0\0"


def grains() -> dict[str, bytes]:
    """Every kind of poisoned record of Avro, by name."""
    level = _number(1) + _number(1) + b"\2"
    return {
        "deep Avro": _MAGIC + level * 100_000 + _number(1) + _number(1) + b"\0\0" + b"\0" * 100_000,
        "2^60 items of no bytes": _MAGIC + _number(1) + _number(1) + b"\0" + _number(2**60) + b"\0",
        "a date of never": _MAGIC + _number(1) + _number(2**31 - 1) + b"\0\0",
        "no end": _MAGIC + b"\xff" * 30,
        "half a record": grain(7)[:-2],
        "no Avro": b"junk",
        "nothing": b"",
    }


LINES: Mapping[str, bytes] = MappingProxyType(
    {
        "letters": b"x", "NaN": b"NaN", "an overflow": b"9223372036854775808", "no UTF-8": b"\xff\xfe",
        "a NUL": b"\x00", "a long cell": b"9" * 20_000,
    }
)  # fmt: skip
"""Lines of a file of whole numbers."""

BROKEN_ROWS: Mapping[str, dict[str, Any]] = MappingProxyType(
    {
        "a text": {"id": "seven"}, "a fraction": {"id": 1.5}, "NaN": {"id": float("nan")},
        "infinity": {"id": float("inf")}, "an overflow": {"id": HUGE}, "a list": {"id": [1]},
        "null": {"id": None}, "another column": {"other": 1}, "a diff of the greatest": {"id": -1, "_diff": HUGE - 1},
    }
)  # fmt: skip

_HEAD = "apiVersion: tidemill.dev/v1alpha1\n"
_VIEW = _HEAD + 'kind: View\nmetadata: {name: hostile}\nspec: {program: "PROGRAM"}\n'
_CHAIN = ", ".join(f"v{n} = v{n + 1} + v{n + 1}" for n in range(40))


def documents() -> dict[str, str]:
    """Every kind of document that is refused, by name."""
    return {
        "no YAML": "\x01: [",
        "deep YAML": "[" * 3_000,
        "a bomb of aliases": "a: &a [x,x,x,x,x,x,x,x]\n" + "\n".join(
            f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
        ),
        "too long": _HEAD + "#" * (2 << 20),
        "half a table, half nothing": (
            _HEAD + "kind: Table\nmetadata: {name: hostile}\nspec: {columns: [{name: a, type: int}]}\n---\n"
            + _VIEW.replace("PROGRAM", "p(x) := nothing_of_that_name(x);")
        ),
        "a program that doubles": _VIEW.replace("PROGRAM", f"p(v0) := ledger(v40) where {_CHAIN};"),
        "a recursion without bound": _VIEW.replace(
            "PROGRAM", "p(x) := ledger(x); p(x + 1) := p(x);"
        ),
        "no kind": _HEAD + "kind: Hostile\nmetadata: {name: hostile}\nspec: {}\n",
        "a topic of the system": (
            _HEAD + "kind: Source\nmetadata: {name: hostile}\n"
            "spec: {kafka: {topic: tidemill.commits}, columns: [{name: a, type: int}]}\n"
        ),
        "a file of the machine": (
            _HEAD + "kind: Source\nmetadata: {name: hostile}\n"
            "spec: {file: {path: /etc/passwd, format: csv}, infer: {}}\n"
        ),
    }  # fmt: skip


ANNOUNCED = (
    b"", b"{", b"[]", b"\xff", b'{"collection": 7}', b"[" * 50_000,
    b'{"collection": "' + b"c" * 5_000 + b'"}',
)  # fmt: skip


class Poison:
    """Injects all kinds in turn, and knows what each had to become."""

    def __init__(
        self, cluster: Cluster, log: Log, load: Load, random: Random, outcome: Outcome,
        patience: Callable[[], Patience],
    ) -> None:  # fmt: skip
        self._cluster = cluster
        self._patience = patience
        self._log = log
        self._load = load
        self._random = random
        self._outcome = outcome
        self._next = 0
        self._grains: dict[bytes, int] = {}
        self._lines: list[int] = []
        self._bad_lines = 0
        self._pushed: dict[int, str] = {}
        self._due: dict[str, list[Any]] = {}

    async def run(self) -> None:
        """One piece of each kind at each step, and what is good beside it, until cancelled."""
        strikes: list[Callable[[], Awaitable[None]]] = [
            self._record, self._key, self._grain, self._line, self._row, self._document,
            self._upload, self._announcement,
        ]  # fmt: skip
        while True:
            self._random.shuffle(strikes)
            for strike in strikes:
                await strike()
                await self._cluster.clock.sleep(STEP_S / len(strikes))

    def _one(self, what: str, of: Mapping[Any, Any]) -> tuple[Any, Any]:
        """Each of them once, in an order of the seed, then anew."""
        due = self._due.setdefault(what, [])
        due.extend([] if due else sorted(of))
        name = due.pop(self._random.randrange(len(due)))
        return name, of[name]

    def _injected(self, what: str, name: object) -> None:
        self._outcome.happened[f"{FAULT}poison: {what}: {name}"] += 1
        self._outcome.happened[f"poison, {what}"] += 1

    async def _record(self) -> None:
        topic, _ = self._one("topics", ROWS)
        name, value = self._one(f"records of {topic}", records(topic))
        partition = self._random.randrange(PARTITIONS[topic])
        key = f"P{partition}".encode() if topic == BOOK else None
        if await self._load.append(topic, [Entry(key, value, partition)]):
            self._injected(f"records of {topic}", name)

    async def _key(self) -> None:
        """A record of the book that says of nothing that can be named what it has."""
        name, key = self._one("keys", KEYS)
        entry = Entry(key, b'{"seats": 1}', self._random.randrange(PARTITIONS[BOOK]))
        if await self._load.append(BOOK, [entry]):
            self._injected("keys of records", name)

    async def _grain(self) -> None:
        name, value = self._one("grains", grains())
        self._next += 1
        good = grain(self._next)
        self._grains[good] = self._next
        entries = [Entry(None, value, 0), Entry(None, good, 0)]
        self._random.shuffle(entries)
        if await self._load.append(GRAIN, entries):
            self._injected("records of Avro", name)

    async def _line(self) -> None:
        """A line that is none between two that are; and once, a file that becomes shorter."""
        name, value = self._one("lines", LINES)
        self._next += 2
        self._lines += [self._next - 1, self._next]
        with (self._cluster.folder / f"{DROP}.csv").open("ab") as file:
            file.write(b"%d\n%s\n%d\n" % (self._next - 1, value, self._next))
        self._bad_lines += 1
        self._injected("lines of files", name)
        if self._bad_lines == len(LINES):
            (self._cluster.folder / f"{SPOIL}.csv").write_bytes(b"\xff")
            self._injected("files", "shorter than it was, and garbage")

    async def _ask(self, what: str, name: object, ask: Callable[[Any], Awaitable[Any]]) -> None:
        """Something that has to be refused, by whichever process answers."""
        fronts = self._cluster.fronts()
        if not fronts:
            return
        said = "is unknown"
        try:
            await ask(self._random.choice(fronts)[1])
            self._outcome.violations.append(f"{what}: {name} was taken in")
        except (UsageError, Exhausted):
            said = "refused"
        except AWAY:
            pass
        except TidemillError as error:
            self._outcome.violations.append(f"{what}: {name} was answered by {error!r}")
        self._injected(what, name)
        self._outcome.happened[f"{FELT}{what} {said}"] += 1

    async def _row(self) -> None:
        name, row = self._one("rows", BROKEN_ROWS)
        await self._ask(
            "rows of a table", name, lambda client: client.insert("ledger", table_of([row]))
        )

    async def _document(self) -> None:
        name, text = self._one("documents", documents())
        document = ResourceDocument(text, "hostile.yaml")
        await self._ask("documents", name, lambda client: client.apply([document]))

    async def _upload(self) -> None:
        """A row that comes whole, and a body that breaks off."""
        fronts = self._cluster.fronts()
        if not fronts:
            return
        process, client = self._random.choice(fronts)
        self._next += 1
        number = self._next
        self._pushed[number] = "unknown"
        try:
            await client.push(WEB, [json.dumps({"id": number}).encode()])
            self._pushed[number] = "written"
        except AWAY:
            pass
        file = self._cluster.member(process).folder / "http.address"
        with suppress(OSError, TimeoutError):
            address = urlsplit(file.read_text().strip())
            async with asyncio.timeout(UPLOAD_S):
                await self._break_off(address.hostname or "", address.port or 0)

    async def _break_off(self, host: str, port: int) -> None:
        reader, writer = await asyncio.open_connection(host, port)
        try:
            writer.write(
                f"POST /v1/sources/{WEB}/rows HTTP/1.1\r\nHost: {host}:{port}\r\n"
                "Content-Length: 100000\r\n\r\n".encode()
                + b'{"id": -1}\n' * self._random.randrange(1, 1_000)
            )
            await writer.drain()
            writer.write_eof()
            self._injected("uploads", "broken off")
            self._outcome.happened[f"{FELT}uploads refused or dropped"] += (
                b" 200 " not in await reader.read(100)
            )
        finally:
            writer.close()

    async def _announcement(self) -> None:
        value = self._random.choice(ANNOUNCED)
        with suppress(Unavailable, Indeterminate):
            await self._log.append(COMMITS, [Entry(None, value)])
            self._injected("announcements", value[:8])

    # -- what it had to become ------------------------------------------------------------------

    async def check(self, asked: Asked, grains_read: Topic) -> None:
        """Every injected piece has its fate."""
        letters, rows = Counter[Any](), Counter[Any]()
        for offset, value in grains_read.records[0].items():
            number = self._grains.get(value)
            if number is None:
                letters[0, offset] += 1
            else:
                rows[number,] += 1
        await self._check_rows(asked, "grain/deadletters", letters)
        await self._check_rows(asked, "grain", rows)
        await self._check_rows(asked, "drop", Counter((n,) for n in (0, *self._lines)))
        found = await self._rows(asked, "drop/deadletters", self._bad_lines)
        self._outcome.happened["dead letters of drop"] = found.total()
        wrong = f"{found.total()} dead letters of {DROP}, not {self._bad_lines}"
        self._outcome.expect(found.total() == self._bad_lines, wrong)
        pushed = Counter(n for n, said in self._pushed.items() if said == "written")
        await self._check_pushed(await self._rows(asked, "web", pushed.total()))
        await self._check_resources(asked)
        await self._check_announcements()

    async def _rows(self, asked: Asked, name: str, total: int) -> Rows:
        """The rows of a collection, once there are so many, or no more come."""
        patience = self._patience()
        while True:
            answer = await asked(lambda client: client.snapshot(name))
            found = rows_of(name, answer.table)
            if found.total() >= total or not patience.lasts(found.total()):
                return found
            await self._cluster.clock.sleep(0.2)

    async def _check_rows(self, asked: Asked, name: str, wanted: Rows) -> None:
        found = await self._rows(asked, name, wanted.total())
        self._outcome.happened[f"rows of {name}"] = found.total()
        self._outcome.expect(found == wanted, f"{name} {difference(found, wanted)}")

    async def _check_pushed(self, found: Rows) -> None:
        """Acknowledged rows are there once, and no row of a body that broke off."""
        self._outcome.expect((-1,) not in found, "rows of a body that broke off are there")
        for number, said in self._pushed.items():
            there = found[number,]
            self._outcome.expect(
                there == 1 if said == "written" else there <= 1,
                f"row {number} of {WEB} was {said} and is there {there} times",
            )
        self._outcome.happened["rows pushed"] = found.total()

    async def _check_resources(self, asked: Asked) -> None:
        """One source stands, whose file was spoiled; all others do their work, and no other one is
        there.
        """
        patience = self._patience()
        while True:
            said = {f"{s.kind}/{s.name}": s for s in await asked(lambda client: client.get())}
            wrong = [
                f"{name} says {status.reason}: {status.message}"
                for name, status in said.items()
                if status.ready == (name == f"Source/{SPOIL}")
            ]
            if not wrong or not patience.lasts(len(wrong)):
                break
            await self._cluster.clock.sleep(0.5)
        self._outcome.violations.extend(wrong)
        hostile = [name for name in said if "hostile" in name]
        self._outcome.expect(not hostile, f"{hostile} of documents that were refused are there")
        spoiled = said[f"Source/{SPOIL}"]
        self._outcome.happened[f"{FELT}files: their source says {spoiled.reason}"] += 1
        self._outcome.expect(
            spoiled.reason in ("Stalled", "Broken"), f"Source/{SPOIL} says {spoiled.reason}"
        )

    async def _check_announcements(self) -> None:
        """Each process that hears announcements has passed some over, of which one more comes now
        and then.
        """
        patience, passed = self._patience(), 0.0
        async with aiohttp.ClientSession() as session:
            while not passed and patience.lasts(None):
                await self._announcement()
                await self._cluster.clock.sleep(1.0)
                for member in self._cluster.fleet.members.values():
                    file = member.folder / "http.address"
                    with suppress(OSError, TimeoutError, aiohttp.ClientError):
                        async with session.get(f"{file.read_text().strip()}/metrics") as answer:
                            passed += sum(
                                float(line.split()[1])
                                for line in (await answer.text()).splitlines()
                                if line.startswith(f"{PASSED_OVER.name} ")
                            )
        self._outcome.happened[f"{FELT}announcements passed over"] += int(passed)
        self._outcome.expect(passed, "no process has passed over an announcement")


def prepare_files(folder: Path) -> None:
    """The files of sources, before anything is wrong with them."""
    (folder / f"{DROP}.csv").write_text("n\n0\n")
    (folder / f"{SPOIL}.csv").write_text("n\n" + "1\n" * 100)
