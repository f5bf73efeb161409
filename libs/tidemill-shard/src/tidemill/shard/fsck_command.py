"""The command that checks the stores of a state directory, a bucket, a Redis."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tidemill.shard.fsck import Finding, StoreCheck
from tidemill.shard.stores import BlobPlace, open_blob, open_consensus
from tidemill.time import TidemillError


class _StillClock:
    """A check waits for nothing and compares no times."""

    def now_ms(self) -> int:
        return 0

    def monotonic_s(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        return


def fsck(directory: Path, consensus: str = "", blob: str = "") -> None:
    """Check every byte of a state directory and say what is wrong; nothing is changed.

    Stores that are elsewhere are named as for `up`: --consensus redis://…, --blob s3://…. Exit status 0
    if nothing is wrong (objects left behind are reported, and do no harm), 1 if something is, 2 if there
    is nothing to check.
    """
    file = directory / "consensus.sqlite"
    if not consensus and not file.is_file():
        print(f"{directory} is no state directory: {file} is missing", file=sys.stderr)
        raise SystemExit(2)
    place = BlobPlace(blob or f"file:{directory.resolve() / 'blob'}")
    try:
        wrong = asyncio.run(_check(consensus or f"sqlite:{file.resolve()}", place))
    except TidemillError as error:
        print(f"nothing was checked: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    if wrong:
        raise SystemExit(1)


async def _check(address: str, place: BlobPlace) -> int:
    """Print all findings; how many are not harmless."""
    # Only reading: what the server may lose tomorrow does not matter today.
    consensus = open_consensus(address, allow_non_durable=True)
    blob = open_blob(place, lambda: "unused")
    wrong = 0
    try:
        check = StoreCheck(consensus, blob, _StillClock())
        async for finding in check.findings():
            wrong += not finding.harmless
            print(_line(finding))
    finally:
        await consensus.close()
        await blob.close()
    checked = check.checked
    print(
        f"{checked['collections']} collections, {checked['versions']} versions, "
        f"{checked['parts']} parts, {checked['rows']} updates, {checked['bytes']} bytes: "
        f"{wrong or 'nothing'} wrong"
    )
    return wrong


def _line(finding: Finding) -> str:
    place = " ".join(each for each in (finding.collection, finding.object) if each)
    repair = finding.repair or "restore it from a backup"
    return (
        f"{'left behind' if finding.harmless else 'WRONG'}: {place}: {finding.problem} ({repair})"
    )
