#!/usr/bin/env bash
# Resolves all members together and writes requirements.lock: exact versions with hashes, no index address.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
uv=.tools/uv/bin/uv
[ -x "$uv" ] || uv=uv
"$uv" lock -q
{
  echo "# Exact versions with hashes of everything that make setup installs. Written by: make lock"
  "$uv" export -q --all-packages --all-groups --no-emit-workspace --no-header --no-annotate --format requirements.txt
} >requirements.lock
infra/setup.sh
.venv/bin/python -m tidemill.manifests.inventory .
