#!/usr/bin/env bash
# Images without a registry, as archives.
#   images.sh base      localhost/python:3.11-slim-bookworm: Debian 12 with python3.11, pip and venv
#   images.sh build     localhost/tidemill:VERSION, and localhost/tidemill-SERVICE:VERSION for each service, from
#                       services/server/Dockerfile, in one archive with each layer once; prints their sizes, compressed
#   images.sh pause     localhost/pause:1, the container that holds the namespaces of a pod
#   images.sh servers   localhost/servers:1, what tests install beside Tidemill: Kafka, Redis, an S3 server, Prometheus
#   images.sh archive   where `build` leaves its archive
# Archives land in $CACHE/kubernetes/images and are kept, all but that of `build`, which only reuses its layers; delete one
# to build it again. Needs root, buildah, debootstrap; gcc for the pause container.
# Environment: CACHE=.cache; MIRROR, of Debian: https://snapshot.debian.org/archive/debian/DATE/ gives the same packages each time.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/../lib.sh"
BASE=localhost/python:3.11-slim-bookworm
SERVICES="ingest remap reclock compute compaction query operator"

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
  debootstrap --variant=minbase --include=ca-certificates,python3,python3-pip,python3-venv bookworm "$folder/root" ${MIRROR:+"$MIRROR"} \
    >"$cache/debootstrap.log" 2>&1 || { tail -n 20 "$cache/debootstrap.log" >&2; die "debootstrap failed"; }
  # As in python:3.11-slim-bookworm: commands python and pip, and a pip that installs into the system.
  ln -sf python3 "$folder/root/usr/bin/python"
  rm -rf "$folder"/root/usr/lib/python3*/EXTERNALLY-MANAGED "$folder"/root/var/cache/apt/archives/*.deb "$folder"/root/var/lib/apt/lists/* \
    "$folder"/root/usr/share/locale/*
  # Whoever redistributes packages of Debian keeps their licences.
  find "$folder/root/usr/share/doc" -type f ! -name copyright -delete
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

base_in_store() {
  base >&2
  in_store inspect "$BASE" >/dev/null 2>&1 || # the archive was kept, the store was not
    in_store pull -q "docker-archive:$(archive_of "$BASE")" >/dev/null
}

built() { # TAG FOLDER [ARGUMENTS]: a Dockerfile over the base image, layers reused
  local tag=$1 folder=$2 log
  shift 2
  base_in_store
  log=$cache/build-$(basename "${tag%:*}").log
  # Where packages come through a proxy with an authority of its own, the build trusts what this machine trusts.
  printf '[global]\ncert = /etc/ssl/machine-ca.crt\n' >"$cache/pip.conf"
  in_store bud --layers --volume "$cache/pip.conf:/etc/pip.conf:ro" --pull-never -t "$tag" --build-arg BASE_IMAGE="$BASE" \
    --volume "${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}:/etc/ssl/machine-ca.crt:ro" "$@" "$folder" >"$log" 2>&1 ||
    { tail -n 40 "$log" >&2; die "the build of $tag failed"; }
}

tidy_store() { in_store rmi --prune >/dev/null 2>&1 || true; } # layers that no image needs any more

version() { sed -n 's/^appVersion: //p' "$root/charts/tidemill/Chart.yaml"; }
archive() { echo "$cache/images/tidemill_$(version).tar"; }

build() {
  local tag layout service archive tags=()
  archive=$(archive)
  CACHE=$root/.cache "$here/../spark/jars.sh" # wherever other caches are, the build finds them below its root only
  for service in $SERVICES whole; do
    tag=localhost/tidemill-$service:$(version)
    [ "$service" != whole ] || tag=localhost/tidemill:$(version)
    printf '%(%H:%M:%S)T  the image %s\n' -1 "$tag"
    built "$tag" "$root" -f "$root/services/server/Dockerfile" --target "$service"
    tags+=("$tag")
  done
  tidy_store
  # A layout of OCI holds a layer once however many images have it; an archive of docker would hold it in each.
  layout=$(mktemp -d -p "$cache")
  for tag in "${tags[@]}"; do in_store push -q --compression-format gzip --compression-level 6 "$tag" "oci:$layout:$tag"; done
  # The name as containerd and docker read it.
  sed -i 's/"org.opencontainers.image.ref.name":"\([^"]*\)"/&,"io.containerd.image.name":"\1"/g' "$layout/index.json"
  rm -f "$cache"/images/*tidemill_*.tar
  tar -C "$layout" -cf "$archive.new" .
  rm -rf "$layout"
  mv "$archive.new" "$archive"
  "$here/image-sizes.py" "$archive"
}

pause() {
  local folder
  need gcc buildah
  [ -f "$(archive_of localhost/pause:1)" ] && return 0
  folder=$(mktemp -d)
  gcc -O2 -static -s -o "$folder/pause" "$here/node/pause.c"
  printf 'FROM scratch\nCOPY pause /pause\nUSER 65535:65535\nENTRYPOINT ["/pause"]\n' >"$folder/Dockerfile"
  in_store bud -q -t localhost/pause:1 "$folder" >/dev/null
  rm -rf "$folder"
  save localhost/pause:1
}

servers() {
  local folder
  [ -f "$(archive_of localhost/servers:1)" ] && return 0
  "$here/../kafka/kafka.sh" jars
  "$here/../objectstore/objectstore.sh" build
  folder=$(mktemp -d)
  cp "$here/servers/Dockerfile" "$folder/"
  cp -r "$cache/../kafka/libs" "$folder/kafka"
  cp "$cache"/../objectstore/versitygw-* "$folder/versitygw"
  built localhost/servers:1 "$folder"
  tidy_store
  save localhost/servers:1
  rm -rf "$folder"
}

case ${1:-} in
  base | build | pause | servers | archive) "$1" ;;
  *) sed -n '2,10s/^# \?//p' "${BASH_SOURCE[0]}"; exit 2 ;;
esac
