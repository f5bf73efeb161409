#!/usr/bin/env bash
# A real redis-server on loopback; by default every acknowledged write is on disk.
#   redis.sh up [--port P] [--no-aof] [--cluster]   print its URL once it answers; idempotent. --no-aof: nothing
#                                       survives a restart; --cluster: a node that is to be joined to others,
#                                       with its bus on the port after P (Redis 7)
#   redis.sh status | down | wipe       wipe = down, then delete the data
#   redis.sh kill                       SIGKILL, for crash tests; `up` starts it again
# Environment: STATE=.state. P defaults to 16379.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/../lib.sh"

usage() { sed -n '2,8s/^# \?//p' "${BASH_SOURCE[0]}"; exit 2; }

verb=${1:-}
shift || true
state=${STATE:-.state}/redis
mkdir -p "$state"
state=$(cd "$state" && pwd)
port=16379 aof=yes cluster=no
[ -f "$state/layout" ] && read -r port aof cluster <"$state/layout"
while [ $# -gt 0 ]; do
  case $1 in
    --port) port=$2; shift 2 ;;
    --no-aof) aof=no; shift ;;
    --cluster) cluster=yes; shift ;;
    *) usage ;;
  esac
done

answers() { [ "$(redis-cli -h 127.0.0.1 -p "$port" ping)" = PONG ]; }

case $verb in
  up)
    need redis-server redis-cli
    alive redis || port_free 127.0.0.1 "$port"
    joined=()
    [ "$cluster" = yes ] && joined=(--cluster-enabled yes --cluster-config-file nodes.conf --cluster-port "$((port + 1))")
    start redis "$state/redis.log" redis-server --bind 127.0.0.1 --port "$port" --dir "$state" \
      --daemonize no --save '' --appendonly "$aof" --appendfsync always --databases 16 "${joined[@]}"
    echo "$port $aof $cluster" >"$state/layout"
    ready 120 redis "$state/redis.log" answers || exit 1
    echo "redis://127.0.0.1:$port/0" ;;
  status)
    { alive redis && answers; } || { echo "redis down"; exit 1; }
    echo "redis up, pid $(pid_of redis), 127.0.0.1:$port, appendonly $aof, $(memory_mb "$(pid_of redis)") MB" ;;
  kill)
    alive redis || die "redis is not running"
    kill -KILL "$(pid_of redis)"
    stop redis ;;
  down) stop redis ;;
  wipe) stop redis; rm -rf "$state" ;;
  *) usage ;;
esac
