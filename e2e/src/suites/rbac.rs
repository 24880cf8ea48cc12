//! Least privilege, proved: the controller asks for nothing that the chart's roles do not grant, and uses all they grant.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule, Role};

use crate::audit;
use crate::installation::{NAMESPACE, manifests_of};
use crate::runner::Environment;
use crate::world;

/// One thing that may be done: API group, resource (with its subresource), verb.
pub(crate) type Right = (String, String, String);

/// Rights for what happens only when writers meet: a claim is asked for by name when a watch lags behind what we wrote
/// ourselves, a pool when somebody changed it between our reading and our writing.
const SELDOM: [(&str, &str, &str); 2] = [
    ("karpenter.sh", "nodeclaims", "get"),
    ("karpenter.sh", "nodepools", "get"),
];

/// Compares what the API server's audit log says of the controller so far with what the KWOK provider's roles grant.
pub(crate) fn check(environment: &Environment) -> Result<()> {
    let used = used(environment)?;
    let unused: Vec<Right> = granted("kwok")?
        .into_iter()
        .filter(|right| !used.contains(right))
        .filter(|(group, resource, verb)| !SELDOM.contains(&(group.as_str(), resource.as_str(), verb.as_str())))
        .collect();
    ensure!(unused.is_empty(), "granted, but never used: {unused:?}");
    Ok(())
}

/// The rights that the controller has used so far; fails if it was ever denied one.
pub(crate) fn used(environment: &Environment) -> Result<BTreeSet<Right>> {
    let file = environment.control_plane.audit_log();
    let (mut used, mut forbidden): (BTreeSet<Right>, BTreeSet<Right>) = (BTreeSet::new(), BTreeSet::new());
    for record in audit::read(&file)? {
        let Some((object, resource)) = record
            .object_ref
            .and_then(|object| Some((object.api_group, full_name(object.resource?, object.subresource))))
        else {
            continue;
        };
        let right = (object, resource, record.verb);
        match record.response_status.and_then(|status| status.code) {
            Some(403) => forbidden.insert(right),
            _ => used.insert(right),
        };
    }
    ensure!(
        !used.is_empty(),
        "the audit log names no request of {NAMESPACE}'s ServiceAccount"
    );
    ensure!(forbidden.is_empty(), "asked for, but not granted: {forbidden:?}");
    Ok(used)
}

fn full_name(resource: String, subresource: Option<String>) -> String {
    match subresource {
        Some(subresource) => format!("{resource}/{subresource}"),
        None => resource,
    }
}

/// Every right in the roles that are bound to the controller. The role for cluster admins is not one of them.
fn granted(provider: &str) -> Result<BTreeSet<Right>> {
    let mut rights = BTreeSet::new();
    for object in world::documents(&std::fs::read_to_string(manifests_of(provider))?)? {
        let kind = object.types.as_ref().map(|types| types.kind.as_str());
        let is_admin = object
            .metadata
            .name
            .as_deref()
            .is_some_and(|name| name.ends_with("-admin"));
        let value = serde_json::to_value(&object)?;
        let rules: Vec<PolicyRule> = match kind {
            Some("ClusterRole") if !is_admin => serde_json::from_value::<ClusterRole>(value)?.rules.unwrap_or_default(),
            Some("Role") => serde_json::from_value::<Role>(value)?.rules.unwrap_or_default(),
            _ => continue,
        };
        for rule in rules {
            for group in rule.api_groups.unwrap_or_default() {
                for resource in rule.resources.iter().flatten() {
                    for verb in &rule.verbs {
                        rights.insert((group.clone(), resource.clone(), verb.clone()));
                    }
                }
            }
        }
    }
    Ok(rights)
}
