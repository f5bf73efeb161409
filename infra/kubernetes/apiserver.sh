#!/usr/bin/env bash
# A real API server of Kubernetes over a real etcd on loopback: custom resources, RBAC, server-side apply, tokens. It has
# no controllers and no node, so nothing runs in it.
#   apiserver.sh up [--port P]      print the path of a kubeconfig for its administrator; idempotent. etcd takes P + 1, P + 2
#   apiserver.sh status | down | wipe     wipe = down, then delete the data
# Environment: STATE=.state, CACHE=.cache. P defaults to 16443. The server is built at the first use (five minutes).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/../lib.sh"

usage() { sed -n '2,7s/^# \?//p' "${BASH_SOURCE[0]}"; exit 2; }

verb=${1:-}
shift || true
state=${STATE:-.state}/apiserver
mkdir -p "$state"
state=$(cd "$state" && pwd)
port=16443
[ -f "$state/layout" ] && read -r port <"$state/layout"
while [ $# -gt 0 ]; do
  case $1 in
    --port) port=$2; shift 2 ;;
    *) usage ;;
  esac
done
kubeconfig=$state/kubeconfig

etcd_answers() { curl -fsS "http://127.0.0.1:$((port + 1))/health"; }
answers() { curl -fsS --cacert "$state/apiserver.crt" -H "Authorization: Bearer $(cat "$state/token")" "https://127.0.0.1:$port/readyz"; }

prepared() {
  [ -f "$kubeconfig" ] && return 0
  umask 077
  openssl rand -hex 16 >"$state/token"
  echo "$(cat "$state/token"),administrator,administrator,system:masters" >"$state/tokens.csv"
  openssl genrsa -out "$state/accounts.key" 2048 2>"$state/openssl.log"
  openssl req -x509 -newkey rsa:2048 -nodes -days 3650 -subj /CN=kubernetes -addext "subjectAltName=IP:127.0.0.1" \
    -keyout "$state/apiserver.key" -out "$state/apiserver.crt" 2>>"$state/openssl.log"
  cat >"$kubeconfig" <<EOF
apiVersion: v1
kind: Config
clusters: [{name: local, cluster: {server: "https://127.0.0.1:$port", certificate-authority: $state/apiserver.crt}}]
users: [{name: administrator, user: {token: $(cat "$state/token")}}]
contexts: [{name: local, context: {cluster: local, user: administrator}}]
current-context: local
EOF
}

case $verb in
  up)
    need etcd openssl curl
    cache=${CACHE:-.cache}
    mkdir -p "$cache"
    cache=$(cd "$cache" && pwd)
    { [ -x "$cache/kubernetes/bin/kube-apiserver" ] && [ -x "$cache/kubernetes/bin/kubectl" ]; } || CACHE=$cache "$here/build.sh" kube-apiserver kubectl >&2
    alive apiserver || port_free 127.0.0.1 "$port"
    prepared
    start etcd "$state/etcd.log" etcd --data-dir "$state/etcd" --log-level warn \
      --listen-client-urls "http://127.0.0.1:$((port + 1))" --advertise-client-urls "http://127.0.0.1:$((port + 1))" \
      --listen-peer-urls "http://127.0.0.1:$((port + 2))"
    ready 30 etcd "$state/etcd.log" etcd_answers || exit 1
    start apiserver "$state/apiserver.log" "$cache/kubernetes/bin/kube-apiserver" --etcd-servers "http://127.0.0.1:$((port + 1))" \
      --bind-address 127.0.0.1 --secure-port "$port" --advertise-address 127.0.0.1 --authorization-mode RBAC \
      --tls-cert-file "$state/apiserver.crt" --tls-private-key-file "$state/apiserver.key" \
      --token-auth-file "$state/tokens.csv" --service-cluster-ip-range 198.19.0.0/16 --endpoint-reconciler-type none \
      --service-account-issuer https://kubernetes.local --service-account-key-file "$state/accounts.key" \
      --service-account-signing-key-file "$state/accounts.key"
    echo "$port" >"$state/layout"
    ready 120 apiserver "$state/apiserver.log" answers || exit 1
    echo "$kubeconfig" ;;
  status)
    { alive apiserver && answers >/dev/null; } || { echo "apiserver down"; exit 1; }
    echo "apiserver up, pid $(pid_of apiserver), 127.0.0.1:$port, $(memory_mb "$(pid_of apiserver)") MB" ;;
  down) stop apiserver; stop etcd ;;
  wipe) stop apiserver; stop etcd; rm -rf "$state" ;;
  *) usage ;;
esac
