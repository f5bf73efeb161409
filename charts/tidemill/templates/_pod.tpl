{{/* What every pod has: where it may run, as whom, and how it ends. Give it {root, component}. */}}
{{- define "tidemill.placement" -}}
enableServiceLinks: false
terminationGracePeriodSeconds: {{ .root.Values.terminationGracePeriodSeconds }}
securityContext: {{- toYaml .root.Values.podSecurityContext | nindent 2 }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- if .root.Values.topologySpreadConstraints }}
topologySpreadConstraints:
{{- $selector := dict "matchLabels" (fromYaml (printf "%s\napp.kubernetes.io/component: %s" (include "tidemill.selector" .root) .component)) }}
{{- range .root.Values.topologySpreadConstraints }}
- {{- toYaml (merge (deepCopy .) (dict "labelSelector" $selector)) | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{- define "tidemill.podMetadata" -}}
labels: {{- include "tidemill.labels" .root | nindent 2 }}
  app.kubernetes.io/component: {{ .component }}
  {{- if ne .component "operator" }}
  tidemill.dev/scraped: "true"
  {{- end }}
  {{- if .answers }}
  tidemill.dev/answers: "true"
  {{- end }}
  {{- if include "tidemill.launches" . }}
  tidemill.dev/launches: "true"
  {{- end }}
  {{- with .root.Values.podLabels }}{{ toYaml . | nindent 2 }}{{ end }}
annotations:
  tidemill.dev/settings: {{ .settings | sha256sum }}
  {{- if .root.Values.metrics.scrapeAnnotations }}
  prometheus.io/scrape: "true"
  prometheus.io/port: {{ .port | quote }}
  prometheus.io/path: /metrics
  {{- if and .root.Values.httpTls.secret (ne .component "operator") }}
  prometheus.io/scheme: https
  {{- end }}
  {{- end }}
  {{- with .root.Values.podAnnotations }}{{ toYaml . | nindent 2 }}{{ end }}
{{- end }}

{{/* A pod that runs Tidemill, whole or in one role. Give it {root, component, role, image, arguments, resources, volume}. */}}
{{- define "tidemill.pod" -}}
{{ include "tidemill.placement" . }}
serviceAccountName: {{ include "tidemill.serviceAccount" . }}
automountServiceAccountToken: {{ if include "tidemill.launches" . }}true{{ else }}false{{ end }}
containers:
- name: tidemill
  image: {{ include "tidemill.serviceImage" (dict "root" .root "service" .role "image" .image) }}
  imagePullPolicy: {{ .root.Values.image.pullPolicy }}
  args: {{- toYaml .arguments | nindent 2 }}
  workingDir: /srv/tidemill
  env:
  - {name: TIDEMILL_UP_DIRECTORY, value: /var/lib/tidemill}
  {{- $answers := include "tidemill.hasRole" (dict "role" .role "any" (list "query")) }}
  {{- if $answers }}
  - {name: TIDEMILL_UP_GRPC, value: "0.0.0.0:7474"}
  {{- end }}
  - {name: TIDEMILL_UP_HTTP_HOST, value: "0.0.0.0"}
  - {name: TIDEMILL_UP_HTTP_PORT, value: "7475"}
  - {name: HOME, value: /tmp}
  {{- with .root.Values.stores.consensus }}
  - {name: TIDEMILL_UP_STORE__CONSENSUS, value: {{ . | quote }}}
  {{- end }}
  {{- with .root.Values.stores.blob }}
  - {name: TIDEMILL_UP_STORE__BLOB, value: {{ . | quote }}}
  {{- end }}
  {{- if .root.Values.stores.blobSecret }}
  - {name: TIDEMILL_UP_STORE__ACCESS_KEY, valueFrom: {secretKeyRef: {name: {{ .root.Values.stores.blobSecret | quote }}, key: AWS_ACCESS_KEY_ID}}}
  - {name: TIDEMILL_UP_STORE__SECRET_KEY_FILE, value: /etc/tidemill-secrets/blob/AWS_SECRET_ACCESS_KEY}
  {{- end }}
  {{- if .root.Values.stores.consensusSecret }}
  - {name: TIDEMILL_UP_STORE__PASSWORD_FILE, value: /etc/tidemill-secrets/consensus/password}
  {{- end }}
  {{- with .root.Values.kafka }}
  - {name: TIDEMILL_UP_LOG, value: {{ printf "kafka:%s" . | quote }}}
  {{- end }}
  {{- if and $answers .root.Values.tls.secret }}
  - {name: TIDEMILL_UP_TLS__CERTIFICATE, value: /etc/tidemill-secrets/tls/tls.crt}
  - {name: TIDEMILL_UP_TLS__KEY, value: /etc/tidemill-secrets/tls/tls.key}
  {{- end }}
  {{- if .root.Values.httpTls.secret }}
  - {name: TIDEMILL_UP_HTTP_TLS__CERTIFICATE, value: /etc/tidemill-secrets/http/tls.crt}
  - {name: TIDEMILL_UP_HTTP_TLS__KEY, value: /etc/tidemill-secrets/http/tls.key}
  {{- end }}
  {{- if .root.Values.insecure }}
  - {name: TIDEMILL_UP_INSECURE, value: "true"}
  {{- end }}
  {{- $service := include "tidemill.name" .root }}
  - {name: TIDEMILL_UP_HTTP_NAMES, value: {{ list $service (printf "%s.%s" $service .root.Release.Namespace) (printf "%s.%s.svc" $service .root.Release.Namespace) (printf "%s.%s.svc.cluster.local" $service .root.Release.Namespace) | toJson | quote }}}
  {{- if and $answers .root.Values.tokens.secret }}
  - {name: TIDEMILL_UP_TOKEN_FILE, value: /etc/tidemill-secrets/tokens/users.yaml}
  {{- end }}
  {{- if .root.Values.roles }}
  - {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
  - {name: TIDEMILL_UP_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
  - {name: TIDEMILL_UP_SERVICES__ADDRESS, value: "0.0.0.0:7473"}
  - {name: TIDEMILL_UP_SERVICES__ADVERTISE, value: "$(POD_IP):7473"}
  - {name: TIDEMILL_UP_SERVICES__LEASE_S, value: {{ .root.Values.services.leaseSeconds | quote }}}
  {{- if .root.Values.services.tls.secret }}
  - {name: TIDEMILL_UP_SERVICES__TLS__CERTIFICATE, value: /etc/tidemill-secrets/services/tls.crt}
  - {name: TIDEMILL_UP_SERVICES__TLS__KEY, value: /etc/tidemill-secrets/services/tls.key}
  - {name: TIDEMILL_UP_SERVICES__TLS__AUTHORITY, value: /etc/tidemill-secrets/services/ca.crt}
  - {name: TIDEMILL_UP_SERVICES__SERVER_NAME, value: {{ .root.Values.services.tls.serverName | quote }}}
  {{- with .root.Values.services.tls.names }}
  - {name: TIDEMILL_UP_SERVICES__NAMES, value: {{ toJson . | quote }}}
  {{- end }}
  {{- end }}
  {{- end }}
  {{- if include "tidemill.launches" . }}{{ include "tidemill.sparkEnvironment" .root | nindent 2 }}{{ end }}
  {{- with .root.Values.extraEnv }}{{ toYaml . | nindent 2 }}{{ end }}
  ports:
  - {name: grpc, containerPort: 7474}
  - {name: http, containerPort: 7475}
  {{- if .root.Values.roles }}
  - {name: services, containerPort: 7473}
  {{- end }}
  # Recovery from the stores may take its time; after that a process that does not answer hangs. None of these ask a store.
  startupProbe:
    httpGet: {path: /healthz, port: http, scheme: {{ include "tidemill.httpScheme" .root }}}
    periodSeconds: 2
    failureThreshold: 150
  # Over HTTP: kubelet's probe of gRPC knows no TLS, and a role without clients has no such port.
  readinessProbe:
    httpGet: {path: /readyz, port: http, scheme: {{ include "tidemill.httpScheme" .root }}}
    periodSeconds: 2
  livenessProbe:
    httpGet: {path: /healthz, port: http, scheme: {{ include "tidemill.httpScheme" .root }}}
    periodSeconds: 10
    timeoutSeconds: 5
    failureThreshold: 6
  resources: {{- include "tidemill.resources" . | nindent 4 }}
  securityContext: {{- toYaml .root.Values.securityContext | nindent 4 }}
  volumeMounts:
  - {name: settings, mountPath: /etc/tidemill, readOnly: true}
  - {name: state, mountPath: /var/lib/tidemill}
  - {name: temporary, mountPath: /tmp}
  {{- with .root.Values.extraVolumeMounts }}{{ toYaml . | nindent 2 }}{{ end }}
  {{- range $name, $secret := fromYaml (include "tidemill.secrets" .) }}
  - {name: {{ $name }}-secret, mountPath: /etc/tidemill-secrets/{{ $name }}, readOnly: true}
  {{- end }}
volumes:
{{- with .root.Values.extraVolumes }}{{ toYaml . | nindent 0 }}{{ end }}
{{- range $name, $secret := fromYaml (include "tidemill.secrets" .) }}
- name: {{ $name }}-secret
  secret: {secretName: {{ $secret | quote }}, defaultMode: 0440}
{{- end }}
- name: settings
  configMap: {name: {{ include "tidemill.name" .root }}}
- name: temporary
  emptyDir: {sizeLimit: {{ .root.Values.ephemeralStorage.temporary }}}
{{- with .volume }}
- name: state
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* What a pod may use, the disk of its node as well. Give it {root, resources}. */}}
{{- define "tidemill.resources" -}}
{{- $disk := .root.Values.ephemeralStorage }}
{{- $all := dict "requests" (dict "ephemeral-storage" $disk.request) "limits" (dict "ephemeral-storage" $disk.limit) }}
{{- toYaml (mergeOverwrite $all (deepCopy .resources)) }}
{{- end }}

{{/* How a process launches jobs as pods. */}}
{{- define "tidemill.sparkEnvironment" -}}
{{- $pods := "TIDEMILL_UP_SPARK__PODS__" -}}
- {name: TIDEMILL_UP_SPARK__LAUNCHER, value: {{ .Values.spark.launcher }}}
- {name: {{ $pods }}NAMESPACE, value: {{ include "tidemill.sparkNamespace" . | quote }}}
- {name: {{ $pods }}IMAGE, value: {{ .Values.spark.image | default (include "tidemill.image" .) | quote }}}
- {name: {{ $pods }}IMAGE_PULL_POLICY, value: {{ .Values.image.pullPolicy }}}
{{- if .Values.imagePullSecrets }}
{{- $names := list }}
{{- range .Values.imagePullSecrets }}{{ $names = append $names .name }}{{ end }}
- {name: {{ $pods }}IMAGE_PULL_SECRETS, value: {{ $names | toJson | quote }}}
{{- end }}
- {name: {{ $pods }}SERVICE_ACCOUNT, value: {{ include "tidemill.sparkAccount" . | quote }}}
{{- if eq (include "tidemill.sparkNamespace" .) .Release.Namespace }}
- {name: {{ $pods }}OWNER, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
{{- end }}
{{- with .Values.spark.blobSecret | default .Values.stores.blobSecret }}
- {name: {{ $pods }}BLOB_SECRET, value: {{ . | quote }}}
{{- end }}
- {name: {{ $pods }}EXECUTORS, value: {{ .Values.spark.executors | quote }}}
- {name: {{ $pods }}EXECUTOR_CORES, value: {{ .Values.spark.executor.cores | quote }}}
- {name: {{ $pods }}EXECUTOR_CPU, value: {{ .Values.spark.executor.cpu | quote }}}
- {name: {{ $pods }}EXECUTOR_MEMORY_MB, value: {{ .Values.spark.executor.memoryMiB | quote }}}
- {name: {{ $pods }}EXECUTOR_OVERHEAD_MB, value: {{ .Values.spark.executor.overheadMiB | quote }}}
- {name: {{ $pods }}DRIVER_CPU, value: {{ .Values.spark.driver.cpu | quote }}}
- {name: {{ $pods }}DRIVER_MEMORY_MB, value: {{ .Values.spark.driver.memoryMiB | quote }}}
- {name: {{ $pods }}DRIVER_OVERHEAD_MB, value: {{ .Values.spark.driver.overheadMiB | quote }}}
- {name: {{ $pods }}DISK_MB, value: {{ .Values.spark.diskMiB | quote }}}
- {name: {{ $pods }}TTL_S, value: {{ .Values.spark.ttlSeconds | quote }}}
{{- end }}

{{/* The Secrets that a pod of Tidemill mounts, by the folder that each is mounted as: users and the key for clients
only where clients are answered. Give it {root, role}. */}}
{{- define "tidemill.secrets" -}}
{{- $values := .root.Values }}
{{- if include "tidemill.hasRole" (dict "role" .role "any" (list "ingest" "reclock" "compute" "query")) }}
{{- range $name, $told := $values.places.secrets }}
places-{{ $name }}: {{ $told.secret }}
{{- end }}
{{- end }}
{{- with $values.stores.blobSecret }}
blob: {{ . }}
{{- end }}
{{- with $values.stores.consensusSecret }}
consensus: {{ . }}
{{- end }}
{{- with $values.httpTls.secret }}
http: {{ . }}
{{- end }}
{{- if include "tidemill.hasRole" (dict "role" .role "any" (list "query")) }}
{{- with $values.tls.secret }}
tls: {{ . }}
{{- end }}
{{- with $values.tokens.secret }}
tokens: {{ . }}
{{- end }}
{{- end }}
{{- if $values.roles }}
{{- with $values.services.tls.secret }}
services: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{/* How a client of the Service proves itself: environment with a prefix. Give it {root, prefix, token}. */}}
{{- define "tidemill.clientEnvironment" -}}
{{- if .root.Values.tls.secret }}
- {name: {{ .prefix }}TLS_CA, value: /etc/tidemill-secrets/tls/ca.crt}
- {name: {{ .prefix }}TLS_NAME, value: {{ .root.Values.tls.serverName | quote }}}
{{- end }}
{{- if .token }}
- {name: {{ .prefix }}TOKEN_FILE, value: /etc/tidemill-secrets/token/token}
{{- end }}
{{- end }}

{{- define "tidemill.clientMounts" -}}
{{- if .root.Values.tls.secret }}
- {name: tls-secret, mountPath: /etc/tidemill-secrets/tls, readOnly: true}
{{- end }}
{{- if .token }}
- {name: token-secret, mountPath: /etc/tidemill-secrets/token, readOnly: true}
{{- end }}
{{- end }}

{{/* Of the Secret with the key of the server a client gets the authority alone. */}}
{{- define "tidemill.clientVolumes" -}}
{{- with .root.Values.tls.secret }}
- name: tls-secret
  secret: {secretName: {{ . | quote }}, items: [{key: ca.crt, path: ca.crt}], defaultMode: 0440}
{{- end }}
{{- with .token }}
- name: token-secret
  secret: {secretName: {{ . | quote }}, items: [{key: token, path: token}], defaultMode: 0440}
{{- end }}
{{- end }}
