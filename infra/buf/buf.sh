#!/usr/bin/env bash
# buf: the rules of protos/, and what a change would break for those who call.
#   buf.sh build              fetch it (npm), or build it (Go); kept
#   buf.sh check [FOLDER]     lint and breaking changes of FOLDER (default protos) against protos/released.binpb
#   buf.sh release            write protos/released.binpb: what is there now is promised from here on
# Environment: CACHE=.cache.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/../lib.sh"
VERSION=1.74.0

root=$(cd "$here/../.." && pwd)
cache=${CACHE:-$root/.cache}/buf
mkdir -p "$cache"
cache=$(cd "$cache" && pwd)
buf=$cache/buf-$VERSION

build() {
  [ -x "$buf" ] && return 0
  if command -v npm >/dev/null 2>&1; then
    cp "$here"/package*.json "$cache"
    (cd "$cache" && npm ci --silent --no-audit --no-fund --ignore-scripts >npm.log 2>&1) ||
      { tail -n 5 "$cache/npm.log" >&2; die "buf could not be fetched from the package index"; }
    ln -sf "$cache"/node_modules/@bufbuild/buf-*/bin/buf "$buf"
  else
    need go
    GOBIN=$cache CGO_ENABLED=0 go install "github.com/bufbuild/buf/cmd/buf@v$VERSION"
    mv "$cache/buf" "$buf"
  fi
}

build
case ${1:-} in
  build) ;;
  check)
    folder=${2:-$root/protos}
    "$buf" lint "$folder"
    "$buf" breaking "$folder" --against "$root/protos/released.binpb"
    ;;
  release) "$buf" build "$root/protos" --exclude-source-info -o "$root/protos/released.binpb" ;;
  *) sed -n '2,6s/^# \?//p' "${BASH_SOURCE[0]}"; exit 2 ;;
esac
