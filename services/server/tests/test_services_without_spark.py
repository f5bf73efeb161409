"""The images of services have no Spark: no process needs it but the driver of a job and its
executors.
"""

from __future__ import annotations

import subprocess
import sys

WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyspark", "py4j", "pandas", "matplotlib"):
            raise ImportError(f"no {name} here")

sys.meta_path.insert(0, Missing())
"""
PROCESSES = (
    "tidemill_server.up, tidemill_ingest.service, tidemill_remap.service, tidemill_reclock.service,"
    "tidemill_compute.service, tidemill_compaction.service, tidemill_query.service,"
    "tidemill_operator.__main__"
)
LAUNCHING = (
    "tidemill_reclock.bulk_spark, tidemill_compute.views.bulk_spark, tidemill_compaction.bulk_spark,"
    "tidemill_compute.arranging, tidemill_compaction.merge_job, tidemill_compute.arrange_job,"
    "tidemill_compute.views.windows.window_job, tidemill_reclock.keyed_job, tidemill_reclock.bulk_records,"
    "tidemill.spark.pod_launcher, tidemill.kubernetes.api"
)


def outcome(code: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT + code], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stderr


def test_processes_run_and_launch_jobs_where_there_is_no_spark() -> None:
    assert outcome(f"import {PROCESSES}, {LAUNCHING}") == (0, "")


def test_a_process_that_needed_spark_would_be_found() -> None:
    code, error = outcome("import pyspark")
    assert code == 1
    assert "no pyspark here" in error


def test_a_process_starts_without_what_takes_longer_to_import_than_all_the_rest() -> None:
    code = f"import sys, {PROCESSES}; print('pandas' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "False\n"
    code = "import sys, pyarrow.dataset; print('pandas' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "True\n"  # it is there to be imported
