//! Least privilege, proved: the controller asks for nothing that the chart's roles do not grant, and uses all they grant.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule, Role};
use kube::api::{Api, PostParams};
use kube::{Client, ResourceExt};

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

/// What only clusters that share a project's quota with others write.
const SHARED: &str = "bizflycapacityshares";

/// Compares what the API server's audit log says of the controller so far with what the provider's roles grant. What all providers may
/// do must be used with KWOK, which meets every scenario; the others must use what they may do beside it.
pub(crate) fn check(environment: &Environment, provider: &str) -> Result<()> {
    let used = used(environment)?;
    let of_all = match provider {
        "kwok" => BTreeSet::new(),
        _ => granted("kwok")?,
    };
    let is_seldom = |(group, resource, verb): &Right| {
        *resource == SHARED || SELDOM.contains(&(group.as_str(), resource.as_str(), verb.as_str()))
    };
    let granted = granted(provider)?;
    let unused: Vec<&Right> = granted
        .difference(&of_all)
        .filter(|right| !used.contains(right) && !is_seldom(right))
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

/// Waits until the API server grants `user` all that the provider's roles hold: it learns of a role some time after storing it,
/// and a controller that starts before is denied what it asks for.
pub(crate) async fn wait_until_granted(client: &Client, provider: &str, user: &str) -> Result<()> {
    let reviews: Api<SubjectAccessReview> = Api::all(client.clone());
    let deadline = tokio::time::Instant::now() + Duration::from_secs(120);
    for BoundRules { namespace, rules } in bound_rules(provider)? {
        for attributes in rules.iter().flat_map(|rule| attributes(rule, namespace.as_deref())) {
            let review = SubjectAccessReview {
                spec: SubjectAccessReviewSpec {
                    user: Some(user.to_owned()),
                    resource_attributes: Some(attributes.clone()),
                    ..SubjectAccessReviewSpec::default()
                },
                ..SubjectAccessReview::default()
            };
            loop {
                let answer = reviews.create(&PostParams::default(), &review).await?;
                if answer.status.context("a review without an answer")?.allowed {
                    break;
                }
                if tokio::time::Instant::now() > deadline {
                    bail!("{user} is still denied {attributes:?}");
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    Ok(())
}

/// All that a rule allows, one by one.
fn attributes(rule: &PolicyRule, namespace: Option<&str>) -> Vec<ResourceAttributes> {
    let names: Vec<Option<String>> = match rule.resource_names.as_deref() {
        None | Some([]) => vec![None],
        Some(names) => names.iter().cloned().map(Some).collect(),
    };
    let mut all = Vec::new();
    for group in rule.api_groups.iter().flatten() {
        for resource in rule.resources.iter().flatten() {
            let (resource, subresource) = match resource.split_once('/') {
                Some((resource, subresource)) => (resource, Some(subresource.to_owned())),
                None => (resource.as_str(), None),
            };
            for verb in &rule.verbs {
                all.extend(names.iter().map(|name| ResourceAttributes {
                    group: Some(group.clone()),
                    resource: Some(resource.to_owned()),
                    subresource: subresource.clone(),
                    verb: Some(verb.clone()),
                    name: name.clone(),
                    namespace: namespace.map(str::to_owned),
                    ..ResourceAttributes::default()
                }));
            }
        }
    }
    all
}

fn full_name(resource: String, subresource: Option<String>) -> String {
    match subresource {
        Some(subresource) => format!("{resource}/{subresource}"),
        None => resource,
    }
}

/// Every right in the roles that are bound to the controller.
fn granted(provider: &str) -> Result<BTreeSet<Right>> {
    let mut rights = BTreeSet::new();
    for rule in bound_rules(provider)?.into_iter().flat_map(|bound| bound.rules) {
        for group in rule.api_groups.unwrap_or_default() {
            for resource in rule.resources.iter().flatten() {
                for verb in &rule.verbs {
                    rights.insert((group.clone(), resource.clone(), verb.clone()));
                }
            }
        }
    }
    Ok(rights)
}

/// The rules of one role, and where they hold: in a namespace, or everywhere.
struct BoundRules {
    namespace: Option<String>,
    rules: Vec<PolicyRule>,
}

/// The roles that are bound to the controller. That for cluster admins is not one of them.
fn bound_rules(provider: &str) -> Result<Vec<BoundRules>> {
    let mut bound = Vec::new();
    for object in world::documents(&std::fs::read_to_string(manifests_of(provider))?)? {
        let kind = object.types.as_ref().map(|types| types.kind.as_str());
        let is_admin = object
            .metadata
            .name
            .as_deref()
            .is_some_and(|name| name.ends_with("-admin"));
        let namespace = object.namespace();
        let value = serde_json::to_value(&object)?;
        let rules: Vec<PolicyRule> = match kind {
            Some("ClusterRole") if !is_admin => serde_json::from_value::<ClusterRole>(value)?.rules.unwrap_or_default(),
            Some("Role") => serde_json::from_value::<Role>(value)?.rules.unwrap_or_default(),
            _ => continue,
        };
        bound.push(BoundRules { namespace, rules });
    }
    Ok(bound)
}
