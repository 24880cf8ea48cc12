//! NodePools and NodeClasses: whether they are there and ready.

use karpenter_api::NodePool;
use karpenter_api::conditions::ConditionStatus;
use karpenter_cloud::{Diagnosis, NodeClassState, Readiness};
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::{Client, ResourceExt};

use super::Report;
use crate::providers::Provider;

/// All NodePools, or why they can't be listed.
pub(super) async fn list(client: &Client) -> Result<Vec<NodePool>, String> {
    let pools: Api<NodePool> = Api::all(client.clone());
    match pools.list(&ListParams::default()).await {
        Ok(list) => Ok(list.items),
        Err(error) => Err(error.to_string()),
    }
}

/// The provider that the NodePools' NodeClasses belong to, if it is one.
pub(super) fn provider(pools: &[NodePool]) -> Option<Provider> {
    let mut of_pools = pools
        .iter()
        .filter_map(|pool| Provider::of_group(&pool.spec.template.spec.node_class_ref.group));
    let first = of_pools.next()?;
    of_pools.all(|other| other == first).then_some(first)
}

pub(super) async fn report(
    client: &Client,
    provider: Option<Provider>,
    pools: &Result<Vec<NodePool>, String>,
    report: &mut Report,
) {
    match pools {
        Err(error) => report.add(Diagnosis::fail(
            "nodepools",
            format!("can't be listed: {error}"),
            "install the CRDs first",
        )),
        Ok(pools) if pools.is_empty() => report.add(Diagnosis::warn(
            "nodepools",
            "there is none, so no node is ever launched",
            "apply one; examples/ has some",
        )),
        Ok(pools) => {
            for pool in pools {
                report.add(of_pool(pool));
            }
        }
    }
    for crd in Provider::crds(provider)
        .iter()
        .filter(|crd| crd.kind().ends_with("NodeClass"))
    {
        let kind = GroupVersionKind::gvk(crd.group(), crd.version(), crd.kind());
        let plural = crd.name().split('.').next().unwrap_or_default();
        let classes: Api<DynamicObject> =
            Api::all_with(client.clone(), &ApiResource::from_gvk_with_plural(&kind, plural));
        // A kind that is not installed was told of with the CRDs.
        let Ok(classes) = classes.list(&ListParams::default()).await else {
            continue;
        };
        for class in &classes {
            report.add(of_class(crd.kind(), &NodeClassState::of(class)));
        }
    }
}

fn of_pool(pool: &NodePool) -> Diagnosis {
    let name = pool.name_any();
    let conditions = || pool.status.iter().flat_map(|status| &status.conditions);
    let ready = conditions().any(|condition| condition.type_ == "Ready" && condition.status == ConditionStatus::True);
    if ready {
        return Diagnosis::ok("nodepools", format!("{name} is ready"));
    }
    let because = conditions()
        .find(|condition| condition.type_ != "Ready" && condition.status != ConditionStatus::True)
        .map(|condition| {
            format!(
                ": {} is {} ({}) {}",
                condition.type_, condition.status, condition.reason, condition.message
            )
        });
    Diagnosis::fail(
        "nodepools",
        format!("{name} is not ready{}", because.unwrap_or_default().trim_end()),
        format!("see kubectl describe nodepools.karpenter.sh {name}"),
    )
}

fn of_class(kind: &str, class: &NodeClassState) -> Diagnosis {
    let name = format!("{kind}/{}", class.name);
    let remedy = format!("see kubectl describe {} {}", kind.to_lowercase(), class.name);
    match class.readiness() {
        Readiness::Ready => Diagnosis::ok("nodeclasses", format!("{name} is ready")),
        Readiness::NotReady { reason, message } => Diagnosis::fail(
            "nodeclasses",
            format!("{name} is not ready: {reason} {message}"),
            remedy,
        ),
        Readiness::Unknown => Diagnosis::warn(
            "nodeclasses",
            format!("{name} has no verdict yet"),
            "is the controller running?",
        ),
        Readiness::Terminating => Diagnosis::warn("nodeclasses", format!("{name} is being deleted"), remedy),
    }
}
