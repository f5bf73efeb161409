#!/usr/bin/env bash
# The tests of e2e on a node: brings it up, loads the images, runs them within, takes it down.
#   e2e.sh [PYTEST ARGUMENTS]...
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

phase() { # WHAT CMD...
  local begun=$SECONDS what=$1
  shift
  "$@"
  printf '%7d s  %s\n' $((SECONDS - begun)) "$what"
}

finish() {
  local code=$?
  if [ $code != 0 ] && [ ! -d "$logs" ] && [ -d "$STATE/node-tidemill/log" ]; then cp -r "$STATE/node-tidemill/log" "$logs"; fi
  [ -z "${programs:-}" ] || kill "$programs" 2>/dev/null || true
  [ -n "${KEEP:-}" ] || "$here/node.sh" down
  printf '%7d s  in all\n' $SECONDS
}

programs_built() {
  wait "$programs" || { programs=; tail -n 20 "$CACHE/kubernetes/programs.log" >&2; return 1; }
  programs=
}

trap finish EXIT
mkdir -p "$CACHE/kubernetes"
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
phase "the tests" "$here/node.sh" exec .venv/bin/python -m pytest -x -p no:cacheprovider --timeout 1800 e2e/test_node.py e2e/test_node_spark.py e2e/test_node_windows.py e2e/test_operations.py "$@"
