//! The rules of a ProviderConfig, for where the API server does not know them: before Kubernetes 1.25 it ignores those of the CRD
//! that are written in CEL (§3.3).

use std::time::Duration;

use karpenter_api::{duration::GoDuration, validation::Finding};
use url::{Host, Url};

use super::ProviderConfigSpec;
use crate::{region::RegionChoice, tags};

const MOST_TAGS: usize = 20;
const LONGEST_PREFIX: usize = 100;

/// Why a ProviderConfig cannot be used as it is written.
pub fn findings(spec: &ProviderConfigSpec) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut tell = |path: &str, problem: String| findings.push(Finding::new(path, problem));
    if let Err(error) = RegionChoice::parse(&spec.region) {
        tell("spec.region", error.to_string());
    }
    let prefix = &spec.tagging.tag_prefix;
    if !is_prefix(prefix) {
        let problem = format!(
            "\"{prefix}\" is not empty and not lower-case letters, digits, dots and dashes with a / at the end"
        );
        tell("spec.tagging.tagPrefix", problem);
    }
    let tags = &spec.tagging.additional_tags;
    if tags.len() > MOST_TAGS {
        let problem = format!("{} tags are too many; {MOST_TAGS} are allowed", tags.len());
        tell("spec.tagging.additionalTags", problem);
    }
    for problem in tags.iter().filter_map(|(key, value)| {
        let written = tags::prefixed(key, prefix);
        tags::problem_of(key, value, prefix).or_else(|| tags::problem_of(&written, value, prefix))
    }) {
        tell("spec.tagging.additionalTags", problem);
    }
    let cloud = &spec.cloud_config;
    if let Some(problem) = endpoint_problem(&cloud.api_endpoint) {
        tell("spec.cloudConfig.apiEndpoint", problem);
    }
    if !(1..=10).contains(&cloud.retry_max_attempts) {
        let problem = format!("{} is not between 1 and 10", cloud.retry_max_attempts);
        tell("spec.cloudConfig.retryMaxAttempts", problem);
    }
    let is_within = |own: GoDuration, least: Duration, most: Duration| {
        Duration::try_from(own.as_signed()).is_ok_and(|own| own >= least && own <= most)
    };
    if !is_within(
        cloud.retry_initial_delay,
        Duration::from_nanos(1),
        Duration::from_secs(60),
    ) {
        let problem = "must be more than 0s and at most 60s".to_owned();
        tell("spec.cloudConfig.retryInitialDelay", problem);
    }
    if !is_within(cloud.timeout, Duration::from_secs(1), Duration::from_secs(300)) {
        tell("spec.cloudConfig.timeout", "must be between 1s and 5m".to_owned());
    }
    if let Some(pricing) = &spec.pricing {
        let (is_static, has_map) = (pricing.source == "Static", pricing.config_map_ref.is_some());
        if pricing.source == "ConfigMap" && !has_map {
            tell("spec.pricing", "source ConfigMap needs configMapRef".to_owned());
        }
        if is_static && has_map {
            let problem = "source Static uses no configMapRef; choose ConfigMap or BillingAPI".to_owned();
            tell("spec.pricing", problem);
        }
        if pricing.source != "BillingAPI" && pricing.billing_endpoint.is_some() {
            tell("spec.pricing", "billingEndpoint needs source BillingAPI".to_owned());
        }
    }
    findings
}

fn is_prefix(text: &str) -> bool {
    let is_part = |own: char| own.is_ascii_lowercase() || own.is_ascii_digit() || own == '.' || own == '-';
    let part = text.strip_suffix('/');
    text.len() <= LONGEST_PREFIX
        && (text.is_empty() || part.is_some_and(|part| !part.is_empty() && part.chars().all(is_part)))
}

fn endpoint_problem(text: &str) -> Option<String> {
    let Ok(url) = text.parse::<Url>() else {
        return Some(format!("\"{text}\" is not a URL"));
    };
    if url.query().is_some() || url.fragment().is_some() {
        return Some("has a query or a fragment; give the address alone".to_owned());
    }
    let is_here = match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    };
    match url.scheme() {
        "https" => None,
        "http" if is_here => None,
        "http" => Some("is not encrypted; http is for addresses of this machine only".to_owned()),
        other => Some(format!("{other} is not https")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn check(change: Value, paths: &[&str]) {
        let mut spec = json!({"region": "HN", "secretRef": {"name": "a", "namespace": "b"}});
        for (key, value) in change.as_object().expect("fields") {
            spec[key] = value.clone();
        }
        let spec: ProviderConfigSpec = serde_json::from_value(spec).expect("a spec");
        let found = findings(&spec);
        let found: Vec<&str> = found.iter().map(|own| own.path.as_str()).collect();
        assert_eq!(found, paths, "{change}");
    }

    #[test]
    fn each_rule_of_the_crd_holds_without_it() {
        check(json!({}), &[]);
        check(json!({"region": "HN3"}), &["spec.region"]);
        check(json!({"tagging": {"tagPrefix": "Team/"}}), &["spec.tagging.tagPrefix"]);
        check(json!({"tagging": {"tagPrefix": "team"}}), &["spec.tagging.tagPrefix"]);
        check(json!({"tagging": {"tagPrefix": ""}}), &[]);
        check(
            json!({"tagging": {"additionalTags": {"category": "x"}}}),
            &["spec.tagging.additionalTags"],
        );
        check(
            json!({"tagging": {"additionalTags": {"warm-pool": "x", "Cost Center": "y"}}}),
            &["spec.tagging.additionalTags"],
        );
        check(
            json!({"tagging": {"tagPrefix": "", "additionalTags": {"data-disks": "x"}}}),
            &["spec.tagging.additionalTags"],
        );
        let map = json!({"name": "prices", "namespace": "default"});
        check(json!({"pricing": {"source": "ConfigMap"}}), &["spec.pricing"]);
        check(json!({"pricing": {"source": "ConfigMap", "configMapRef": map}}), &[]);
        check(
            json!({"pricing": {"source": "Static", "configMapRef": map}}),
            &["spec.pricing"],
        );
        check(
            json!({"pricing": {"source": "Static", "billingEndpoint": "https://h"}}),
            &["spec.pricing"],
        );
        for (url, is_right) in [
            ("https://h/api", true),
            ("http://127.0.0.1:8080", true),
            ("http://h/api", false),
            ("ftp://h", false),
            ("https://h/api?x=1", false),
            ("h", false),
        ] {
            let paths: &[&str] = if is_right {
                &[]
            } else {
                &["spec.cloudConfig.apiEndpoint"]
            };
            check(json!({"cloudConfig": {"apiEndpoint": url}}), paths);
        }
        check(
            json!({"cloudConfig": {"retryMaxAttempts": 11}}),
            &["spec.cloudConfig.retryMaxAttempts"],
        );
        check(
            json!({"cloudConfig": {"retryInitialDelay": "0s", "timeout": "6m"}}),
            &["spec.cloudConfig.retryInitialDelay", "spec.cloudConfig.timeout"],
        );
    }
}
