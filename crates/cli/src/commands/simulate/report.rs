//! The answer of a simulation as other programs read it (cli.md, "karpenter simulate").

use karpenter_api::{ResourceList, labels};
use karpenter_engine::{
    Catalog, Plan,
    disruption::{Command, Method, forecast::Forecast},
    model::{Node, Snapshot},
    plan::{LaunchOffering, PlannedClaim},
};
use serde::Serialize;

use crate::cluster_files::Cluster;

/// Lists are sorted, so that equal runs print equal bytes but for `timing`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report {
    api_version: &'static str,
    pub(crate) new_node_claims: Vec<NewNodeClaim>,
    pub(crate) existing_nodes: Vec<ExistingNode>,
    pub(crate) unschedulable: Vec<UnschedulablePod>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) disruption: Option<Vec<DisruptionCommand>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) blocked: Option<Vec<BlockedNode>>,
    pub(crate) cost: Cost,
    pub(crate) timing: Timing,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NewNodeClaim {
    pub(crate) node_pool: String,
    pub(crate) cheapest: Option<Cheapest>,
    pub(crate) instance_types: Vec<String>,
    requirements: Vec<RequirementEntry>,
    pub(crate) pods: Vec<String>,
    pub(crate) requests: ResourceList,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Cheapest {
    pub(crate) instance_type: String,
    pub(crate) zone: String,
    pub(crate) capacity_type: String,
    pub(crate) price: f64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct RequirementEntry {
    key: String,
    operator: &'static str,
    values: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    min_values: Option<u32>,
}

#[derive(Debug, Serialize)]
pub(crate) struct ExistingNode {
    pub(crate) name: String,
    pub(crate) pods: Vec<String>,
}

#[derive(Debug, Serialize)]
pub(crate) struct UnschedulablePod {
    pub(crate) pod: String,
    pub(crate) reason: String,
    pub(crate) codes: Vec<String>,
}

/// One command of the forecast.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DisruptionCommand {
    pub(crate) method: &'static str,
    pub(crate) decision: &'static str,
    pub(crate) nodes: Vec<String>,
    pub(crate) replacements: Vec<NewNodeClaim>,
    pub(crate) savings_per_hour: f64,
    pub(crate) reason: String,
}

#[derive(Debug, Serialize)]
pub(crate) struct BlockedNode {
    pub(crate) node: String,
    pub(crate) reasons: Vec<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Cost {
    pub(crate) current_per_hour: f64,
    pub(crate) after_per_hour: f64,
}

#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Timing {
    pub(crate) solve_millis: f64,
    pub(crate) load_millis: f64,
    pub(crate) pods_per_second: u64,
}

impl Report {
    pub(crate) fn new(cluster: &Cluster, plan: &Plan, timing: Timing) -> Self {
        let mut new_node_claims: Vec<NewNodeClaim> = plan.claims.iter().map(NewNodeClaim::new).collect();
        new_node_claims.sort_by(|a, b| (&a.node_pool, &a.pods).cmp(&(&b.node_pool, &b.pods)));
        let existing = plan.existing.iter().map(|placement| ExistingNode {
            name: placement.node.to_string(),
            pods: keys(&placement.pods),
        });
        let mut existing_nodes: Vec<ExistingNode> = existing.collect();
        existing_nodes.sort_by(|a, b| a.name.cmp(&b.name));
        Self {
            api_version: "karpenter-rs/simulate/v1",
            cost: Cost::new(&cluster.snapshot, plan),
            new_node_claims,
            existing_nodes,
            unschedulable: unschedulable(cluster, plan),
            disruption: None,
            blocked: None,
            timing,
        }
    }

    /// Adds what disruption would do, and counts it in the cost that is left in the end.
    pub(crate) fn add(&mut self, forecast: Forecast) {
        let saved: f64 = forecast.commands.iter().map(|command| command.savings).sum();
        self.cost.after_per_hour = money(self.cost.after_per_hour - saved);
        self.disruption = Some(forecast.commands.iter().map(DisruptionCommand::new).collect());
        let blocked = forecast.blocked.into_iter().map(|(node, reasons)| BlockedNode {
            node: node.to_string(),
            reasons: reasons.iter().map(ToString::to_string).collect(),
        });
        self.blocked = Some(blocked.collect());
    }
}

impl DisruptionCommand {
    fn new(command: &Command) -> Self {
        let mut nodes: Vec<String> = command
            .candidates
            .iter()
            .map(|candidate| candidate.name().to_owned())
            .collect();
        nodes.sort();
        Self {
            method: command.method.as_str(),
            decision: command.decision().as_str(),
            nodes,
            replacements: command.replacements.iter().map(NewNodeClaim::new).collect(),
            savings_per_hour: money(command.savings),
            reason: match command.method {
                Method::Emptiness => "nothing runs there that would be missed".to_owned(),
                Method::StaticDrift | Method::Drift => drift_reasons(command),
                Method::Repair => command.ailment.as_ref().map_or_else(String::new, |ailment| {
                    format!("{}={} ({})", ailment.condition, ailment.status, ailment.reason)
                }),
                Method::MultiNodeConsolidation | Method::SingleNodeConsolidation => match command.replacements.len() {
                    0 => "its pods fit on the other nodes".to_owned(),
                    _ => "a cheaper node holds its pods".to_owned(),
                },
            },
        }
    }
}

fn drift_reasons(command: &Command) -> String {
    let reasons = command
        .candidates
        .iter()
        .filter_map(|candidate| candidate.claim.drift_reason.as_deref());
    reasons.collect::<Vec<_>>().join(", ")
}

impl NewNodeClaim {
    fn new(claim: &PlannedClaim) -> Self {
        let requirements = claim.requirements.to_wire().into_iter().map(|entry| RequirementEntry {
            key: entry.key,
            operator: entry.operator.as_str(),
            values: entry.values,
            min_values: entry.min_values,
        });
        Self {
            node_pool: claim.node_pool.name.clone(),
            cheapest: claim.cheapest.as_ref().map(Cheapest::new),
            instance_types: claim
                .instance_types
                .iter()
                .map(|instance_type| instance_type.name.clone())
                .collect(),
            requirements: requirements.collect(),
            pods: keys(&claim.pods),
            requests: claim.requests.clone(),
        }
    }
}

impl Cheapest {
    fn new(offering: &LaunchOffering) -> Self {
        Self {
            instance_type: offering.instance_type.clone(),
            zone: offering.zone.clone(),
            capacity_type: offering.capacity_type.clone(),
            price: money(offering.price),
        }
    }
}

/// Pods that found no place, were refused before anyone looked, or wait for a reservation.
fn unschedulable(cluster: &Cluster, plan: &Plan) -> Vec<UnschedulablePod> {
    let refused = plan
        .unschedulable
        .iter()
        .chain(&plan.deferred)
        .map(|refused| UnschedulablePod {
            pod: refused.pod.key(),
            reason: refused.reason.to_string(),
            codes: refused
                .reason
                .codes()
                .into_iter()
                .map(|code| code.as_str().to_owned())
                .collect(),
        });
    let invalid = cluster.invalid.iter().map(|(pod, problems)| {
        let sentences: Vec<String> = problems.iter().map(ToString::to_string).collect();
        let mut codes: Vec<String> = problems.iter().map(|problem| problem.code().to_owned()).collect();
        codes.dedup();
        UnschedulablePod {
            pod: pod.key(),
            reason: sentences.join("; "),
            codes,
        }
    });
    let unreached = plan.not_reached.iter().map(|pod| UnschedulablePod {
        pod: pod.key(),
        reason: "the time allowed for the decision was over before this pod was looked at".to_owned(),
        codes: vec!["DeadlineExceeded".to_owned()],
    });
    let mut pods: Vec<UnschedulablePod> = refused.chain(invalid).chain(unreached).collect();
    pods.sort_by(|a, b| a.pod.cmp(&b.pod));
    pods
}

impl Cost {
    fn new(snapshot: &Snapshot, plan: &Plan) -> Self {
        let price = |node: &Node| price_of(&snapshot.catalog, node).unwrap_or(0.0);
        let current: f64 = snapshot.nodes.iter().map(|node| price(node)).sum();
        let staying: f64 = snapshot
            .nodes
            .iter()
            .filter(|node| !node.deleting)
            .map(|node| price(node))
            .sum();
        Self {
            current_per_hour: money(current),
            after_per_hour: money(staying + plan.price()),
        }
    }
}

/// What a running node costs: the offering of its type in its zone and capacity type (api.md §7.3).
pub(crate) fn price_of(catalog: &Catalog, node: &Node) -> Option<f64> {
    let pool = node.node_pool.as_deref()?;
    let instance_type = catalog.instance_type(pool, node.labels.get(labels::INSTANCE_TYPE)?)?;
    let has = |key: &str, offering: &karpenter_engine::model::Offering| {
        let value = offering
            .requirements
            .get(key)
            .and_then(|requirement| requirement.single_value());
        value.is_some() && value == node.labels.get(key).map(String::as_str)
    };
    let offering = instance_type
        .offerings
        .iter()
        .find(|o| has(labels::ZONE, o) && has(labels::CAPACITY_TYPE, o))?;
    Some(offering.price)
}

fn keys(pods: &[std::sync::Arc<karpenter_engine::model::Pod>]) -> Vec<String> {
    let mut keys: Vec<String> = pods.iter().map(|pod| pod.key()).collect();
    keys.sort();
    keys
}

/// Prices to a billionth: sums of decimal prices are decimal again.
pub(crate) fn money(amount: f64) -> f64 {
    // Adding zero turns the negative zero of an empty sum into a plain one.
    (amount * 1e9).round() / 1e9 + 0.0
}

impl Timing {
    pub(crate) fn new(load: std::time::Duration, solve: std::time::Duration, pending: usize) -> Self {
        let millis = |duration: std::time::Duration| (duration.as_secs_f64() * 1e6).round() / 1e3;
        let seconds = solve.as_secs_f64().max(1e-9);
        Self {
            solve_millis: millis(solve),
            load_millis: millis(load),
            pods_per_second: (pending as f64 / seconds).round() as u64,
        }
    }
}
