#!/usr/bin/env bash
# One node of Kubernetes, of real components, in namespaces of its own: nothing of it can be seen or left outside.
#   node.sh up                start everything and return when the node is Ready; idempotent
#   node.sh status            one line for each component, with its memory
#   node.sh down              stop everything and delete its state; programs and images stay
#   node.sh exec CMD...       run CMD in the node's network, with the DNS of the cluster, KUBECONFIG, kubectl and helm
#   node.sh load TAR...       import images from archives; one that is there already is left alone
#   node.sh images            images of the node and their sizes, unpacked
#   node.sh volumes N         N volumes of 1Gi in the storage class "static"
#   node.sh forward PORT ADDRESS:PORT    loopback PORT of the machine leads to ADDRESS:PORT in the node
#   node.sh kill COMPONENT    SIGKILL one of etcd apiserver controller-manager scheduler containerd kubelet kube-proxy
#                             coredns; `up` starts it again
# Environment: STATE=.state  CACHE=.cache  NODE=tidemill, the name of the namespaces and of the cgroup. Needs root, and once
# `build.sh` and `images.sh pause`. Node 192.0.2.1, pods 198.18.0.0/16, Services 198.19.0.0/16; nothing leads out of it.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/../lib.sh"
NODE=${NODE:-tidemill}
state=${STATE:-.state}/node-$NODE cache=${CACHE:-.cache}/kubernetes
mkdir -p "$state" "$cache"
state=$(cd "$state" && pwd) cache=$(cd "$cache" && pwd)
programs=$cache/bin logs=$state/log
ADDRESS=192.0.2.1 PODS=198.18.0.0/16 SERVICES=198.19.0.0/16 DNS=198.19.0.10 SOCKET=/run/containerd/containerd.sock
COMPONENTS="etcd apiserver controller-manager scheduler containerd kubelet kube-proxy coredns"
PAUSE=localhost/pause:1
. "$here/node/credentials.sh"
. "$here/node/settings.sh"

usage() { sed -n '2,14s/^# \?//p' "${BASH_SOURCE[0]}"; exit 2; }

# ---- the namespaces: one holder is their pid 1, and whatever lives in them ends with it

inner() { cut -d' ' -f1 "/proc/$(pid_of "$1")/task/$(pid_of "$1")/children" 2>/dev/null; } # what a recorded nsenter runs

wait_for() { # SECONDS WHAT CMD...
  local deadline=$((SECONDS + $1)) what=$2
  shift 2
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $deadline ] || die "$what: not there in time; logs are in $logs"
    sleep 0.1
  done
}

network() { # a namespace with an address of the node, and no way out
  local within="nsenter --net=/run/netns/$NODE"
  modprobe -q br_netfilter 2>/dev/null || true # built in or loaded; without it Services fail
  [ -e "/run/netns/$NODE" ] || ip netns add "$NODE"
  $within ip link set lo up
  # A bridge without ports is up, and every kernel that runs pods has it.
  $within ip link show node0 >/dev/null 2>&1 || $within ip link add node0 type bridge
  $within ip addr replace "$ADDRESS/24" dev node0
  $within ip link set node0 up
  # Without a route a connection to a Service fails before the rules of kube-proxy see it.
  $within ip route replace "$SERVICES" dev node0
  $within sysctl -qw net.ipv4.ip_forward=1
}

hold() {
  alive holder && return 0
  network
  printf 'nameserver %s\nsearch default.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5\n' \
    "$DNS" >"$state/resolv.conf"
  rm -f "$state/held"
  # Folders that containerd, CNI and the kubelet write to whatever they are told.
  start holder "$logs/holder.log" nsenter --net="/run/netns/$NODE" \
    unshare --mount --propagation private --pid --fork --mount-proc --kill-child=KILL bash -c '
      for folder in /run/netns /run/containerd /opt/containerd /var/lib/cni /var/lib/kubelet /var/log/containers; do
        mkdir -p $folder
        mount -t tmpfs tmpfs $folder
      done
      mount --bind "$1" /etc/resolv.conf
      touch "$2"
      trap "exit 0" TERM
      while :; do sleep 3600 & wait $!; done' node "$state/resolv.conf" "$state/held"
  wait_for 10 "the namespaces of $NODE" test -f "$state/held"
}

enter() { nsenter --target "$(inner holder)" --net --mount --pid --wdns="$state" -- "$@"; }
component() { # NAME CMD...; not through `enter`, so that the recorded pid is that of nsenter
  local name=$1
  shift
  start "$name" "$logs/$name.log" nsenter --target "$(inner holder)" --net --mount --pid --wdns="$state" -- "$@"
}

kill_component() { # NAME
  local pid
  alive "$1" || die "$1 does not run"
  pid=$(inner "$1")
  [ -n "$pid" ] && kill -KILL "$pid" 2>/dev/null || true
  gone_within "$1" 15 || true
  stop "$1" 2
}

# ---- up

kubectl() { enter env KUBECACHEDIR="$state/kube-cache" "$programs/kubectl" --kubeconfig "$state/admin.kubeconfig" "$@"; }
node_ready() { [ "$(kubectl get node node -o 'jsonpath={.status.conditions[?(@.type=="Ready")].status}')" = True ]; }
dns_ready() { enter bash -c "exec 3<>/dev/tcp/$ADDRESS/8080 && printf 'GET /health HTTP/1.0\r\n\r\n' >&3 && grep -q ' 200 ' <&3"; }
has_image() { [ -n "$(enter ctr -n k8s.io images ls -q "name==$1")" ]; }

start_server() {
  component etcd etcd --data-dir "$state/etcd" --unsafe-no-fsync --listen-peer-urls http://127.0.0.1:2380 \
    --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379
  # InternalIP: no DNS knows the name of the node, to which logs, exec and port-forward go.
  component apiserver "$programs/kube-apiserver" --etcd-servers=http://127.0.0.1:2379 \
    --advertise-address="$ADDRESS" --bind-address=0.0.0.0 --secure-port=6443 --client-ca-file="$keys/ca.crt" \
    --tls-cert-file="$keys/apiserver.crt" --tls-private-key-file="$keys/apiserver.key" \
    --service-cluster-ip-range="$SERVICES" --service-account-issuer=https://kubernetes.default.svc \
    --service-account-key-file="$keys/accounts.pub" --service-account-signing-key-file="$keys/accounts.key" \
    --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction --allow-privileged=true \
    --kubelet-client-certificate="$keys/admin.crt" --kubelet-client-key="$keys/admin.key" \
    --kubelet-certificate-authority="$keys/ca.crt" --kubelet-preferred-address-types=InternalIP
  ready 120 apiserver "$logs/apiserver.log" kubectl get --raw /readyz
  component controller-manager "$programs/kube-controller-manager" --kubeconfig="$state/controller-manager.kubeconfig" \
    --service-account-private-key-file="$keys/accounts.key" --root-ca-file="$keys/ca.crt" \
    --cluster-signing-cert-file="$keys/ca.crt" --cluster-signing-key-file="$keys/ca.key" \
    --use-service-account-credentials=true --leader-elect=false
  component scheduler "$programs/kube-scheduler" --kubeconfig="$state/scheduler.kubeconfig" --leader-elect=false
}

start_node() {
  component kube-proxy "$programs/kube-proxy" --config="$state/kube-proxy.yaml"
  component coredns "$programs/coredns" -conf "$state/Corefile"
  ready 30 containerd "$logs/containerd.log" enter ctr version
  has_image "$PAUSE" || enter ctr -n k8s.io images import "$(pause_archive)" >/dev/null
  component kubelet "$programs/kubelet" --config="$state/kubelet.yaml" --kubeconfig="$state/kubelet.kubeconfig" \
    --hostname-override=node --node-ip="$ADDRESS" --root-dir="$state/kubelet"
  ready 90 kubelet "$logs/kubelet.log" node_ready
}

pause_archive() { echo "$cache/images/localhost_pause_1.tar"; }

up() {
  local program begun=$SECONDS
  [ "$(id -u)" = 0 ] || die "a node needs root: it makes namespaces, mounts and cgroups"
  need ip nsenter unshare openssl etcd containerd ctr runc iptables conntrack ethtool socat
  for program in kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubectl coredns helm; do
    [ -x "$programs/$program" ] || die "$program is not built: run infra/kubernetes/build.sh"
  done
  [ -f "$(pause_archive)" ] || die "the image of the pause container is missing: run infra/kubernetes/images.sh pause"
  mkdir -p "$logs/pods"
  credentials
  settings
  make_cgroups
  hold
  component containerd containerd -c "$state/containerd.toml"
  start_server
  start_node
  dns_service | kubectl apply -f - >/dev/null # CoreDNS runs beside the other components; this gives it the usual name
  ready 30 coredns "$logs/coredns.log" dns_ready
  wait_for 30 "the default service account" kubectl -n default get serviceaccount default
  echo "the node is Ready after $((SECONDS - begun)) s; KUBECONFIG=$state/admin.kubeconfig (within: node.sh exec)"
}

# ---- down

remove_cgroup() { find "$1" -depth -type d -exec rmdir {} + 2>/dev/null; [ ! -d "$1" ]; }
deserted() { [ -z "$(ip netns pids "$NODE" 2>/dev/null)" ]; }

down() {
  local each pid
  for each in "$state"/forward-*.pid; do # these run partly outside the namespaces
    [ -f "$each" ] && { each=${each##*/}; stop "${each%.pid}" 5; }
  done
  if alive holder; then
    pid=$(inner holder)
    [ -n "$pid" ] && kill -KILL "$pid" 2>/dev/null || true # pid 1 of the namespace takes all of it along
  fi
  for each in $COMPONENTS holder; do stop "$each" 5; done
  for each in $(cgroups); do wait_for 15 "the end of the cgroup $each" remove_cgroup "$each"; done
  if [ -e "/run/netns/$NODE" ]; then
    (wait_for 10 "the end of the processes of $NODE" deserted) ||
      die "processes begun by node.sh exec are still there, stop them first: $(ip netns pids "$NODE" | tr '\n' ' ')"
    ip netns del "$NODE"
  fi
  rm -rf "$state"
}

# ---- the rest

status() {
  local name code=0 total=0 memory
  for name in $COMPONENTS; do
    if alive "$name"; then
      memory=$(memory_mb "$(inner "$name")")
      total=$((total + memory))
      printf '%-20s up, pid %s, %s MB\n' "$name" "$(inner "$name")" "$memory"
    else
      printf '%-20s down\n' "$name"
      code=1
    fi
  done
  [ $code = 0 ] && kubectl get node -o wide --no-headers && echo "memory of the components: $total MB"
  return $code
}

run() { # in place of this process, so that signals and the exit code pass through
  [ -e "/run/netns/$NODE" ] || die "the node is down"
  # Caches in the state: every node has the same address, and kubectl would believe the last one for minutes.
  export KUBECONFIG=$state/admin.kubeconfig KUBECACHEDIR=$state/kube-cache PATH=$programs:$PATH
  export HELM_CACHE_HOME=$state/helm HELM_CONFIG_HOME=$state/helm HELM_DATA_HOME=$state/helm
  exec nsenter --net="/run/netns/$NODE" unshare --mount --propagation private bash -c \
    'mount --bind "$1" /etc/resolv.conf; shift; exec "$@"' node "$state/resolv.conf" "$@"
}

load() { # a mark holds the archive's size and time, so that a rebuilt image is loaded anew
  local archive mark
  alive containerd || die "the node is down"
  mkdir -p "$state/loaded"
  for archive in "$@"; do
    archive=$(realpath "$archive")
    mark=$state/loaded/$(basename "$archive")
    [ -f "$mark" ] && [ "$(cat "$mark")" = "$(stat -c '%s %Y' "$archive")" ] && continue
    enter ctr -n k8s.io images import "$archive"
    stat -c '%s %Y' "$archive" >"$mark"
  done
}

volumes() {
  local number
  {
    printf 'apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: static}\n'
    printf 'provisioner: kubernetes.io/no-provisioner\nvolumeBindingMode: WaitForFirstConsumer\n'
    for number in $(seq 1 "$1"); do
      mkdir -p "$state/volumes/$number"
      chmod 0777 "$state/volumes/$number"
      printf -- '---\napiVersion: v1\nkind: PersistentVolume\nmetadata: {name: static-%s}\n' "$number"
      printf 'spec:\n  capacity: {storage: 1Gi}\n  accessModes: [ReadWriteOnce]\n  storageClassName: static\n'
      printf '  persistentVolumeReclaimPolicy: Retain\n  hostPath: {path: %s}\n' "$state/volumes/$number"
    done
  } | kubectl apply -f -
}

forward() { # through a socket file, which network namespaces do not divide
  alive "forward-$1-out" || port_free 127.0.0.1 "$1"
  start "forward-$1-in" "$logs/forward.log" nsenter --net="/run/netns/$NODE" \
    socat "UNIX-LISTEN:$state/forward-$1.sock,fork,unlink-early" "TCP:$2"
  start "forward-$1-out" "$logs/forward.log" \
    socat "TCP-LISTEN:$1,bind=127.0.0.1,reuseaddr,fork" "UNIX-CONNECT:$state/forward-$1.sock"
  wait_for 5 "the forward of $1" listening 127.0.0.1 "$1"
}

verb=${1:-}
shift || true
case $verb in
  up | status | down) "$verb" ;;
  exec) [ $# -gt 0 ] || usage; run "$@" ;;
  load) [ $# -gt 0 ] || usage; load "$@" ;;
  images) alive holder || die "the node is down"; enter ctr -n k8s.io images ls ;;
  volumes) [ $# = 1 ] || usage; volumes "$1" ;;
  forward) [ $# = 2 ] || usage; forward "$1" "$2" ;;
  kill) [ $# = 1 ] || usage; kill_component "$1" ;;
  *) usage ;;
esac
