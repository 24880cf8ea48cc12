//! Finds out which cluster this is, when nobody said.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Node;

use super::Problem;
use crate::{
    client::{ApiErrorKind, AuthMethod, KubeApi},
    names,
    node_class::condition,
};

/// Whether the Nodes here are machines of a cluster.
pub(super) enum Match {
    Yes,
    No,
    /// There are no Nodes or no machines to compare.
    Unknown,
}

/// More pools than this are not searched for a Node of ours.
const POOLS_SEARCHED: usize = 10;

/// By the Nodes' annotation, by the key's rules, or by the machines of the project's clusters.
pub(super) async fn kube_id(project: &KubeApi, nodes: &[Node]) -> Result<String, Problem> {
    let annotated: BTreeSet<&str> = nodes
        .iter()
        .filter_map(|node| node.metadata.annotations.as_ref()?.get(names::CLUSTER_ANNOTATION))
        .map(String::as_str)
        .collect();
    if let [only] = annotated.iter().copied().collect::<Vec<_>>().as_slice()
        && project.of_cluster(only).cluster().await.is_ok()
    {
        return Ok((*only).to_owned());
    }
    if let Some(id) = of_key(project).await? {
        return Ok(id);
    }
    if let Ok(clusters) = project.clusters().await {
        for id in clusters {
            if let Ok(Match::Yes) = has_a_node_of(&project.of_cluster(&id), nodes).await {
                return Ok(id);
            }
        }
    }
    let message = "the cluster's id could not be found out; set OVH_KUBE_ID or spec.kubeId to the id that the console \
                   shows on the cluster's page (Managed Kubernetes Service only: other clusters are not supported)";
    Err(Problem {
        condition: condition::CLUSTER_READY,
        reason: "ClusterNotDetected",
        message: message.to_owned(),
        temporary: false,
    })
}

/// A key that was made for one cluster names it in its rules.
async fn of_key(project: &KubeApi) -> Result<Option<String>, Problem> {
    if !matches!(project.client().method(), AuthMethod::Keys { .. }) {
        return Ok(None);
    }
    let credential = match project.current_credential().await {
        Ok(credential) => credential,
        Err(error) if error.is(ApiErrorKind::Auth) => {
            return Err(Problem::of(error, condition::CREDENTIALS_READY, "InvalidCredentials"));
        }
        Err(_) => return Ok(None),
    };
    let prefix = format!("/cloud/project/{}/kube/", project.service());
    let ids: BTreeSet<&str> = credential
        .rules
        .iter()
        .filter_map(|rule| rule.path.strip_prefix(&prefix)?.split('/').next())
        .filter(|id| !id.is_empty() && !id.contains('*'))
        .collect();
    let ids: Vec<&str> = ids.into_iter().collect();
    let [only] = ids.as_slice() else { return Ok(None) };
    let is_there = project.of_cluster(only).cluster().await.is_ok();
    Ok(is_there.then(|| (*only).to_owned()))
}

/// Compares provider IDs of Nodes with the machines of a cluster's pools.
pub(super) async fn has_a_node_of(api: &KubeApi, nodes: &[Node]) -> Result<Match, Problem> {
    let here: BTreeSet<&str> = nodes
        .iter()
        .filter_map(|node| node.spec.as_ref()?.provider_id.as_deref())
        .collect();
    if here.is_empty() {
        return Ok(Match::Unknown);
    }
    let failed = |error| Problem::of(error, condition::CLUSTER_READY, "ClusterNotDetected");
    let pools = api.pools().await.map_err(failed)?;
    let (mut machines, mut complete) = (0, true);
    for (number, pool) in pools.iter().filter(|pool| pool.current_nodes > 0).enumerate() {
        if number >= POOLS_SEARCHED {
            complete = false;
            break;
        }
        let found = api.nodes(&pool.id).await.map_err(failed)?;
        let ids: Vec<String> = found.iter().filter_map(|node| node.provider_id()).collect();
        if ids.iter().any(|id| here.contains(id.as_str())) {
            return Ok(Match::Yes);
        }
        machines += ids.len();
    }
    Ok(if machines == 0 || !complete {
        Match::Unknown
    } else {
        Match::No
    })
}
