"""Tidelog: parse, check, stratify, evaluate, explain.

Import from the modules; this package imports none of them, so that a reader of records starts fast.

* `parser.parse`, `check.check`, `inputs`, `diagnostics`: from text to a `checked.CheckedProgram`,
  or to errors
* `records`: facts with their parafacts, and the text form
* `presence`: stretches of instants, and records on them
* `dataflow`: `DataflowEngine`, `evaluate_plan`, `ticker.DataflowTicker`: what a program derives,
  kept up to date by steps, once, or tick by tick
* `goals`: `compile_goal`, `fired`, `action_key`: questions and actions
* `why`, `why_not`: proofs, and reasons for absence
"""
