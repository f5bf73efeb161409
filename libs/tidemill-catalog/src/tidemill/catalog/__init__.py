"""The catalog: collections with their schemas and names, and programs and questions over them.

Import from the modules; this package imports none of them, so that a job that needs one schema starts fast.

* `record_rows`: `PredicateShape`, records as rows of a collection and back
* `schemas`: the collections that resources make beside their own
* `late_events`: events among dead letters
* `directory`: the view of the query service on collections, views and sources
* `plugins`: functions and lattices of other distributions
"""
