"""The questions of the demo to its server, and the oracle's judgement of the answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tidemill.client import Client
from tidemill.time import Frontier, sole_time
from tidemill_flights.display import Display
from tidemill_flights.oracle import QUERIES, Oracle, Rows
from tidemill_flights.report import Asked, print_answers
from tidemill_flights.scenario import Scenario, iso
from tidemill_flights.verify import Comparison, answer_rows, compare, fired_alarms


@dataclass(slots=True)
class Questions:
    """Asks one server after the other; `comparisons` grows with what was compared.

    `broken` are the records that cannot be read, by source.
    """

    scenario: Scenario
    directory: Path
    display: Display
    broken: Mapping[str, Sequence[bytes]]
    comparisons: list[Comparison] = field(default_factory=list)

    @property
    def alarms(self) -> Path:
        """The file that the action writes."""
        return self.directory / "alarms.jsonl"

    def lines_told(self) -> int:
        """Number of alarms in the file."""
        return len(fired_alarms(self.alarms))

    async def ask(self, client: Client, at: int) -> None:
        """Answer `as of` for every collection of the views, while the stream goes on."""
        asked = []
        for collection in QUERIES:
            answer = await asyncio.to_thread(client.query, collection, at, timeout_s=30.0)
            asked.append(
                Asked(collection, answer.table.num_rows, _time(answer.since), _time(answer.upper))
            )
        print_answers(self.display.console, at, asked)

    async def prove(self, client: Client) -> None:
        """Print why the alarm in the middle of the file was raised."""
        lines = self.alarms.read_text().splitlines() if self.alarms.exists() else []
        if not lines:
            self.display.say("no alarm was raised")
            return
        alarm = json.loads(lines[len(lines) // 2])
        record = alarm["record"].split(" @expires")[0]
        proof = await asyncio.to_thread(client.why, record, alarm["instant"])
        self.display.console.print(
            f"[bold]tidemill why[/bold] '{record}' --as-of {alarm['instant']}",
            soft_wrap=True,
            highlight=False,
        )
        self.display.console.print(proof.text, highlight=False, soft_wrap=True)

    async def verify(self, client: Client, complete: Mapping[str, int]) -> None:
        """Compare every view at the three instants, all alarms, and the count of dead letters.

        `complete` is how far each view has to be compared: all that was sent is definite below.
        """
        await asyncio.to_thread(self._verify, client, complete)

    def _verify(self, client: Client, complete: Mapping[str, int]) -> None:
        with Oracle.over(self.directory / "raw", self.scenario.months) as oracle:
            for at in self.scenario.instants:
                for collection in QUERIES:
                    found = answer_rows(client.query(collection, at).table)
                    self._compare(
                        f"{collection} as of {iso(at)}", oracle.rows(collection, at), found
                    )
            upper = complete["knock-ons"]
            wanted = oracle.alarms(upper)
            self._compare(f"alarms below {iso(upper)}", wanted, fired_alarms(self.alarms))
        for source, records in self.broken.items():
            letters = client.query(f"{source}/deadletters").table["raw"].to_pylist()
            planted: Rows = [(record.decode(),) for record in records]
            self._compare(f"dead letters of {source}", planted, [(letter,) for letter in letters])

    def _compare(self, what: str, expected: Rows, found: Rows) -> None:
        self.comparisons.append(compare(what, expected, found))


def _time(frontier: Frontier) -> int:
    return 0 if frontier.empty else sole_time(frontier)
