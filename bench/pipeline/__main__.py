"""From records in Kafka to definite answers, beside Flink.

    python -m bench.pipeline [--only JOB …] [--records N] [--keep]

Both sides read the same topics of a real broker, in turn, each in processes of its own. Answers are
compared before a time is shown, and a difference stops the run. A job with `-roles` is the same
workload by processes with some roles each, over Redis, a bucket and Kafka.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bench.pipeline import freshness, records, sides, table
from bench.pipeline.killing import MEMBERS
from bench.pipeline.peers import flink_ready
from bench.pipeline.sides import Options, Run
from bench.pipeline.workloads import WORKLOADS, Workload
from tidemill.testkit.servers import kafka_server

ROLES = "-roles"
BACKLOGS = ("hot", "resample", "join")
JOBS = (*WORKLOADS, "freshness", *(name + ROLES for name in BACKLOGS))
PARTITIONS = 4
PER_S = 20_000
WARM_RECORDS = 100_000


class SidesDiffer(Exception):
    """Two sides read the same records and do not agree: no time means anything."""


def tell(what: str) -> None:
    """Say how far it has come."""
    sys.stderr.write(what + "\n")
    sys.stderr.flush()


def compare(name: str, answers: pa.Table, expected: pa.Table) -> None:
    """Both have the same answers. Raises: SidesDiffer."""
    expected = expected.cast(answers.schema)
    if not answers.num_rows or not answers.equals(expected):
        shown = f"ours {answers.num_rows}: {answers.slice(0, 3).to_pylist()}"
        other = f"others {expected.num_rows}: {expected.slice(0, 3).to_pylist()}"
        raise SidesDiffer(f"{name}: {shown}, {other}")


def medians(runs: list[Run]) -> dict[str, float]:
    """The median of each figure that every run has."""
    names = set.intersection(*(set(run.figures) for run in runs))
    return {name: median(run.figures[name] for run in runs) for name in sorted(names)}


def backlog(name: str, options: Options, chosen: argparse.Namespace) -> dict[str, Any]:
    """A backlog by both sides in turn. Raises: SidesDiffer."""
    workload = WORKLOADS[name.removesuffix(ROLES)]
    mine: list[Run] = []
    theirs: list[Run] = []
    last = sides.last_compared(workload, options.count)
    expected = workload.rows and workload.answers.ours(workload.rows(options.count), 0, last)
    warm_up(name, options)
    for _ in range(chosen.repetitions):
        mine.append(one(name, workload, options))
        tell(f"{name}: ours {mine[-1].figures}")
        if workload.rows is None and "flink" not in chosen.without:
            theirs.append(sides.flink(name.removesuffix(ROLES), workload, options))
            tell(f"{name}: Flink {theirs[-1].figures}")
            expected = theirs[-1].answers
        if expected is not None:
            compare(name, mine[-1].answers, since(expected, mine[-1].first, workload))
            tell(f"{name}: {mine[-1].answers.num_rows:,} answers are equal")
    found = {"ours": medians(mine), "stages": mine[-1].stages}
    found |= {"stage_rows": mine[-1].stage_rows, "runs": len(mine)}
    return found | ({"flink": medians(theirs)} if theirs else {})


def warm_up(name: str, options: Options) -> None:
    """A short run of ours that is not counted: it compiles the kernels that were never compiled."""
    workload = WORKLOADS[name.removesuffix(ROLES)]
    short = replace(options, count=WARM_RECORDS, profile=None, prefix=f"warm-{name}-", kill="")
    sending = records.send(
        options.bootstrap, workload.records, WARM_RECORDS, PARTITIONS, short.prefix
    )
    asyncio.run(sending)
    one(name, workload, short)
    tell(f"{name}: warm")


def one(name: str, workload: Workload, options: Options) -> Run:
    """One run of ours."""
    return sides.ours(name.removesuffix(ROLES), workload, options, name.endswith(ROLES))


def since(rows: pa.Table, first: int, workload: Workload) -> pa.Table:
    """The answers from an instant on."""
    return rows.filter(pc.greater_equal(rows.column(workload.answers.time), first))


def fresh(options: Options, chosen: argparse.Namespace) -> dict[str, Any]:
    """Freshness of both sides."""
    asyncio.run(records.create_topics(options.bootstrap, (freshness.TOPIC,), PARTITIONS))
    found: dict[str, Any] = {"stages": {}, "runs": 1}
    found["ours"] = freshness.ours(options, PER_S, chosen.seconds)
    tell(f"freshness: ours {found['ours']}")
    if "flink" not in chosen.without:
        found["flink"] = freshness.flink(options, PER_S, chosen.seconds)
    return found


def main() -> None:
    """Fill the topics, measure, write the results."""
    parser = argparse.ArgumentParser(prog="python -m bench.pipeline", description=__doc__)
    parser.add_argument("--only", nargs="*", choices=JOBS, default=list(JOBS))
    parser.add_argument("--records", type=int, default=3_000_000, help="of each topic")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--without", nargs="*", choices=["flink"], default=[])
    parser.add_argument("--checkpoint-s", type=float, default=5.0, help="between two of Flink's")
    parser.add_argument("--limit-s", type=float, default=1_800.0, help="for one run of one side")
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="for which freshness is measured"
    )
    parser.add_argument("--profile", type=Path, help="a folder for sampled stacks of our side")
    parser.add_argument(
        "--kill", choices=MEMBERS, default="", help="a process of ROLES, at a stage"
    )
    parser.add_argument("--keep", action="store_true", help=f"write {table.RESULTS}")
    chosen = parser.parse_args()
    if chosen.records < WARM_RECORDS:
        parser.error(f"--records is at least {WARM_RECORDS:,}: five seconds of event time")
    if chosen.kill and not all(name.endswith(ROLES) for name in chosen.only):
        parser.error(f"--kill is for jobs that end in {ROLES}: name them by --only")
    if chosen.kill and chosen.keep:
        parser.error(
            "--keep writes what runs take in one piece, and --kill breaks them: choose one"
        )
    if "flink" not in chosen.without:
        flink_ready()
    sent: set[str] = set()
    with kafka_server("bench-pipeline") as kafka:
        options = Options(
            kafka.address, chosen.records, chosen.limit_s, chosen.checkpoint_s, chosen.profile,
            kill=chosen.kill,
        )  # fmt: skip
        for name in chosen.only:
            if name == "freshness":
                found = {**fresh(options, chosen), "count": PER_S}
            else:
                kind = WORKLOADS[name.removesuffix(ROLES)].records
                if kind not in sent:
                    tell(f"{kind}: {chosen.records:,} records into each topic")
                    asyncio.run(records.send(kafka.address, kind, chosen.records, PARTITIONS))
                    sent.add(kind)
                found = {**backlog(name, options, chosen), "count": chosen.records}
            print(table.line_of(name, found), *table.stages_of(name, found), sep="\n", flush=True)
            if chosen.keep:
                table.write(name, found, table.about_this_run(vars(chosen)))


if __name__ == "__main__":
    main()
