#!/bin/bash
# What the image of one service runs: `up` and `operator` are its own program; anything else is the command, in the image that has it.
set -eu
service=$1
shift
case ${1:-up} in
  up | operator)
    [ $# = 0 ] || shift
    exec python -m "tidemill_$service" "$@" ;;
  *) exec tidemill "$@" ;;
esac
