{{- /* The provider that was chosen, or the only one whose section is filled. */ -}}
{{- define "karpenter.provider" -}}
{{- $filled := list -}}
{{- with .Values.cloudstack -}}
{{- if or .apiUrl .apiKey .existingSecret -}}{{- $filled = append $filled "cloudstack" -}}{{- end -}}
{{- end -}}
{{- if .Values.ovh.serviceName -}}{{- $filled = append $filled "ovhcloud" -}}{{- end -}}
{{- with .Values.bizflycloud -}}
{{- if or .email .appCredentialID .existingSecret .region -}}{{- $filled = append $filled "bizflycloud" -}}{{- end -}}
{{- end -}}
{{- if .Values.provider -}}
{{- .Values.provider -}}
{{- else if eq (len $filled) 1 -}}
{{- first $filled -}}
{{- else if $filled -}}
{{- fail (printf "the sections of %s are filled; choose one with provider" (join " and " $filled)) -}}
{{- else -}}
{{- fail "no provider is chosen: fill cloudstack.apiUrl (or cloudstack.existingSecret), ovh.serviceName, or bizflycloud.region; or set provider=kwok for simulated nodes" -}}
{{- end -}}
{{- end -}}

{{- define "karpenter.cloudstackSecret" -}}
{{- if .Values.cloudstack.existingSecret -}}
{{- .Values.cloudstack.existingSecret -}}
{{- else if or .Values.cloudstack.apiKey .Values.cloudstack.secretKey -}}
{{- include "karpenter.fullname" . }}-cloudstack
{{- else -}}
cloudstack-credentials
{{- end -}}
{{- end -}}

{{- define "karpenter.bizflycloudSecret" -}}
{{- if .Values.bizflycloud.existingSecret -}}
{{- .Values.bizflycloud.existingSecret -}}
{{- else if or .Values.bizflycloud.email .Values.bizflycloud.appCredentialID -}}
{{- include "karpenter.fullname" . }}-bizflycloud
{{- else -}}
bizflycloud-credentials
{{- end -}}
{{- end -}}

{{- /* Whether the webhook is served: "true" or nothing. */ -}}
{{- define "karpenter.webhook" -}}
{{- if and .Values.webhook.enabled (has (include "karpenter.provider" .) (list "cloudstack" "bizflycloud")) }}true{{ end }}
{{- end }}

{{- define "karpenter.ovhSecretNamespace" -}}
{{- default .Release.Namespace .Values.credentials.secretNamespace -}}
{{- end -}}

{{- /* Secrets that the controller may read, as a list of {name, namespace} under `secrets`. */ -}}
{{- define "karpenter.secrets" -}}
{{- $provider := include "karpenter.provider" . -}}
{{- $secrets := list -}}
{{- if eq $provider "cloudstack" -}}
{{- $secrets = append $secrets (dict "name" (include "karpenter.cloudstackSecret" .) "namespace" .Release.Namespace) -}}
{{- else if eq $provider "ovhcloud" -}}
{{- $secrets = append $secrets (dict "name" .Values.credentials.secretName "namespace" (include "karpenter.ovhSecretNamespace" .)) -}}
{{- else if eq $provider "bizflycloud" -}}
{{- $secrets = append $secrets (dict "name" (include "karpenter.bizflycloudSecret" .) "namespace" .Release.Namespace) -}}
{{- with .Values.bke.existingTokenSecret -}}
{{- $secrets = append $secrets (dict "name" . "namespace" $.Release.Namespace) -}}
{{- end -}}
{{- end -}}
{{- range .Values.credentials.additionalSecrets -}}
{{- $secrets = append $secrets (dict "name" .name "namespace" (default $.Release.Namespace .namespace)) -}}
{{- end -}}
{{- toYaml (dict "secrets" $secrets) -}}
{{- end -}}

{{- /* One variable, left out when it has no value. Takes a name and a value. */ -}}
{{- define "karpenter.variable" -}}
{{- if not (or (kindIs "invalid" .value) (eq (toString .value) "")) }}
- name: {{ .name }}
  value: {{ .value | toString | quote }}
{{- end }}
{{- end -}}

{{- /* `httpTimeout: 90s` as PREFIX_HTTP_TIMEOUT=90s, for each. Takes a prefix and settings. */ -}}
{{- define "karpenter.settingsEnv" -}}
{{- range $name, $value := .settings }}
{{- include "karpenter.variable" (dict "name" (printf "%s_%s" $.prefix ($name | snakecase | upper)) "value" $value) }}
{{- end }}
{{- end -}}

{{- /* What the provider reads from its environment. Secrets are named here, never spelled out. */ -}}
{{- define "karpenter.providerEnv" -}}
{{- $provider := include "karpenter.provider" . -}}
{{- include "karpenter.variable" (dict "name" "CLUSTER_NAME" "value" .Values.clusterName) }}
{{- if eq $provider "cloudstack" }}
{{- with .Values.cloudstack }}
{{- if not $.Values.clusterName }}
{{- fail "clusterName is required for CloudStack: machines are told from those of other clusters by it" }}
{{- end }}
- name: CLOUDSTACK_CREDENTIALS_SECRET
  value: {{ printf "%s/%s" $.Release.Namespace (include "karpenter.cloudstackSecret" $) | quote }}
{{- include "karpenter.variable" (dict "name" "CLOUDSTACK_API_URL" "value" .apiUrl) }}
{{- if not .verifySSL }}
- name: CLOUDSTACK_VERIFY_SSL
  value: "false"
{{- end }}
{{- include "karpenter.variable" (dict "name" "CLOUDSTACK_CA_BUNDLE" "value" .caBundle) }}
{{- include "karpenter.variable" (dict "name" "CLOUDSTACK_PROJECT" "value" .project) }}
{{- include "karpenter.variable" (dict "name" "CLOUDSTACK_DOMAIN_ID" "value" .domainId) }}
{{- include "karpenter.variable" (dict "name" "CLOUDSTACK_ACCOUNT" "value" .account) }}
{{- include "karpenter.variable" (dict "name" "CLOUDSTACK_REGION" "value" .region) }}
{{- $settings := deepCopy .settings }}
{{- if hasKey $settings "vmMemoryOverheadPercent" }}
{{- include "karpenter.variable" (dict "name" "VM_MEMORY_OVERHEAD_PERCENT" "value" $settings.vmMemoryOverheadPercent) }}
{{- $_ := unset $settings "vmMemoryOverheadPercent" }}
{{- end }}
{{- include "karpenter.settingsEnv" (dict "prefix" "CLOUDSTACK" "settings" $settings) }}
{{- end }}
{{- else if eq $provider "ovhcloud" }}
{{- with .Values.ovh }}
{{- if not .serviceName }}
{{- fail "ovh.serviceName is required for OVHcloud: the id of the Public Cloud project, 32 hexadecimal digits" }}
{{- end }}
- name: OVH_ENDPOINT
  value: {{ .endpoint | quote }}
- name: OVH_SERVICE_NAME
  value: {{ .serviceName | quote }}
{{- include "karpenter.variable" (dict "name" "OVH_KUBE_ID" "value" .kubeId) }}
{{- include "karpenter.variable" (dict "name" "OVH_REGION" "value" .region) }}
{{- include "karpenter.variable" (dict "name" "OVH_SUBSIDIARY" "value" .subsidiary) }}
{{- include "karpenter.variable" (dict "name" "OVH_MAX_NODE_POOLS" "value" .maxNodePools) }}
{{- include "karpenter.variable" (dict "name" "OVH_MAX_NODES_PER_POOL" "value" .maxNodesPerPool) }}
{{- include "karpenter.variable" (dict "name" "OVH_API_RATE_LIMIT" "value" .apiRateLimit) }}
- name: OVH_CREDENTIALS_SECRET_NAME
  value: {{ $.Values.credentials.secretName | quote }}
- name: OVH_CREDENTIALS_SECRET_NAMESPACE
  value: {{ include "karpenter.ovhSecretNamespace" $ | quote }}
{{- include "karpenter.settingsEnv" (dict "prefix" "OVH" "settings" .settings) }}
{{- end }}
{{- else if eq $provider "bizflycloud" }}
{{- with .Values.bizflycloud }}
{{- include "karpenter.variable" (dict "name" "BIZFLY_CLOUD_AUTH_METHOD" "value" .authMethod) }}
{{- include "karpenter.variable" (dict "name" "BIZFLY_CLOUD_REGION" "value" .region) }}
{{- include "karpenter.variable" (dict "name" "BIZFLY_CLOUD_ZONE" "value" .zone) }}
{{- include "karpenter.variable" (dict "name" "BIZFLY_CLOUD_PROJECT_ID" "value" .projectID) }}
{{- include "karpenter.variable" (dict "name" "BIZFLY_CLOUD_API_URL" "value" .apiEndpoint) }}
{{- if not $.Values.providerConfig.create }}
{{- range $variable, $key := dict "EMAIL" "email" "PASSWORD" "password" "APP_CRED_ID" "app-cred-id" "APP_CRED_SECRET" "app-cred-secret" }}
- name: BIZFLY_CLOUD_{{ $variable }}
  valueFrom:
    secretKeyRef:
      name: {{ include "karpenter.bizflycloudSecret" $ }}
      key: {{ $key }}
      optional: true
{{- end }}
{{- end }}
{{- if $.Values.compat.provisioner.enabled }}
- name: BIZFLY_PROVISIONER_COMPATIBILITY
  value: "true"
{{- end }}
{{- include "karpenter.settingsEnv" (dict "prefix" "BIZFLY" "settings" .settings) }}
{{- end }}
{{- with .Values.bke }}
{{- include "karpenter.variable" (dict "name" "BKE_CLUSTER_ID" "value" .clusterID) }}
{{- with .existingTokenSecret }}
- name: BKE_CLUSTER_TOKEN
  valueFrom:
    secretKeyRef:
      name: {{ . }}
      key: {{ $.Values.bke.tokenSecretKey }}
{{- end }}
{{- include "karpenter.variable" (dict "name" "BKE_JOIN_ENDPOINT" "value" .joinEndpoint) }}
{{- include "karpenter.variable" (dict "name" "BKE_LOG_ENDPOINT" "value" .logEndpoint) }}
{{- include "karpenter.variable" (dict "name" "BKE_KUBERNETES_VERSION" "value" .kubernetesVersion) }}
{{- end }}
{{- end }}
{{- end -}}
