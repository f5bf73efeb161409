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
  {{- with .root.Values.podLabels }}{{ toYaml . | nindent 2 }}{{ end }}
annotations:
  tidemill.dev/settings: {{ .settings | sha256sum }}
  {{- if .root.Values.metrics.scrapeAnnotations }}
  prometheus.io/scrape: "true"
  prometheus.io/port: {{ .port | quote }}
  prometheus.io/path: /metrics
  {{- end }}
  {{- with .root.Values.podAnnotations }}{{ toYaml . | nindent 2 }}{{ end }}
{{- end }}

{{/* A pod that runs Tidemill, whole or in one role. Give it {root, component, arguments, resources, volume}. */}}
{{- define "tidemill.pod" -}}
{{ include "tidemill.placement" . }}
serviceAccountName: {{ include "tidemill.serviceAccount" .root }}
automountServiceAccountToken: false
containers:
- name: tidemill
  image: {{ include "tidemill.image" .root }}
  imagePullPolicy: {{ .root.Values.image.pullPolicy }}
  args: {{- toYaml .arguments | nindent 2 }}
  workingDir: /var/lib/tidemill
  env:
  - {name: TIDEMILL_UP_DIRECTORY, value: /var/lib/tidemill}
  - {name: TIDEMILL_UP_GRPC, value: "0.0.0.0:7474"}
  - {name: TIDEMILL_UP_HTTP_HOST, value: "0.0.0.0"}
  - {name: TIDEMILL_UP_HTTP_PORT, value: "7475"}
  - {name: HOME, value: /tmp}
  - {name: NUMBA_CACHE_DIR, value: /tmp/numba}
  {{- with .root.Values.stores.consensus }}
  - {name: TIDEMILL_UP_STORE__CONSENSUS, value: {{ . | quote }}}
  {{- end }}
  {{- with .root.Values.stores.blob }}
  - {name: TIDEMILL_UP_STORE__BLOB, value: {{ . | quote }}}
  {{- end }}
  {{- if .root.Values.stores.blobSecret }}
  {{- range list "AWS_ACCESS_KEY_ID" "AWS_SECRET_ACCESS_KEY" }}
  - {name: {{ . }}, valueFrom: {secretKeyRef: {name: {{ $.root.Values.stores.blobSecret | quote }}, key: {{ . }}}}}
  {{- end }}
  {{- end }}
  {{- with .root.Values.extraEnv }}{{ toYaml . | nindent 2 }}{{ end }}
  ports:
  - {name: grpc, containerPort: 7474}
  - {name: http, containerPort: 7475}
  # Recovery from the stores may take its time; after that a process that does not answer hangs. None of these ask a store.
  startupProbe:
    httpGet: {path: /healthz, port: http}
    periodSeconds: 2
    failureThreshold: 150
  readinessProbe:
    grpc: {port: 7474}
    periodSeconds: 5
  livenessProbe:
    httpGet: {path: /healthz, port: http}
    periodSeconds: 10
    timeoutSeconds: 5
    failureThreshold: 6
  resources: {{- toYaml .resources | nindent 4 }}
  securityContext: {{- toYaml .root.Values.securityContext | nindent 4 }}
  volumeMounts:
  - {name: settings, mountPath: /etc/tidemill, readOnly: true}
  - {name: state, mountPath: /var/lib/tidemill}
  - {name: temporary, mountPath: /tmp}
volumes:
- name: settings
  configMap: {name: {{ include "tidemill.name" .root }}}
- name: temporary
  emptyDir: {}
{{- with .volume }}
- name: state
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
