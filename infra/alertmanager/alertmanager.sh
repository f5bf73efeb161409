#!/usr/bin/env bash
# A real Alertmanager on loopback that notifies nobody.
#   alertmanager.sh up [--port P]     print its URL once it answers; idempotent
#   alertmanager.sh status | down | wipe      wipe = down, then delete the data
# Environment: STATE=.state. P defaults to 19093.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/../lib.sh"

usage() { sed -n '2,5s/^# \?//p' "${BASH_SOURCE[0]}"; exit 2; }

verb=${1:-}
shift || true
state=${STATE:-.state}/alertmanager
mkdir -p "$state"
state=$(cd "$state" && pwd)
port=19093
[ -f "$state/layout" ] && read -r port <"$state/layout"
while [ $# -gt 0 ]; do
  case $1 in
    --port) port=$2; shift 2 ;;
    *) usage ;;
  esac
done

answers() { curl -fsS "http://127.0.0.1:$port/-/ready"; }

case $verb in
  up)
    need prometheus-alertmanager curl
    if ! alive alertmanager; then
      port_free 127.0.0.1 "$port"
      printf 'route: {receiver: nobody}\nreceivers: [{name: nobody}]\n' >"$state/alertmanager.yml"
      echo "$port" >"$state/layout"
    fi
    start alertmanager "$state/alertmanager.log" prometheus-alertmanager --config.file="$state/alertmanager.yml" \
      --storage.path="$state/data" --web.listen-address="127.0.0.1:$port" --cluster.listen-address=
    ready 60 alertmanager "$state/alertmanager.log" answers || exit 1
    echo "http://127.0.0.1:$port" ;;
  status)
    { alive alertmanager && answers >/dev/null; } || { echo "alertmanager down"; exit 1; }
    echo "alertmanager up, pid $(pid_of alertmanager), 127.0.0.1:$port, $(memory_mb "$(pid_of alertmanager)") MB" ;;
  down) stop alertmanager ;;
  wipe) stop alertmanager; rm -rf "$state" ;;
  *) usage ;;
esac
