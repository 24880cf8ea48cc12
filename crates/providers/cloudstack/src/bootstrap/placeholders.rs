//! `${karpenter:NAME}` in user data (cloudstack.md §11.2).

use super::{Boot, BootstrapError, join};

const OPEN: &str = "${karpenter:";

/// Replaces every placeholder; `$${karpenter:` stands for a literal one.
pub(super) fn fill(text: &str, boot: &Boot<'_>) -> Result<String, BootstrapError> {
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(OPEN) {
        let (before, after) = rest.split_at(start);
        let Some(end) = after.find('}') else { break };
        if let Some(before) = before.strip_suffix('$') {
            filled.push_str(before);
            filled.push_str(&after[..=end]);
        } else {
            filled.push_str(before);
            filled.push_str(&value(&after[OPEN.len()..end], boot)?);
        }
        rest = &after[end + 1..];
    }
    filled.push_str(rest);
    Ok(filled)
}

fn value(name: &str, boot: &Boot<'_>) -> Result<String, BootstrapError> {
    let unknown = || BootstrapError::UnknownPlaceholder(name.to_owned());
    let kubelet = boot.class.spec.kubelet.as_ref();
    let claim = &boot.claim.metadata;
    if let Some(key) = name.strip_prefix("SECRET:") {
        return boot.secrets.all.get(key).cloned().ok_or_else(unknown);
    }
    Ok(match name {
        "CLUSTER_NAME" => boot.cluster_name.to_owned(),
        "NODECLAIM" => claim.name.clone().unwrap_or_default(),
        "NODEPOOL" => boot.claim.node_pool().unwrap_or_default().to_owned(),
        "NODECLASS" => boot.class.name().to_owned(),
        "VM_NAME" => boot.vm_name.to_owned(),
        "ZONE" => boot.zone.to_owned(),
        "INSTANCE_TYPE" => boot.instance_type.to_owned(),
        "SERVICE_OFFERING_ID" => boot.offering_id.to_owned(),
        "TEMPLATE_ID" => boot.template_id.to_owned(),
        "LABELS" => join::labels(boot),
        "TAINTS" => join::taints(boot),
        "MAX_PODS" => boot.max_pods.to_string(),
        "KUBE_RESERVED" => join::reserved(kubelet.and_then(|own| own.kube_reserved.as_ref()), &join::KUBE_RESERVED),
        "SYSTEM_RESERVED" => join::reserved(kubelet.and_then(|own| own.system_reserved.as_ref()), &[]),
        "EVICTION_HARD" => join::eviction_hard(boot.class),
        "PROVIDER_ID_PREFIX" => boot.provider_id_prefix.to_owned(),
        "API_SERVER_ENDPOINT" => {
            let endpoint = boot
                .class
                .spec
                .bootstrap
                .as_ref()
                .and_then(|own| own.api_server_endpoint.clone());
            endpoint.ok_or_else(unknown)?
        }
        "CA_BUNDLE_BASE64" => join::certificate_authority(boot)?,
        "BOOTSTRAP_TOKEN" => boot.secrets.token.clone().ok_or_else(unknown)?,
        _ => return Err(unknown()),
    })
}
