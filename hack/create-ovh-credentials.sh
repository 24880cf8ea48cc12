#!/usr/bin/env bash
# Asks OVHcloud for an API key with exactly the rights that Karpenter needs, and prints how to store it. Needs curl and jq.
# `karpenter ovhcloud credentials` does the same, and checks keys as well.
set -euo pipefail

usage() {
  echo "usage: $0 ENDPOINT PROJECT CLUSTER APPLICATION_KEY [ALLOWED_CIDR...]" >&2
  echo "  ENDPOINT is ovh-eu, ovh-ca or ovh-us; make the application on the endpoint's createApp page" >&2
  exit 2
}

[ $# -ge 4 ] || usage
endpoint=$1 project=$2 cluster=$3 application=$4
shift 4
case "$endpoint" in
  ovh-eu) base=https://eu.api.ovh.com/1.0 ;;
  ovh-ca) base=https://ca.api.ovh.com/1.0 ;;
  ovh-us) base=https://api.us.ovhcloud.com/1.0 ;;
  *) usage ;;
esac

kube=/cloud/project/$project/kube/$cluster
request=$(jq -n --arg kube "$kube" --arg project "/cloud/project/$project" '{
  accessRules: [
    {method: "GET", path: $kube},
    {method: "GET", path: ($kube + "/nodepool")},
    {method: "GET", path: ($kube + "/nodepool/*")},
    {method: "POST", path: ($kube + "/nodepool")},
    {method: "PUT", path: ($kube + "/nodepool/*")},
    {method: "DELETE", path: ($kube + "/nodepool/*")},
    {method: "GET", path: ($kube + "/flavors")},
    {method: "GET", path: ($project + "/capabilities/kube/*")}
  ],
  redirection: null
} + (if ($ARGS.positional | length) > 0 then {allowedIPs: $ARGS.positional} else {} end)' --args "$@")

answer=$(curl --fail-with-body --silent --show-error -X POST "$base/auth/credential" \
  -H "X-Ovh-Application: $application" -H 'Content-Type: application/json' --data "$request")

cat <<TEXT
Open this address, choose the validity (it proposes one day), and agree:
  $(jq -r .validationUrl <<<"$answer")

Then store the key:
  kubectl create secret generic ovh-credentials --namespace karpenter \\
    --from-literal=applicationKey=$application --from-literal=applicationSecret="\$OVH_APPLICATION_SECRET" \\
    --from-literal=consumerKey=$(jq -r .consumerKey <<<"$answer")
TEXT
