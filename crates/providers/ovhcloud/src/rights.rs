//! The rights that API keys need, and those that are merely useful.

mod check;

pub use check::{Checked, check};

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

/// Whether a rule grants everything that another one would.
///
/// A `*` of what is needed is only covered by a `*` of the rule: nothing else stands for anything.
pub fn grants(rule: &AccessRule, needed: &AccessRule) -> bool {
    rule.method.eq_ignore_ascii_case(&needed.method) && covers(&rule.path, &needed.path)
}

/// Whether a rule's path covers a path; each `*` stands for any text, slashes and none at all included.
pub(crate) fn covers(rule: &str, path: &str) -> bool {
    let Some((stem, rest)) = rule.split_once('*') else {
        return rule == path;
    };
    let Some(mut path) = path.strip_prefix(stem) else {
        return false;
    };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let end = parts.pop().unwrap_or_default();
    // The first place where a part fits leaves the most for those after it.
    for part in parts {
        let Some(found) = path.find(part) else { return false };
        path = &path[found + part.len()..];
    }
    path.ends_with(end)
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

    #[test]
    fn a_star_in_the_middle_stands_for_any_text() {
        let any_project = ["GET", "POST", "PUT", "DELETE"].map(|method| rule(method, "/cloud/project/*/kube/k*"));
        let missing = missing(&any_project, "p", "k");
        assert_eq!(missing, [rule("GET", "/cloud/project/p/capabilities/kube/*")]);
        for (own, path, expected) in [
            ("/a/*/c", "/a/b/c", true),
            ("/a/*/c", "/a/b/b/c", true),
            ("/a/*/c", "/a/c", false),
            ("/a/*/c", "/a/b/c/d", false),
            ("/a/*/c/*", "/a/b/c/c/", true),
            ("/a/*/c", "/a/*", false),
            ("/a*a", "/a", false),
            ("*", "", true),
            ("/*b*c*", "/abc", true),
            ("/*c*b*", "/abc", false),
        ] {
            assert_eq!(covers(own, path), expected, "{own} {path}");
        }
    }

    #[test]
    fn what_may_be_granted_besides_is_not_among_the_minimum() {
        let minimum = minimum("p", "k");
        let optional = optional("p", "k");
        assert_eq!(optional.len(), OPTIONAL.len());
        for right in optional {
            assert!(!minimum.iter().any(|own| grants(own, &right)), "{right:?}");
        }
    }
}
