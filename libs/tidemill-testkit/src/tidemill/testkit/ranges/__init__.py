"""Twin of evaluation on Spark: records dealt out to ranges, windows that begin from stored facts.

`task.evaluate_range` is one task, `running.Ranges` exchanges what crosses between fragments.
"""
