//! What can be seen without changing anything.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Node;
use karpenter_api::{Quantity, labels, resources};
use kube::api::ListParams;

use super::{Answer, Contract};
use crate::{
    catalogue::{flavors, overhead},
    client::{
        ApiError, ApiErrorKind,
        model::{Pool, PoolNode},
    },
    node_class::OvhNodeClassSpec,
};

/// What the estimate of a machine's memory leaves to the hypervisor.
const MEMORY_OVERHEAD: f64 = 0.075;
const NO_CLUSTER: &str = "the cluster's Nodes can't be read from here; set KUBECONFIG";

impl Contract {
    /// Everything that reading tells.
    ///
    /// # Errors
    /// When the cluster or its pools cannot be read; what is optional may be refused.
    pub async fn look(&self) -> Result<Vec<Answer>, ApiError> {
        let cluster = self.api.cluster().await?;
        let plan = cluster.plan.as_deref().unwrap_or("no plan named");
        let mut answers = vec![Answer::seen(
            "Which cluster is it?",
            format!(
                "{} in {}, version {}, {plan}, {}",
                cluster.id, cluster.region, cluster.version, cluster.status
            ),
        )];
        answers.push(self.own_rules().await?);
        answers.push(match self.api.client().clock_offset() {
            Some(seconds) => Answer::seen("How far apart are the clocks?", format!("{seconds} s")),
            None => Answer::unknown("How far apart are the clocks?", "these credentials sign nothing"),
        });
        let pools = self.api.pools().await?;
        let mut machines = Vec::new();
        for pool in &pools {
            machines.extend(self.api.nodes(&pool.id).await?);
        }
        answers.push(Answer::seen(
            "How many node pools and nodes are there?",
            format!("{} and {}", pools.len(), machines.len()),
        ));
        answers.extend(self.of_nodes(&pools, &machines).await);
        Ok(answers)
    }

    /// Does `GET /auth/currentCredential` work with this key?
    async fn own_rules(&self) -> Result<Answer, ApiError> {
        const QUESTION: &str = "May the key read its own rules?";
        match self.api.current_credential().await {
            Ok(credential) => {
                let until = credential.expiration.map(|at| format!(", and it ends at {at}"));
                let until = until.unwrap_or_default();
                Ok(Answer::seen(
                    QUESTION,
                    format!("yes: {} rules{until}", credential.rules.len()),
                ))
            }
            Err(error) if error.is(ApiErrorKind::NotGranted) => Ok(Answer::seen(QUESTION, "no")),
            Err(error) if error.is_unanswered() => Err(error),
            Err(error) => Ok(Answer::unknown(QUESTION, error.to_string())),
        }
    }

    /// What the Nodes of these machines say.
    pub(super) async fn of_nodes(&self, pools: &[Pool], machines: &[PoolNode]) -> Vec<Answer> {
        const LABELS: &str = "Do instance-type labels name the flavor?";
        const MEMORY: &str = "How much memory do machines have, and how much is left for pods?";
        const ZONES: &str = "What are the zones called?";
        let unknown = |why: &str| {
            let why = why.to_owned();
            [LABELS, MEMORY, ZONES].map(|question| Answer::unknown(question, why.clone()))
        };
        let Some(api) = &self.nodes else {
            return unknown(NO_CLUSTER).into();
        };
        let listed = match api.list(&ListParams::default()).await {
            Ok(listed) => listed.items,
            Err(error) => return unknown(&format!("the cluster's Nodes can't be read: {error}")).into(),
        };
        let known: Vec<(&PoolNode, &Node)> = machines
            .iter()
            .filter_map(|machine| {
                let id = machine.provider_id()?;
                let is_its = |node: &&Node| node.spec.as_ref().and_then(|spec| spec.provider_id.as_ref()) == Some(&id);
                Some((machine, listed.iter().find(is_its)?))
            })
            .collect();
        if known.is_empty() {
            return unknown("no machine of the cluster is a Node yet").into();
        }
        vec![
            Answer::seen(LABELS, instance_types(&known)),
            Answer::seen(MEMORY, memory(&known)),
            Answer::seen(ZONES, zones(pools, &known)),
        ]
    }
}

fn label<'a>(node: &'a Node, key: &str) -> &'a str {
    let labels = node.metadata.labels.as_ref();
    labels.and_then(|labels| labels.get(key)).map_or("", String::as_str)
}

fn instance_types(known: &[(&PoolNode, &Node)]) -> String {
    let is_named = |(machine, node): &&(&PoolNode, &Node)| label(node, labels::INSTANCE_TYPE) == machine.flavor;
    let named = known.iter().filter(is_named).count();
    let other = known.iter().find(|own| !is_named(own));
    match other {
        None => format!("yes, on all {named} Nodes"),
        Some((machine, node)) => format!(
            "on {named} of {} Nodes; {} is a {} and says {:?}",
            known.len(),
            machine.name,
            machine.flavor,
            label(node, labels::INSTANCE_TYPE)
        ),
    }
}

/// By flavor, the least that any Node has, beside what is estimated.
fn memory(known: &[(&PoolNode, &Node)]) -> String {
    let amount = |list: Option<&BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>>| {
        let own = list.and_then(|list| list.get(resources::MEMORY));
        own.and_then(|own| own.0.parse::<Quantity>().ok())
    };
    let mut by_flavor: BTreeMap<&str, (i64, i64)> = BTreeMap::new();
    for (machine, node) in known {
        let status = node.status.as_ref();
        let capacity = amount(status.and_then(|status| status.capacity.as_ref()));
        let allocatable = amount(status.and_then(|status| status.allocatable.as_ref()));
        let (Some(capacity), Some(allocatable)) = (capacity, allocatable) else {
            continue;
        };
        let row = by_flavor.entry(&machine.flavor).or_insert((i64::MAX, i64::MAX));
        *row = (row.0.min(mib(&capacity)), row.1.min(mib(&allocatable)));
    }
    let told = by_flavor.iter().map(|(flavor, (capacity, allocatable))| {
        let estimate = flavors::built_in(flavor).map(|own| {
            let capacity = overhead::memory(own.ram, MEMORY_OVERHEAD);
            let kept = overhead::overhead(&OvhNodeClassSpec::default(), own.vcpus, flavors::disk_gb(flavor));
            let left = capacity - kept.kube_reserved.memory() - kept.eviction_threshold.memory();
            format!(" (estimated: {} and {})", mib(&capacity), mib(&left))
        });
        format!(
            "{flavor}: {capacity} MiB and {allocatable} MiB{}",
            estimate.unwrap_or_default()
        )
    });
    told.collect::<Vec<_>>().join("; ")
}

fn mib(quantity: &Quantity) -> i64 {
    (quantity.to_f64() / f64::from(1 << 20)) as i64
}

fn zones(pools: &[Pool], known: &[(&PoolNode, &Node)]) -> String {
    let of_pools: BTreeSet<&str> = pools.iter().filter_map(Pool::zone).collect();
    let of_nodes: BTreeSet<&str> = known.iter().map(|(_, node)| label(node, labels::ZONE)).collect();
    let list = |zones: BTreeSet<&str>| match zones.is_empty() {
        true => "none".to_owned(),
        false => zones.into_iter().collect::<Vec<_>>().join(", "),
    };
    format!("by pools: {}; by Nodes: {}", list(of_pools), list(of_nodes))
}
