"""The check of the stores of a state directory, a bucket, a Redis, as a command prints it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from tidemill.errors import TidemillError
from tidemill.shard.claims.checking import ClaimsCheck
from tidemill.shard.consensus_sqlite import SqliteConsensus
from tidemill.shard.fsck import Finding, Judge, StoreCheck
from tidemill.shard.sqlite_file import copy_file, in_use
from tidemill.shard.stores import (
    BlobPlace,
    StoredConsensus,
    claims_file,
    consensus_file,
    open_blob,
    open_claims,
    open_consensus,
)


class _StillClock:
    """A check waits for nothing and compares no times."""

    def now_ms(self) -> int:
        return 0

    def monotonic_s(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        return


def fsck(directory: Path, consensus: str = "", blob: str = "") -> None:
    """Check the stores of a state directory, or those that are named, as `check_stores` does.

    Raises: SystemExit with 1 if something is wrong.
    """
    place = BlobPlace(blob or f"file:{directory.resolve() / 'blob'}")
    if check_stores(directory, consensus, place):
        raise SystemExit(1)


def check_stores(
    directory: Path, consensus: str, place: BlobPlace, judges: Mapping[str, Judge] = {}
) -> int:
    """Print the problems of every byte of two stores, claims included; returns their number.

    Nothing is changed. `judges` also check the contents of collections, by their kind. Objects left
    behind are reported and not counted: they do no harm. Without `consensus` it is the file in the
    state directory. Raises: SystemExit with 2 if there is nothing to check.
    """
    file = directory / "consensus.sqlite"
    if not consensus and not file.is_file():
        print(f"{directory} is no state directory: {file} is missing", file=sys.stderr)
        raise SystemExit(2)
    try:
        with TemporaryDirectory(prefix="fsck-") as scratch:
            address = consensus or f"sqlite:{file.resolve()}"
            return asyncio.run(_check(address, place, Path(scratch), judges))
    except TidemillError as error:
        print(f"nothing was checked: {error}", file=sys.stderr)
        raise SystemExit(2) from None


async def _check(address: str, place: BlobPlace, scratch: Path, judges: Mapping[str, Judge]) -> int:
    """Print all findings; how many are not harmless."""
    file = consensus_file(address)
    # Only reading: what the server may lose tomorrow does not matter today.
    consensus = (
        open_consensus(address, allow_non_durable=True) if file is None else _still(file, scratch)
    )
    blob = open_blob(place, lambda: "unused")
    check = StoreCheck(consensus, blob, _StillClock(), judges)
    try:
        wrong = await _print_findings(check.findings(), scratch, file)
    finally:
        await consensus.close()
        await blob.close()
    more, groups = await _check_claims(address, scratch)
    checked = check.checked
    print(
        f"{checked['collections']} collections, {checked['versions']} versions, "
        f"{checked['parts']} parts, {checked['rows']} updates, {checked['bytes']} bytes, "
        f"claims of {groups} groups: {wrong + more or 'nothing'} wrong"
    )
    return wrong + more


def _still(file: Path, scratch: Path) -> StoredConsensus:
    """The versions in a file, which stays as it is: SQLite would put a damaged log right.

    Beside a server nothing is put right, since the server has it open. Without one a copy is read.
    """
    if in_use(file):
        return SqliteConsensus(file, read_only=True)
    return SqliteConsensus(copy_file(file, scratch))


async def _check_claims(address: str, scratch: Path) -> tuple[int, int]:
    """Print what is wrong with the claims beside the collections; how much, and of how many groups
    they are.
    """
    file = claims_file(address)
    if file is not None and not file.is_file():  # nothing was ever claimed
        return 0, 0
    claims = open_claims(address, allow_non_durable=True) if file is None else _still(file, scratch)
    check = ClaimsCheck(claims)
    try:
        return await _print_findings(check.findings(), scratch, file), check.checked["groups"]
    finally:
        await claims.close()


async def _print_findings(
    findings: AsyncIterator[Finding], scratch: Path, file: Path | None
) -> int:
    """Print findings, those of a copy under the name of its original; how many are not harmless."""
    folder = "" if file is None else str(file.parent)
    wrong = 0
    async for finding in findings:
        wrong += not finding.harmless
        print(_line(finding).replace(str(scratch), folder))
    return wrong


def _line(finding: Finding) -> str:
    place = " ".join(each for each in (finding.collection, finding.object) if each)
    repair = finding.repair or "restore it from a backup"
    return (
        f"{'left behind' if finding.harmless else 'WRONG'}: {place}: {finding.problem} ({repair})"
    )
