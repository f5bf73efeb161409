#!/bin/bash
# What the image of one service runs: `up` and `operator` are its own program; anything else is the command, in the image that has it.
set -eu
# Columns come from the heap of the C library, which gives back at rest; the pool of Arrow would keep 4 to 18 MB beside it.
export ARROW_DEFAULT_MEMORY_POOL=system
service=$1
shift
case ${1:-up} in
  up | operator)
    [ $# = 0 ] || shift
    exec python -m "tidemill_$service" "$@" ;;
  *) exec tidemill "$@" ;;
esac
