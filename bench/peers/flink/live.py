"""The filter *hot* by Flink SQL over a topic that goes on, exactly once into another topic.

Goes on until it is killed.

    live.py BOOTSTRAP CONNECTOR_JAR FOLDER CHECKPOINT_S
"""

import sys

from backlog import TOPICS, environment


def main():
    bootstrap, jar, folder, checkpoint_s = sys.argv[1:]
    env = environment(jar, folder, checkpoint_s)
    env.get_config().set("execution.checkpointing.mode", "EXACTLY_ONCE")
    kafka = f"'connector'='kafka', 'properties.bootstrap.servers'='{bootstrap}', 'format'='json'"
    env.execute_sql(
        f"CREATE TABLE live ({TOPICS['readings']}) WITH ({kafka}, 'topic'='live',"
        " 'scan.startup.mode'='latest-offset')"
    )
    env.execute_sql(
        f"CREATE TABLE answers (tank STRING, `level` BIGINT, `at` BIGINT) WITH ({kafka}, 'topic'='answers',"
        " 'sink.delivery-guarantee'='exactly-once', 'sink.transactional-id-prefix'='bench',"
        " 'properties.transaction.timeout.ms'='600000')"
    )
    env.execute_sql("INSERT INTO answers SELECT tank, `level`, `at` FROM live WHERE `level` >= 9900").wait()


if __name__ == "__main__":
    main()
