"""Evaluation range by range: the work of one range, and what passes between ranges.

`work.work_of_range` is what one task does, and knows no Spark. `running.Ranges` deals rows out,
hands on what crosses, and merges what ranges say. Importing it imports numba.
"""
