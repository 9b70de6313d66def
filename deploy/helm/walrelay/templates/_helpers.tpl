{{- define "walrelay.name" -}}
{{ .Values.nameOverride | default .Chart.Name | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "walrelay.fullname" -}}
{{- $name := include "walrelay.name" . -}}
{{- $default := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{ .Values.fullnameOverride | default $default | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "walrelay.selector" -}}
app.kubernetes.io/name: {{ include "walrelay.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "walrelay.labels" -}}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{ include "walrelay.selector" . }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | trunc 63 | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "walrelay.serviceAccountName" -}}
{{ .Values.serviceAccount.name | default (ternary (include "walrelay.fullname" .) "default" .Values.serviceAccount.create) }}
{{- end }}

{{- /* The Secret and the key of the password file; nothing where there is none. */}}
{{- define "walrelay.pgpassSecret" -}}
{{- if .Values.database.password }}{{ include "walrelay.fullname" . }}
{{- else if not .Values.database.passwordKey }}{{ .Values.database.existingSecret }}
{{- end }}
{{- end }}

{{- define "walrelay.pgpassKey" -}}
{{ ternary "pgpass" .Values.database.pgpassKey (not (empty .Values.database.password)) }}
{{- end }}
