//! The rights that API keys need, and those that are merely useful.

use crate::client::model::AccessRule;

/// A right beyond the minimum: what its rule grants, and what that is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionalRight {
    pub method: &'static str,
    pub path: &'static str,
    pub buys: &'static str,
}

/// Everything that the provider must be allowed to call.
const MINIMUM: [(&str, &str); 8] = [
    ("GET", "/cloud/project/{serviceName}/kube/{kubeId}"),
    ("GET", "/cloud/project/{serviceName}/kube/{kubeId}/nodepool"),
    ("GET", "/cloud/project/{serviceName}/kube/{kubeId}/nodepool/*"),
    ("POST", "/cloud/project/{serviceName}/kube/{kubeId}/nodepool"),
    ("PUT", "/cloud/project/{serviceName}/kube/{kubeId}/nodepool/*"),
    ("DELETE", "/cloud/project/{serviceName}/kube/{kubeId}/nodepool/*"),
    ("GET", "/cloud/project/{serviceName}/kube/{kubeId}/flavors"),
    ("GET", "/cloud/project/{serviceName}/capabilities/kube/*"),
];

/// What may be granted besides.
pub const OPTIONAL: [OptionalRight; 5] = [
    OptionalRight {
        method: "GET",
        path: "/auth/currentCredential",
        buys: "warnings before the key expires, and finding the cluster by the key's own rules",
    },
    OptionalRight {
        method: "GET",
        path: "/cloud/project/{serviceName}/kube",
        buys: "finding the cluster by its machines",
    },
    OptionalRight {
        method: "GET",
        path: "/cloud/project/{serviceName}/kube/{kubeId}/node",
        buys: "listing all machines in one call",
    },
    OptionalRight {
        method: "GET",
        path: "/cloud/project/{serviceName}/flavor",
        buys: "disk sizes and stock of flavors",
    },
    OptionalRight {
        method: "GET",
        path: "/cloud/project/{serviceName}/region/*",
        buys: "zones of new regions, and what is left of the quota",
    },
];

/// The rules of a key for one cluster, and no more than it needs.
pub fn minimum(service_name: &str, kube_id: &str) -> Vec<AccessRule> {
    let rule = |(method, path): &(&str, &str)| AccessRule {
        method: (*method).to_owned(),
        path: filled(path, service_name, kube_id),
    };
    MINIMUM.iter().map(rule).collect()
}

/// The rules of the optional rights.
pub fn optional(service_name: &str, kube_id: &str) -> Vec<AccessRule> {
    let rule = |right: &OptionalRight| AccessRule {
        method: right.method.to_owned(),
        path: filled(right.path, service_name, kube_id),
    };
    OPTIONAL.iter().map(rule).collect()
}

/// What of the minimum a key's rules do not grant.
pub fn missing(rules: &[AccessRule], service_name: &str, kube_id: &str) -> Vec<AccessRule> {
    let is_missing = |needed: &AccessRule| !rules.iter().any(|rule| grants(rule, needed));
    minimum(service_name, kube_id).into_iter().filter(is_missing).collect()
}

/// Whether a rule grants everything that another one would; `*` stands for any end.
pub fn grants(rule: &AccessRule, needed: &AccessRule) -> bool {
    if !rule.method.eq_ignore_ascii_case(&needed.method) {
        return false;
    }
    match rule.path.strip_suffix('*') {
        Some(stem) => needed.path.starts_with(stem),
        None => needed.path == rule.path,
    }
}

fn filled(path: &str, service_name: &str, kube_id: &str) -> String {
    path.replace("{serviceName}", service_name).replace("{kubeId}", kube_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(method: &str, path: &str) -> AccessRule {
        AccessRule {
            method: method.into(),
            path: path.into(),
        }
    }

    #[test]
    fn the_minimum_grants_itself_and_a_gap_is_named() {
        let mut rules = minimum("p", "k");
        assert!(missing(&rules, "p", "k").is_empty());
        rules.retain(|rule| rule.method != "PUT");
        assert_eq!(
            missing(&rules, "p", "k"),
            [rule("PUT", "/cloud/project/p/kube/k/nodepool/*")]
        );
        assert_eq!(
            missing(&rules, "p", "other").len(),
            7,
            "rules for another cluster do not help"
        );
    }

    #[test]
    fn a_star_matches_any_end() {
        let everything = ["GET", "POST", "PUT", "DELETE"].map(|method| rule(method, "/*"));
        assert!(missing(&everything, "p", "k").is_empty());
        let project = ["GET", "POST", "PUT", "DELETE"].map(|method| rule(method, "/cloud/project/p/*"));
        assert!(missing(&project, "p", "k").is_empty());
        assert!(!grants(&rule("GET", "/a"), &rule("GET", "/a/*")));
        assert!(!grants(&rule("GET", "/a/*"), &rule("PUT", "/a/b")));
    }
}
