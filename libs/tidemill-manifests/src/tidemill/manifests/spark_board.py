"""The dashboard of Spark: jobs, and views that are kept by windows."""

from __future__ import annotations

from tidemill.manifests.panels import Board, Panel, Query, figure

SPARK = Board(
    "tidemill-spark",
    "Tidemill / Spark jobs",
    "Bulk work: backlogs, builds, big compactions, and views that have outgrown one process.",
    (
        (
            "Jobs",
            (
                figure(
                    "Running",
                    "Jobs that run now.",
                    'sum(tidemill_spark_jobs{$sel, state="running"})',
                ),
                figure(
                    "Succeeded",
                    "Since the process began.",
                    'sum(tidemill_spark_jobs{$sel, state="succeeded"})',
                ),
                figure(
                    "Failed",
                    "Since the process began; a failed job is begun again.",
                    'sum(tidemill_spark_jobs{$sel, state="failed"})',
                    (1, 3),
                ),
                Panel(
                    "Jobs by kind and state",
                    "How many are in each state; a pending one waits for a driver or for room.",
                    (
                        Query(
                            "sum by (kind, state) (tidemill_spark_jobs{$sel})",
                            "{{kind}} {{state}}",
                        ),
                    ),
                    width=12,
                ),
                Panel(
                    "Attempts begun again",
                    "By why the attempt before had failed.",
                    (
                        Query(
                            "sum by (failure) (increase(tidemill_spark_retries_total{$sel}[1h]))",
                            "{{failure}}",
                        ),
                    ),
                    width=12,
                ),
            ),
        ),
        (
            "Views",
            (
                figure(
                    "Views on Spark",
                    "Views that are kept by windows.",
                    "sum(tidemill_view_on_spark{$sel})",
                ),
                Panel(
                    "Engine of each view",
                    "1 on Spark, 0 in one process, with the cause.",
                    (
                        Query(
                            "max by (view, cause) (tidemill_view_on_spark{$sel})",
                            "{{view}} {{cause}}",
                        ),
                    ),
                    width=20,
                ),
                Panel(
                    "Windows",
                    "Windows that drivers evaluated.",
                    (
                        Query(
                            "sum by (view) (rate(tidemill_view_windows_total{$sel}[$__rate_interval]))",
                            "{{view}}",
                        ),
                    ),
                    "ops",
                ),
                Panel(
                    "Ranges touched",
                    "Ranges of hashes that windows looked at.",
                    (
                        Query(
                            "sum by (view) "
                            "(rate(tidemill_view_ranges_touched_total{$sel}[$__rate_interval]))",
                            "{{view}}",
                        ),
                    ),
                    "ops",
                ),
                Panel(
                    "Stages",
                    "Stages of Spark in these windows; a fragment of a view is one.",
                    (
                        Query(
                            "sum by (view) "
                            "(rate(tidemill_view_stages_total{$sel}[$__rate_interval]))",
                            "{{view}}",
                        ),
                    ),
                    "ops",
                ),
                Panel(
                    "Bytes exchanged",
                    "Rows that fragments of a view dealt out to one another.",
                    (
                        Query(
                            "sum by (view) (rate("
                            "tidemill_view_exchanged_bytes_total{$sel}[$__rate_interval]))",
                            "{{view}}",
                        ),
                    ),
                    "Bps",
                ),
                Panel(
                    "Executors",
                    "Executors of the drivers of windows; they come with work and go without.",
                    (Query("sum(tidemill_spark_executors{$sel})", "executors"),),
                ),
            ),
        ),
    ),
)
