//! What the provider is configured with: environment variables, the same names as the Go prototype where it had them.

use std::{path::PathBuf, time::Duration};

use karpenter_api::duration::GoDuration;
use karpenter_cloud::http::{HttpSettings, RateLimit, RetryPolicy, Trust};
use thiserror::Error;

use crate::{labels::Naming, provider_id::ProviderIdFormat, webhook::WebhookSettings};

/// Settings of the provider.
#[derive(Clone, Debug)]
pub struct ProviderSettings {
    pub cluster_name: String,
    /// The region label; the zone's name if `None`.
    pub region: Option<String>,
    pub http: HttpSettings,
    pub credentials: CredentialsFrom,
    pub scope: Scope,
    pub launch_wait: Duration,
    pub launch_attempts: usize,
    pub longest_job_pause: Duration,
    pub lifetimes: Lifetimes,
    pub unavailable_for: Duration,
    pub prices: Prices,
    pub name_prefix: String,
    pub ownership_details: OwnershipDetails,
    /// By what existing Nodes use if `None`.
    pub provider_id_format: Option<ProviderIdFormat>,
    pub naming: Naming,
    pub node_identity: Switch,
    pub quota_preflight: Switch,
    pub stopped_grace: Duration,
    pub sweep_interval: Duration,
    pub account_change: Switch,
    /// The part of memory that guests do not see.
    pub memory_overhead: f64,
    /// Off if `None`.
    pub webhook: Option<WebhookSettings>,
}

/// Where keys come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CredentialsFrom {
    Environment,
    /// A mounted Secret.
    Directory(PathBuf),
    Secret {
        namespace: String,
        name: String,
    },
}

/// Whose resources are meant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// By name or UUID.
    pub project: Option<String>,
    pub domain_id: Option<String>,
    pub account: Option<String>,
}

/// How long answers are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetimes {
    pub zones: Duration,
    pub networks: Duration,
    pub templates: Duration,
    pub offerings: Duration,
    pub instances: Duration,
    pub capabilities: Duration,
    pub quota: Duration,
    pub pricing: Duration,
}

/// What resources are worth per hour where nobody says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prices {
    pub per_vcpu: f64,
    pub per_memory_gib: f64,
    pub per_gpu: f64,
    pub per_disk_gib: f64,
    pub spot_factor: f64,
}

/// Whether ownership is also written into details of machines, where it is atomic with the launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnershipDetails {
    Written,
    /// For VMware sites, where details become VMX options.
    Omitted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    On,
    Off,
}

/// Everything that is wrong with the environment, at once.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}", .0.join("; "))]
pub struct SettingsError(pub Vec<String>);

const MINUTE: Duration = Duration::from_secs(60);

impl ProviderSettings {
    /// For a cluster of this name, with every default.
    pub fn new(cluster_name: impl Into<String>) -> Self {
        Self {
            cluster_name: cluster_name.into(),
            region: None,
            http: http_settings(),
            credentials: CredentialsFrom::Environment,
            scope: Scope::default(),
            launch_wait: MINUTE * 4,
            launch_attempts: 5,
            longest_job_pause: Duration::from_secs(5),
            lifetimes: Lifetimes::default(),
            unavailable_for: MINUTE * 3,
            prices: Prices::default(),
            name_prefix: "karpenter-".to_owned(),
            ownership_details: OwnershipDetails::Written,
            provider_id_format: None,
            naming: Naming::Kubernetes,
            node_identity: Switch::On,
            quota_preflight: Switch::On,
            stopped_grace: MINUTE * 5,
            sweep_interval: MINUTE,
            account_change: Switch::Off,
            memory_overhead: 0.075,
            webhook: None,
        }
    }

    /// Reads the environment.
    ///
    /// # Errors
    /// All that is missing or wrong, together.
    pub fn from_env() -> Result<Self, SettingsError> {
        Self::from_lookup(&|name| std::env::var(name).ok())
    }

    /// Reads variables through `lookup`.
    ///
    /// # Errors
    /// All that is missing or wrong, together.
    pub fn from_lookup(lookup: &dyn Fn(&str) -> Option<String>) -> Result<Self, SettingsError> {
        let mut read = Reading {
            lookup,
            wrong: Vec::new(),
        };
        let mut settings = Self::new(read.text("CLUSTER_NAME").unwrap_or_default());
        if settings.cluster_name.is_empty() {
            read.wrong.push("CLUSTER_NAME is required".to_owned());
        } else if settings.cluster_name.len() > 200 {
            read.wrong.push("CLUSTER_NAME has more than 200 characters".to_owned());
        }
        settings.credentials = read.credentials();
        settings.region = read.text("CLOUDSTACK_REGION");
        settings.scope = Scope {
            project: read.text("CLOUDSTACK_PROJECT"),
            domain_id: read.text("CLOUDSTACK_DOMAIN_ID"),
            account: read.text("CLOUDSTACK_ACCOUNT"),
        };
        if settings.scope.account.is_some() != settings.scope.domain_id.is_some() {
            read.wrong
                .push("CLOUDSTACK_ACCOUNT and CLOUDSTACK_DOMAIN_ID must be set together".to_owned());
        }
        if settings.scope.account.is_some() && settings.scope.project.is_some() {
            read.wrong
                .push("CLOUDSTACK_ACCOUNT and CLOUDSTACK_PROJECT can't both be set".to_owned());
        }
        settings.http.trust = read.trust();
        read.duration("CLOUDSTACK_HTTP_TIMEOUT", &mut settings.http.timeout);
        read.number("CLOUDSTACK_QPS", &mut settings.http.rate.per_second);
        read.number("CLOUDSTACK_BURST", &mut settings.http.rate.burst);
        read.duration("CLOUDSTACK_LAUNCH_WAIT", &mut settings.launch_wait);
        read.number("CLOUDSTACK_MAX_LAUNCH_ATTEMPTS", &mut settings.launch_attempts);
        read.duration("CLOUDSTACK_JOB_POLL_MAX", &mut settings.longest_job_pause);
        let lifetimes = &mut settings.lifetimes;
        for (name, lifetime) in [
            ("ZONES", &mut lifetimes.zones),
            ("NETWORKS", &mut lifetimes.networks),
            ("TEMPLATES", &mut lifetimes.templates),
            ("OFFERINGS", &mut lifetimes.offerings),
            ("INSTANCES", &mut lifetimes.instances),
            ("CAPABILITIES", &mut lifetimes.capabilities),
            ("QUOTA", &mut lifetimes.quota),
            ("PRICING", &mut lifetimes.pricing),
        ] {
            read.duration(&format!("CLOUDSTACK_CACHE_TTL_{name}"), lifetime);
        }
        read.duration("CLOUDSTACK_UNAVAILABLE_OFFERINGS_TTL", &mut settings.unavailable_for);
        read.number("CLOUDSTACK_PRICE_VCPU", &mut settings.prices.per_vcpu);
        read.number("CLOUDSTACK_PRICE_MEMORY_GIB", &mut settings.prices.per_memory_gib);
        read.number("CLOUDSTACK_PRICE_GPU", &mut settings.prices.per_gpu);
        read.number("CLOUDSTACK_PRICE_DISK_GIB", &mut settings.prices.per_disk_gib);
        read.number("CLOUDSTACK_PRICE_SPOT_FACTOR", &mut settings.prices.spot_factor);
        if let Some(prefix) = (read.lookup)("CLOUDSTACK_VM_NAME_PREFIX") {
            settings.name_prefix = prefix;
        }
        if read.switch("CLOUDSTACK_OWNERSHIP_DETAILS") == Some(Switch::Off) {
            settings.ownership_details = OwnershipDetails::Omitted;
        }
        match ProviderIdFormat::parse(&read.text("CLOUDSTACK_PROVIDER_ID_FORMAT").unwrap_or_default()) {
            Ok(format) => settings.provider_id_format = format,
            Err(sentence) => read.wrong.push(sentence),
        }
        settings.naming = match read.text("CLOUDSTACK_INSTANCE_TYPE_NAMING").as_deref() {
            None | Some("kubernetes") => Naming::Kubernetes,
            Some("ccm") => Naming::CloudControllerManager,
            Some(other) => {
                read.wrong.push(format!(
                    "CLOUDSTACK_INSTANCE_TYPE_NAMING {other:?} is not kubernetes or ccm"
                ));
                Naming::Kubernetes
            }
        };
        settings.node_identity = match read.text("CLOUDSTACK_NODE_IDENTITY").as_deref() {
            None | Some("auto") => Switch::On,
            Some("off") => Switch::Off,
            Some(other) => {
                read.wrong
                    .push(format!("CLOUDSTACK_NODE_IDENTITY {other:?} is not auto or off"));
                Switch::On
            }
        };
        settings.quota_preflight = read.switch("CLOUDSTACK_QUOTA_PREFLIGHT").unwrap_or(Switch::On);
        settings.account_change = read.switch("CLOUDSTACK_ALLOW_ACCOUNT_CHANGE").unwrap_or(Switch::Off);
        read.duration("CLOUDSTACK_STOPPED_GRACE", &mut settings.stopped_grace);
        read.duration("CLOUDSTACK_INSTANCE_SWEEP_INTERVAL", &mut settings.sweep_interval);
        read.number("VM_MEMORY_OVERHEAD_PERCENT", &mut settings.memory_overhead);
        if !(0.0..1.0).contains(&settings.memory_overhead) {
            read.wrong
                .push("VM_MEMORY_OVERHEAD_PERCENT must be at least 0 and less than 1".to_owned());
        }
        settings.webhook = read.webhook();
        if read.wrong.is_empty() {
            Ok(settings)
        } else {
            Err(SettingsError(read.wrong))
        }
    }

    /// The tag that says which cluster a machine belongs to.
    pub fn cluster_tag(&self) -> String {
        format!("kubernetes.io/cluster/{}", self.cluster_name)
    }
}

/// Reads variables and collects what is wrong with them.
struct Reading<'a> {
    lookup: &'a dyn Fn(&str) -> Option<String>,
    wrong: Vec<String>,
}

impl Reading<'_> {
    fn webhook(&mut self) -> Option<WebhookSettings> {
        let port = self.text("CLOUDSTACK_WEBHOOK_PORT")?;
        let certificates = self.text("CLOUDSTACK_WEBHOOK_CERTIFICATES");
        if certificates.is_none() {
            let sentence =
                "CLOUDSTACK_WEBHOOK_PORT needs CLOUDSTACK_WEBHOOK_CERTIFICATES, a folder with tls.crt and tls.key";
            self.wrong.push(sentence.to_owned());
        }
        match port.parse() {
            Ok(port) => Some(WebhookSettings {
                port,
                certificates: certificates?.into(),
            }),
            Err(_) => {
                self.wrong
                    .push(format!("CLOUDSTACK_WEBHOOK_PORT {port:?} is not a port"));
                None
            }
        }
    }

    fn text(&self, name: &str) -> Option<String> {
        let value = (self.lookup)(name)?.trim().to_owned();
        (!value.is_empty()).then_some(value)
    }

    fn number<N: std::str::FromStr>(&mut self, name: &str, into: &mut N) {
        if let Some(value) = self.text(name) {
            match value.parse() {
                Ok(number) => *into = number,
                Err(_) => self.wrong.push(format!("{name} {value:?} is not a number")),
            }
        }
    }

    fn duration(&mut self, name: &str, into: &mut Duration) {
        let Some(value) = self.text(name) else { return };
        let parsed = value.parse::<GoDuration>().ok();
        match parsed.and_then(|own| Duration::try_from(own.as_signed()).ok()) {
            Some(duration) => *into = duration,
            None => self
                .wrong
                .push(format!("{name} {value:?} is not a duration such as 60s")),
        }
    }

    fn switch(&mut self, name: &str) -> Option<Switch> {
        let value = self.text(name)?;
        match value.to_lowercase().as_str() {
            "true" | "1" => Some(Switch::On),
            "false" | "0" => Some(Switch::Off),
            _ => {
                self.wrong.push(format!("{name} {value:?} is not true or false"));
                None
            }
        }
    }

    fn credentials(&mut self) -> CredentialsFrom {
        if let Some(directory) = self.text("CLOUDSTACK_CREDENTIALS_DIR") {
            return CredentialsFrom::Directory(directory.into());
        }
        if let Some(secret) = self.text("CLOUDSTACK_CREDENTIALS_SECRET") {
            let Some((namespace, name)) = secret.split_once('/') else {
                self.wrong
                    .push("CLOUDSTACK_CREDENTIALS_SECRET must be namespace/name".to_owned());
                return CredentialsFrom::Environment;
            };
            return CredentialsFrom::Secret {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            };
        }
        for name in ["CLOUDSTACK_API_URL", "CLOUDSTACK_API_KEY", "CLOUDSTACK_SECRET_KEY"] {
            if self.text(name).is_none() {
                self.wrong.push(format!(
                    "{name} is required (or CLOUDSTACK_CREDENTIALS_DIR, or CLOUDSTACK_CREDENTIALS_SECRET)"
                ));
            }
        }
        CredentialsFrom::Environment
    }

    /// Only a literal `false` or `0` turns verification off.
    fn trust(&mut self) -> Trust {
        let verify = self.text("CLOUDSTACK_VERIFY_SSL").unwrap_or_default().to_lowercase();
        if verify == "false" || verify == "0" {
            return Trust::Anything;
        }
        let Some(bundle) = self.text("CLOUDSTACK_CA_BUNDLE") else {
            return Trust::System;
        };
        if bundle.contains("-----BEGIN") {
            return Trust::AlsoBundle(bundle.into_bytes());
        }
        match std::fs::read(&bundle) {
            Ok(pem) => Trust::AlsoBundle(pem),
            Err(error) => {
                self.wrong.push(format!("CLOUDSTACK_CA_BUNDLE {bundle}: {error}"));
                Trust::System
            }
        }
    }
}

/// CloudStack's own: a 429 is waited for as its text says, and only what cannot have been acted upon is sent again.
fn http_settings() -> HttpSettings {
    use http::StatusCode;
    HttpSettings {
        rate: RateLimit {
            per_second: 10.0,
            burst: 20,
        },
        retry: RetryPolicy {
            attempts: 5,
            transient: vec![
                StatusCode::BAD_GATEWAY,
                StatusCode::SERVICE_UNAVAILABLE,
                StatusCode::GATEWAY_TIMEOUT,
            ],
            refused: vec![StatusCode::SERVICE_UNAVAILABLE],
            ..RetryPolicy::default()
        },
        // Lists of thousands of machines come in one answer.
        longest_body: 128 * 1024 * 1024,
        connections_per_host: 8,
        ..HttpSettings::default()
    }
}

impl Default for Lifetimes {
    fn default() -> Self {
        Self {
            zones: MINUTE * 15,
            networks: MINUTE * 5,
            templates: MINUTE * 5,
            offerings: MINUTE * 5,
            instances: Duration::from_secs(15),
            capabilities: MINUTE * 10,
            quota: MINUTE,
            pricing: MINUTE * 60 * 12,
        }
    }
}

impl Default for Prices {
    fn default() -> Self {
        Self {
            per_vcpu: 0.04,
            per_memory_gib: 0.005,
            per_gpu: 1.0,
            per_disk_gib: 0.0,
            spot_factor: 0.4,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<ProviderSettings, SettingsError> {
        let lookup = |name: &str| {
            let found = variables.iter().find(|(own, _)| *own == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        ProviderSettings::from_lookup(&lookup)
    }

    const NEEDED: [(&str, &str); 4] = [
        ("CLOUDSTACK_API_URL", "https://x"),
        ("CLOUDSTACK_API_KEY", "a"),
        ("CLOUDSTACK_SECRET_KEY", "b"),
        ("CLUSTER_NAME", "blue"),
    ];

    fn with(more: &[(&'static str, &'static str)]) -> Result<ProviderSettings, SettingsError> {
        let all: Vec<(&str, &str)> = NEEDED.iter().chain(more).copied().collect();
        read(&all)
    }

    #[test]
    fn everything_that_is_missing_is_told_at_once() {
        let error = read(&[]).expect_err("nothing is set");
        assert_eq!(error.0.len(), 4, "{error}");
        assert!(error.to_string().contains("CLUSTER_NAME is required"));
        assert!(error.to_string().contains("CLOUDSTACK_SECRET_KEY is required"));
    }

    #[test]
    fn a_mounted_secret_replaces_the_keys() {
        let settings = read(&[("CLUSTER_NAME", "blue"), ("CLOUDSTACK_CREDENTIALS_DIR", "/keys")]).expect("valid");
        assert_eq!(settings.credentials, CredentialsFrom::Directory("/keys".into()));
    }

    #[test]
    fn a_webhook_needs_a_port_and_a_certificate() {
        assert_eq!(with(&[]).expect("valid").webhook, None);
        let both = [
            ("CLOUDSTACK_WEBHOOK_PORT", "8443"),
            ("CLOUDSTACK_WEBHOOK_CERTIFICATES", "/tls"),
        ];
        let wanted = WebhookSettings {
            port: 8443,
            certificates: "/tls".into(),
        };
        assert_eq!(with(&both).expect("valid").webhook, Some(wanted));
        let alone = with(&both[..1]).expect_err("no certificate");
        assert!(
            alone.to_string().contains("a folder with tls.crt and tls.key"),
            "{alone}"
        );
        let wrong = with(&[("CLOUDSTACK_WEBHOOK_PORT", "http"), both[1]]).expect_err("no port");
        assert!(wrong.to_string().contains("is not a port"), "{wrong}");
    }

    #[test]
    fn only_a_literal_no_turns_verification_off() {
        for (value, trust) in [
            ("false", Trust::Anything),
            ("0", Trust::Anything),
            ("no", Trust::System),
            ("", Trust::System),
        ] {
            assert_eq!(
                with(&[("CLOUDSTACK_VERIFY_SSL", value)]).expect("valid").http.trust,
                trust,
                "{value}"
            );
        }
        assert_eq!(
            with(&[("CLOUDSTACK_VERIFY_SSL", "False")]).expect("valid").http.trust,
            Trust::Anything
        );
    }

    #[test]
    fn values_are_read_and_wrong_ones_named() {
        let settings = with(&[("CLOUDSTACK_LAUNCH_WAIT", "90s"), ("CLOUDSTACK_PRICE_VCPU", "0.1")]).expect("valid");
        assert_eq!(
            (settings.launch_wait, settings.prices.per_vcpu),
            (Duration::from_secs(90), 0.1)
        );
        let error = with(&[("CLOUDSTACK_LAUNCH_WAIT", "soon")]).expect_err("not a duration");
        assert_eq!(
            error.to_string(),
            "CLOUDSTACK_LAUNCH_WAIT \"soon\" is not a duration such as 60s"
        );
    }
}
