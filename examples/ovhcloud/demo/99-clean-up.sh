#!/usr/bin/env bash
# Takes back what the steps made, workloads first: nodes go with their NodePools, node pools of OVHcloud with their classes.
set -euo pipefail
cd "$(dirname "$0")"
kubectl delete deployments.apps -n default --ignore-not-found inflate small large zone-spread monthly anti-affinity
kubectl delete nodepools.karpenter.sh --ignore-not-found default multi-flavor multi-zone monthly anti-affinity
kubectl delete ovhnodeclasses.karpenter.ovhcloud.sh --ignore-not-found default monthly anti-affinity
kubectl delete --ignore-not-found -f 01-namespace-and-secret.yaml
