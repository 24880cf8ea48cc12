//! kube-scheduler's filters read off the documentation, pod by pod and without any index.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    Node, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodAffinityTerm, Taint, Toleration, TopologySpreadConstraint,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

type Labels = BTreeMap<String, String>;

/// A cluster as plain lists.
#[derive(Debug, Default, Clone)]
pub(super) struct NaiveCluster {
    pub(super) nodes: Vec<Node>,
    pub(super) placed: Vec<(Pod, String)>,
}

impl NaiveCluster {
    pub(super) fn fits(&self, pod: &Pod, node: &Node) -> bool {
        tolerated(pod, node)
            && selected(pod, node)
            && self.ports_free(pod, node)
            && self.room(pod, node)
            && self.spread_ok(pod, node)
            && self.affinity_ok(pod, node)
    }

    fn on<'c>(&'c self, node: &'c Node) -> impl Iterator<Item = &'c Pod> {
        let name = node.metadata.name.clone().unwrap_or_default();
        self.placed
            .iter()
            .filter(move |(_, at)| *at == name)
            .map(|(pod, _)| pod)
    }

    fn ports_free(&self, pod: &Pod, node: &Node) -> bool {
        let wanted = ports(pod);
        !self.on(node).flat_map(ports).any(|used| wanted.contains(&used))
    }

    fn room(&self, pod: &Pod, node: &Node) -> bool {
        let offer = |name: &str| {
            let allocatable = node
                .status
                .as_ref()
                .and_then(|s| s.allocatable.clone())
                .unwrap_or_default();
            allocatable.get(name).map_or(0, |q| plain(name, &q.0))
        };
        let count = i64::try_from(self.on(node).count()).expect("few pods");
        if count + 1 > offer("pods") {
            return false;
        }
        requested(pod).iter().all(|(name, amount)| {
            let used: i64 = self
                .on(node)
                .map(|p| requested(p).get(name).copied().unwrap_or(0))
                .sum();
            *amount == 0 || used + amount <= offer(name)
        })
    }

    fn spread_ok(&self, pod: &Pod, node: &Node) -> bool {
        let all: Vec<TopologySpreadConstraint> = spec(pod).topology_spread_constraints.unwrap_or_default();
        let hard: Vec<&TopologySpreadConstraint> =
            all.iter().filter(|c| c.when_unsatisfiable == "DoNotSchedule").collect();
        hard.iter().all(|constraint| {
            let Some(here) = labels(node).get(&constraint.topology_key).cloned() else {
                return false;
            };
            let counted = |n: &&Node| {
                hard.iter().all(|c| labels(n).contains_key(&c.topology_key))
                    && (constraint.node_affinity_policy.as_deref() == Some("Ignore") || selected(pod, n))
                    && (constraint.node_taints_policy.as_deref() != Some("Honor") || no_taint_repels(pod, n))
            };
            let mut domains: BTreeMap<String, i64> = BTreeMap::new();
            for n in self.nodes.iter().filter(counted) {
                let matching = self.on(n).filter(|p| {
                    p.metadata.namespace == pod.metadata.namespace
                        && p.metadata.deletion_timestamp.is_none()
                        && constraint
                            .label_selector
                            .as_ref()
                            .is_some_and(|s| !is_empty(s) && matches(s, &pod_labels(p)))
                });
                *domains.entry(labels(n)[&constraint.topology_key].clone()).or_default() +=
                    i64::try_from(matching.count()).expect("few pods");
            }
            let few = i64::try_from(domains.len()).expect("few") < i64::from(constraint.min_domains.unwrap_or(1));
            let least = if few {
                0
            } else {
                domains.values().copied().min().unwrap_or(0)
            };
            let own = constraint
                .label_selector
                .as_ref()
                .is_some_and(|s| matches(s, &pod_labels(pod)));
            domains.get(&here).copied().unwrap_or(0) + i64::from(own) - least <= i64::from(constraint.max_skew)
        })
    }

    fn affinity_ok(&self, pod: &Pod, node: &Node) -> bool {
        let wanted = terms(pod, Side::Affinity);
        if !wanted.is_empty() {
            if !wanted.iter().all(|t| labels(node).contains_key(&t.topology_key)) {
                return false;
            }
            let friend = |p: &Pod| wanted.iter().all(|t| term_matches(t, pod, p));
            let near = |t: &PodAffinityTerm| self.neighbours(node, &t.topology_key).any(friend);
            let anywhere = self
                .nodes
                .iter()
                .any(|n| wanted.iter().any(|t| labels(n).contains_key(&t.topology_key)) && self.on(n).any(friend));
            let founds = !anywhere && friend(pod);
            if !(wanted.iter().all(near) || founds) {
                return false;
            }
        }
        let disliked = terms(pod, Side::Anti)
            .iter()
            .any(|t| self.neighbours(node, &t.topology_key).any(|p| term_matches(t, pod, p)));
        let unwelcome = self.placed.iter().any(|(other, at)| {
            let Some(home) = self.nodes.iter().find(|n| n.metadata.name.as_ref() == Some(at)) else {
                return false;
            };
            terms(other, Side::Anti).iter().any(|t| {
                let (here, there) = (labels(node), labels(home));
                term_matches(t, other, pod)
                    && here.contains_key(&t.topology_key)
                    && here.get(&t.topology_key) == there.get(&t.topology_key)
            })
        });
        !disliked && !unwelcome
    }

    /// Pods in the same domain as the node; none if it has no such domain.
    fn neighbours<'c>(&'c self, node: &Node, key: &str) -> impl Iterator<Item = &'c Pod> {
        let domain = labels(node).get(key).cloned();
        let key = key.to_owned();
        let same = move |n: &&Node| domain.is_some() && labels(n).get(&key) == domain.as_ref();
        self.nodes.iter().filter(same).flat_map(|n| self.on(n))
    }
}

enum Side {
    Affinity,
    Anti,
}

fn terms(pod: &Pod, side: Side) -> Vec<PodAffinityTerm> {
    let affinity = spec(pod).affinity.unwrap_or_default();
    let list = match side {
        Side::Affinity => affinity
            .pod_affinity
            .and_then(|a| a.required_during_scheduling_ignored_during_execution),
        Side::Anti => affinity
            .pod_anti_affinity
            .and_then(|a| a.required_during_scheduling_ignored_during_execution),
    };
    list.unwrap_or_default()
}

/// Whether `of`'s term means `other`: the generator leaves namespaces at their default, the pod's own.
fn term_matches(term: &PodAffinityTerm, of: &Pod, other: &Pod) -> bool {
    of.metadata.namespace == other.metadata.namespace
        && term
            .label_selector
            .as_ref()
            .is_some_and(|s| matches(s, &pod_labels(other)))
}

fn spec(pod: &Pod) -> k8s_openapi::api::core::v1::PodSpec {
    pod.spec.clone().unwrap_or_default()
}

fn labels(node: &Node) -> Labels {
    node.metadata.labels.clone().unwrap_or_default()
}

fn pod_labels(pod: &Pod) -> Labels {
    pod.metadata.labels.clone().unwrap_or_default()
}

fn is_empty(selector: &LabelSelector) -> bool {
    selector.match_labels.as_ref().is_none_or(BTreeMap::is_empty)
        && selector.match_expressions.as_ref().is_none_or(Vec::is_empty)
}

fn matches(selector: &LabelSelector, labels: &Labels) -> bool {
    selector
        .match_labels
        .iter()
        .flatten()
        .all(|(k, v)| labels.get(k) == Some(v))
        && selector.match_expressions.iter().flatten().all(|e| {
            let value = labels.get(&e.key);
            let listed = value.is_some_and(|v| e.values.iter().flatten().any(|w| w == v));
            match e.operator.as_str() {
                "In" => listed,
                "NotIn" => !listed,
                "Exists" => value.is_some(),
                _ => value.is_none(),
            }
        })
}

fn ports(pod: &Pod) -> BTreeSet<i32> {
    let containers = spec(pod).containers;
    containers
        .iter()
        .flat_map(|c| c.ports.iter().flatten())
        .filter_map(|p| p.host_port)
        .collect()
}

/// The generator writes cpu in whole cores or `m`, memory in `Gi`, everything else plain.
fn plain(name: &str, text: &str) -> i64 {
    if let Some(milli) = text.strip_suffix('m') {
        return milli.parse().expect("a number");
    }
    let number: i64 = text.trim_end_matches("Gi").parse().expect("a number");
    match name {
        "cpu" => number * 1000,
        _ => number,
    }
}

fn requested(pod: &Pod) -> BTreeMap<String, i64> {
    let mut total = BTreeMap::new();
    for container in spec(pod).containers {
        for (name, quantity) in container.resources.and_then(|r| r.requests).unwrap_or_default() {
            *total.entry(name.clone()).or_default() += plain(&name, &quantity.0);
        }
    }
    total
}

fn no_taint_repels(pod: &Pod, node: &Node) -> bool {
    let taints: Vec<Taint> = node.spec.as_ref().and_then(|s| s.taints.clone()).unwrap_or_default();
    let tolerations: Vec<Toleration> = spec(pod).tolerations.unwrap_or_default();
    taints.iter().filter(|t| t.effect != "PreferNoSchedule").all(|taint| {
        tolerations.iter().any(|t| {
            (t.effect.is_none() || t.effect.as_ref() == Some(&taint.effect))
                && (t.key.is_none() || t.key.as_ref() == Some(&taint.key))
                && (t.operator.as_deref() == Some("Exists") || (t.key.is_some() && t.value == taint.value))
        })
    })
}

fn tolerated(pod: &Pod, node: &Node) -> bool {
    let cordoned = node.spec.as_ref().and_then(|s| s.unschedulable).unwrap_or(false);
    let accepts_cordon = spec(pod).tolerations.unwrap_or_default().iter().any(|t| {
        t.operator.as_deref() == Some("Exists")
            && (t.key.is_none() || t.key.as_deref() == Some("node.kubernetes.io/unschedulable"))
            && t.effect.as_deref().is_none_or(|e| e == "NoSchedule")
    });
    (!cordoned || accepts_cordon) && no_taint_repels(pod, node)
}

fn selected(pod: &Pod, node: &Node) -> bool {
    let labels = labels(node);
    let spec = spec(pod);
    let required = spec
        .affinity
        .and_then(|a| a.node_affinity)
        .and_then(|a| a.required_during_scheduling_ignored_during_execution);
    spec.node_selector
        .unwrap_or_default()
        .iter()
        .all(|(k, v)| labels.get(k) == Some(v))
        && required.is_none_or(|r| r.node_selector_terms.iter().any(|t| term(t, &labels)))
}

fn term(term: &NodeSelectorTerm, labels: &Labels) -> bool {
    let expressions: &[NodeSelectorRequirement] = term.match_expressions.as_deref().unwrap_or_default();
    !expressions.is_empty()
        && expressions.iter().all(|e| {
            let value = labels.get(&e.key);
            let listed = value.is_some_and(|v| e.values.iter().flatten().any(|w| w == v));
            let number = value.and_then(|v| v.parse::<i64>().ok());
            let bound = e.values.iter().flatten().next().and_then(|v| v.parse::<i64>().ok());
            match e.operator.as_str() {
                "In" => listed,
                "NotIn" => !listed,
                "Exists" => value.is_some(),
                "DoesNotExist" => value.is_none(),
                "Gt" => number.zip(bound).is_some_and(|(n, b)| n > b),
                _ => number.zip(bound).is_some_and(|(n, b)| n < b),
            }
        })
}
