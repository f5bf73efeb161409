#!/usr/bin/env bash
# The tests of e2e: those of an API server alone, then a node: brings it up, loads the images, runs the rest within,
# takes it down. A line when a phase or a test begins, and at the end how long each phase took.
#   e2e.sh [PYTEST ARGUMENTS]...    of the tests on the node
# A failure leaves the logs of all pods and of the node in $STATE/e2e-logs.
# Environment: KEEP=1 leaves the node up; FLIGHTS=month sends one month instead of twelve; STATE=.state  CACHE=.cache.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../.."
mkdir -p "${STATE:=.state}" "${CACHE:=.cache}"
STATE=$(cd "$STATE" && pwd) CACHE=$(cd "$CACHE" && pwd)
export STATE CACHE
logs=$STATE/e2e-logs
rm -rf "$logs"

summary=() now=
phase() { # WHAT CMD...
  local begun=$SECONDS
  now=$1
  shift
  printf '%(%H:%M:%S)T  %s\n' -1 "$now"
  "$@"
  summary+=("$(printf '%7d s  %s' $((SECONDS - begun)) "$now")")
  now=
}

finish() {
  local code=$?
  if [ $code != 0 ] && [ ! -d "$logs" ] && [ -d "$STATE/node-tidemill/log" ]; then cp -r "$STATE/node-tidemill/log" "$logs"; fi
  [ -z "${programs:-}" ] || kill "$programs" 2>/dev/null || true
  [ -n "${KEEP:-}" ] || "$here/node.sh" down
  printf '%s\n' "" "${summary[@]}"
  [ $code = 0 ] && now=passed || now="failed: $now"
  [ ! -d "$logs" ] || now="$now; logs of all pods are in $logs"
  printf '%7d s  in all, %s\n' $SECONDS "$now"
}

tests() { .venv/bin/python -m pytest -p no:cacheprovider -o console_output_style=classic "$@"; }

programs_built() {
  wait "$programs" || { programs=; tail -n 20 "$CACHE/kubernetes/programs.log" >&2; return 1; }
  programs=
}

trap finish EXIT
mkdir -p "$CACHE/kubernetes"
phase "an API server" infra/setup.sh apiserver
phase "chart, definitions, operator and jobs at an API server" tests e2e/test_api_server.py e2e/test_api_server_jobs.py e2e/test_api_server_namespaces.py
phase "what images are built with and from" infra/setup.sh spark kafka objectstore image
# Programs take the processor, images wait for downloads.
infra/setup.sh node >"$CACHE/kubernetes/programs.log" 2>&1 &
programs=$!
phase "the image of the pause container" "$here/images.sh" pause
phase "the image of the servers" "$here/images.sh" servers
phase "the images of Tidemill" "$here/images.sh" build
phase "the programs of the node, begun beside the images" programs_built
phase "the node" "$here/node.sh" up
phase "the images into the node" "$here/node.sh" load "$CACHE/kubernetes/images/localhost_servers_1.tar" "$("$here/images.sh" archive)"
"$here/node.sh" volumes 8 >/dev/null
phase "the tests" "$here/node.sh" exec .venv/bin/python -m pytest -x -p no:cacheprovider -o console_output_style=classic --timeout 1800 e2e/test_node.py e2e/test_node_spark.py e2e/test_node_windows.py e2e/test_operations.py "$@" \
  2> >(grep -v '^nanobind: \|^ - \|^See https://nanobind' >&2) # duckdb tells what it leaves to the end of a process
