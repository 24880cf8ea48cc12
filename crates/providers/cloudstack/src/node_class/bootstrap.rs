//! How a machine becomes a node: user data of one's own, or a join that is rendered for the distribution.

use std::{collections::BTreeMap, time::Duration};

use karpenter_api::{duration::GoDuration, schema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// User data that is kept elsewhere.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline, extend("x-kubernetes-validations" = [
    schema::rule("has(self.secretRef) != has(self.registered)", "exactly one of secretRef and registered must be set"),
]))]
pub struct UserDataRef {
    /// A key of a Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretKeyRef>,
    /// User data that is registered at CloudStack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registered: Option<RegisteredRef>,
}

/// A key of a Secret.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub struct SecretKeyRef {
    /// Name of the Secret.
    #[schemars(length(min = 1))]
    pub name: String,
    /// Namespace of the Secret.
    #[schemars(length(min = 1))]
    pub namespace: String,
    /// The key whose value is meant.
    #[schemars(length(min = 1))]
    pub key: String,
}

/// User data that is registered at CloudStack.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline, extend("x-kubernetes-validations" = [
    schema::rule("has(self.id) != has(self.name)", "exactly one of id and name must be set"),
]))]
pub struct RegisteredRef {
    /// The UUID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Values of the variables that it declares.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum UserDataTemplating {
    #[default]
    None,
    Placeholders,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum UserDataCompression {
    #[default]
    Auto,
    Gzip,
    None,
}

/// How a machine joins the cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline, extend("x-kubernetes-validations" = [
    schema::rule("self.mode != 'Kubeadm' || has(self.apiServerEndpoint)", "mode Kubeadm needs apiServerEndpoint"),
    schema::rule("!has(self.tokenTTL) || !has(self.tokenSecretRef)", "tokenTTL is for tokens that Karpenter makes; tokenSecretRef names one of yours"),
    schema::rule("!(self.mode in ['K3s', 'RKE2']) || (has(self.serverURL) && has(self.tokenSecretRef))", "modes K3s and RKE2 need serverURL and tokenSecretRef"),
    schema::rule("self.mode != 'Talos' || has(self.machineConfigSecretRef)", "mode Talos needs machineConfigSecretRef"),
]))]
pub struct Bootstrap {
    /// Custom sends user data as it is; the others render a join for that distribution.
    pub mode: BootstrapMode,
    /// Kubeadm: host and port of the API server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_server_endpoint: Option<String>,
    /// Kubeadm: hashes of the cluster's CA, such as sha256:…; by the ConfigMap kube-public/cluster-info if unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 10))]
    pub ca_cert_hashes: Option<Vec<String>>,
    /// Kubeadm, K3s, RKE2: where the join token is. With Kubeadm, Karpenter makes a token for each machine if unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_secret_ref: Option<SecretKeyRef>,
    /// Kubeadm: how long a token that Karpenter makes is good for; 30m if unset.
    #[serde(default, rename = "tokenTTL", skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^([0-9]+(s|m|h))+$"))]
    pub token_ttl: Option<String>,
    /// Kubeadm: the version that the template must have, such as v1.34.1; a machine with another one does not join.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^v[0-9]+\.[0-9]+\.[0-9]+$"))]
    pub kubernetes_version: Option<String>,
    /// Kubeadm, K3s, RKE2, Talos: external if a cloud-controller-manager runs in the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cloud_provider: Option<KubeletCloudProvider>,
    /// Kubeadm: settings of the node's registration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_registration: Option<NodeRegistration>,
    /// K3s, RKE2: address of the server.
    #[serde(default, rename = "serverURL", skip_serializing_if = "Option::is_none")]
    pub server_url: Option<String>,
    /// K3s, RKE2: the version to install, if the template lacks the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[A-Za-z0-9.+_-]*$"))]
    pub version: Option<String>,
    /// K3s, RKE2: the channel to install from, if the template lacks the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[A-Za-z0-9.+_-]*$"))]
    pub channel: Option<String>,
    /// K3s, RKE2: further lines of the agent's configuration, as key: value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 50))]
    pub extra_args: Option<Vec<String>>,
    /// Talos: the machine configuration that settings of the node are merged into.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_config_secret_ref: Option<SecretKeyRef>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum BootstrapMode {
    #[default]
    Custom,
    Kubeadm,
    K3s,
    RKE2,
    Talos,
    Ignition,
}

/// Who initialises nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub enum KubeletCloudProvider {
    External,
}

impl Bootstrap {
    /// Whether Karpenter makes the tokens that machines join with.
    pub fn manages_tokens(&self) -> bool {
        self.mode == BootstrapMode::Kubeadm && self.token_secret_ref.is_none()
    }

    /// How long a token that Karpenter makes is good for.
    pub fn token_ttl(&self) -> Duration {
        let parsed = self
            .token_ttl
            .as_deref()
            .and_then(|text| text.parse::<GoDuration>().ok());
        let parsed = parsed.and_then(|own| Duration::try_from(own.as_signed()).ok());
        parsed.unwrap_or(TOKEN_TTL)
    }
}

const TOKEN_TTL: Duration = Duration::from_secs(30 * 60);

/// Settings of the node's registration with kubeadm.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub struct NodeRegistration {
    /// The container runtime's socket.
    #[serde(default, rename = "criSocket", skip_serializing_if = "Option::is_none")]
    pub cri_socket: Option<String>,
    /// Further flags of the kubelet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubelet_extra_args: Option<BTreeMap<String, String>>,
    /// Checks whose failure does not matter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ignore_preflight_errors: Option<Vec<String>>,
}
