#!/usr/bin/env bash
# The Kafka connector of Spark as jars, in ${CACHE:-.cache}/spark/jars. Idempotent.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${CACHE:-.cache}/spark
mkdir -p "$cache"
cache=$(cd "$cache" && pwd)
checked() { (cd "$cache/jars" && sha256sum --strict --quiet -c "$here/jars.sha256" >&2); }
[ -f "$cache/.done" ] && cmp -s "$here/pom.xml" "$cache/.done" && checked && exit 0
echo "setup: fetching the Kafka connector of Spark (4 jars, 11 MB)"
rm -rf "$cache/jars"
# -U: a failed look-up is otherwise remembered for a day
mvn -q -B -C -U -f "$here/pom.xml" dependency:copy-dependencies -DoutputDirectory="$cache/jars" >"$cache/mvn.log" 2>&1 || {
  tail -n 20 "$cache/mvn.log" >&2
  echo "setup: the Kafka connector of Spark could not be fetched from the Maven registry" >&2
  exit 1
}
checked || { echo "setup: jars of the Kafka connector are not those of infra/spark/jars.sha256" >&2; exit 1; }
cp "$here/pom.xml" "$cache/.done"
