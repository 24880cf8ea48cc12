//! How a server joins the cluster: as a worker of BizFly Kubernetes Engine, or by user data (§5.5).

pub mod certificate;
pub mod merge;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Taint;
use karpenter_api::{NodeClaim, labels::NODEPOOL};
use karpenter_cloud::user_data::UserData;
use secrecy::{ExposeSecret, SecretString};
use serde::Serialize;

use crate::{node_class::Kubelet, problem::Problem};
use certificate::ClusterCa;

/// How servers of a class join.
#[derive(Clone, Debug)]
pub enum Join {
    Bke(BkeJoin),
    UserData(UserDataJoin),
}

/// What a BKE worker is told through its metadata.
#[derive(Clone, Debug)]
pub struct BkeJoin {
    pub cluster_id: String,
    pub token: SecretString,
    pub join_endpoint: String,
    pub log_endpoint: Option<String>,
    pub kubernetes_version: String,
    pub everywhere: bool,
    pub local_dns: bool,
}

/// What user data may refer to.
#[derive(Clone, Debug, Default)]
pub struct UserDataJoin {
    pub cluster_name: String,
    pub endpoint: Option<String>,
    pub token: Option<SecretString>,
    pub ca: Option<ClusterCa>,
}

/// What differs between the servers of a class.
#[derive(Debug)]
pub struct NodeFacts<'a> {
    pub name: &'a str,
    pub claim: &'a NodeClaim,
    /// A taint besides the claim's, on spot nodes.
    pub spot_taint: Option<Taint>,
}

/// The user's part of user data, and what goes with it.
#[derive(Debug, Default)]
pub struct UserParts<'a> {
    /// The ProviderConfig's template.
    pub base: Option<&'a str>,
    /// The NodeClass's own.
    pub own: Option<&'a str>,
    pub ssh_keys: &'a [String],
    pub kubelet: Option<&'a Kubelet>,
}

/// The variables of user data.
pub const VARIABLES: [&str; 11] = [
    "NodeName",
    "ClusterName",
    "ClusterEndpoint",
    "CABundle",
    "CACertHash",
    "BootstrapToken",
    "ClusterDNS",
    "Labels",
    "Taints",
    "KubeletFlags",
    "ProviderID",
];
pub const LONGEST_USER_DATA: usize = 60 * 1024;
const BKE_BOOTSTRAP: &str = "/opt/bizfly-kubernetes-engine/bootstrap.sh";

/// Joins by kubeadm, trusting only the CA of `kube-public/cluster-info`.
const KUBEADM: &str = r#"#!/bin/bash
set -euo pipefail
hostnamectl set-hostname "{{ .NodeName }}"
cat > /etc/default/kubelet <<'KUBELET'
KUBELET_EXTRA_ARGS="--cloud-provider=external --node-labels={{ .Labels }} --register-with-taints={{ .Taints }} {{ .KubeletFlags }}"
KUBELET
kubeadm join "{{ .ClusterEndpoint }}" --token "{{ .BootstrapToken }}" --discovery-token-ca-cert-hash "{{ .CACertHash }}"
"#;

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Variables<'a> {
    node_name: &'a str,
    cluster_name: &'a str,
    cluster_endpoint: &'a str,
    #[serde(rename = "CABundle")]
    ca_bundle: &'a str,
    #[serde(rename = "CACertHash")]
    ca_cert_hash: &'a str,
    bootstrap_token: &'a str,
    #[serde(rename = "ClusterDNS")]
    cluster_dns: String,
    labels: String,
    taints: String,
    kubelet_flags: String,
    /// Empty: the id exists only after the server does.
    #[serde(rename = "ProviderID")]
    provider_id: &'static str,
}

impl Join {
    /// What nodes of this mode cannot do without.
    ///
    /// # Errors
    /// For a condition.
    pub fn check(&self, has_user_data: bool) -> Result<(), Problem> {
        let Self::UserData(join) = self else { return Ok(()) };
        if has_user_data {
            return Ok(());
        }
        let missing = [
            (
                "the address of the API server (CLUSTER_ENDPOINT)",
                join.endpoint.is_none(),
            ),
            (
                "a bootstrap token (spec.bootstrap.bootstrapTokenSecretRef)",
                join.token.is_none(),
            ),
            (
                "the cluster's CA (ConfigMap kube-public/cluster-info)",
                join.ca.is_none(),
            ),
        ];
        let missing: Vec<&str> = missing
            .into_iter()
            .filter(|(_, is)| *is)
            .map(|(what, _)| what)
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        let message = format!(
            "without spec.userData nodes join by kubeadm, and for that {} is missing; set BKE_CLUSTER_ID if this is a BKE cluster",
            missing.join(" and ")
        );
        Err(Problem::new("BootstrapIncomplete", message))
    }

    /// What servers join with.
    pub fn token(&self) -> Option<&SecretString> {
        match self {
            Self::Bke(join) => Some(&join.token),
            Self::UserData(join) => join.token.as_ref(),
        }
    }

    /// The metadata that the vendor's bootstrap reads.
    pub fn metadata(&self, network_id: &str) -> BTreeMap<String, String> {
        let Self::Bke(join) = self else {
            return BTreeMap::new();
        };
        let entries = [
            ("bizfly_cloud_service", "kubernetes_engine"),
            ("bke_cluster_id", &join.cluster_id),
            ("bke_cluster_token", join.token.expose_secret()),
            ("bke_join_endpoint", &join.join_endpoint),
            ("bke_log_endpoint", join.log_endpoint.as_deref().unwrap_or_default()),
            ("kubernetes_version", &join.kubernetes_version),
            ("bke_node_everywhere", if join.everywhere { "true" } else { "false" }),
            ("bke_node_localdns", if join.local_dns { "true" } else { "false" }),
            ("bke_node_network_id", network_id),
        ];
        entries.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
    }

    /// The user data of one server.
    ///
    /// # Errors
    /// When the template cannot be rendered, or the result is too long.
    pub fn user_data(&self, parts: &UserParts<'_>, node: &NodeFacts<'_>) -> Result<String, String> {
        let text = match self {
            Self::Bke(_) => bke_script(parts)?,
            Self::UserData(join) => join.document(parts, node)?,
        };
        if text.len() > LONGEST_USER_DATA {
            let size = text.len();
            return Err(format!(
                "the user data is {size} bytes, more than the {LONGEST_USER_DATA} allowed"
            ));
        }
        Ok(text)
    }
}

impl UserDataJoin {
    fn document(&self, parts: &UserParts<'_>, node: &NodeFacts<'_>) -> Result<String, String> {
        let template = match (parts.base, parts.own) {
            (None, None) => KUBEADM.to_owned(),
            (Some(one), None) | (None, Some(one)) => one.to_owned(),
            (Some(base), Some(own)) if merge::is_cloud_config(base) && merge::is_cloud_config(own) => {
                merge::cloud_configs(base, own)?
            }
            // Two documents that can't be one: the NodeClass's wins.
            (Some(_), Some(own)) => own.to_owned(),
        };
        let rendered = UserData::parse(&from_go_template(&template))
            .and_then(|template| template.render(&self.variables(parts, node)))
            .map_err(|error| error.to_string())?;
        if parts.ssh_keys.is_empty() {
            return Ok(rendered);
        }
        if merge::is_cloud_config(&rendered) {
            let keys = serde_json::json!({ "ssh_authorized_keys": parts.ssh_keys });
            return merge::cloud_configs(&format!("#cloud-config\n{keys}"), &rendered);
        }
        Ok(with_prologue(&rendered, &ssh_prologue(parts.ssh_keys)))
    }

    fn variables<'a>(&'a self, parts: &UserParts<'_>, node: &NodeFacts<'a>) -> Variables<'a> {
        let kubelet = parts.kubelet.cloned().unwrap_or_default();
        Variables {
            node_name: node.name,
            cluster_name: &self.cluster_name,
            cluster_endpoint: self.endpoint.as_deref().map_or("", host),
            ca_bundle: self.ca.as_ref().map_or("", |ca| &ca.base64),
            ca_cert_hash: self.ca.as_ref().map_or("", |ca| &ca.hash),
            bootstrap_token: self.token.as_ref().map_or("", |token| token.expose_secret()),
            cluster_dns: kubelet.cluster_dns.join(","),
            labels: node_labels(node.claim),
            taints: node_taints(node),
            kubelet_flags: kubelet.flags(),
            provider_id: "",
        }
    }
}

/// kubeadm wants `host:port`.
fn host(endpoint: &str) -> &str {
    let plain = endpoint.split_once("://").map_or(endpoint, |(_, rest)| rest);
    plain.trim_end_matches('/')
}

/// A user's script is sourced before BKE's own.
fn bke_script(parts: &UserParts<'_>) -> Result<String, String> {
    let mut script = String::from("#!/bin/bash\n");
    if !parts.ssh_keys.is_empty() {
        script.push_str(&ssh_prologue(parts.ssh_keys));
    }
    if let Some(own) = parts.own.or(parts.base) {
        if !own.starts_with("#!") {
            return Err("on BKE, userData must be a shell script that begins with #!".to_owned());
        }
        script.push_str("cat > /run/karpenter-user-data.sh <<'KARPENTER_USER_DATA'\n");
        script.push_str(own.trim_end_matches('\n'));
        script.push_str("\nKARPENTER_USER_DATA\n. /run/karpenter-user-data.sh\n");
    }
    script.push_str(BKE_BOOTSTRAP);
    script.push('\n');
    Ok(script)
}

fn ssh_prologue(keys: &[String]) -> String {
    let mut prologue = String::from("mkdir -p /root/.ssh && chmod 700 /root/.ssh\n");
    for key in keys {
        let quoted = key.replace('\'', r"'\''");
        prologue.push_str(&format!("echo '{quoted}' >> /root/.ssh/authorized_keys\n"));
    }
    prologue
}

fn with_prologue(script: &str, prologue: &str) -> String {
    match script.split_once('\n') {
        Some((shebang, rest)) if shebang.starts_with("#!") => format!("{shebang}\n{prologue}{rest}"),
        _ => format!("#!/bin/bash\n{prologue}{script}"),
    }
}

/// Labels that a kubelet may give its own Node; core adds the rest when the Node registers.
fn node_labels(claim: &NodeClaim) -> String {
    let may = |key: &str| key == NODEPOOL || !(key.contains("kubernetes.io/") || key.contains("k8s.io/"));
    let labels = claim.metadata.labels.iter().flatten();
    let pairs: Vec<String> = labels
        .filter(|(key, _)| may(key))
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    pairs.join(",")
}

/// Keeps pods off spot nodes that do not tolerate being interrupted.
pub fn spot_taint() -> Taint {
    Taint {
        key: "karpenter.bizflycloud.sh/spot".to_owned(),
        value: Some("true".to_owned()),
        effect: "NoSchedule".to_owned(),
        ..Taint::default()
    }
}

/// Everything a node starts with, in the syntax of `--register-with-taints`.
fn node_taints(node: &NodeFacts<'_>) -> String {
    let claim = node.claim;
    let own = claim
        .spec
        .taints
        .iter()
        .flatten()
        .chain(claim.spec.startup_taints.iter().flatten())
        .chain(&node.spot_taint);
    let text = |taint: &Taint| {
        format!(
            "{}={}:{}",
            taint.key,
            taint.value.as_deref().unwrap_or_default(),
            taint.effect
        )
    };
    let taints: Vec<String> = std::iter::once(text(&karpenter_api::taint::unregistered()))
        .chain(own.map(text))
        .collect();
    taints.join(",")
}

/// Users write `{{ .NodeName }}` as in Go; the engine wants `{{ NodeName }}`.
pub fn from_go_template(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find("{{") {
        let (before, after) = rest.split_at(start + 2);
        out.push_str(before);
        let trimmed = after.trim_start();
        match trimmed.strip_prefix('.') {
            Some(name) if name.starts_with(|char: char| char.is_ascii_alphabetic()) => {
                out.push(' ');
                rest = name;
            }
            _ => rest = after,
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn claim() -> NodeClaim {
        serde_json::from_value(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
            "metadata": {"name": "pool-1", "labels": {"karpenter.sh/nodepool": "pool", "topology.kubernetes.io/zone": "HN1"}},
            "spec": {"requirements": [], "taints": [{"key": "team", "value": "a", "effect": "NoSchedule"}],
                     "nodeClassRef": {"group": "g", "kind": "K", "name": "n"}},
        }))
        .expect("a claim")
    }

    fn join() -> UserDataJoin {
        UserDataJoin {
            cluster_name: "prod".into(),
            endpoint: Some("https://api:6443/".into()),
            token: Some("abc.def".to_owned().into()),
            ca: Some(ClusterCa {
                base64: "Q0E=".into(),
                hash: "sha256:00".into(),
            }),
        }
    }

    fn render(parts: &UserParts<'_>) -> Result<String, String> {
        let claim = claim();
        let facts = NodeFacts {
            name: "pool-1",
            claim: &claim,
            spot_taint: Some(spot_taint()),
        };
        Join::UserData(join()).user_data(parts, &facts)
    }

    #[test]
    fn without_user_data_nodes_join_by_kubeadm_and_verify_the_ca() {
        let script = render(&UserParts::default()).expect("rendered");
        assert!(
            script.contains(r#"kubeadm join "api:6443" --token "abc.def" --discovery-token-ca-cert-hash "sha256:00""#),
            "{script}"
        );
        assert!(!script.contains("unsafe-skip-ca-verification"));
        assert!(script.contains(
            "--register-with-taints=karpenter.sh/unregistered=:NoExecute,team=a:NoSchedule,karpenter.bizflycloud.sh/spot=true:NoSchedule "
        ));
        assert!(script.contains("--node-labels=karpenter.sh/nodepool=pool"));
        assert!(
            !script.contains("topology.kubernetes.io/zone"),
            "a kubelet may not set it"
        );
    }

    #[test]
    fn without_a_way_to_join_the_class_is_not_ready() {
        let bare = Join::UserData(UserDataJoin::default());
        let problem = bare.check(false).expect_err("nothing to join with");
        assert!(problem.message.contains("CLUSTER_ENDPOINT"), "{}", problem.message);
        assert_eq!(bare.check(true), Ok(()), "own user data needs nothing");
    }

    #[test]
    fn cloud_configs_of_both_are_merged_and_ssh_keys_added() {
        let text = render(&UserParts {
            base: Some("#cloud-config\npackages: [a]\nhostname: base\n"),
            own: Some("#cloud-config\npackages: [b]\nhostname: '{{ .NodeName }}'\n"),
            ssh_keys: &["ssh-ed25519 AAAA".to_owned()],
            kubelet: None,
        })
        .expect("rendered");
        assert!(text.starts_with("#cloud-config\n"), "{text}");
        let value: serde_json::Value = serde_norway::from_str(&text).expect("YAML");
        assert_eq!(value["packages"], json!(["a", "b"]));
        assert_eq!(value["hostname"], "pool-1");
        assert_eq!(value["ssh_authorized_keys"], json!(["ssh-ed25519 AAAA"]));
    }

    #[test]
    fn on_bke_the_users_script_runs_before_the_vendors() {
        let join = Join::Bke(BkeJoin {
            cluster_id: "c".into(),
            token: "t0psecret".to_owned().into(),
            join_endpoint: "https://join".into(),
            log_endpoint: None,
            kubernetes_version: "v1.30.9".into(),
            everywhere: false,
            local_dns: false,
        });
        let claim = claim();
        let facts = NodeFacts {
            name: "n",
            claim: &claim,
            spot_taint: None,
        };
        let own = UserParts {
            own: Some("#!/bin/sh\necho hi\n"),
            ..UserParts::default()
        };
        let script = join.user_data(&own, &facts).expect("a script");
        assert!(script.find("echo hi").expect("ours") < script.find(BKE_BOOTSTRAP).expect("theirs"));
        let metadata = join.metadata("net");
        assert_eq!(metadata["bke_cluster_token"], "t0psecret");
        assert_eq!(metadata["bke_node_network_id"], "net");
        assert!(!format!("{join:?}").contains("t0psecret"));
    }

    #[test]
    fn user_data_that_grew_too_long_is_refused() {
        let long = format!("#!/bin/sh\n{}", "x".repeat(LONGEST_USER_DATA));
        let parts = UserParts {
            own: Some(&long),
            ..UserParts::default()
        };
        assert!(render(&parts).expect_err("too long").contains("more than"));
    }
}
