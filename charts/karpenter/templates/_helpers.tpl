{{- define "karpenter.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "karpenter.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "karpenter.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "karpenter.selectorLabels" -}}
app.kubernetes.io/name: {{ include "karpenter.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "karpenter.metadata" -}}
labels:
  helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
  {{- include "karpenter.selectorLabels" . | nindent 2 }}
  app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
  app.kubernetes.io/managed-by: {{ .Release.Service }}
  {{- with .Values.additionalLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .Values.additionalAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* Labels or annotations of the chart with some more; takes root and more. */ -}}
{{- define "karpenter.metadataWith" -}}
{{- $metadata := fromYaml (include "karpenter.metadata" .root) -}}
{{- $labels := mergeOverwrite (deepCopy $metadata.labels) (default dict .labels) -}}
{{- $annotations := mergeOverwrite (deepCopy (default dict $metadata.annotations)) (default dict .annotations) -}}
labels:
  {{- toYaml $labels | nindent 2 }}
{{- with $annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "karpenter.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "karpenter.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "karpenter.image" -}}
{{- $image := .Values.controller.image -}}
{{- $repository := default $image.repository .Values.image.repository -}}
{{- $tag := default (default (printf "v%s" .Chart.AppVersion) $image.tag) .Values.image.tag -}}
{{- printf "%s:%s" $repository $tag -}}
{{- with $image.digest }}@{{ . }}{{ end -}}
{{- end -}}

{{- define "karpenter.replicas" -}}
{{- if kindIs "invalid" .Values.replicaCount }}{{ .Values.replicas }}{{ else }}{{ .Values.replicaCount }}{{ end -}}
{{- end -}}

{{- define "karpenter.serviceMonitor" -}}
{{- toYaml (mergeOverwrite (deepCopy .Values.serviceMonitor) .Values.metrics.serviceMonitor) -}}
{{- end -}}

{{- /* The gates as the values name them, the short list of `featureGates` over the full one. */ -}}
{{- define "karpenter.gates" -}}
{{- $gates := deepCopy .Values.settings.featureGates -}}
{{- range $name, $on := .Values.featureGates -}}
{{- $key := printf "%s%s" (substr 0 1 $name | lower) (substr 1 -1 $name) -}}
{{- if not (hasKey $gates $key) -}}
{{- fail (printf "featureGates.%s is not a feature gate; choose from %s" $name (keys $gates | sortAlpha | join ", ")) -}}
{{- end -}}
{{- $_ := set $gates $key $on -}}
{{- end -}}
{{- toYaml $gates -}}
{{- end -}}

{{- /* All gates, always: a gate that is left out keeps the binary's default, which may change between versions. */ -}}
{{- define "karpenter.featureGates" -}}
{{- $gates := list -}}
{{- range $name, $on := fromYaml (include "karpenter.gates" .) -}}
{{- $gates = append $gates (printf "%s%s=%t" (substr 0 1 $name | upper) (substr 1 -1 $name) $on) -}}
{{- end -}}
{{- join "," $gates -}}
{{- end -}}

{{- /* Adds the controller's own selector to a term that has none. */ -}}
{{- define "karpenter.withSelector" -}}
{{- $term := deepCopy .term -}}
{{- if not (hasKey $term "labelSelector") -}}
{{- $_ := set $term "labelSelector" (dict "matchLabels" (fromYaml (include "karpenter.selectorLabels" .root))) -}}
{{- end -}}
{{- toYaml $term -}}
{{- end -}}
