#!/usr/bin/env bash
# A real Prometheus on loopback that scrapes every second.
#   prometheus.sh up [--port P] [--target HOST:PORT]... [--rules FILE]   print its URL once it answers; idempotent
#   prometheus.sh query EXPR          the JSON answer to an instant query
#   prometheus.sh status | down | wipe      wipe = down, then delete the data
# Environment: STATE=.state. P defaults to 19090.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/../lib.sh"

usage() { sed -n '2,6s/^# \?//p' "${BASH_SOURCE[0]}"; exit 2; }

verb=${1:-}
shift || true
state=${STATE:-.state}/prometheus
mkdir -p "$state"
state=$(cd "$state" && pwd)
port=19090 targets='' rules='' expression=
[ -f "$state/layout" ] && read -r port <"$state/layout"
if [ "$verb" = query ]; then expression=${1:?an expression}; shift; fi
while [ $# -gt 0 ]; do
  case $1 in
    --port) port=$2; shift 2 ;;
    --target) targets="$targets\"$2\", "; shift 2 ;;
    --rules) rules=$(realpath "$2"); shift 2 ;;
    *) usage ;;
  esac
done

answers() { curl -fsS "http://127.0.0.1:$port/-/ready"; }

configured() {
  echo 'global: {scrape_interval: 1s, evaluation_interval: 1s}'
  [ -z "$rules" ] || echo "rule_files: [\"$rules\"]"
  echo 'scrape_configs:'
  echo "- {job_name: tidemill, static_configs: [{targets: [${targets%, }]}]}"
}

case $verb in
  up)
    need prometheus promtool curl
    if ! alive prometheus; then
      port_free 127.0.0.1 "$port"
      configured >"$state/prometheus.yml"
      promtool check config "$state/prometheus.yml" >"$state/check.log" 2>&1 || { cat "$state/check.log" >&2; exit 1; }
      echo "$port" >"$state/layout"
    fi
    start prometheus "$state/prometheus.log" prometheus --config.file="$state/prometheus.yml" \
      --storage.tsdb.path="$state/data" --web.listen-address="127.0.0.1:$port" --storage.tsdb.retention.time=1h
    ready 120 prometheus "$state/prometheus.log" answers || exit 1
    echo "http://127.0.0.1:$port" ;;
  query)
    curl -fsS -G "http://127.0.0.1:$port/api/v1/query" --data-urlencode "query=$expression"
    echo ;;
  status)
    { alive prometheus && answers >/dev/null; } || { echo "prometheus down"; exit 1; }
    echo "prometheus up, pid $(pid_of prometheus), 127.0.0.1:$port, $(memory_mb "$(pid_of prometheus)") MB" ;;
  down) stop prometheus ;;
  wipe) stop prometheus; rm -rf "$state" ;;
  *) usage ;;
esac
