#!/usr/bin/env bash
# Judges the custom resource definitions of the chart with the validation code of the API server itself: structure,
# rules in CEL, and the estimated cost of each rule, which an API server limits.
# Environment: CACHE=.cache, where the program is built at the first use (two to three minutes, Go 1.24).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
cache=${CACHE:-.cache}/kubernetes
mkdir -p "$cache"
cache=$(cd "$cache" && pwd)
source=infra/kubernetes/definitions
wanted=$(cat "$source"/main.go "$source"/go.mod "$source"/go.sum | sha256sum)
if [ ! -x "$cache/definitions" ] || [ "$(cat "$cache/definitions.built")" != "$wanted" ]; then
  command -v go >/dev/null || { echo "error: go is missing: install Go 1.24 or newer" >&2; exit 1; }
  (cd "$source" && CGO_ENABLED=0 go build -trimpath -o "$cache/definitions" .)
  echo "$wanted" >"$cache/definitions.built"
fi
plain=$(mktemp -d)
trap 'rm -rf "$plain"' EXIT
for file in charts/tidemill/charts/crds/templates/*.yaml; do # the only lines of helm are a switch around one annotation
  grep -v '{{' "$file" >"$plain/$(basename "$file")"
done
"$cache/definitions" "$plain"/*.yaml
