#!/usr/bin/env bash
# Archives of classes, for tests. A JVM maps the classes of an archive in place of loading them: a broker takes half,
# a session of Spark two thirds of the processor until it works. A JVM passes over an archive that does not fit it.
# Writes ${CACHE:-.cache}/kafka/classes.jsa and .venv/.classes/spark.jsa. Idempotent; half a minute at first.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
cache=$(cd "${CACHE:-.cache}" && pwd)
scratch=$(mktemp -d)
broker=(env STATE="$scratch" CACHE="$cache" CLASSES="$scratch/kafka.jsa" infra/kafka/kafka.sh)
trap '"${broker[@]}" wipe >/dev/null 2>&1 || true; rm -rf "$scratch"' EXIT

settled() { # FILE: until a JVM that ends has written it whole
  local size=-1 waits=0
  while [ ! -s "$1" ] || [ "$(stat -c %s "$1")" != "$size" ]; do
    [ $((waits += 1)) -le 120 ] || { echo "setup: no archive of classes came: $1" >&2; exit 1; }
    size=$(stat -c %s "$1" 2>/dev/null || echo -1)
    sleep 1
  done
}

kafka=$cache/kafka/classes.jsa
if [ ! -f "$kafka" ] || [ "$cache/kafka/.done" -nt "$kafka" ]; then
  echo "setup: writing an archive of the classes of a broker"
  rm -f "$kafka"
  "${broker[@]}" up --port 19392 >/dev/null
  "${broker[@]}" down
  settled "$scratch/kafka.jsa"
  mv "$scratch/kafka.jsa" "$kafka"
fi

spark=.venv/.classes/spark.jsa
if [ ! -f "$spark" ] || [ .venv/.installed -nt "$spark" ]; then
  echo "setup: writing an archive of the classes of Spark"
  mkdir -p .venv/.classes
  SPARK_SUBMIT_OPTS="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ArchiveClassesAtExit=$scratch/spark.jsa" \
    .venv/bin/python infra/spark/session.py "$scratch" >"$scratch/spark.log" 2>&1 ||
    { tail -n 20 "$scratch/spark.log" >&2; exit 1; }
  settled "$scratch/spark.jsa"
  mv "$scratch/spark.jsa" "$spark"
fi
