# Settings of the components of a node, in $state, and its cgroups. Sourced by node.sh.

cgroups() { find /sys/fs/cgroup -mindepth 1 -maxdepth 2 -type d -name "$NODE"; }

# A dozen processes and all pods are in it: it gets the share of ten processes, not that of one.
make_cgroups() {
  local folder name
  if [ -f /sys/fs/cgroup/cgroup.controllers ]; then # version 2
    mkdir -p "/sys/fs/cgroup/$NODE"
    for name in $(cat /sys/fs/cgroup/cgroup.controllers); do
      echo "+$name" >/sys/fs/cgroup/cgroup.subtree_control 2>/dev/null || true
    done
    echo 1000 >"/sys/fs/cgroup/$NODE/cpu.weight" 2>/dev/null || true
    return 0
  fi
  for folder in /sys/fs/cgroup/*/; do
    mkdir -p "$folder$NODE"
    [ ! -f "$folder$NODE/cpu.shares" ] || echo 10240 >"$folder$NODE/cpu.shares"
    [ -f "$folder$NODE/cpuset.cpus" ] || continue
    # A new cpuset is empty, and no process can enter it before it is filled.
    cat "$folder/cpuset.cpus" >"$folder$NODE/cpuset.cpus"
    cat "$folder/cpuset.mems" >"$folder$NODE/cpuset.mems"
  done
}

network_settings() {
  mkdir -p "$state/cni"
  cat >"$state/cni/10-bridge.conflist" <<END
{"cniVersion": "0.4.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "$PODS"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
END
  cat >"$state/kube-proxy.yaml" <<END
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clientConnection: {kubeconfig: $state/kube-proxy.kubeconfig}
mode: iptables
clusterCIDR: $PODS
hostnameOverride: node
conntrack: {maxPerCore: 0}
iptables: {minSyncPeriod: 0s}
END
  cat >"$state/Corefile" <<END
.:53 {
  bind $ADDRESS
  errors
  health $ADDRESS:8080
  kubernetes cluster.local in-addr.arpa {
    kubeconfig $state/admin.kubeconfig
    ttl 1
  }
}
END
}

container_settings() {
  mkdir -p "$state/containerd"
  # restrict_oom_score_adj: where a process may not lower its oom_score_adj, no container could start without it.
  cat >"$state/containerd.toml" <<END
version = 2
root = "$state/containerd"
state = "/run/containerd/state"
[grpc]
  address = "$SOCKET"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "$PAUSE"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$state/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
END
}

kubelet_settings() {
  mkdir -p "$state/kubelet"
  cat >"$state/kubelet.yaml" <<END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: cgroupfs
cgroupRoot: /$NODE
failSwapOn: false
failCgroupV1: false
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $keys/ca.crt}}
authorization: {mode: Webhook}
clusterDomain: cluster.local
clusterDNS: ["$DNS"]
resolvConf: ""
containerRuntimeEndpoint: unix://$SOCKET
tlsCertFile: $keys/kubelet.crt
tlsPrivateKeyFile: $keys/kubelet.key
evictionHard: {memory.available: "100Mi", nodefs.available: "1%", imagefs.available: "1%", nodefs.inodesFree: "1%"}
imageGCHighThresholdPercent: 100
maxPods: 200
podLogsDir: $logs/pods
volumePluginDir: $state/kubelet-plugins
END
}

settings() { network_settings; container_settings; kubelet_settings; }

dns_service() {
  cat <<END
apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system, labels: {k8s-app: kube-dns}}
spec:
  clusterIP: $DNS
  ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, protocol: TCP}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kube-dns, namespace: kube-system, labels: {kubernetes.io/service-name: kube-dns}}
addressType: IPv4
ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, protocol: TCP}]
endpoints: [{addresses: ["$ADDRESS"]}]
END
}
