//! The cloud: whether it answers, what it offers, what is left over at it, and what the provider itself has to say.

use std::collections::BTreeSet;

use karpenter_api::{NodeClaim, NodePool};
use karpenter_cloud::{CloudProvider, Diagnosis, Instance};
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};

use super::Report;

/// Names in a sentence before it says "and more".
const NAMED: usize = 5;

pub(super) async fn report(cloud: &dyn CloudProvider, client: &Client, pools: &[NodePool], report: &mut Report) {
    for finding in cloud.diagnose().await {
        report.add(finding);
    }
    match cloud.list().await {
        Ok(instances) => {
            report.add(Diagnosis::ok(
                "cloud",
                format!(
                    "{} answers; this cluster has {} machines",
                    cloud.name(),
                    instances.len()
                ),
            ));
            leftovers(client, &instances, report).await;
        }
        Err(error) => report.add(Diagnosis::fail(
            "cloud",
            format!("{} does not say which machines there are: {error}", cloud.name()),
            "check credentials, permissions and the network to its API",
        )),
    }
    catalogue(cloud, pools, report).await;
}

/// Whether each NodePool of this provider has something to launch.
async fn catalogue(cloud: &dyn CloudProvider, pools: &[NodePool], report: &mut Report) {
    let kinds = cloud.supported_node_classes();
    let ours = pools.iter().filter(|pool| {
        let class = &pool.spec.template.spec.node_class_ref;
        kinds.iter().any(|kind| kind.is_meant_by(&class.group, &class.kind))
    });
    for pool in ours {
        let name = pool.name_any();
        report.add(match cloud.instance_types(pool).await {
            Err(error) => Diagnosis::fail("catalogue", format!("{name}: {error}"), "see its NodeClass"),
            Ok(types) => {
                let offerings = types.iter().flat_map(|listed| &listed.offerings);
                let available = offerings.filter(|offering| offering.available).count();
                let sentence = format!(
                    "{name}: {} instance types, {available} offerings available",
                    types.len()
                );
                match available {
                    0 => Diagnosis::fail("catalogue", sentence, "loosen its NodeClass, or wait for capacity"),
                    _ => Diagnosis::ok("catalogue", sentence),
                }
            }
        });
    }
}

/// Machines without a claim cost money; claims without a machine hold pods back.
async fn leftovers(client: &Client, instances: &[Instance], report: &mut Report) {
    let claims: Api<NodeClaim> = Api::all(client.clone());
    let claims = match claims.list(&ListParams::default()).await {
        Ok(claims) => claims.items,
        Err(error) => {
            return report.add(Diagnosis::warn(
                "leftovers",
                format!("NodeClaims can't be listed: {error}"),
                "",
            ));
        }
    };
    let (machines, vanished) = compare(instances, &claims);
    if machines.is_empty() && vanished.is_empty() {
        report.add(Diagnosis::ok(
            "leftovers",
            "every machine has its NodeClaim, and the other way round",
        ));
    }
    if !machines.is_empty() {
        report.add(Diagnosis::warn(
            "leftovers",
            format!("machines without a NodeClaim: {}", named(&machines)),
            "the controller removes them by itself; if it does not run, delete them at the cloud",
        ));
    }
    if !vanished.is_empty() {
        report.add(Diagnosis::warn(
            "leftovers",
            format!("NodeClaims without a machine: {}", named(&vanished)),
            "the controller removes them by itself",
        ));
    }
}

/// Provider IDs of machines without a claim, and names of claims without a machine.
fn compare(instances: &[Instance], claims: &[NodeClaim]) -> (Vec<String>, Vec<String>) {
    let id = |claim: &NodeClaim| {
        let status = claim.status.as_ref()?;
        status.provider_id.clone().filter(|id| !id.is_empty())
    };
    let claimed: BTreeSet<String> = claims.iter().filter_map(id).collect();
    let existing: BTreeSet<&str> = instances.iter().map(|instance| instance.provider_id.as_str()).collect();
    let machines = instances
        .iter()
        .filter(|instance| !instance.is_terminating() && !claimed.contains(&instance.provider_id))
        .map(|instance| instance.provider_id.clone());
    let vanished = claims
        .iter()
        .filter(|claim| id(claim).is_some_and(|id| !existing.contains(id.as_str())))
        .map(ResourceExt::name_any);
    (machines.collect(), vanished.collect())
}

fn named(names: &[String]) -> String {
    let shown = names[..names.len().min(NAMED)].join(", ");
    match names.len().saturating_sub(NAMED) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn machines_and_claims_are_matched_by_provider_id() {
        let instance = |id: &str| Instance {
            provider_id: id.to_owned(),
            ..Instance::default()
        };
        let claim = |name: &str, id: Option<&str>| -> NodeClaim {
            serde_json::from_value(json!({
                "metadata": {"name": name},
                "spec": {"requirements": [], "nodeClassRef": {"group": "g", "kind": "K", "name": "n"}},
                "status": {"providerID": id.unwrap_or_default()},
            }))
            .unwrap()
        };
        let claims = [
            claim("a", Some("p://1")),
            claim("b", Some("p://2")),
            claim("launching", None),
        ];
        let (machines, vanished) = compare(&[instance("p://1"), instance("p://3")], &claims);
        assert_eq!(machines, ["p://3"]);
        assert_eq!(vanished, ["b"]);
    }

    #[test]
    fn long_lists_are_cut() {
        let names: Vec<String> = (0..7).map(|number| number.to_string()).collect();
        assert_eq!(named(&names), "0, 1, 2, 3, 4 and 2 more");
    }
}
