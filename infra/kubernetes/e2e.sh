#!/usr/bin/env bash
# The tests of e2e on a node: brings it up, loads the images, runs them within, takes it down.
#   e2e.sh [PYTEST ARGUMENTS]...
# Environment: KEEP=1 leaves the node up; FLIGHTS=month sends one month instead of twelve; STATE=.state  CACHE=.cache.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../.."
mkdir -p "${STATE:=.state}" "${CACHE:=.cache}"
STATE=$(cd "$STATE" && pwd) CACHE=$(cd "$CACHE" && pwd)
export STATE CACHE

phase() { # WHAT CMD...
  local begun=$SECONDS what=$1
  shift
  "$@"
  printf '%7d s  %s\n' $((SECONDS - begun)) "$what"
}

finish() { [ -n "${KEEP:-}" ] || "$here/node.sh" down; }
trap finish EXIT
phase "the programs of the node" infra/setup.sh spark kafka objectstore image node
phase "the image of the pause container" "$here/images.sh" pause
phase "the image of the servers" "$here/images.sh" servers
phase "the image of Tidemill" "$here/images.sh" build
phase "the node" "$here/node.sh" up
phase "the images in the node" "$here/node.sh" load "$CACHE"/kubernetes/images/localhost_{servers_1,tidemill_*}.tar
"$here/node.sh" volumes 8 >/dev/null
phase "the tests" "$here/node.sh" exec .venv/bin/python -m pytest -x -p no:cacheprovider --timeout 1800 e2e/test_node.py e2e/test_node_spark.py e2e/test_operations.py "$@"
