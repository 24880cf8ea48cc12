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

{{- define "karpenter.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "karpenter.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "karpenter.image" -}}
{{- $image := .Values.controller.image -}}
{{- printf "%s:%s" $image.repository (default (printf "v%s" .Chart.AppVersion) $image.tag) -}}
{{- with $image.digest }}@{{ . }}{{ end -}}
{{- end -}}

{{- /* All gates, always: a gate that is left out keeps the binary's default, which may change between versions. */ -}}
{{- define "karpenter.featureGates" -}}
{{- $gates := list -}}
{{- range $value, $gate := dict "nodeRepair" "NodeRepair" "reservedCapacity" "ReservedCapacity" "spotToSpotConsolidation" "SpotToSpotConsolidation" "nodeOverlay" "NodeOverlay" "staticCapacity" "StaticCapacity" "capacityBuffer" "CapacityBuffer" "terminateFirstDrift" "TerminateFirstDrift" "terminateFirstRepair" "TerminateFirstRepair" "podDeletionCostManagement" "PodDeletionCostManagement" -}}
{{- $gates = append $gates (printf "%s=%t" $gate (index $.Values.settings.featureGates $value)) -}}
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
