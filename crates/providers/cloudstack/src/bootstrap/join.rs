//! Joins that are rendered for a distribution (cloudstack.md §11.1).

use std::collections::BTreeMap;

use base64::{Engine, engine::general_purpose::STANDARD};
use k8s_openapi::api::core::v1::Taint;
use serde_json::{Value, json};

use super::{Boot, BootstrapError};
use crate::node_class::{Bootstrap, CloudStackNodeClass, bootstrap::KubeletCloudProvider};

pub(super) const KUBE_RESERVED: [(&str, &str); 2] = [("cpu", "100m"), ("memory", "256Mi")];
const EVICTION_HARD: [(&str, &str); 2] = [("memory.available", "100Mi"), ("nodefs.available", "10%")];
const UNREGISTERED: &str = "karpenter.sh/unregistered:NoExecute";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Agent {
    K3s,
    Rke2,
}

/// `k=v,…` of the labels that a kubelet may give its own Node.
pub(super) fn labels(boot: &Boot<'_>) -> String {
    let allowed = boot.labels.iter().filter(|(key, _)| kubelet_may_set(key));
    let pairs: Vec<String> = allowed.map(|(key, value)| format!("{key}={value}")).collect();
    pairs.join(",")
}

/// The NodeRestriction admission plugin refuses the others.
fn kubelet_may_set(key: &str) -> bool {
    const ALLOWED: [&str; 6] = [
        "kubernetes.io/arch",
        "kubernetes.io/os",
        "kubernetes.io/hostname",
        "topology.kubernetes.io/zone",
        "topology.kubernetes.io/region",
        "node.kubernetes.io/instance-type",
    ];
    let Some((domain, _)) = key.split_once('/') else {
        return true;
    };
    let is_reserved = domain == "kubernetes.io"
        || domain == "k8s.io"
        || domain.ends_with(".kubernetes.io")
        || domain.ends_with(".k8s.io");
    !is_reserved || ALLOWED.contains(&key) || domain == "node.kubernetes.io" || domain == "kubelet.kubernetes.io"
}

/// `k=v:Effect,…` of the claim's taints and the one that says that it is not registered yet.
pub(super) fn taints(boot: &Boot<'_>) -> String {
    let spec = &boot.claim.spec;
    let own = spec.taints.iter().flatten().chain(spec.startup_taints.iter().flatten());
    let mut all: Vec<String> = own.map(taint).collect();
    if !all.iter().any(|own| own.starts_with("karpenter.sh/unregistered")) {
        all.push(UNREGISTERED.to_owned());
    }
    all.join(",")
}

fn taint(own: &Taint) -> String {
    match own.value.as_deref().filter(|value| !value.is_empty()) {
        Some(value) => format!("{}={value}:{}", own.key, own.effect),
        None => format!("{}:{}", own.key, own.effect),
    }
}

/// `k=v,…`, with defaults for keys that are not named.
pub(super) fn reserved(own: Option<&BTreeMap<String, String>>, defaults: &[(&str, &str)]) -> String {
    let mut all: BTreeMap<String, String> = defaults
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect();
    all.extend(own.cloned().unwrap_or_default());
    let pairs: Vec<String> = all.iter().map(|(key, value)| format!("{key}={value}")).collect();
    pairs.join(",")
}

/// `signal<value,…`.
pub(super) fn eviction_hard(class: &CloudStackNodeClass) -> String {
    let own = class.spec.kubelet.as_ref().and_then(|own| own.eviction_hard.as_ref());
    reserved(own, &EVICTION_HARD).replace('=', "<")
}

/// Flags of the kubelet that make true what instance types promise.
fn kubelet_flags(boot: &Boot<'_>) -> BTreeMap<String, String> {
    let kubelet = boot.class.spec.kubelet.clone().unwrap_or_default();
    let mut flags = BTreeMap::new();
    let mut set = |name: &str, value: String| {
        if !value.is_empty() {
            flags.insert(name.to_owned(), value);
        }
    };
    set("max-pods", boot.max_pods.to_string());
    set(
        "kube-reserved",
        reserved(kubelet.kube_reserved.as_ref(), &KUBE_RESERVED),
    );
    set("system-reserved", reserved(kubelet.system_reserved.as_ref(), &[]));
    set("eviction-hard", eviction_hard(boot.class));
    set(
        "eviction-soft",
        reserved(kubelet.eviction_soft.as_ref(), &[]).replace('=', "<"),
    );
    set(
        "eviction-soft-grace-period",
        reserved(kubelet.eviction_soft_grace_period.as_ref(), &[]),
    );
    let number = |own: Option<i32>| own.map(|own| own.to_string()).unwrap_or_default();
    set(
        "eviction-max-pod-grace-period",
        number(kubelet.eviction_max_pod_grace_period),
    );
    set(
        "image-gc-high-threshold",
        number(kubelet.image_gc_high_threshold_percent),
    );
    set("image-gc-low-threshold", number(kubelet.image_gc_low_threshold_percent));
    set(
        "cpu-cfs-quota",
        kubelet.cpu_cfs_quota.map(|own| own.to_string()).unwrap_or_default(),
    );
    set("cluster-dns", kubelet.cluster_dns.unwrap_or_default().join(","));
    flags
}

/// Who initialises the node, and how it is recognised: by its own flag unless the cloud-controller-manager writes it.
fn cloud_flags(boot: &Boot<'_>) -> BTreeMap<String, String> {
    let bootstrap = boot.class.spec.bootstrap.as_ref();
    let is_external = bootstrap.is_some_and(|own| own.cloud_provider == Some(KubeletCloudProvider::External));
    let mut flags = BTreeMap::new();
    if is_external {
        flags.insert("cloud-provider".to_owned(), "external".to_owned());
    }
    if !is_external || boot.provider_id_prefix != CCM_PREFIX {
        flags.insert("provider-id".to_owned(), "__PROVIDER_ID__".to_owned());
    }
    flags
}

const CCM_PREFIX: &str = "external-cloudstack://";

/// The kubeconfig that discovery starts from, with the endpoint of the class.
fn cluster_info(boot: &Boot<'_>) -> Result<Value, BootstrapError> {
    let text = boot.secrets.cluster_info.as_deref();
    let text = text.ok_or(BootstrapError::Missing("the kubeconfig of kube-public/cluster-info"))?;
    let unusable = |why: &str| BootstrapError::ClusterInfo(why.to_owned());
    let mut config: Value = serde_norway::from_str(text).map_err(|error| unusable(&error.to_string()))?;
    let cluster = config
        .pointer_mut("/clusters/0/cluster")
        .filter(|own| own["certificate-authority-data"].is_string())
        .ok_or_else(|| unusable("it names no certificate authority"))?;
    let bootstrap = boot.class.spec.bootstrap.as_ref();
    if let Some(endpoint) = bootstrap.and_then(|own| own.api_server_endpoint.as_deref()) {
        cluster["server"] = json!(format!("https://{}", endpoint.trim_start_matches("https://")));
    }
    Ok(config)
}

/// The cluster's certificate authority, in Base64.
pub(super) fn certificate_authority(boot: &Boot<'_>) -> Result<String, BootstrapError> {
    let config = cluster_info(boot)?;
    let found = config.pointer("/clusters/0/cluster/certificate-authority-data");
    Ok(found.and_then(Value::as_str).unwrap_or_default().to_owned())
}

/// Shell that finds the machine's own id: cloud-init, then the metadata server, then the firmware.
fn find_id(prefix: &str) -> String {
    format!(
        "is_uuid() {{ echo \"$1\" | grep -Eqi '^[0-9a-f]{{8}}(-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}$'; }}\n\
         VM_ID=\"$(cloud-init query instance_id 2>/dev/null || true)\"\n\
         is_uuid \"$VM_ID\" || VM_ID=\"$(curl -sf http://data-server/latest/meta-data/vm-id || true)\"\n\
         is_uuid \"$VM_ID\" || VM_ID=\"$(tr 'A-Z' 'a-z' < /sys/class/dmi/id/product_uuid || true)\"\n\
         PROVIDER_ID={}\"$VM_ID\"\n",
        quote(prefix)
    )
}

fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

fn yaml(value: &Value) -> String {
    serde_norway::to_string(value).expect("JSON values are YAML")
}

pub(super) fn kubeadm(boot: &Boot<'_>, bootstrap: &Bootstrap) -> Result<String, BootstrapError> {
    let token = boot
        .secrets
        .token
        .as_deref()
        .ok_or(BootstrapError::Missing("the join token"))?;
    let registration = bootstrap.node_registration.clone().unwrap_or_default();
    let mut flags = kubelet_flags(boot);
    flags.insert("node-labels".to_owned(), labels(boot));
    flags.insert("register-with-taints".to_owned(), taints(boot));
    flags.extend(cloud_flags(boot));
    flags.extend(registration.kubelet_extra_args.unwrap_or_default());
    let arguments: Vec<Value> = flags
        .iter()
        .map(|(name, value)| json!({"name": name, "value": value}))
        .collect();
    let mut node = json!({"name": boot.vm_name, "kubeletExtraArgs": arguments});
    if let Some(socket) = &registration.cri_socket {
        node["criSocket"] = json!(socket);
    }
    if let Some(ignored) = &registration.ignore_preflight_errors {
        node["ignorePreflightErrors"] = json!(ignored);
    }
    let mut before = String::new();
    let discovery = match &bootstrap.ca_cert_hashes {
        Some(hashes) => json!({"bootstrapToken": {
            "apiServerEndpoint": bootstrap.api_server_endpoint, "token": token, "caCertHashes": hashes,
        }}),
        None => {
            before.push_str(&format!(
                "mkdir -p /etc/kubernetes\ncat > /etc/kubernetes/cluster-info.yaml <<'KARPENTER'\n{}KARPENTER\n",
                yaml(&cluster_info(boot)?)
            ));
            json!({"file": {"kubeConfigPath": "/etc/kubernetes/cluster-info.yaml"}, "tlsBootstrapToken": token})
        }
    };
    if let Some(version) = &bootstrap.kubernetes_version {
        before.push_str(&format!(
            "[ \"$(kubeadm version -o short)\" = {0} ] || {{ echo \"the template has no kubeadm {1}\" >&2; exit 1; }}\n",
            quote(version),
            version
        ));
    }
    let config = json!({
        "apiVersion": "kubeadm.k8s.io/v1beta4", "kind": "JoinConfiguration",
        "discovery": discovery, "nodeRegistration": node,
    });
    Ok(format!(
        "#!/bin/sh\nset -eu\n{before}{}hostnamectl set-hostname {}\nmkdir -p /etc/kubernetes\ncat > /etc/kubernetes/join.yaml <<'KARPENTER'\n{}KARPENTER\n\
         chmod 0600 /etc/kubernetes/join.yaml\nsed -i \"s|__PROVIDER_ID__|$PROVIDER_ID|\" /etc/kubernetes/join.yaml\n\
         kubeadm join --config /etc/kubernetes/join.yaml\n",
        find_id(boot.provider_id_prefix),
        quote(boot.vm_name),
        yaml(&config)
    ))
}

pub(super) fn k3s(boot: &Boot<'_>, bootstrap: &Bootstrap, agent: Agent) -> Result<String, BootstrapError> {
    let token = boot
        .secrets
        .token
        .as_deref()
        .ok_or(BootstrapError::Missing("the join token"))?;
    let (folder, installer, service, prefix) = match agent {
        Agent::K3s => ("/etc/rancher/k3s", "https://get.k3s.io", "k3s-agent", "INSTALL_K3S"),
        Agent::Rke2 => ("/etc/rancher/rke2", "https://get.rke2.io", "rke2-agent", "INSTALL_RKE2"),
    };
    let mut arguments: Vec<String> = kubelet_flags(boot)
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    arguments.extend(cloud_flags(boot).iter().map(|(name, value)| format!("{name}={value}")));
    let split = |text: String| -> Vec<String> {
        text.split(',')
            .filter(|part| !part.is_empty())
            .map(str::to_owned)
            .collect()
    };
    let config = json!({
        "server": bootstrap.server_url, "token": token, "node-name": boot.vm_name, "node-label": split(labels(boot)),
        "node-taint": split(taints(boot)), "kubelet-arg": arguments,
    });
    let extra: String = bootstrap
        .extra_args
        .iter()
        .flatten()
        .map(|line| format!("{line}\n"))
        .collect();
    let mut install = String::new();
    if let Some(version) = &bootstrap.version {
        install.push_str(&format!("{prefix}_VERSION={} ", quote(version)));
    }
    if let Some(channel) = &bootstrap.channel {
        install.push_str(&format!("{prefix}_CHANNEL={} ", quote(channel)));
    }
    let kind = match agent {
        Agent::K3s => "INSTALL_K3S_EXEC=agent ",
        Agent::Rke2 => "INSTALL_RKE2_TYPE=agent ",
    };
    Ok(format!(
        "#!/bin/sh\nset -eu\n{}hostnamectl set-hostname {}\nmkdir -p {folder}\ncat > {folder}/config.yaml <<'KARPENTER'\n{}{extra}KARPENTER\n\
         chmod 0600 {folder}/config.yaml\nsed -i \"s|__PROVIDER_ID__|$PROVIDER_ID|\" {folder}/config.yaml\n\
         if ! systemctl cat {service} >/dev/null 2>&1; then\n  curl -sfL {installer} | {install}{kind}sh -\nfi\n\
         systemctl enable --now {service}\n",
        find_id(boot.provider_id_prefix),
        quote(boot.vm_name),
        yaml(&config)
    ))
}

/// The base configuration with the node's settings merged in, key by key.
pub(super) fn talos(boot: &Boot<'_>) -> Result<String, BootstrapError> {
    let base = boot.secrets.machine_config.as_deref();
    let base = base.ok_or(BootstrapError::Missing("the machine configuration"))?;
    let mut config: Value =
        serde_norway::from_str(base).map_err(|error| BootstrapError::MachineConfig(error.to_string()))?;
    if !config.is_object() {
        return Err(BootstrapError::MachineConfig("it is not an object".to_owned()));
    }
    let labels: BTreeMap<&String, &String> = boot.labels.iter().filter(|(key, _)| kubelet_may_set(key)).collect();
    let mut flags = kubelet_flags(boot);
    flags.insert("register-with-taints".to_owned(), taints(boot));
    // Talos sets the provider ID itself, from the metadata of the machine.
    flags.extend(cloud_flags(boot).into_iter().filter(|(name, _)| name != "provider-id"));
    merge(
        &mut config,
        &json!({"machine": {
            "network": {"hostname": boot.vm_name}, "nodeLabels": labels, "kubelet": {"extraArgs": flags},
        }}),
    );
    Ok(yaml(&config))
}

/// The user's Ignition document with one more file: the flags of the kubelet, for its unit to read.
pub(super) fn ignition(boot: &Boot<'_>, own: &str) -> Result<String, BootstrapError> {
    let mut config: Value = serde_json::from_str(own).map_err(|error| BootstrapError::Ignition(error.to_string()))?;
    if !config.is_object() {
        return Err(BootstrapError::Ignition("it is not an object".to_owned()));
    }
    let mut flags = kubelet_flags(boot);
    flags.insert("node-labels".to_owned(), labels(boot));
    flags.insert("register-with-taints".to_owned(), taints(boot));
    flags.insert("hostname-override".to_owned(), boot.vm_name.to_owned());
    let line: Vec<String> = flags.iter().map(|(name, value)| format!("--{name}={value}")).collect();
    let text = format!("KUBELET_KARPENTER_ARGS=\"{}\"\n", line.join(" "));
    let file = json!({
        "path": "/etc/kubernetes/karpenter.env", "mode": 0o600, "overwrite": true,
        "contents": {"source": format!("data:;base64,{}", STANDARD.encode(text))},
    });
    let storage = &mut config["storage"];
    if !storage.is_object() && !storage.is_null() {
        return Err(BootstrapError::Ignition("storage is not an object".to_owned()));
    }
    let files = &mut storage["files"];
    match files {
        Value::Array(files) => files.push(file),
        Value::Null => *files = json!([file]),
        _ => return Err(BootstrapError::Ignition("storage.files is not a list".to_owned())),
    }
    Ok(config.to_string())
}

fn merge(base: &mut Value, over: &Value) {
    match (base, over) {
        (Value::Object(base), Value::Object(over)) => {
            for (key, value) in over {
                merge(base.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (base, over) => *base = over.clone(),
    }
}
