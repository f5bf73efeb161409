"""The audit of changes and refusals by user: a collection that is written in batches beside the
calls.

Equal entries of one batch are one row with their number. A batch has a bound, and refusals have
bounds of their own. So a user who floods a server with them fills a row, neither a disk nor the
place of others. Calls wait for nothing of it. A batch that a store refuses is kept and tried again
under the same token. A process that is killed loses the entries that it has not written, at most of
one interval while its stores answer.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.arrangement.updates import DIFF, TIME
from tidemill.catalog.audit_schema import AUDIT, AUDIT_SCHEMA
from tidemill.errors import AlreadyUsed, TidemillError
from tidemill.host.settings import AuditSettings
from tidemill.rpc.audited import AuditedCall
from tidemill.runtime.breaking import shown
from tidemill.runtime.clock import Clock
from tidemill.runtime.logs import get_logger
from tidemill.shard import Collections, Description, UpperMismatch
from tidemill.time import frontier, sole_time

log = get_logger("audit")

SWEEP_S = 600.0
"""Seconds between two sweeps of rows that are too old, or too many."""

CLOSE_S_MAX = 5.0
"""Seconds that the end of a process waits for the last batch."""

LOGGED_MAX = 20
"""Of a batch so many entries are in the log as well, at once."""


@dataclass(frozen=True, slots=True)
class _Batch:
    """Rows that are to be written once, under one token."""

    rows: pa.Table
    token: str


class Audit:
    """Guarantees of Auditor: `called` returns at once; what it was told is written by `run`, within
    an interval.
    """

    def __init__(
        self,
        collections: Collections,
        clock: Clock,
        settings: AuditSettings,
        process: str,
        *,
        tends: bool = True,
    ) -> None:
        """A process that `tends` the collection makes its upper follow the clock, and retracts old
        rows.
        """
        self._collections = collections
        self._clock = clock
        self._settings = settings
        self._process = process
        self._tends = tends
        self._heard: Counter[AuditedCall] = Counter()
        self._refusals = 0
        self._unwritten: _Batch | None = None
        self._number = 0
        self._opened = False
        self._began_ms = clock.now_ms()

    def called(self, call: AuditedCall) -> None:
        """Keep a call; beyond the bound of a batch those of one kind and outcome are one."""
        refused = call.outcome == "refused"
        if call not in self._heard:
            many = refused and self._refusals >= self._settings.refusals_max
            if many or len(self._heard) >= self._settings.entries_max:
                call = replace(call, who="…", address="…", target="…", reason="…")
            self._refusals += refused
        self._heard[call] += 1
        if self._heard[call] == 1 and len(self._heard) <= LOGGED_MAX:
            log.info(
                call.outcome, action=call.action, who=call.who, address=call.address,
                target=call.target, reason=call.reason,
            )  # fmt: skip

    async def open(self) -> None:
        """Create the collection, if no process has done so."""
        description = Description(
            AUDIT_SCHEMA, kind="audit", retain_ms=int(self._settings.keep_s * 1000)
        )
        with suppress(AlreadyUsed):
            held, written = await self._collections.create(AUDIT, description)
            await self._collections.drop(held)
            if written is not None:
                await self._collections.drop(written)
        self._opened = True

    async def run(self) -> None:
        """Write and sweep until cancelled; what stores refuse is tried again."""
        next_sweep = self._clock.monotonic_s() + SWEEP_S
        while True:
            await self._clock.sleep(self._settings.interval_s)
            try:
                await self.flush()
                if self._tends and self._clock.monotonic_s() >= next_sweep:
                    next_sweep = self._clock.monotonic_s() + SWEEP_S
                    await self.sweep()
            except Exception as error:  # whatever it was: calls go on, the batch is tried again
                log.warning("not written yet", error=shown(error), entries=len(self._heard))

    async def close(self) -> None:
        """Write the last batch; what cannot be written any more is said."""
        try:
            async with asyncio.timeout(CLOSE_S_MAX):
                await self.flush()  # what a store had refused
                await self.flush()
        except (TimeoutError, TidemillError) as error:
            lost = len(self._heard) + (self._unwritten.rows.num_rows if self._unwritten else 0)
            log.error("entries are lost", entries=lost, error=str(error))

    async def flush(self) -> None:
        """Write one batch, or move the upper on if nobody has for a while. Raises: what the stores
        raise.
        """
        if not (self._tends or self._heard or self._unwritten):
            return
        if not self._opened:
            await self.open()
        if self._unwritten is None and self._heard:
            heard, self._heard, self._refusals = self._heard, Counter(), 0
            self._number += 1
            token = f"{self._process}:{self._began_ms}:{self._number}"
            self._unwritten = _Batch(self._rows(heard), token)
        if self._unwritten is not None:
            await self._write(self._unwritten)
            self._unwritten = None
            return
        upper = sole_time((await self._collections.status(AUDIT)).upper)
        now = self._clock.now_ms()
        if now - upper >= self._settings.idle_s * 1000:
            await self._append(upper, now, None, None)

    def _rows(self, heard: Counter[AuditedCall]) -> pa.Table:
        at = self._clock.now_ms()
        rows = [
            {
                "at": at, "who": c.who, "address": c.address, "action": c.action, "target": c.target,
                "outcome": c.outcome, "reason": c.reason, "calls": number, "process": self._process,
            }
            for c, number in heard.items()
        ]  # fmt: skip
        return pa.Table.from_pylist(rows, AUDIT_SCHEMA)

    async def _write(self, batch: _Batch) -> None:
        while True:
            upper = sole_time((await self._collections.status(AUDIT)).upper)
            updates = _updates(batch.rows, max(upper, self._clock.now_ms()), 1)
            if await self._append(upper, self._clock.now_ms(), updates, batch.token):
                return

    async def _append(
        self, upper: int, now: int, updates: pa.Table | None, token: str | None
    ) -> bool:
        """Whether it was written, and no other process was faster."""
        at = max(upper, now)
        if updates is not None:
            at = max(at, int(pc.max(updates[TIME]).as_py()))
        outcome = await self._collections.compare_and_append(
            AUDIT, frontier(upper), frontier(at + 1), updates,
            writer=f"audit:{self._process}", token=token,
        )  # fmt: skip
        return not isinstance(outcome, UpperMismatch)

    async def sweep(self) -> None:
        """Take away rows that are too old, and the oldest beyond the bound; another process may be
        faster.
        """
        upper = sole_time((await self._collections.status(AUDIT)).upper)
        if upper == 0:
            return
        held, written = await self._collections.acquire(AUDIT, owner="audit")
        try:
            rows = await self._collections.snapshot(held, upper - 1)
        finally:
            await self._collections.drop(held)
            if written is not None:
                await self._collections.drop(written)
        rows = rows.select(AUDIT_SCHEMA.names).sort_by([("at", "descending")])
        now = self._clock.now_ms()
        old = pc.less(rows["at"], now - int(self._settings.keep_s * 1000))
        kept = Counter[bool]()
        many = []
        for outcome in rows["outcome"].to_pylist():
            refused = outcome == "refused"
            full = kept.total() >= self._settings.rows_max
            many.append(full or (refused and kept[True] >= self._settings.refused_rows_max))
            kept[refused] += not many[-1]
        gone = rows.filter(pc.or_(old, pa.array(many, pa.bool_())))
        if gone.num_rows:
            await self._append(upper, now, _updates(gone, max(upper, now), -1), None)


def _updates(rows: pa.Table, at: int, diff: int) -> pa.Table:
    number = rows.num_rows
    rows = rows.append_column(TIME, pa.array([at] * number, pa.uint64()))
    return rows.append_column(DIFF, pa.array([diff] * number, pa.int64()))
