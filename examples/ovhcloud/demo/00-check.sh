#!/usr/bin/env bash
# Looks whether everything is there that the steps need. Changes nothing.
set -euo pipefail
for tool in kubectl helm karpenter; do
  command -v "$tool" >/dev/null || { echo "$tool is not installed"; exit 1; }
done
: "${OVH_SERVICE_NAME:?is the Public Cloud project, 32 hexadecimal digits}"
kubectl get nodes -o wide
karpenter doctor --provider ovhcloud || echo "see docs/providers/ovhcloud/install.md for what is missing"
