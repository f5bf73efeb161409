"""Windows of a view on Spark: intervals [lower, upper) that a warm driver evaluates.

A window looks only at keys that its changes touch. Its parts are appended by the process that has
the claim on the view.
"""
