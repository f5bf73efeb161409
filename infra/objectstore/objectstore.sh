#!/usr/bin/env bash
# A real S3-compatible server (versitygw, its objects are files) on loopback, built from its Go module.
#   objectstore.sh build              compile the server, nothing else; a minute or two, once
#   objectstore.sh up [--port P]      print its endpoint once it answers; idempotent
#   objectstore.sh env                the settings of AWS clients, to be evaluated
#   objectstore.sh status | down | wipe    wipe = down, then delete the data
#   objectstore.sh kill               SIGKILL, for crash tests; `up` starts it again
# Environment: STATE=.state  CACHE=.cache. P defaults to 19000. One bucket, tidemill; keys test / test-secret.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/../lib.sh"

VERSITYGW_VERSION=v1.8.0
GO_MODULE=github.com/versity/versitygw/cmd/versitygw
BUCKET=tidemill REGION=us-east-1

usage() { sed -n '2,8s/^# \?//p' "${BASH_SOURCE[0]}"; exit 2; }

verb=${1:-}
shift || true
state=${STATE:-.state}/objectstore cache=${CACHE:-.cache}/objectstore
mkdir -p "$state" "$cache"
state=$(cd "$state" && pwd) cache=$(cd "$cache" && pwd)
port=19000
[ -f "$state/layout" ] && read -r port <"$state/layout"
while [ $# -gt 0 ]; do
  case $1 in
    --port) port=$2; shift 2 ;;
    *) usage ;;
  esac
done
server=$cache/versitygw-$VERSITYGW_VERSION

build() {
  [ -x "$server" ] && return 0
  need go
  (
    flock 9 # several test runs may begin at once
    [ -x "$server" ] && exit 0
    echo "objectstore: building $GO_MODULE@$VERSITYGW_VERSION" >&2
    GOBIN=$cache/bin CGO_ENABLED=0 go install -trimpath -ldflags '-s -w' "$GO_MODULE@$VERSITYGW_VERSION" \
      >"$cache/build.log" 2>&1 || die "versitygw could not be built with Go: see $cache/build.log"
    mv "$cache/bin/versitygw" "$server"
  ) 9>"$cache/.lock"
}

case $verb in
  build) build ;;
  up)
    build
    alive objectstore || port_free 127.0.0.1 "$port"
    mkdir -p "$state/data/$BUCKET"
    echo "$port" >"$state/layout"
    ROOT_ACCESS_KEY=test ROOT_SECRET_KEY=test-secret start objectstore "$state/objectstore.log" \
      "$server" --port "127.0.0.1:$port" --region "$REGION" --quiet posix "$state/data"
    ready 120 objectstore "$state/objectstore.log" listening 127.0.0.1 "$port" || exit 1
    echo "http://127.0.0.1:$port" ;;
  env)
    echo "export AWS_ENDPOINT_URL=http://127.0.0.1:$port AWS_REGION=$REGION AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=test-secret" ;;
  status)
    { alive objectstore && listening 127.0.0.1 "$port"; } || { echo "objectstore down"; exit 1; }
    echo "objectstore up, pid $(pid_of objectstore), 127.0.0.1:$port, $(memory_mb "$(pid_of objectstore)") MB" ;;
  kill)
    alive objectstore || die "the object store is not running"
    kill -KILL "$(pid_of objectstore)"
    stop objectstore ;;
  down) stop objectstore ;;
  wipe) stop objectstore; rm -rf "$state" ;;
  *) usage ;;
esac
