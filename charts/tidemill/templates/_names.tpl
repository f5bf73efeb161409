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
{{- else if or (not $image.perService) $image.digest $runsJobs (not .service) (contains "," .service) }}{{ include "tidemill.image" .root }}
{{- else }}{{ $image.repository }}-{{ .service }}:{{ $image.tag | default .root.Chart.AppVersion }}{{ end }}
{{- end }}

{{/* The scheme of the HTTP port of a pod of Tidemill. */}}
{{- define "tidemill.httpScheme" -}}
{{- if .Values.httpTls.secret }}HTTPS{{ else }}HTTP{{ end }}
{{- end }}

{{- define "tidemill.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (ternary (include "tidemill.name" .) "default" .Values.serviceAccount.create) }}
{{- end }}

{{/* The settings of a process as a file; those of pods of jobs are given on their own. */}}
{{- define "tidemill.settings" -}}
{{- $settings := deepCopy .Values.settings }}
{{- with .Values.spark.settings }}
{{- $settings = mergeOverwrite $settings (dict "spark" (dict "pods" .)) }}
{{- end }}
{{- toYaml $settings }}
{{- end }}

{{- define "tidemill.sparkAccount" -}}
{{- .Values.spark.serviceAccountName | default (printf "%s-spark" (include "tidemill.name" .)) }}
{{- end }}

{{/* Whether a pod launches jobs: those that do what jobs are for. Give it {root, component, role}. */}}
{{- define "tidemill.launches" -}}
{{- if .root.Values.spark.enabled }}
{{- if eq .component "whole" }}yes
{{- else }}
{{- range list "reclock" "compute" "compaction" }}
{{- if has . (splitList "," (default "" $.role)) }}yes{{ end }}
{{- end }}
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
