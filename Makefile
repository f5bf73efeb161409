# Every task of the project. `make` alone lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PY := .venv/bin/python
LAW_EXAMPLES ?= 500
# A law is hung after so many seconds. Some draw ten programs for each example.
LAW_SECONDS ?= $(shell echo $$((900 + 10 * $(LAW_EXAMPLES))))
CASES ?= $(wildcard ../shared/vectors)
SECONDS ?= 600
INPUTS ?= 100000
SEED ?= 1
WORKERS ?= 4
READY ?= yes
# Without compiled modules every start of a process compiles all it imports: 3 s instead of none.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: formalism bench bench-shard bench-views help setup demo test lint types contracts format unit laws conformance protos charts definitions image e2e lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install what is missing: uv, .venv with the command tidemill, jars of Kafka and Spark
	@infra/setup.sh

demo: setup ## the main job: a year of flights from a log to exact answers, verified at the end
	@infra/setup.sh spark
	@.venv/bin/tidemill demo

test: setup ## everything CI checks: lint, types, layers, then all tests with real servers
	@infra/setup.sh objectstore buf & built=$$!; \
	infra/setup.sh spark kafka classes redis prometheus browser compiler && wait $$built
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory -j 3 types contracts unit

.PHONY: fuzz
fuzz: setup ## every parser and decoder under random bytes; INPUTS=10000000 SEED=1 ONLY=avro-values
	@$(PY) -m tidemill.testkit.fuzzing --inputs $(INPUTS) --seed $(SEED) $(if $(ONLY),--only $(ONLY))

.PHONY: chaos
chaos: setup ## faults on simulated and real stores; SECONDS=600 SEED=1 ONLY=story|simulation|sqlite|redis|s3
	@infra/setup.sh redis objectstore
	@$(PY) -m tidemill.testkit.faults --seconds $(SECONDS) --seed $(SEED) $(if $(ONLY),--only $(ONLY))

.PHONY: chaos-services test-integration
chaos-services: setup ## the whole system in processes over Kafka, Redis, S3 while all of it is killed, paused, cut off; SECONDS=600 SEED=1
	@infra/setup.sh kafka redis objectstore
	@$(PY) -m tidemill.testkit.service_faults --seconds $(SECONDS) --seed $(SEED)

test-integration: setup ## the tests with real servers alone, one storm of make chaos-services among them; make test runs them too
	@infra/setup.sh spark kafka classes redis objectstore prometheus browser compiler
	@$(PY) -m pytest -m server $(T)

lint: ## ruff: format and rules; buf: rules of protos/, and that no released call breaks
	@.venv/bin/ruff format --check .
	@.venv/bin/ruff check .
	@infra/buf/buf.sh check

types: ## mypy --strict over every library and service
	@.venv/bin/mypy

contracts: ## import-linter: the layers of ARCHITECTURE.md
	@.venv/bin/lint-imports --no-cache

# A run of all tests takes ready loops, as an installation does; READY=no those that are compiled one by one.
unit: ## pytest alone, WORKERS=4 files side by side; T="path or -k expression" narrows it
	@$(if $(T)$(filter no,$(READY)),$(PY) -m tidemill.host.warming && ready=,infra/setup.sh compiler && ready=$$($(PY) -m tidemill.testkit.ready_loops)) && \
	PYTHONPATH=$$ready $(PY) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --junitxml .state/junit.xml $(T)

.PHONY: loops
loops: ## write the types that compiled loops are called with, from the machine code that tests have left
	@$(PY) -m tidemill.testkit.loops

.PHONY: weights
weights: ## write which files of tests begin first, from the last make unit
	@$(PY) -m tidemill.testkit.weights .state/junit.xml

laws: ## random programs on the dataflow, judged by the twin, clingo and MeTeoR: make laws LAW_EXAMPLES=2000
	@cd libs/tidemill-datalog/tests && LAW_EXAMPLES=$(LAW_EXAMPLES) $(abspath $(PY)) -m pytest -q --timeout=$(LAW_SECONDS) \
		test_datalog_dataflow.py test_datalog_dataflow_steps.py test_datalog_dataflow_recursion.py \
		test_datalog_dataflow_ticks.py test_datalog_laws.py test_datalog_tick_state.py \
		test_datalog_tick_reasons.py test_datalog_running.py test_datalog_foreign.py \
		test_datalog_ranges.py test_datalog_ranges_apart.py test_datalog_rounds.py test_datalog_sharing.py test_datalog_passed.py \
		$(abspath services/compute/tests/test_compute_window_laws.py)

conformance: ## run case files: make conformance CASES=PATH
	@test -n "$(CASES)" || { echo "name the case files: make conformance CASES=PATH"; exit 2; }
	@.venv/bin/tidemill conformance $(CASES)

.PHONY: mutants
mutants: setup ## break each rule in a copy and see its test fail; M="K1 UP" narrows it to rules and families
	@$(PY) -m tidemill.testkit.mutants $(M)

formalism: ## write docs/reference/formalism.md: every rule with the tests that name it
	@$(PY) -m tidemill.testkit.rules

reference: ## write the generated pages of docs/reference: language, resources, CLI, settings, metrics, HTTP, gRPC
	@$(PY) -m tidemill.testkit.reference

.PHONY: docs reference
docs: setup ## the site of docs/, built into .state/site; a broken link or anchor fails
	@NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build
	@echo "open .state/site/index.html; with search: $(PY) -m http.server -d .state/site 8000"

.PHONY: pictures
pictures: setup ## take the pictures of the console in docs/ anew, in a real browser
	@infra/setup.sh browser
	@$(PY) -m tidemill.testkit.pictures docs

bench: setup ## speed of arrangements and of views in batches against the Rust original; BENCH="--only NAME" narrows it
	@$(PY) -m bench $(BENCH)

bench-shard: setup ## speed of durable collections against the floor of each store; one to two minutes
	@infra/setup.sh redis objectstore
	@$(PY) -m bench.shard

.PHONY: bench-scale
bench-scale: setup ## many sources at rest, and how long applying 50 more takes; BENCH="--sources 1000 --keep" narrows it, BENCH="--updates 1000000000" makes one collection instead
	@$(PY) -m bench.scale $(BENCH)

.PHONY: bench-hostile
bench-hostile: setup ## what one user notices of another that does its worst within its limits; BENCH="--only programs --rounds 1" narrows it
	@$(PY) -m bench.hostile $(BENCH)

.PHONY: bench-web
bench-web: setup ## HTTP under load: questions for one key, followers over restarts, the console; BENCH="--only keys --rows 100000" narrows it
	@infra/setup.sh browser
	@$(PY) -m bench.web $(BENCH)

.PHONY: bench-spark
bench-spark: setup ## what a scan by Spark costs, the answer compared first; BENCH="--rows 1000000" narrows it
	@infra/setup.sh spark
	@$(PY) -m bench.spark $(BENCH)

.PHONY: bench-spark-views
bench-spark-views: setup ## histories, heavy keys and windows on Spark, answers compared first; BENCH="--only windows --alive 50000" narrows it
	@infra/setup.sh spark
	@$(PY) -m bench.spark.views $(BENCH)

bench-views: setup ## views beside other systems, answers compared first; BENCH="--only NAME --scale 0.1" narrows it
	@$(PY) -m bench.views $(BENCH)

.PHONY: bench-pipeline
RECORDS ?= 3000000
bench-pipeline: setup ## from records in Kafka to definite answers beside Flink; RECORDS=300000 and BENCH="--only hot --profile FOLDER" narrow it
	@infra/setup.sh kafka redis objectstore
	@$(PY) -m bench.pipeline --records $(RECORDS) $(BENCH)


format: ## let ruff rewrite the sources
	@.venv/bin/ruff format .
	@.venv/bin/ruff check --fix .

protos: ## generate libs/tidemill-protos from protos/
	@$(PY) protos/generate.py

charts: ## write what the charts ship from code: dashboards, definitions, the page of values
	@.venv/bin/tidemill-manifests charts

definitions: ## judge the custom resource definitions with the API server's own code; builds it first
	@infra/kubernetes/definitions.sh

image: ## the images of all services, as one archive (needs root, buildah, debootstrap)
	@infra/setup.sh spark image
	@infra/kubernetes/images.sh build

.PHONY: dist dist-measure publish
DIST ?= dist
IMAGES ?= yes
dist: setup ## wheels, sdists, the chart, the extension for VS Code, images, a bill of materials, and an index of digests, into DIST=dist; IMAGES=no
	@$(PY) infra/dist.py build $(DIST) --images $(IMAGES)

dist-measure: ## install from DIST in an empty folder: MB fetched, seconds to the first exact answer
	@$(PY) infra/dist.py measure $(DIST)

publish: ## upload what make dist wrote: PACKAGES=URL of an index of packages, REGISTRY=HOST/PATH of images and charts
	@$(PY) infra/dist.py publish $(DIST) --packages "$(PACKAGES)" --registry "$(REGISTRY)"

e2e: setup ## the chart, the definitions and the operator on a real API server, then the whole system in pods on a real node (root)
	@infra/kubernetes/e2e.sh

.PHONY: notice audit
notice: ## write NOTICE, the bill of materials and the lists of packages of the images, from the lock
	@$(PY) -m tidemill.manifests.inventory .

audit: setup ## ask the package index for advisories on the lock (pip-audit); says so where it does not offer any
	@infra/audit.sh

lock: ## resolve the dependencies anew into requirements.lock
	@infra/lock.sh

clean: ## remove what the targets made: environments, caches, state
	@rm -rf dist .venv .tools .cache .state .tidemill .mypy_cache .ruff_cache .pytest_cache .hypothesis
