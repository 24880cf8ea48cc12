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

use crate::{catalogue::types::ZoneKind, client::model::Pool, names, provider::Shared};

const BETA_INSTANCE_TYPE: &str = "beta.kubernetes.io/instance-type";
const BETA_ZONE: &str = "failure-domain.beta.kubernetes.io/zone";
const BETA_REGION: &str = "failure-domain.beta.kubernetes.io/region";

/// Where the cluster is.
#[derive(Clone, Copy, Debug)]
struct Place<'a> {
    region: &'a str,
    zones: ZoneKind,
}

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
    let class = own.get(names::NODE_CLASS).map(String::as_str).unwrap_or_default();
    let connection = shared.directory.known(class);
    let place = connection.as_ref().map(|connection| Place {
        region: &connection.cluster.region,
        zones: connection.zones.kind,
    });
    let wrong = corrections(&own, pool, place);
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
fn corrections(
    own: &BTreeMap<String, String>,
    pool: &Pool,
    place: Option<Place<'_>>,
) -> BTreeMap<&'static str, String> {
    let mut wanted: Vec<(&'static str, &str)> = vec![
        (labels::INSTANCE_TYPE, &pool.flavor),
        (BETA_INSTANCE_TYPE, &pool.flavor),
        (names::POOL_ID, &pool.id),
        (names::POOL_NAME, &pool.name),
    ];
    // In a one-zone region the Node knows better, also where pools must say a zone.
    let several = place.is_some_and(|place| place.zones == ZoneKind::Several);
    if let Some(zone) = pool.zone().filter(|_| several) {
        wanted.extend([(labels::ZONE, zone), (BETA_ZONE, zone)]);
    }
    if let Some(place) = place {
        let is_region = |key: &str| own.get(key).is_some_and(|own| own.eq_ignore_ascii_case(place.region));
        // However it is spelt: both names of the label must say the same.
        if !is_region(labels::REGION) || !is_region(BETA_REGION) {
            wanted.extend([(labels::REGION, place.region), (BETA_REGION, place.region)]);
        }
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

    const PAR: Place<'static> = Place {
        region: "EU-WEST-PAR",
        zones: ZoneKind::Several,
    };
    const GRA: Place<'static> = Place {
        region: "GRA11",
        zones: ZoneKind::One,
    };

    fn check(place: Option<Place<'_>>, zones: &[&str], own: &[(&str, &str)], expected: &[(&str, &str)]) {
        let pool: Pool = serde_json::from_value(json!({
            "id": "p1", "name": "karpenter-x", "flavor": "b3-8", "availabilityZones": zones,
        }))
        .expect("a pool");
        let own = own
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        let found = corrections(&own, &pool, place);
        let found: Vec<(&str, &str)> = found.iter().map(|(key, value)| (*key, value.as_str())).collect();
        assert_eq!(found, expected);
    }

    const TRUE: [(&str, &str); 4] = [
        ("beta.kubernetes.io/instance-type", "b3-8"),
        ("node.kubernetes.io/instance-type", "b3-8"),
        ("karpenter.ovhcloud.sh/pool-id", "p1"),
        ("karpenter.ovhcloud.sh/pool-name", "karpenter-x"),
    ];

    /// True labels, and the region's two.
    fn in_region(region: &str, beta: &'static str) -> Vec<(&'static str, String)> {
        let own = TRUE.iter().map(|(key, value)| (*key, (*value).to_owned()));
        let region = [(labels::REGION, region.to_owned()), (BETA_REGION, beta.to_owned())];
        own.chain(region).collect()
    }

    fn borrowed<'a>(own: &'a [(&'static str, String)]) -> Vec<(&'a str, &'a str)> {
        own.iter().map(|(key, value)| (*key, value.as_str())).collect()
    }

    #[test]
    fn a_flavor_id_is_replaced_under_both_names_of_the_label() {
        let own = [
            ("beta.kubernetes.io/instance-type", "0a1b-uuid"),
            ("node.kubernetes.io/instance-type", "0a1b-uuid"),
            TRUE[2],
            TRUE[3],
        ];
        check(None, &[], &own, &[TRUE[0], TRUE[1]]);
        check(None, &[], &TRUE, &[]);
    }

    #[test]
    fn the_zone_is_put_right_only_where_there_are_several() {
        let own = in_region("EU-WEST-PAR", "EU-WEST-PAR");
        let mut own = borrowed(&own);
        own.push(("topology.kubernetes.io/zone", "nova"));
        check(Some(PAR), &[], &own, &[]);
        check(
            Some(PAR),
            &["eu-west-par-a"],
            &own,
            &[
                ("failure-domain.beta.kubernetes.io/zone", "eu-west-par-a"),
                ("topology.kubernetes.io/zone", "eu-west-par-a"),
            ],
        );
        check(None, &["eu-west-par-a"], &own, &[]);
        // A one-zone region that wants pools to name their zone has Nodes in "nova" all the same.
        let own = in_region("GRA11", "GRA11");
        let mut own = borrowed(&own);
        own.push(("topology.kubernetes.io/zone", "nova"));
        check(Some(GRA), &["gra11"], &own, &[]);
    }

    #[test]
    fn the_region_is_put_right_under_both_names_however_it_is_spelt() {
        check(Some(GRA), &[], &borrowed(&in_region("gra11", "GRA11")), &[]);
        let right = [("failure-domain.beta.kubernetes.io/region", "GRA11")];
        check(Some(GRA), &[], &borrowed(&in_region("GRA11", "elsewhere")), &right);
        let both = [right[0], ("topology.kubernetes.io/region", "GRA11")];
        check(Some(GRA), &[], &TRUE, &both);
    }
}
