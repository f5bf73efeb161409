#!/usr/bin/env bash
# Images without a registry, as docker archives.
#   images.sh base      localhost/python:3.11-slim-bookworm: Debian 12 with python3.11, pip and venv
#   images.sh build     localhost/tidemill:VERSION from services/embedded/Dockerfile; prints the archive and its size
# Archives land in $CACHE/kubernetes/images and are kept; delete one to build it again. Needs root, buildah, debootstrap.
# Environment: CACHE=.cache.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/../lib.sh"
BASE=localhost/python:3.11-slim-bookworm

root=$(cd "$here/../.." && pwd)
cache=${CACHE:-.cache}/kubernetes
mkdir -p "$cache/images"
cache=$(cd "$cache" && pwd)
# Isolation by chroot needs neither a user namespace nor a network of its own.
export BUILDAH_ISOLATION=chroot BUILDAH_FORMAT=docker
in_store() { buildah --root "$cache/buildah" --runroot "$cache/buildah-run" --storage-driver "${STORAGE:-overlay}" "$@"; }

archive_of() { echo "$cache/images/$(echo "$1" | tr '/:' '__').tar"; }
save() { # TAG
  local archive
  archive=$(archive_of "$1")
  rm -f "$archive.new"
  in_store push -q "$1" "docker-archive:$archive.new:$1"
  mv "$archive.new" "$archive"
  echo "$archive $(($(stat -c %s "$archive") / 1000000)) MB"
}

base() {
  local folder
  need debootstrap buildah
  [ -f "$(archive_of "$BASE")" ] && return 0
  folder=$(mktemp -d)
  debootstrap --variant=minbase --include=ca-certificates,python3,python3-pip,python3-venv bookworm "$folder/root" \
    >"$cache/debootstrap.log" 2>&1 || { tail -n 20 "$cache/debootstrap.log" >&2; die "debootstrap failed"; }
  # As in python:3.11-slim-bookworm: commands python and pip, and a pip that installs into the system.
  ln -sf python3 "$folder/root/usr/bin/python"
  rm -rf "$folder"/root/usr/lib/python3*/EXTERNALLY-MANAGED "$folder"/root/var/cache/apt/archives/*.deb \
    "$folder"/root/usr/share/doc/* "$folder"/root/usr/share/locale/*
  tar -C "$folder/root" --one-file-system -cf "$folder/root.tar" .
  rm -rf "$folder/root"
  {
    echo 'FROM scratch'
    echo 'ADD root.tar /'
    echo 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 PYTHONUNBUFFERED=1'
    echo 'CMD ["python3"]'
  } >"$folder/Dockerfile"
  in_store bud -q -t "$BASE" "$folder" >/dev/null
  rm -rf "$folder"
  save "$BASE"
}

build() {
  local tag
  tag=localhost/tidemill:$(sed -n 's/^appVersion: //p' "$root/charts/tidemill/Chart.yaml")
  [ -d "$root/.cache/spark/jars" ] || die "the jars of Spark are missing: infra/setup.sh spark"
  base >&2
  in_store inspect "$BASE" >/dev/null 2>&1 || # the archive was kept, the store was not
    in_store pull -q "docker-archive:$(archive_of "$BASE")" >/dev/null
  # Where packages come through a proxy with an authority of its own, the build trusts what this machine trusts.
  printf '[global]\ncert = /etc/ssl/machine-ca.crt\n' >"$cache/pip.conf"
  in_store bud --volume "$cache/pip.conf:/etc/pip.conf:ro" --pull-never -t "$tag" --build-arg BASE_IMAGE="$BASE" \
    --volume "${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}:/etc/ssl/machine-ca.crt:ro" \
    -f "$root/services/embedded/Dockerfile" "$root" >"$cache/build.log" 2>&1 ||
    { tail -n 40 "$cache/build.log" >&2; die "the build of $tag failed"; }
  save "$tag"
}

case ${1:-} in
  base | build) "$1" ;;
  *) sed -n '2,6s/^# \?//p' "${BASH_SOURCE[0]}"; exit 2 ;;
esac
