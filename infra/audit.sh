#!/usr/bin/env bash
# Known advisories on the packages of requirements.lock, by pip-audit. Fails for any; where the index offers none, says so and does not fail.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PIP_AUDIT=2.10.1
audit() { .tools/uv/bin/uv tool run -q --from "pip-audit==$PIP_AUDIT" pip-audit --disable-pip --progress-spinner off "$@"; }

# One package first: --strict fails where it cannot be looked up, and not only where it has a hole.
one=$(mktemp)
trap 'rm -f "$one"' EXIT
sed -n '/^aiohttp==/,/[^\\]$/p' requirements.lock >"$one"
if ! said=$(audit --strict -r "$one" 2>&1) && ! grep -q 'known vulnerabilit' <<<"$said"; then
  echo "audit: NOT DONE: the package index gives no advisories here; run make audit where it does. It said:"
  tail -n 1 <<<"$said"
  exit 0
fi
audit --require-hashes -r requirements.lock
