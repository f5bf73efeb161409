"""From records in Kafka to definite answers, beside Flink.

    python -m bench.pipeline [--only JOB …] [--records N] [--keep]

Both sides read the same topics of a real broker, in turn, each in processes of its own. Answers are
compared before a time is shown, and a difference stops the run. A job with `-roles` is the same
workload by processes with some roles each, over Redis, a bucket and Kafka. `apart` has two views
by one process of compute, and by two. `ranges` has one view, by one process or in two ranges.
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

from bench.pipeline import apart, freshness, records, sides, table
from bench.pipeline.killing import MEMBERS
from bench.pipeline.peers import flink_ready
from bench.pipeline.sides import Options, Run
from bench.pipeline.workloads import WORKLOADS, Workload
from tidemill.testkit.servers import kafka_server

ROLES = "-roles"
BACKLOGS = ("hot", "resample", "join")
BY_TWO = {"apart": apart.views, "ranges": apart.ranges}
"""Jobs that one process of compute does, and then two."""
JOBS = (*WORKLOADS, "freshness", *BY_TWO, *(name + ROLES for name in BACKLOGS))
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


def shown(run: Run) -> str:
    """The figures of a run for people: a thousandth is enough."""
    return " ".join(f"{name}={figure:.3f}" for name, figure in run.figures.items())


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
    expected: Run | None = None
    if workload.rows:
        expected = Run({}, workload.answers.ours(workload.rows(options.count), 0, last))
    warm_up(name, options)
    if expected is None and "flink" in chosen.without and (chosen.kill or chosen.steady):
        expected = one(name.removesuffix(ROLES), workload, replace(options, per_s=0))
        tell(f"{name}: unharmed, of a backlog, in one process {shown(expected)}")
    for number, stage in enumerate(chosen.repetitions * (chosen.kill or [""])):
        prefix = f"steady-{name}-{number}-" if chosen.steady else ""
        mine.append(one(name, workload, replace(options, kill=stage, prefix=prefix)))
        tell(f"{name}: ours {f'{stage} killed ' if stage else ''}{shown(mine[-1])}")
        if workload.rows is None and "flink" not in chosen.without:
            theirs.append(sides.flink(name.removesuffix(ROLES), workload, options))
            tell(f"{name}: Flink {shown(theirs[-1])}")
            expected = theirs[-1]
        if expected is not None:
            first = max(mine[-1].first, expected.first)
            ours = since(mine[-1].answers, first, workload)
            compare(name, ours, since(expected.answers, first, workload))
            tell(f"{name}: {ours.num_rows:,} answers are equal")
    found: dict[str, Any] = {"ours": medians(mine), "stages": mine[-1].stages}
    found |= {"stage_rows": mine[-1].stage_rows, "runs": len(mine)}
    return found | ({"flink": medians(theirs)} if theirs else {})


def warm_up(name: str, options: Options) -> None:
    """A short run of ours that is not counted: it compiles the kernels that were never compiled."""
    workload = WORKLOADS[name.removesuffix(ROLES)]
    short = replace(options, count=WARM_RECORDS, profile=None, prefix=f"warm-{name}-", per_s=0)
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


def by_two(job: str, options: Options, chosen: argparse.Namespace) -> dict[str, Any]:
    """A job by one process of compute and by two, in turns. Raises: SidesDiffer."""
    together: list[Run] = []
    alone: list[Run] = []
    for _ in range(chosen.repetitions):
        for processes, runs in ((1, together), (2, alone)):
            runs.append(BY_TWO[job](options, processes))
            tell(f"{job}: by {processes} of compute {shown(runs[-1])}")
        first = max(together[-1].first, alone[-1].first)
        ours = since(alone[-1].answers, first, apart.RESAMPLE)
        compare(job, ours, since(together[-1].answers, first, apart.RESAMPLE))
        tell(f"{job}: {ours.num_rows:,} answers are equal")
    both, one_each = medians(together), medians(alone)
    for name in ("answers_s", "most_processor_s"):
        tell(f"{job}: one by two, {name}: {both[name] / one_each[name]:.2f}")
    return {"ours": one_each, "stages": {}, "runs": len(alone), "one process": both}


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
        "--kill", nargs="+", choices=MEMBERS, default=[], help="a process of ROLES, at each stage"
    )
    parser.add_argument(
        "--steady",
        type=int,
        default=0,
        metavar="N",
        help="records of each topic come while ours runs, N a second, instead of before",
    )
    parser.add_argument("--keep", action="store_true", help=f"write {table.RESULTS}")
    chosen = parser.parse_args()
    if chosen.records < WARM_RECORDS:
        parser.error(f"--records is at least {WARM_RECORDS:,}: five seconds of event time")
    if chosen.kill and not all(name.endswith(ROLES) for name in chosen.only):
        parser.error(f"--kill is for jobs that end in {ROLES}: name them by --only")
    if (chosen.kill or chosen.steady) and chosen.keep:
        parser.error("--keep writes what backlogs take in one piece: choose it, --kill or --steady")
    if chosen.steady and "flink" not in chosen.without:
        parser.error("--steady is a load of ours alone: say --without flink")
    if "flink" not in chosen.without:
        flink_ready()
    sent: set[str] = set()
    with kafka_server("bench-pipeline") as kafka:
        options = Options(
            kafka.address, chosen.records, chosen.limit_s, chosen.checkpoint_s, chosen.profile,
            per_s=chosen.steady,
        )  # fmt: skip
        for name in chosen.only:
            if name == "freshness":
                found = {**fresh(options, chosen), "count": PER_S}
            else:
                plain = name.removesuffix(ROLES)
                workload = apart.RESAMPLE if name in BY_TWO else WORKLOADS[plain]
                kind = workload.records
                if kind not in sent:
                    tell(f"{kind}: {chosen.records:,} records into each topic")
                    asyncio.run(records.send(kafka.address, kind, chosen.records, PARTITIONS))
                    sent.add(kind)
                measured = by_two(name, options, chosen) if name in BY_TWO else None
                found = {**(measured or backlog(name, options, chosen)), "count": chosen.records}
            print(table.line_of(name, found), *table.stages_of(name, found), sep="\n", flush=True)
            if chosen.keep:
                table.write(name, found, table.about_this_run(vars(chosen)))


if __name__ == "__main__":
    main()
