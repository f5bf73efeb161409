"""The answers of a workload by Flink SQL: reads each topic up to its present end, and stops.

    backlog.py BOOTSTRAP WORKLOAD CONNECTOR_JAR OUT_DIR CHECKPOINT_S

Parallelism 2, results as CSV files in OUT_DIR. The last line says how many seconds the job took.
"""

import sys
import time

from pyflink.table import EnvironmentSettings, TableEnvironment

TIMED = "ts AS TO_TIMESTAMP_LTZ(`at`, 3), WATERMARK FOR ts AS ts - INTERVAL '1' SECOND"
TOPICS = {
    "readings": "tank STRING, `level` BIGINT, flow BIGINT, `at` BIGINT",
    "orders": "id STRING, amount BIGINT, `at` BIGINT",
    "payments": "id STRING, `order` STRING, `at` BIGINT",
}
QUERIES = {
    "hot": (
        ["readings"],
        "tank STRING, `level` BIGINT, `at` BIGINT",
        "SELECT tank, `level`, `at` FROM readings WHERE `level` >= 9900",
    ),
    "resample": (
        ["readings"],
        "tank STRING, w TIMESTAMP_LTZ(3), mean DOUBLE, flow BIGINT",
        """SELECT tank, window_time, AVG(CAST(`level` AS DOUBLE)), SUM(flow)
        FROM TABLE(TUMBLE(TABLE readings, DESCRIPTOR(ts), INTERVAL '1' SECOND))
        GROUP BY tank, window_start, window_end, window_time""",
    ),
    "join": (
        ["orders", "payments"],
        "payment STRING, `order` STRING, amount BIGINT, `at` BIGINT",
        """SELECT p.id, o.id, o.amount, p.`at` FROM orders o, payments p WHERE p.`order` = o.id
        AND o.ts <= p.ts AND p.ts < o.ts + INTERVAL '10' SECOND""",
    ),
}


def environment(jar, out, checkpoint_s):
    env = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    for key, value in {
        "pipeline.jars": f"file://{jar}",
        "parallelism.default": "2",
        "table.local-time-zone": "UTC",
        "execution.checkpointing.interval": f"{checkpoint_s}s",
        "execution.checkpointing.dir": f"file://{out}-checkpoints",
    }.items():
        env.get_config().set(key, value)
    return env


def topic(name, columns, bootstrap, more):
    return f"""CREATE TABLE {name} ({columns}, {TIMED}) WITH ('connector'='kafka', 'topic'='{name}',
        'properties.bootstrap.servers'='{bootstrap}', 'format'='json', {more})"""


def main():
    bootstrap, workload, jar, out, checkpoint_s = sys.argv[1:]
    env = environment(jar, out, checkpoint_s)
    topics, columns, query = QUERIES[workload]
    bounded = "'scan.startup.mode'='earliest-offset', 'scan.bounded.mode'='latest-offset'"
    for name in topics:
        env.execute_sql(topic(name, TOPICS[name], bootstrap, bounded))
    sink = f"'connector'='filesystem', 'path'='{out}', 'format'='csv'"
    env.execute_sql(f"CREATE TABLE answers ({columns}) WITH ({sink})")
    began = time.perf_counter()
    env.execute_sql("INSERT INTO answers " + query).wait()
    print(time.perf_counter() - began)


if __name__ == "__main__":
    main()
