"""The catalog: resources, the collections they make, and what an apply changes.

Import from the modules; this package imports none of them, so that a job that needs one schema
starts fast.

* `catalog.Catalog`: everything that can be read, by name; `entry.CatalogEntry`, `entry.PlannedView`
* `store.ResourceStore`: applied resources, durable; `store.Stored`
* `apply.plan.plan_apply`, `apply.check.check_files`: the plan of an apply, and the check of files
  without a server
* `record_rows.PredicateShape`, `schemas`: columns of collections; records as rows and back
* `directory`: what the query service sees of the catalog
* `plugins.vocabulary_of`: functions and lattices of other distributions
"""
