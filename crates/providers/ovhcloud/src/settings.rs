//! What the controller is told about OVHcloud: environment variables, each with its default.

use std::time::Duration;

use karpenter_api::duration::GoDuration;
use thiserror::Error;

use crate::{
    client::{ApiEndpoint, ClientSettings, EndpointError},
    pool::EngineSettings,
};

/// The settings of a process.
#[derive(Clone, Debug)]
pub struct OvhSettings {
    pub endpoint: String,
    pub token_url: Option<String>,
    /// The project; a NodeClass may name its own.
    pub service_name: String,
    pub kube_id: Option<String>,
    pub region: Option<String>,
    pub secret_name: String,
    pub secret_namespace: String,
    pub subsidiary: Option<String>,
    pub memory_overhead: f64,
    pub client: ClientSettings,
    pub engine: EngineSettings,
}

/// A setting that cannot be used.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum SettingsError {
    #[error("OVH_SERVICE_NAME is not set: it is the id of the Public Cloud project that the cluster belongs to")]
    NoServiceName,
    #[error("{variable}={value:?} cannot be used: {expected}")]
    Invalid {
        variable: &'static str,
        value: String,
        expected: &'static str,
    },
    #[error("OVH_ENDPOINT: {0}")]
    Endpoint(#[from] EndpointError),
}

const DEFAULT_ENDPOINT: &str = "ovh-eu";
const DEFAULT_SECRET: &str = "ovh-credentials";
const DEFAULT_NAMESPACE: &str = "karpenter";
const DEFAULT_MEMORY_OVERHEAD: f64 = 0.075;

/// Every variable that is read here, besides those of the credentials.
pub const VARIABLES: [&str; 14] = [
    "OVH_ENDPOINT",
    "OVH_SERVICE_NAME",
    "OVH_KUBE_ID",
    "OVH_REGION",
    "OVH_CREDENTIALS_SECRET_NAME",
    "OVH_CREDENTIALS_SECRET_NAMESPACE",
    "OVH_SUBSIDIARY",
    "OVH_MAX_NODE_POOLS",
    "OVH_MAX_NODES_PER_POOL",
    "OVH_API_RATE_LIMIT",
    "OVH_VM_MEMORY_OVERHEAD_PERCENT",
    "OVH_EMPTY_POOL_TTL",
    "OVH_SPARE_NODE_TTL",
    "OVH_OAUTH2_TOKEN_URL",
];

impl OvhSettings {
    /// Settings of a project, everything else by default.
    pub fn of_project(service_name: &str) -> Self {
        Self {
            endpoint: DEFAULT_ENDPOINT.to_owned(),
            token_url: None,
            service_name: service_name.to_owned(),
            kube_id: None,
            region: None,
            secret_name: DEFAULT_SECRET.to_owned(),
            secret_namespace: DEFAULT_NAMESPACE.to_owned(),
            subsidiary: None,
            memory_overhead: DEFAULT_MEMORY_OVERHEAD,
            client: ClientSettings::default(),
            engine: EngineSettings::default(),
        }
    }

    /// Reads the settings through `lookup`; a variable that is empty counts as unset.
    ///
    /// # Errors
    /// When the project is missing, or a value cannot be used.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, SettingsError> {
        let value = |name: &str| {
            lookup(name)
                .map(|own| own.trim().to_owned())
                .filter(|own| !own.is_empty())
        };
        let service_name = value("OVH_SERVICE_NAME").ok_or(SettingsError::NoServiceName)?;
        let is_project =
            service_name.len() == 32 && service_name.chars().all(|char| matches!(char, '0'..='9' | 'a'..='f'));
        if !is_project {
            return Err(SettingsError::Invalid {
                variable: "OVH_SERVICE_NAME",
                value: service_name,
                expected: "a project id is 32 lower-case hexadecimal digits",
            });
        }
        let mut own = Self::of_project(&service_name);
        if let Some(endpoint) = value("OVH_ENDPOINT") {
            own.endpoint = endpoint;
        }
        own.token_url = value("OVH_OAUTH2_TOKEN_URL");
        own.kube_id = value("OVH_KUBE_ID");
        own.region = value("OVH_REGION");
        own.subsidiary = value("OVH_SUBSIDIARY");
        if let Some(name) = value("OVH_CREDENTIALS_SECRET_NAME") {
            own.secret_name = name;
        }
        if let Some(namespace) = value("OVH_CREDENTIALS_SECRET_NAMESPACE").or_else(|| value("POD_NAMESPACE")) {
            own.secret_namespace = namespace;
        }
        let number = |variable: &'static str, least: f64, most: f64, expected: &'static str| {
            let Some(text) = value(variable) else { return Ok(None) };
            let parsed = text
                .parse::<f64>()
                .ok()
                .filter(|number| (least..=most).contains(number));
            parsed.map(Some).ok_or(SettingsError::Invalid {
                variable,
                value: text,
                expected,
            })
        };
        if let Some(pools) = number("OVH_MAX_NODE_POOLS", 1.0, 10_000.0, "a number of node pools from 1")? {
            own.engine.max_pools = pools as u32;
        }
        if let Some(nodes) = number("OVH_MAX_NODES_PER_POOL", 1.0, 999.0, "a number of nodes from 1 to 999")? {
            own.engine.max_nodes = nodes as u32;
        }
        if let Some(rate) = number(
            "OVH_API_RATE_LIMIT",
            0.1,
            1000.0,
            "requests per second, from 0.1 to 1000",
        )? {
            own.client.per_second = rate;
        }
        let percent = "a part of the memory from 0 to 0.9, such as 0.075";
        if let Some(overhead) = number("OVH_VM_MEMORY_OVERHEAD_PERCENT", 0.0, 0.9, percent)? {
            own.memory_overhead = overhead;
        }
        let duration = |variable: &'static str| {
            let Some(text) = value(variable) else { return Ok(None) };
            let parsed = text.parse::<GoDuration>().ok();
            let parsed = parsed.and_then(|own| Duration::try_from(own.as_signed()).ok());
            parsed.map(Some).ok_or(SettingsError::Invalid {
                variable,
                value: text,
                expected: "a duration such as 10m",
            })
        };
        if let Some(ttl) = duration("OVH_EMPTY_POOL_TTL")? {
            own.engine.empty_ttl = ttl;
        }
        if let Some(ttl) = duration("OVH_SPARE_NODE_TTL")? {
            own.engine.times.spare = ttl;
        }
        ApiEndpoint::parse(&own.endpoint, own.token_url.as_deref())?;
        Ok(own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROJECT: &str = "0123456789abcdef0123456789abcdef";

    fn read(values: &[(&str, &str)]) -> Result<OvhSettings, SettingsError> {
        OvhSettings::from_lookup(|name| {
            let own = values.iter().find(|(own, _)| *own == name);
            own.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn only_the_project_is_required() {
        assert_eq!(read(&[]).expect_err("no project"), SettingsError::NoServiceName);
        let own = read(&[("OVH_SERVICE_NAME", PROJECT)]).expect("enough");
        assert_eq!(
            (own.endpoint.as_str(), own.secret_name.as_str()),
            ("ovh-eu", "ovh-credentials")
        );
        assert_eq!(own.secret_namespace, "karpenter");
        assert_eq!((own.engine.max_pools, own.engine.max_nodes), (100, 100));
    }

    #[test]
    fn values_are_read_and_wrong_ones_are_named() {
        let own = read(&[
            ("OVH_SERVICE_NAME", PROJECT),
            ("OVH_ENDPOINT", "ovh-ca"),
            ("OVH_MAX_NODE_POOLS", "50"),
            ("OVH_EMPTY_POOL_TTL", "1h"),
            ("OVH_SPARE_NODE_TTL", "5m"),
            ("OVH_API_RATE_LIMIT", "2.5"),
            ("POD_NAMESPACE", "autoscaling"),
        ])
        .expect("valid");
        assert_eq!(own.engine.max_pools, 50);
        assert_eq!(own.engine.empty_ttl, Duration::from_secs(3600));
        assert_eq!(own.engine.times.spare, Duration::from_secs(300));
        assert_eq!(
            (own.client.per_second, own.secret_namespace.as_str()),
            (2.5, "autoscaling")
        );
        for (variable, value) in [
            ("OVH_MAX_NODES_PER_POOL", "1000"),
            ("OVH_EMPTY_POOL_TTL", "soon"),
            ("OVH_ENDPOINT", "kimsufi-eu"),
            ("OVH_ENDPOINT", "https://x/1.0/"),
            ("OVH_SERVICE_NAME", "my-project"),
        ] {
            let values = [(variable, value), ("OVH_SERVICE_NAME", PROJECT)];
            let error = read(&values).expect_err("refused").to_string();
            assert!(error.contains(variable) && error.contains(value), "{error}");
        }
    }
}
