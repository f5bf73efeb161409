#!/usr/bin/env bash
# Builds Kubernetes, helm and CoreDNS from their Go modules. Finished programs are kept.
#   build.sh [COMPONENT]...     all of them if none is named: kube-apiserver kube-controller-manager kube-scheduler
#                               kube-proxy kubelet kubectl helm coredns
# Environment: CACHE=.cache, the programs go to $CACHE/kubernetes/bin. Needs Go 1.24, 2 GB of memory, 7 GB of disk.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/../lib.sh"
KUBERNETES=1.33.13
HELM=v3.18.6
staging=v0.${KUBERNETES#*.}

need go
cache=${CACHE:-.cache}/kubernetes
mkdir -p "$cache/bin" "$cache/src"
cache=$(cd "$cache" && pwd)
export GOFLAGS=-mod=mod CGO_ENABLED=0 # modules outside this repository: their sums are checked as they come

finished() { [ -x "$cache/bin/$1" ] && [ -f "$cache/bin/.$1-$2" ]; }
finish() { # NAME VERSION SECONDS
  touch "$cache/bin/.$1-$2"
  printf '%-24s %4d MB  %4d s\n' "$1" $(($(stat -c %s "$cache/bin/$1") / 1000000)) "$3"
}

modules_ready() {
  local module
  [ -f "$cache/src/.tidy-$KUBERNETES" ] && return 0
  # k8s.io/kubernetes asks for its staging modules at v0.0.0 and replaces them by folders of its own
  # repository: a module of ours has to name the versions under which they are published.
  module=$(go mod download -json "k8s.io/kubernetes@v$KUBERNETES" | sed -n 's/^\t"GoMod": "\(.*\)",*$/\1/p')
  {
    printf 'module tools\ngo 1.24.0\nrequire k8s.io/kubernetes v%s\nreplace (\n' "$KUBERNETES"
    awk '$1 ~ /^k8s.io\/[a-z-]+$/ && $2 == "v0.0.0" { print $1 }' "$module" | sort -u |
      sed "s|.*|\t& => & $staging|"
    printf ')\n'
  } >"$cache/src/go.mod"
  {
    printf '//go:build tools\n\npackage tools\n\nimport (\n'
    printf '\t_ "k8s.io/kubernetes/cmd/%s"\n' kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubectl
    printf ')\n'
  } >"$cache/src/tools.go"
  (cd "$cache/src" && go mod tidy >tidy.log 2>&1) || { tail -n 20 "$cache/src/tidy.log" >&2; exit 1; }
  touch "$cache/src/.tidy-$KUBERNETES"
}

build_kubernetes() { # PROGRAM...; one command for all: it compiles what they share once, and links one beside the compilation of another
  local begun=$SECONDS flags='-s -w' package name minor=${staging#v0.} missing=()
  for name in "$@"; do finished "$name" "$KUBERNETES" || missing+=("$name"); done
  [ ${#missing[@]} -gt 0 ] || return 0
  modules_ready
  for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
    flags="$flags -X $package.gitVersion=v$KUBERNETES -X $package.gitMajor=1 -X $package.gitMinor=${minor%%.*}"
    flags="$flags -X $package.gitCommit=none -X $package.gitTreeState=clean -X $package.buildDate=1970-01-01T00:00:00Z"
  done
  rm -rf "$cache/bin.new"
  mkdir "$cache/bin.new"
  (cd "$cache/src" && go build -trimpath -ldflags "$flags" -o "$cache/bin.new/" "${missing[@]/#/k8s.io/kubernetes/cmd/}")
  for name in "${missing[@]}"; do
    mv "$cache/bin.new/$name" "$cache/bin/$name"
    finish "$name" "$KUBERNETES" $((SECONDS - begun))
  done
  rmdir "$cache/bin.new"
}

install_module() { # NAME PACKAGE VERSION
  local begun=$SECONDS
  finished "$1" "$3" && return 0
  (cd "$cache" && GOBIN=$cache/bin go install -trimpath -ldflags '-s -w' "$2@$3")
  finish "$1" "$3" $((SECONDS - begun))
}

build_coredns() {
  local begun=$SECONDS version
  version=$(cat "$here"/coredns/{go.mod,go.sum,main.go} | sha256sum | cut -c1-16)
  finished coredns "$version" && return 0
  (cd "$here/coredns" && GOFLAGS=-mod=readonly go build -trimpath -buildvcs=false -ldflags '-s -w' -o "$cache/bin/coredns.new" .)
  mv "$cache/bin/coredns.new" "$cache/bin/coredns"
  finish coredns "$version" $((SECONDS - begun))
}

[ $# -gt 0 ] || set -- kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubectl helm coredns
kubernetes=()
for component in "$@"; do
  case $component in
    kube*) kubernetes+=("$component") ;;
    helm | coredns) ;;
    *) die "unknown component $component" ;;
  esac
done
build_kubernetes "${kubernetes[@]}"
for component in "$@"; do
  case $component in
    helm) install_module helm helm.sh/helm/v3/cmd/helm "$HELM" ;;
    coredns) build_coredns ;;
  esac
done
