"""Bulk jobs on Spark: the same kernels as the live path, run inside `mapInArrow`."""
