{{- define "tidemill.name" -}}
{{- if .Values.fullnameOverride }}{{ .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else if contains "tidemill" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}{{ printf "%s-tidemill" .Release.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "tidemill.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{ include "tidemill.selector" . }}
{{- end }}

{{- define "tidemill.selector" -}}
app.kubernetes.io/name: tidemill
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "tidemill.image" -}}
{{- if .Values.image.digest }}{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else }}{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{/* The image of a service, by the roles that it has or as operator. Give it {root, service, image}; a given image wins. */}}
{{- define "tidemill.serviceImage" -}}
{{- $image := .root.Values.image }}
{{- $runsJobs := and (not .root.Values.spark.enabled) (has .service (list "reclock" "compute" "compaction")) }}
{{- if .image }}{{ .image }}
{{- else if or (not $image.perService) $runsJobs (not .service) (contains "," .service) }}{{ include "tidemill.image" .root }}
{{- else }}
{{- with index $image.digests .service }}{{ $image.repository }}-{{ $.service }}@{{ . }}
{{- else }}{{ $image.repository }}-{{ .service }}:{{ $image.tag | default .root.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{/* The scheme of the HTTP port of a pod of Tidemill. */}}
{{- define "tidemill.httpScheme" -}}
{{- if .Values.httpTls.secret }}HTTPS{{ else }}HTTP{{ end }}
{{- end }}

{{/* The service account of a component. Give it {root, component}. */}}
{{- define "tidemill.serviceAccount" -}}
{{- $chosen := .root.Values.serviceAccount }}
{{- if $chosen.create }}{{ $chosen.name | default (include "tidemill.name" .root) }}-{{ .component }}
{{- else }}{{ $chosen.name | default "default" }}{{ end }}
{{- end }}

{{/* The components that run Tidemill, as JSON: name → roles, empty for all in one. */}}
{{- define "tidemill.components" -}}
{{- $found := dict }}
{{- range $name, $chosen := .Values.roles }}{{ $_ := set $found $name ($chosen.role | default $name) }}{{ end }}
{{- $found | default (dict "whole" "") | toJson }}
{{- end }}

{{/* Whether a component has one of some roles; what is whole has them all. Give it {role, any}. */}}
{{- define "tidemill.hasRole" -}}
{{- if not .role }}yes{{ else }}{{ range splitList "," .role }}{{ if has . $.any }}yes{{ end }}{{ end }}{{ end }}
{{- end }}

{{- define "tidemill.sparkNamespace" -}}
{{- .Values.spark.namespace | default (printf "%s-spark" .Release.Namespace) }}
{{- end }}

{{/* The settings of a process as a file; those of pods of jobs are given on their own. */}}
{{- define "tidemill.settings" -}}
{{- $settings := deepCopy .Values.settings }}
{{- with .Values.spark.settings }}
{{- $settings = mergeOverwrite $settings (dict "spark" (dict "pods" .)) }}
{{- end }}
{{- $places := pick .Values.places "egress" "topics" "files" }}
{{- $_ := set $places "clear_text" .Values.places.clearText }}
{{- $secrets := dict }}
{{- range $name, $told := .Values.places.secrets }}
{{- $file := printf "/etc/tidemill-secrets/places-%s/%s" $name ($told.key | default $name) }}
{{- $_ := set $secrets $name (dict "file" $file "hosts" ($told.hosts | default list)) }}
{{- end }}
{{- $_ := set $places "secrets" $secrets }}
{{- toYaml (mergeOverwrite (dict "places" $places) $settings) }}
{{- end }}

{{- define "tidemill.sparkAccount" -}}
{{- .Values.spark.serviceAccountName | default (printf "%s-spark" (include "tidemill.name" .)) }}
{{- end }}

{{/* Whether a pod launches jobs: those that do what jobs are for. Give it {root, component, role}. */}}
{{- define "tidemill.launches" -}}
{{- if .root.Values.spark.enabled }}
{{- if not (has .component (list "operator" "test")) }}
{{- include "tidemill.hasRole" (dict "role" (default "" .role) "any" (list "reclock" "compute" "compaction")) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "tidemill.sharedStores" -}}
{{- if and .Values.stores.consensus .Values.stores.blob }}yes{{ end }}
{{- end }}

{{/* Whether objects of the Prometheus operator can be made. */}}
{{- define "tidemill.prometheusOperator" -}}
{{- if or .Values.metrics.skipCapabilityCheck (.Capabilities.APIVersions.Has "monitoring.coreos.com/v1") }}yes{{ end }}
{{- end }}

{{/* The namespaces that the operator looks after, as JSON; empty for all. */}}
{{- define "tidemill.namespaces" -}}
{{- if .Values.operator.allNamespaces }}[]
{{- else }}{{ .Values.operator.namespaces | default (list .Release.Namespace) | toJson }}{{ end }}
{{- end }}

{{/* The service accounts of who launches jobs, as JSON. */}}
{{- define "tidemill.launchers" -}}
{{- $found := list }}
{{- range $component, $role := include "tidemill.components" . | fromJson }}
{{- if include "tidemill.launches" (dict "root" $ "component" $component "role" $role) }}
{{- $found = append $found (include "tidemill.serviceAccount" (dict "root" $ "component" $component)) }}
{{- end }}
{{- end }}
{{- $found | uniq | toJson }}
{{- end }}
