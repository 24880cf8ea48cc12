//! What the provider is told at start: flags, and environment variables in the spellings of every vendor tool.

use std::time::Duration;

use karpenter_api::duration::GoDuration;
use karpenter_cloud::{http::HttpSettings, webhook::WebhookSettings};
use secrecy::SecretString;

use crate::{client::words::Words, credentials::SecretValues};

/// Settings of the process. A NodeClass wins over its ProviderConfig, and that over these (§8.2).
#[derive(Clone, Debug)]
pub struct Settings {
    /// Marks servers as this cluster's.
    pub cluster_name: String,
    /// Where the controller lives and keeps its ledger.
    pub namespace: String,
    /// Stands in for a missing ProviderConfig `default`.
    pub environment: EnvironmentAccount,
    /// Stands in for what a NodeClass's `bootstrap.bke` leaves out.
    pub bke: BkeSettings,
    /// Where servers that are not BKE's find the API server.
    pub cluster_endpoint: Option<String>,
    /// What servers that are not BKE's join with.
    pub bootstrap_token: Option<SecretString>,
    /// Instead of `HN`/`HCM`, if the cloud controller manager is configured with another spelling.
    pub region_label: Option<String>,
    /// The part of a flavor's memory that the machine itself does not see.
    pub vm_memory_overhead: f64,
    /// How long a launch waits for its server to be visible.
    pub create_timeout: Duration,
    /// Orders at once per account.
    pub max_inflight_creates: usize,
    /// Billing plans of flavors that mean spot.
    pub spot_plan_names: Vec<String>,
    pub provisioners: ProvisionerCompatibility,
    pub volume_plans: VolumePlanRule,
    /// With more nodes than this, nothing is told per node in metrics.
    pub most_node_series: usize,
    /// Words of refusals besides those that are known.
    pub words: Words,
    pub webhook: Option<WebhookSettings>,
    pub http: HttpSettings,
}

/// Whether `karpenter.sh/v1alpha5` Provisioners are carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProvisionerCompatibility {
    #[default]
    Off,
    On,
}

/// What is done about volumes that can't be attached to servers of another billing plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VolumePlanRule {
    /// A pod that waits for such a volume is told.
    #[default]
    Told,
    /// Pods are placed on nodes of their volumes' plans only.
    Enforced,
}

/// An account described by environment variables.
#[derive(Clone, Debug, Default)]
pub struct EnvironmentAccount {
    /// In the keys of a credentials Secret.
    pub values: SecretValues,
    pub zone: Option<String>,
}

#[derive(Clone, Debug, Default)]
pub struct BkeSettings {
    pub cluster_id: Option<String>,
    pub token: Option<SecretString>,
    pub join_endpoint: Option<String>,
    pub log_endpoint: Option<String>,
    pub kubernetes_version: Option<String>,
}

/// Key of a credentials Secret → the environment variables that mean it, the first that is set wins.
const ACCOUNT_VARIABLES: [(&str, &[&str]); 8] = [
    ("auth-method", &["BIZFLY_CLOUD_AUTH_METHOD", "BIZFLYCLOUD_AUTH_METHOD"]),
    ("email", &["BIZFLY_CLOUD_EMAIL", "BIZFLYCLOUD_EMAIL"]),
    ("password", &["BIZFLY_CLOUD_PASSWORD", "BIZFLYCLOUD_PASSWORD"]),
    (
        "app-cred-id",
        &[
            "BIZFLY_CLOUD_APP_CRED_ID",
            "BIZFLYCLOUD_APP_CREDENTIAL_ID",
            "BIZFLYCLOUD_APPLICATION_CREDENTIAL_ID",
        ],
    ),
    (
        "app-cred-secret",
        &[
            "BIZFLY_CLOUD_APP_CRED_SECRET",
            "BIZFLYCLOUD_APP_CREDENTIAL_SECRET",
            "BIZFLYCLOUD_APPLICATION_CREDENTIAL_SECRET",
        ],
    ),
    (
        "api-url",
        &[
            "BIZFLY_CLOUD_API_URL",
            "BIZFLYCLOUD_API_URL",
            "BIZFLYCLOUD_API_ENDPOINT",
        ],
    ),
    (
        "region",
        &["BIZFLY_CLOUD_REGION", "BIZFLYCLOUD_REGION", "BIZFLYCLOUD_REGION_NAME"],
    ),
    (
        "project-id",
        &[
            "BIZFLY_CLOUD_PROJECT_ID",
            "BIZFLYCLOUD_PROJECT_ID",
            "BIZFLYCLOUD_TENANT_ID",
        ],
    ),
];
const ZONE_VARIABLES: [&str; 2] = ["BIZFLY_CLOUD_ZONE", "BIZFLYCLOUD_ZONE"];

impl Default for Settings {
    fn default() -> Self {
        Self {
            cluster_name: String::new(),
            namespace: "karpenter".to_owned(),
            environment: EnvironmentAccount::default(),
            bke: BkeSettings::default(),
            cluster_endpoint: None,
            bootstrap_token: None,
            region_label: None,
            vm_memory_overhead: 0.05,
            create_timeout: Duration::from_secs(4 * 60),
            max_inflight_creates: 20,
            spot_plan_names: vec!["spot".to_owned(), "spot_instance".to_owned()],
            provisioners: ProvisionerCompatibility::Off,
            volume_plans: VolumePlanRule::Told,
            most_node_series: 500,
            words: Words::default(),
            webhook: None,
            http: HttpSettings::default(),
        }
    }
}

impl Settings {
    /// Reads the environment through `lookup`; the cluster's name falls back to the BKE cluster's id.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Self {
        let lookup = |name: &str| lookup(name).filter(|value| !value.trim().is_empty());
        let account = |names: &[&str]| names.iter().find_map(|name| lookup(name));
        let values = ACCOUNT_VARIABLES
            .iter()
            .filter_map(|(key, names)| Some(((*key).to_owned(), account(names)?)));
        let bke = BkeSettings {
            cluster_id: lookup("BKE_CLUSTER_ID"),
            token: lookup("BKE_CLUSTER_TOKEN").map(SecretString::from),
            join_endpoint: lookup("BKE_JOIN_ENDPOINT"),
            log_endpoint: lookup("BKE_LOG_ENDPOINT"),
            kubernetes_version: lookup("BKE_KUBERNETES_VERSION"),
        };
        warn_of_ignored_variables(&lookup);
        let default = Self::default();
        let percent = read(&lookup, "BIZFLY_VM_MEMORY_OVERHEAD_PERCENT", |text| text.parse().ok());
        let timeout = read(&lookup, "BIZFLY_CREATE_TIMEOUT", |text| {
            let duration: GoDuration = text.parse().ok()?;
            Duration::try_from(duration.as_signed()).ok()
        });
        let creates = read(&lookup, "BIZFLY_MAX_INFLIGHT_CREATES", |text| {
            text.parse().ok().filter(|most| *most > 0)
        });
        let node_series = read(&lookup, "BIZFLY_MAX_NODE_METRICS", |text| text.parse().ok());
        let compatibility = read(&lookup, "BIZFLY_PROVISIONER_COMPATIBILITY", |text| match text {
            "true" => Some(ProvisionerCompatibility::On),
            "false" => Some(ProvisionerCompatibility::Off),
            _ => None,
        });
        let volume_plans = read(&lookup, "BIZFLY_ENFORCE_VOLUME_BILLING_PLAN", |text| match text {
            "true" => Some(VolumePlanRule::Enforced),
            "false" => Some(VolumePlanRule::Told),
            _ => None,
        });
        let list = |name: &str| -> Option<Vec<String>> {
            lookup(name).map(|text| text.split(',').map(|own| own.trim().to_owned()).collect())
        };
        let words = Words {
            quota: list("BIZFLY_QUOTA_WORDS").unwrap_or_default(),
            stock: list("BIZFLY_STOCK_WORDS").unwrap_or_default(),
            balance: list("BIZFLY_BALANCE_WORDS").unwrap_or_default(),
        };
        let port = read(&lookup, "BIZFLY_WEBHOOK_PORT", |text| text.parse().ok());
        let webhook = port
            .zip(lookup("BIZFLY_WEBHOOK_CERTIFICATES"))
            .map(|(port, folder)| WebhookSettings {
                port,
                certificates: folder.into(),
            });
        if port.is_some() && webhook.is_none() {
            tracing::warn!(
                "BIZFLY_WEBHOOK_PORT needs BIZFLY_WEBHOOK_CERTIFICATES, a folder with tls.crt and tls.key; no webhook is served"
            );
        }
        let spot_plans = list("BIZFLY_SPOT_PLAN_NAMES");
        Self {
            namespace: lookup("LEADER_ELECTION_NAMESPACE").unwrap_or_else(|| default.namespace.clone()),
            region_label: lookup("BIZFLY_REGION_LABEL"),
            vm_memory_overhead: percent
                .filter(|part| (0.0..1.0).contains(part))
                .unwrap_or(default.vm_memory_overhead),
            create_timeout: timeout.unwrap_or(default.create_timeout),
            max_inflight_creates: creates.unwrap_or(default.max_inflight_creates),
            spot_plan_names: spot_plans.unwrap_or_else(|| default.spot_plan_names.clone()),
            provisioners: compatibility.unwrap_or_default(),
            volume_plans: volume_plans.unwrap_or_default(),
            most_node_series: node_series.unwrap_or(default.most_node_series),
            words,
            webhook,
            cluster_name: lookup("CLUSTER_NAME")
                .or_else(|| bke.cluster_id.clone())
                .unwrap_or_default(),
            environment: EnvironmentAccount {
                values: SecretValues::new(values),
                zone: account(&ZONE_VARIABLES),
            },
            cluster_endpoint: lookup("CLUSTER_ENDPOINT").or_else(|| lookup("KARPENTER_API_SERVER_ENDPOINT")),
            bootstrap_token: lookup("KARPENTER_TOKEN").map(SecretString::from),
            bke,
            ..default
        }
    }
}

/// A variable that cannot be read means the default, as with core's.
fn read<T>(lookup: &impl Fn(&str) -> Option<String>, name: &str, parse: impl FnOnce(&str) -> Option<T>) -> Option<T> {
    let text = lookup(name)?;
    let parsed = parse(text.trim());
    if parsed.is_none() {
        tracing::warn!(
            variable = name,
            "this environment variable cannot be read; the default is used"
        );
    }
    parsed
}

/// Variables that the earlier provider's Deployment sets and that nothing ever read.
const IGNORED: [&str; 16] = [
    "KARPENTER_CLOUD_PROVIDER",
    "KARPENTER_CLOUD_PROVIDER_CONFIG",
    "KARPENTER_CLOUD_PROVIDER_CONFIG_API_VERSION",
    "KARPENTER_CLOUD_PROVIDER_CONFIG_CLOUD_CONFIG_API_ENDPOINT",
    "KARPENTER_CLOUD_PROVIDER_CONFIG_DRIFT_DETECTION_AUTO_REMEDIATE",
    "KARPENTER_CLOUD_PROVIDER_CONFIG_DRIFT_DETECTION_ENABLED",
    "KARPENTER_CLOUD_PROVIDER_CONFIG_DRIFT_DETECTION_RECONCILE_INTERVAL",
    "KARPENTER_CLOUD_PROVIDER_CONFIG_IMAGE_CONFIG_IMAGE_ID",
    "KARPENTER_CLOUD_PROVIDER_CONFIG_IMAGE_CONFIG_ROOT_DISK_SIZE",
    "KARPENTER_CLOUD_PROVIDER_CONFIG_KIND",
    "KARPENTER_CLOUD_PROVIDER_CONFIG_NAME",
    "KARPENTER_CLOUD_PROVIDER_CONFIG_NAMESPACE",
    "KARPENTER_CLOUD_PROVIDER_CONFIG_REGION",
    "KARPENTER_CLOUD_PROVIDER_CONFIG_SECRET_REF_NAME",
    "KARPENTER_CLOUD_PROVIDER_CONFIG_SECRET_REF_NAMESPACE",
    "KARPENTER_CLOUD_PROVIDER_CONFIG_ZONE",
];

fn ignored_variables(lookup: &impl Fn(&str) -> Option<String>) -> Vec<&'static str> {
    IGNORED.into_iter().filter(|name| lookup(name).is_some()).collect()
}

fn warn_of_ignored_variables(lookup: &impl Fn(&str) -> Option<String>) {
    let set = ignored_variables(lookup);
    if !set.is_empty() {
        tracing::warn!(
            variables = set.join(", "),
            "these environment variables have no effect; use BIZFLY_CLOUD_*"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(variables: &[(&str, &str)]) -> Settings {
        Settings::from_lookup(|name| {
            variables
                .iter()
                .find(|(own, _)| *own == name)
                .map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn the_environment_of_every_vendor_tool_is_understood() {
        for variables in [
            [("BIZFLY_CLOUD_EMAIL", "a@b"), ("BIZFLY_CLOUD_REGION", "HN")],
            [("BIZFLYCLOUD_EMAIL", "a@b"), ("BIZFLYCLOUD_REGION_NAME", "HN")],
        ] {
            let values = settings(&variables).environment.values;
            assert_eq!(values.text("email"), Some("a@b"));
            assert_eq!(values.text("region"), Some("HN"));
        }
    }

    #[test]
    fn options_of_the_provider_are_read_and_nonsense_means_the_default() {
        let own = settings(&[
            ("BIZFLY_CREATE_TIMEOUT", "5m"),
            ("BIZFLY_MAX_INFLIGHT_CREATES", "many"),
            ("BIZFLY_PROVISIONER_COMPATIBILITY", "true"),
            ("BIZFLY_STOCK_WORDS", "tạm ngưng, gone"),
        ]);
        assert_eq!(own.create_timeout, Duration::from_secs(300));
        assert_eq!(own.max_inflight_creates, 20);
        assert_eq!(own.provisioners, ProvisionerCompatibility::On);
        assert_eq!(own.words.stock, ["tạm ngưng", "gone"]);
    }

    #[test]
    fn every_variable_that_the_earlier_deployment_sets_for_nothing_is_warned_about() {
        let of_the_deployment = |name: &str| name.starts_with("KARPENTER_CLOUD_PROVIDER").then(|| "x".to_owned());
        assert_eq!(ignored_variables(&of_the_deployment), IGNORED);
        let one = |name: &str| (name == "KARPENTER_CLOUD_PROVIDER_CONFIG_ZONE").then(|| "HN1".to_owned());
        assert_eq!(ignored_variables(&one), ["KARPENTER_CLOUD_PROVIDER_CONFIG_ZONE"]);
        let ours = |name: &str| name.starts_with("BIZFLY").then(|| "x".to_owned());
        assert!(ignored_variables(&ours).is_empty());
    }

    #[test]
    fn the_cluster_is_named_by_its_variable_or_else_by_its_bke_id() {
        assert_eq!(settings(&[("BKE_CLUSTER_ID", "c1")]).cluster_name, "c1");
        let both = settings(&[("BKE_CLUSTER_ID", "c1"), ("CLUSTER_NAME", "prod")]);
        assert_eq!(both.cluster_name, "prod");
    }
}
