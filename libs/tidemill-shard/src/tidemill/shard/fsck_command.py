"""The command that checks a state directory."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tidemill.shard.blob_directory import DirectoryBlob
from tidemill.shard.consensus_sqlite import SqliteConsensus
from tidemill.shard.fsck import Finding, StoreCheck


class _StillClock:
    """A check waits for nothing and compares no times."""

    def now_ms(self) -> int:
        return 0

    def monotonic_s(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        return


def fsck(directory: Path) -> None:
    """Check every byte of a state directory and say what is wrong; nothing is changed.

    Exit status 0 if nothing is wrong (objects left behind are reported, and do no harm), 1 if something
    is, 2 if there is no state directory.
    """
    file, blob = directory / "consensus.sqlite", directory / "blob"
    if not file.is_file():
        print(f"{directory} is no state directory: {file} is missing", file=sys.stderr)
        raise SystemExit(2)
    wrong = asyncio.run(_check(file, blob))
    if wrong:
        raise SystemExit(1)


async def _check(file: Path, blob: Path) -> int:
    """Print all findings; how many are not harmless."""
    consensus = SqliteConsensus(file)
    wrong = 0
    try:
        check = StoreCheck(consensus, DirectoryBlob(blob, lambda: "unused"), _StillClock())
        async for finding in check.findings():
            wrong += not finding.harmless
            print(_line(finding))
    finally:
        await consensus.close()
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
