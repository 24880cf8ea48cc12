#!/usr/bin/env bash
# Asks OVHcloud for an API key with exactly the rights that Karpenter needs, and prints how to store it.
# A shorter way to type `karpenter ovhcloud credentials`, which also checks keys; KARPENTER names another binary.
set -euo pipefail

if [ $# -lt 4 ]; then
  echo "usage: $0 ENDPOINT PROJECT CLUSTER APPLICATION_KEY [ALLOWED_CIDR...]" >&2
  echo "  ENDPOINT is ovh-eu, ovh-ca or ovh-us; make the application on the endpoint's createApp page" >&2
  exit 2
fi
endpoint=$1 project=$2 cluster=$3 application=$4
shift 4
allowed=()
for network in "$@"; do
  allowed+=(--allowed-ip "$network")
done
exec "${KARPENTER:-karpenter}" ovhcloud credentials --endpoint "$endpoint" --service-name "$project" --kube-id "$cluster" \
  --application-key "$application" ${allowed[@]+"${allowed[@]}"}
