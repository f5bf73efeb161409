"""Tidelog: parse, check, stratify, evaluate, explain.

Import from the modules; this package imports none of them, so that a reader of records starts fast.

* `parser.parse`, `check.check`, `inputs`, `diagnostics`: from text to a `checked.CheckedProgram`,
  or to errors
* `records`: facts with their parafacts, and the text form
* `presence`: stretches of instants, and records on them
* `scratch`: `Engine`, `evaluate`: what a program derives in a window of its timeline, from an
  `evaluation.state.EngineState`
* `incremental`: `IncrementalEngine`, `ticks.IncrementalTicker`: the same kept up to date, instant
  by instant
* `ticks`: `Ticker`: programs with `@next` and `@async`
* `goals`: `compile_goal`, `fired`, `action_key`: questions and actions
* `why`, `why_not`: proofs, and reasons for absence
"""
