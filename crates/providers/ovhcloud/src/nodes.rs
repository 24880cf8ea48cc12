//! Keeps labels of Nodes true, and learns from Nodes what flavors really have.
//!
//! Some clusters label Nodes with the flavor's id instead of its name. The cloud controller copies the old ("beta") name of
//! a label over the new one, so both are written.

use std::{collections::BTreeMap, sync::Arc};

use futures::StreamExt;
use k8s_openapi::api::core::v1::Node;
use karpenter_api::{ResourceList, labels};
use kube::{
    Api,
    api::{Patch, PatchParams},
    runtime::{WatchStreamExt, watcher},
};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::{client::model::Pool, names, provider::Shared};

const BETA_INSTANCE_TYPE: &str = "beta.kubernetes.io/instance-type";
const BETA_ZONE: &str = "failure-domain.beta.kubernetes.io/zone";

/// Watches the Nodes of our pools until `stop`.
pub(crate) async fn keep(shared: Arc<Shared>, stop: CancellationToken) {
    let nodes: Api<Node> = Api::all(shared.client.clone());
    let ours = watcher::Config::default().labels(names::POOL_KEY);
    let changes = watcher(nodes.clone(), ours).default_backoff().applied_objects();
    let mut changes = Box::pin(changes.take_until(stop.cancelled_owned()));
    while let Some(change) = changes.next().await {
        let node = match change {
            Ok(node) => node,
            Err(error) => {
                tracing::warn!(%error, "Nodes cannot be watched");
                continue;
            }
        };
        if let Err(error) = look_at(&shared, &nodes, &node).await {
            // The Node's next heartbeat brings it up again.
            tracing::warn!(%error, node = node.metadata.name, "labels of a Node are not put right");
        }
    }
}

async fn look_at(shared: &Shared, nodes: &Api<Node>, node: &Node) -> Result<(), kube::Error> {
    let own = node.metadata.labels.clone().unwrap_or_default();
    let Some(pool_name) = own.get(names::MKS_POOL) else {
        return Ok(());
    };
    // A list that is a while old will do: flavor and zone of a pool never change.
    let pools = match shared.engine.pools(std::time::Duration::from_secs(600)).await {
        Ok(pools) => pools,
        Err(error) => {
            // The Node's next heartbeat brings it up again.
            tracing::warn!(%error, node = node.metadata.name, "labels of a Node are not checked: node pools cannot be listed");
            return Ok(());
        }
    };
    let Some(pool) = pools.iter().find(|pool| pool.name == *pool_name) else {
        return Ok(());
    };
    note_joined(shared, node, &own, pool);
    learn(shared, node, &own, pool);
    let wrong = corrections(&own, pool);
    if wrong.is_empty() {
        return Ok(());
    }
    let name = node.metadata.name.as_deref().unwrap_or_default();
    let patch = json!({"metadata": {"labels": wrong}});
    match nodes.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        result => result.map(drop),
    }
}

/// What must be written so that the labels are true.
fn corrections(own: &BTreeMap<String, String>, pool: &Pool) -> BTreeMap<&'static str, String> {
    let mut wanted: Vec<(&'static str, &str)> = vec![
        (labels::INSTANCE_TYPE, &pool.flavor),
        (BETA_INSTANCE_TYPE, &pool.flavor),
        (names::POOL_ID, &pool.id),
        (names::POOL_NAME, &pool.name),
    ];
    // A pool of a one-zone region says no zone; then the Node knows better.
    if let Some(zone) = pool.zone() {
        wanted.extend([(labels::ZONE, zone), (BETA_ZONE, zone)]);
    }
    wanted
        .into_iter()
        .filter(|(key, value)| own.get(*key).map(String::as_str) != Some(*value))
        .map(|(key, value)| (key, value.to_owned()))
        .collect()
}

/// A registered Node shows that machines of its flavor and zone can join.
fn note_joined(shared: &Shared, node: &Node, own: &BTreeMap<String, String>, pool: &Pool) {
    let is_registered = own.get(labels::REGISTERED).is_some_and(|value| value == "true");
    let made_at = node.metadata.creation_timestamp.as_ref().map(|time| time.0);
    if let (true, Some(zone), Some(made_at)) = (is_registered, own.get(labels::ZONE), made_at) {
        shared.registrations.joined(&pool.flavor, zone, made_at);
    }
}

fn learn(shared: &Shared, node: &Node, own: &BTreeMap<String, String>, pool: &Pool) {
    if own.get(labels::INITIALIZED).is_none_or(|value| value != "true") {
        return;
    }
    let status = node.status.clone().unwrap_or_default();
    let amounts = |list: Option<BTreeMap<_, _>>| ResourceList::from_kube(&list.unwrap_or_default()).unwrap_or_default();
    shared
        .learned
        .observe(&pool.flavor, &amounts(status.capacity), &amounts(status.allocatable));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(zones: &[&str], own: &[(&str, &str)], expected: &[(&str, &str)]) {
        let pool: Pool = serde_json::from_value(json!({
            "id": "p1", "name": "karpenter-x", "flavor": "b3-8", "availabilityZones": zones,
        }))
        .expect("a pool");
        let own = own
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        let found = corrections(&own, &pool);
        let found: Vec<(&str, &str)> = found.iter().map(|(key, value)| (*key, value.as_str())).collect();
        assert_eq!(found, expected);
    }

    const TRUE: [(&str, &str); 4] = [
        ("beta.kubernetes.io/instance-type", "b3-8"),
        ("node.kubernetes.io/instance-type", "b3-8"),
        ("karpenter.ovhcloud.sh/pool-id", "p1"),
        ("karpenter.ovhcloud.sh/pool-name", "karpenter-x"),
    ];

    #[test]
    fn a_flavor_id_is_replaced_under_both_names_of_the_label() {
        let own = [
            ("beta.kubernetes.io/instance-type", "0a1b-uuid"),
            ("node.kubernetes.io/instance-type", "0a1b-uuid"),
            TRUE[2],
            TRUE[3],
        ];
        check(&[], &own, &[TRUE[0], TRUE[1]]);
        check(&[], &TRUE, &[]);
    }

    #[test]
    fn the_zone_is_put_right_only_where_the_pool_says_one() {
        let mut own = TRUE.to_vec();
        own.push(("topology.kubernetes.io/zone", "nova"));
        check(&[], &own, &[]);
        check(
            &["eu-west-par-a"],
            &own,
            &[
                ("failure-domain.beta.kubernetes.io/zone", "eu-west-par-a"),
                ("topology.kubernetes.io/zone", "eu-west-par-a"),
            ],
        );
    }
}
