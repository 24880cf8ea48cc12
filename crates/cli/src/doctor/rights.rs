//! Whether the controller may do what it needs to: one SelfSubjectAccessReview for each verb on each resource.

use std::collections::BTreeSet;

use futures::StreamExt;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule, Role};
use karpenter_cloud::Diagnosis;
use kube::api::{Api, PostParams};
use kube::{Client, Config};
use serde::Deserialize;
use serde_json::Value;

use super::Report;
use super::installation::Installation;
use crate::providers::Provider;

/// Questions under way at a time.
const AT_ONCE: usize = 16;

/// One thing that may be done.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Right {
    group: String,
    /// With its subresource, such as `pods/eviction`.
    resource: String,
    verb: String,
    /// Within the controller's namespace only.
    namespaced: bool,
    /// This object only; empty is any.
    name: String,
}

/// Asks the API server about everything that the chart's roles grant, as the controller if we may act as it.
pub(super) async fn check(
    config: &Config,
    user: Option<&str>,
    installation: &Installation,
    provider: Option<Provider>,
    report: &mut Report,
) {
    let rights: Vec<Right> = needed(provider.unwrap_or(Provider::Kwok)).into_iter().collect();
    let user = user.or(installation.user.as_deref());
    let answers = match ask(config, user, &installation.namespace, &rights).await {
        Ok(answers) => answers,
        // Acting as another is a right of its own.
        Err(error) if user.is_some() => {
            report.add(Diagnosis::warn(
                "rights",
                format!(
                    "you may not act as {}, so yours were checked: {error}",
                    user.unwrap_or_default()
                ),
                "run this as a cluster administrator",
            ));
            match ask(config, None, &installation.namespace, &rights).await {
                Ok(answers) => answers,
                Err(error) => return report.add(Diagnosis::fail("rights", error.to_string(), "")),
            }
        }
        Err(error) => return report.add(Diagnosis::fail("rights", error.to_string(), "")),
    };
    let who = user.unwrap_or("you");
    let count = rights.len();
    let refused: Vec<String> = rights
        .iter()
        .zip(answers)
        .filter(|(_, allowed)| !allowed)
        .map(|(right, _)| match right.group.as_str() {
            "" => format!("{} {}", right.verb, right.resource),
            group => format!("{} {}.{group}", right.verb, right.resource),
        })
        .collect();
    report.add(if refused.is_empty() {
        Diagnosis::ok("rights", format!("{who} may do all {count} things that are needed"))
    } else {
        Diagnosis::fail(
            "rights",
            format!("{who} may not: {}", refused.join(", ")),
            "apply the chart's roles, or deploy/<provider>.yaml",
        )
    });
}

async fn ask(config: &Config, user: Option<&str>, namespace: &str, rights: &[Right]) -> Result<Vec<bool>, kube::Error> {
    let mut config = config.clone();
    if let Some(user) = user {
        config.auth_info.impersonate = Some(user.to_owned());
    }
    let reviews: Api<SelfSubjectAccessReview> = Api::all(Client::try_from(config)?);
    let questions = rights.iter().map(|right| {
        let review = question(right, namespace);
        let reviews = reviews.clone();
        async move {
            let answer = reviews.create(&PostParams::default(), &review).await?;
            Ok(answer.status.is_some_and(|status| status.allowed))
        }
    });
    let answers: Vec<Result<bool, kube::Error>> = futures::stream::iter(questions).buffered(AT_ONCE).collect().await;
    answers.into_iter().collect()
}

fn question(right: &Right, namespace: &str) -> SelfSubjectAccessReview {
    let (resource, subresource) = match right.resource.split_once('/') {
        Some((resource, subresource)) => (resource, Some(subresource.to_owned())),
        None => (right.resource.as_str(), None),
    };
    let attributes = ResourceAttributes {
        group: Some(right.group.clone()),
        resource: Some(resource.to_owned()),
        subresource,
        verb: Some(right.verb.clone()),
        namespace: right.namespaced.then(|| namespace.to_owned()),
        name: (!right.name.is_empty()).then(|| right.name.clone()),
        ..ResourceAttributes::default()
    };
    SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(attributes),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    }
}

/// What the rendered chart grants the controller. Secrets are left out: which ones there are, only the installation knows.
fn needed(provider: Provider) -> BTreeSet<Right> {
    let mut rights = BTreeSet::new();
    for document in serde_norway::Deserializer::from_str(provider.manifests()) {
        let document = Value::deserialize(document).expect("the rendered chart is YAML");
        let name = document["metadata"]["name"].as_str().unwrap_or_default();
        let (rules, namespaced): (Option<Vec<PolicyRule>>, bool) = match document["kind"].as_str() {
            Some("ClusterRole") if !name.ends_with("-admin") => {
                let role: ClusterRole = serde_json::from_value(document).expect("a ClusterRole");
                (role.rules, false)
            }
            Some("Role") => {
                let role: Role = serde_json::from_value(document).expect("a Role");
                (role.rules, true)
            }
            _ => continue,
        };
        for rule in rules.into_iter().flatten() {
            let names = rule.resource_names.unwrap_or_else(|| vec![String::new()]);
            for group in rule.api_groups.iter().flatten() {
                for resource in rule
                    .resources
                    .iter()
                    .flatten()
                    .filter(|resource| *resource != "secrets")
                {
                    for (verb, name) in rule
                        .verbs
                        .iter()
                        .flat_map(|verb| names.iter().map(move |name| (verb, name)))
                    {
                        rights.insert(Right {
                            group: group.clone(),
                            resource: resource.clone(),
                            verb: verb.clone(),
                            namespaced,
                            name: name.clone(),
                        });
                    }
                }
            }
        }
    }
    rights
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rights_are_those_of_the_chart() {
        let rights = needed(Provider::Kwok);
        let has = |group: &str, resource: &str, verb: &str| {
            rights.iter().any(|right| {
                (right.group.as_str(), right.resource.as_str(), right.verb.as_str()) == (group, resource, verb)
            })
        };
        assert!(has("karpenter.sh", "nodeclaims", "create"));
        assert!(has("", "pods/eviction", "create"));
        assert!(has("coordination.k8s.io", "leases", "update"));
        assert!(
            !has("karpenter.sh", "nodepools", "delete"),
            "that is the administrators' role"
        );
    }

    #[test]
    fn a_subresource_is_asked_about_as_such() {
        let right = Right {
            group: String::new(),
            resource: "pods/eviction".to_owned(),
            verb: "create".to_owned(),
            namespaced: false,
            name: String::new(),
        };
        let attributes = question(&right, "karpenter").spec.resource_attributes.unwrap();
        assert_eq!(attributes.resource.as_deref(), Some("pods"));
        assert_eq!(attributes.subresource.as_deref(), Some("eviction"));
        assert_eq!(attributes.namespace, None);
    }
}
