//! The user data that a machine boots with: as users wrote it, with placeholders filled in, or rendered for a distribution.

mod join;
mod placeholders;
mod tokens;

use std::{collections::BTreeMap, io::Write};

use base64::{Engine, engine::general_purpose::STANDARD};
use flate2::{Compression, write::GzEncoder};
use karpenter_api::NodeClaim;
use thiserror::Error;

use crate::node_class::{CloudStackNodeClass, UserDataCompression, UserDataTemplating, bootstrap::BootstrapMode};

/// What is known about the machine that is to boot.
#[derive(Clone, Debug)]
pub struct Boot<'a> {
    pub class: &'a CloudStackNodeClass,
    pub claim: &'a NodeClaim,
    pub cluster_name: &'a str,
    pub vm_name: &'a str,
    pub zone: &'a str,
    pub instance_type: &'a str,
    pub offering_id: &'a str,
    pub template_id: &'a str,
    pub provider_id_prefix: &'a str,
    pub max_pods: i64,
    pub labels: &'a BTreeMap<String, String>,
    pub secrets: &'a Secrets,
}

/// The contents of the Secrets that a class refers to.
#[derive(Clone, Default)]
pub struct Secrets {
    pub user_data: Option<String>,
    /// All keys of the Secret that user data is in.
    pub all: BTreeMap<String, String>,
    pub token: Option<String>,
    pub machine_config: Option<String>,
    /// The kubeconfig of the ConfigMap kube-public/cluster-info: where the API server is and who vouches for it.
    pub cluster_info: Option<String>,
}

/// Why user data cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BootstrapError {
    #[error("user data uses ${{karpenter:{0}}}, which does not exist; see the reference for the names")]
    UnknownPlaceholder(String),
    #[error("user data has {size} characters in Base64, CloudStack takes at most {limit}; shorten it")]
    TooLong { size: usize, limit: usize },
    #[error("the machine configuration for Talos is not YAML: {0}")]
    MachineConfig(String),
    #[error("the Secret lacks {0}")]
    Missing(&'static str),
    #[error("the Ignition configuration cannot be used: {0}")]
    Ignition(String),
    #[error("the kubeconfig of ConfigMap kube-public/cluster-info cannot be used: {0}; give caCertHashes instead")]
    ClusterInfo(String),
}

/// The server's default limit, after Base64.
pub const USUAL_LIMIT: usize = 32768;
/// The most that any server takes.
pub const LIMIT: usize = 1_048_576;

/// Whether user data, from wherever it comes, or the join need what the ConfigMap kube-public/cluster-info says.
pub fn needs_cluster_info(class: &CloudStackNodeClass, secrets: &Secrets) -> bool {
    let spec = &class.spec;
    let joins = spec
        .bootstrap
        .as_ref()
        .is_some_and(|own| own.mode == BootstrapMode::Kubeadm && own.ca_cert_hashes.is_none());
    let own = spec.user_data.as_ref().or(secrets.user_data.as_ref());
    let fills = spec.user_data_templating.unwrap_or_default() == UserDataTemplating::Placeholders
        && own.is_some_and(|text| text.contains("${karpenter:CA_BUNDLE_BASE64}"));
    joins || fills
}

/// User data in Base64, as it is sent; `None` if there is none.
///
/// # Errors
/// When it cannot be made of what the class says.
pub fn user_data(boot: &Boot<'_>) -> Result<Option<String>, BootstrapError> {
    let Some(text) = text(boot)? else { return Ok(None) };
    let mode = boot
        .class
        .spec
        .bootstrap
        .as_ref()
        .map(|own| own.mode)
        .unwrap_or_default();
    // Neither Ignition nor Talos reads gzip.
    let may_compress = !matches!(mode, BootstrapMode::Ignition | BootstrapMode::Talos);
    encode(
        &text,
        boot.class.spec.user_data_compression.unwrap_or_default(),
        may_compress,
    )
    .map(Some)
}

fn encode(text: &str, compression: UserDataCompression, may_compress: bool) -> Result<String, BootstrapError> {
    let plain = STANDARD.encode(text);
    let wants = match compression {
        UserDataCompression::None => false,
        UserDataCompression::Gzip => true,
        UserDataCompression::Auto => plain.len() > USUAL_LIMIT,
    };
    let encoded = if wants && may_compress {
        STANDARD.encode(gzip(text))
    } else {
        plain
    };
    if encoded.len() > LIMIT {
        return Err(BootstrapError::TooLong {
            size: encoded.len(),
            limit: LIMIT,
        });
    }
    Ok(encoded)
}

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder
        .write_all(text.as_bytes())
        .expect("writing to memory does not fail");
    encoder.finish().expect("writing to memory does not fail")
}

/// The text of the user data, before it is encoded.
///
/// # Errors
/// As [`user_data`].
pub fn text(boot: &Boot<'_>) -> Result<Option<String>, BootstrapError> {
    let spec = &boot.class.spec;
    let own = spec.user_data.clone().or_else(|| boot.secrets.user_data.clone());
    let own = match (own, spec.user_data_templating.unwrap_or_default()) {
        (Some(text), UserDataTemplating::Placeholders) => Some(placeholders::fill(&text, boot)?),
        (own, _) => own,
    };
    let Some(bootstrap) = &spec.bootstrap else {
        return Ok(own);
    };
    match bootstrap.mode {
        BootstrapMode::Custom => Ok(own),
        BootstrapMode::Ignition => own.map(|own| join::ignition(boot, &own)).transpose(),
        BootstrapMode::Talos => join::talos(boot).map(Some),
        BootstrapMode::Kubeadm => Ok(Some(combine(own, join::kubeadm(boot, bootstrap)?))),
        BootstrapMode::K3s => Ok(Some(combine(own, join::k3s(boot, bootstrap, join::Agent::K3s)?))),
        BootstrapMode::RKE2 => Ok(Some(combine(own, join::k3s(boot, bootstrap, join::Agent::Rke2)?))),
    }
}

/// Both as one multi-part document that cloud-init takes apart: the user's first, then ours.
fn combine(own: Option<String>, join: String) -> String {
    const BOUNDARY: &str = "==KARPENTER==";
    let Some(own) = own else { return join };
    let kind = |text: &str| {
        if text.starts_with("#cloud-config") {
            "text/cloud-config"
        } else {
            "text/x-shellscript"
        }
    };
    let part = |text: &str| {
        format!(
            "--{BOUNDARY}\nContent-Type: {}; charset=\"us-ascii\"\n\n{text}\n",
            kind(text)
        )
    };
    format!(
        "MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=\"{BOUNDARY}\"\n\n{}{}--{BOUNDARY}--\n",
        part(&own),
        part(&join)
    )
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Secrets")
            .field("keys", &self.all.keys())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
