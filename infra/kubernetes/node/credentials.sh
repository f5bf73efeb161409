# Keys, certificates and kubeconfigs of a node, in $keys and $state. Sourced by node.sh; makes what is missing.
keys=$state/keys

certificate() { # NAME SUBJECT [ALTERNATIVE NAMES]
  [ -f "$keys/$1.crt" ] && return 0
  openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "$2" \
    -keyout "$keys/$1.key" -out "$keys/$1.csr" 2>/dev/null
  {
    printf 'keyUsage=digitalSignature,keyEncipherment\nextendedKeyUsage=serverAuth,clientAuth\n'
    [ -z "${3:-}" ] || printf 'subjectAltName=%s\n' "$3"
  } >"$keys/$1.extensions"
  openssl x509 -req -in "$keys/$1.csr" -CA "$keys/ca.crt" -CAkey "$keys/ca.key" -CAcreateserial -days 365 \
    -out "$keys/$1.crt" -extfile "$keys/$1.extensions" 2>/dev/null
}

kubeconfig() { # NAME, with its certificate inside
  cat >"$state/$1.kubeconfig" <<END
apiVersion: v1
kind: Config
current-context: node
clusters:
- {name: node, cluster: {server: "https://$ADDRESS:6443", certificate-authority-data: $(base64 -w0 <"$keys/ca.crt")}}
contexts:
- {name: node, context: {cluster: node, user: $1}}
users:
- {name: $1, user: {client-certificate-data: $(base64 -w0 <"$keys/$1.crt"), client-key-data: $(base64 -w0 <"$keys/$1.key")}}
END
}

credentials() {
  local name names
  mkdir -p "$keys"
  chmod 0700 "$keys"
  [ -f "$keys/ca.crt" ] || openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 365 \
    -subj /CN=node-authority -keyout "$keys/ca.key" -out "$keys/ca.crt" 2>/dev/null
  if [ ! -f "$keys/accounts.pub" ]; then
    openssl genrsa -out "$keys/accounts.key" 2048 2>/dev/null
    openssl rsa -in "$keys/accounts.key" -pubout -out "$keys/accounts.pub" 2>/dev/null
  fi
  names=DNS:localhost,IP:127.0.0.1,IP:$ADDRESS,IP:${SERVICES%.*}.1
  for name in kubernetes kubernetes.default kubernetes.default.svc kubernetes.default.svc.cluster.local; do names+=,DNS:$name; done
  certificate apiserver /CN=kube-apiserver "$names"
  certificate admin /O=system:masters/CN=admin
  certificate kubelet /O=system:nodes/CN=system:node:node "DNS:node,IP:$ADDRESS"
  for name in controller-manager scheduler; do certificate $name "/CN=system:kube-$name"; done
  certificate kube-proxy /CN=system:kube-proxy
  for name in admin kubelet controller-manager scheduler kube-proxy; do kubeconfig "$name"; done
}
