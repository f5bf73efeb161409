#!/bin/bash
# Installs within the build of an image, from the lists of `make notice` in /build:
#   install.sh packages NAME              the packages of NAME.lock, by hash, without their tests and headers, and
#                                         without Arrow Flight, which nothing of ours speaks
#   install.sh ready                      the wheels, whose loops it compiles for every processor of the last ten years; the wheel with them comes to /ready
#   install.sh members IMAGE MODULE...    the packages of IMAGE.lock and the wheels of its members, that of /ready instead of
#                                         the one without loops; then each has what it requires, and the modules are compiled:
#                                         a process starts with less than half of the work, and cannot write any of it down itself
set -eu
pip() { python -m pip --no-cache-dir --disable-pip-version-check "$@"; }
packages() {
  local site
  grep -q == "/build/$1.lock" || return 0
  pip install --no-compile --no-deps --require-hashes -r "/build/$1.lock"
  site=$(python -c 'import sysconfig; print(sysconfig.get_path("platlib"))')
  find "$site" -type d -name tests -prune -exec rm -r {} +
  rm -rf "$site"/pyarrow/{include,src} "$site"/pyarrow/{lib*_flight,_flight,flight}*
}

case $1 in
  packages) packages "$2" ;;
  ready)
    pip install --no-compile --no-deps /wheels/*.whl
    mkdir /ready
    python -m tidemill.host.warming --wheel /wheels/tidemill_arrangement-*.whl /ready ;;
  members)
    image=$2
    shift 2
    [ "$image" = whole ] || packages "$image" # of `whole` they are a layer of their own
    if rm /wheels/tidemill_arrangement-*.whl 2>/dev/null; then cp /ready/*.whl /wheels/; fi
    pip install --no-compile --no-deps /wheels/*.whl
    pip check
    cp "/build/$image.cdx.json" /usr/share/doc/tidemill/sbom.cdx.json
    for module in "$@"; do python -c "import $module"; done
    ! ls /wheels/tidemill_host-*.whl >/dev/null 2>&1 || [ "$(python -m tidemill.host.warming)" = "0 loops compiled" ]
    python -c "import pydantic; pydantic.TypeAdapter(int)" ;; # typer loads it with the first arguments
esac
