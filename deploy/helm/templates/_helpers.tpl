{{- /* The name of all objects: that of the release, with the chart's unless it is in it. */ -}}
{{- define "sluice.name" -}}
{{- $name := ternary .Release.Name (printf "%s-sluice" .Release.Name) (contains "sluice" .Release.Name) -}}
{{- $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- /* The labels by which objects are selected; they never change. Argument: list of root and role. */ -}}
{{- define "sluice.selector" -}}
app.kubernetes.io/name: {{ ternary "sluice-redis" "sluice" (eq (index . 1) "redis") }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- /* All labels of an object. The argument is a list: root, role. */ -}}
{{- define "sluice.labels" -}}
{{ include "sluice.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
helm.sh/chart: {{ printf "%s-%s" (index . 0).Chart.Name (index . 0).Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "sluice.scheme" -}}
{{ ternary "HTTPS" "HTTP" (ne .Values.tls.secret "") }}
{{- end -}}
