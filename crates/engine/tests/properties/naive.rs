//! A checker of placements that shares no code with the engine: slow, literal, and written from Kubernetes' own rules.
//!
//! A planned node is still a choice among instance types, zones and capacity types, so it is checked as a set of *worlds*:
//! whatever the cloud picks, every pod on it must be where kube-scheduler would allow it.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::{
    api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm, Pod, PodAffinityTerm, Taint, Toleration},
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::LabelSelector},
};

pub(crate) type Labels = BTreeMap<String, String>;
pub(crate) type Amounts = BTreeMap<String, i128>;

/// One way in which a node could come into being: its labels and what it can hold.
#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) labels: Labels,
    pub(crate) allocatable: Amounts,
    /// How many volumes can be attached; all test volumes have one driver.
    pub(crate) volumes: usize,
}

/// A node with the pods that would run on it.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    pub(crate) name: String,
    pub(crate) taints: Vec<Taint>,
    pub(crate) worlds: Vec<World>,
    /// Pods that were there before.
    pub(crate) bound: Vec<Pod>,
    /// Pods that the plan puts there.
    pub(crate) placed: Vec<Pod>,
    /// DaemonSet pods that would join where taints and labels let them.
    pub(crate) daemons: Vec<Pod>,
}

/// Everything that is wrong with a plan, as sentences.
pub(crate) fn violations(machines: &[Machine]) -> Vec<String> {
    let mut found = Vec::new();
    for machine in machines {
        if machine.worlds.is_empty() {
            found.push(format!("{} can't come into being", machine.name));
        }
        taints(machine, &mut found);
        ports(machine, &mut found);
        for world in &machine.worlds {
            resources(machine, world, &mut found);
            volumes(machine, world, &mut found);
            selectors(machine, world, &mut found);
        }
    }
    // Zones are what planned nodes leave open and topology asks about: try the extremes of every choice.
    let most = machines.iter().map(|m| m.worlds.len()).max().unwrap_or(0);
    for pick in [0, most / 2, most.saturating_sub(1)] {
        let chosen: Vec<Chosen<'_>> = machines
            .iter()
            .filter_map(|machine| {
                Some(Chosen {
                    machine,
                    labels: &machine.worlds.get(pick % machine.worlds.len().max(1))?.labels,
                })
            })
            .collect();
        anti_affinity(&chosen, &mut found);
        affinity(&chosen, &mut found);
        spread(&chosen, &mut found);
    }
    found.sort();
    found.dedup();
    found
}

struct Chosen<'a> {
    machine: &'a Machine,
    labels: &'a Labels,
}

impl Chosen<'_> {
    fn domain(&self, key: &str) -> Option<&str> {
        self.labels.get(key).map(String::as_str)
    }
}

fn all_pods<'a>(chosen: &'a [Chosen<'a>]) -> impl Iterator<Item = (&'a Chosen<'a>, &'a Pod)> {
    chosen
        .iter()
        .flat_map(|c| c.machine.bound.iter().chain(&c.machine.placed).map(move |pod| (c, pod)))
}

fn placed_pods<'a>(chosen: &'a [Chosen<'a>]) -> impl Iterator<Item = (&'a Chosen<'a>, &'a Pod)> {
    chosen
        .iter()
        .flat_map(|c| c.machine.placed.iter().map(move |pod| (c, pod)))
}

fn name(pod: &Pod) -> String {
    format!(
        "{}/{}",
        namespace(pod),
        pod.metadata.name.as_deref().unwrap_or_default()
    )
}

fn namespace(pod: &Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap_or("default")
}

fn spec(pod: &Pod) -> &k8s_openapi::api::core::v1::PodSpec {
    pod.spec.as_ref().expect("test pods have a spec")
}

// === taints ===

fn taints(machine: &Machine, found: &mut Vec<String>) {
    for pod in &machine.placed {
        if !tolerates_all(pod, &machine.taints) {
            found.push(format!("{} is on {} despite its taints", name(pod), machine.name));
        }
    }
}

fn tolerates_all(pod: &Pod, taints: &[Taint]) -> bool {
    let tolerations = spec(pod).tolerations.as_deref().unwrap_or_default();
    let hard = taints.iter().filter(|taint| taint.effect != "PreferNoSchedule");
    hard.into_iter()
        .all(|taint| tolerations.iter().any(|toleration| tolerates(toleration, taint)))
}

fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let (key, effect) = (text(&toleration.key), text(&toleration.effect));
    if !effect.is_empty() && effect != taint.effect || !key.is_empty() && key != taint.key {
        return false;
    }
    match toleration.operator.as_deref() {
        Some("Exists") => true,
        _ => text(&toleration.value) == text(&taint.value),
    }
}

// === ports ===

fn ports(machine: &Machine, found: &mut Vec<String>) {
    let mut seen: Vec<(String, i32, String, String, bool)> = Vec::new();
    for pod in machine.bound.iter().chain(&machine.placed) {
        for container in &spec(pod).containers {
            for port in container.ports.iter().flatten() {
                let Some(number) = port.host_port.filter(|p| *p != 0) else {
                    continue;
                };
                let protocol = port.protocol.clone().unwrap_or_else(|| "TCP".into());
                let ip = port
                    .host_ip
                    .clone()
                    .filter(|ip| !ip.is_empty())
                    .unwrap_or_else(|| "0.0.0.0".into());
                let any = |ip: &str| ip == "0.0.0.0" || ip == "::";
                for (other_protocol, other_number, other_ip, owner, owner_bound) in &seen {
                    let same_ip = *other_ip == ip || any(&ip) || any(other_ip);
                    let both_bound = *owner_bound && spec(pod).node_name.is_some();
                    let same_port = *other_protocol == protocol && *other_number == number && same_ip;
                    if same_port && !both_bound && *owner != name(pod) {
                        found.push(format!(
                            "{} and {owner} both want port {number} of {}",
                            name(pod),
                            machine.name
                        ));
                    }
                }
                seen.push((protocol, number, ip, name(pod), spec(pod).node_name.is_some()));
            }
        }
    }
}

// === resources ===

fn resources(machine: &Machine, world: &World, found: &mut Vec<String>) {
    if machine.placed.is_empty() {
        return;
    }
    let mut used = Amounts::new();
    let daemons = machine
        .daemons
        .iter()
        .filter(|pod| tolerates_all(pod, &machine.taints) && node_matches(pod, &world.labels));
    for pod in machine.bound.iter().chain(&machine.placed).chain(daemons) {
        for (resource, amount) in requests(pod) {
            *used.entry(resource).or_default() += amount;
        }
    }
    for (resource, amount) in used {
        let there = world.allocatable.get(&resource).copied().unwrap_or(0);
        if amount > there {
            found.push(format!("{} holds {amount} of {there} milli-{resource}", machine.name));
        }
    }
}

/// What a pod asks for, in thousandths: containers together, or the largest init container, whichever is more.
pub(crate) fn requests(pod: &Pod) -> Amounts {
    let mut total = Amounts::new();
    let of = |resources: &Option<k8s_openapi::api::core::v1::ResourceRequirements>| -> Amounts {
        let requests = resources.as_ref().and_then(|r| r.requests.as_ref());
        requests
            .into_iter()
            .flatten()
            .map(|(resource, quantity)| (resource.clone(), milli(quantity)))
            .collect()
    };
    for container in &spec(pod).containers {
        for (resource, amount) in of(&container.resources) {
            *total.entry(resource).or_default() += amount;
        }
    }
    for init in spec(pod).init_containers.iter().flatten() {
        assert!(init.restart_policy.is_none(), "the naive checker knows no sidecars");
        for (resource, amount) in of(&init.resources) {
            let entry = total.entry(resource).or_default();
            *entry = amount.max(*entry);
        }
    }
    total.insert("pods".into(), 1000);
    total
}

pub(crate) fn milli(quantity: &Quantity) -> i128 {
    let text = quantity.0.as_str();
    let suffixes: [(&str, i128); 9] = [
        ("Ki", 1 << 10),
        ("Mi", 1 << 20),
        ("Gi", 1 << 30),
        ("Ti", 1 << 40),
        ("k", 1_000),
        ("M", 1_000_000),
        ("G", 1_000_000_000),
        ("T", 1_000_000_000_000),
        ("", 1),
    ];
    if let Some(number) = text.strip_suffix('m') {
        return number.parse().expect("test quantities are plain");
    }
    let (number, factor) = suffixes
        .iter()
        .find_map(|(suffix, factor)| Some((text.strip_suffix(suffix)?, *factor)))
        .expect("the empty suffix always matches");
    number.parse::<i128>().expect("test quantities are plain") * factor * 1000
}

// === volumes ===

fn volumes(machine: &Machine, world: &World, found: &mut Vec<String>) {
    let mounted = |pod: &Pod| -> Vec<(String, String)> {
        let volumes = spec(pod).volumes.iter().flatten();
        let claims = volumes.filter_map(|volume| volume.persistent_volume_claim.as_ref());
        claims
            .map(|claim| (namespace(pod).to_owned(), claim.claim_name.clone()))
            .collect()
    };
    let attached: BTreeSet<_> = machine.bound.iter().chain(&machine.placed).flat_map(mounted).collect();
    let adds_volumes = machine.placed.iter().any(|pod| !mounted(pod).is_empty());
    if adds_volumes && attached.len() > world.volumes {
        found.push(format!(
            "{} attaches {} volumes of at most {}",
            machine.name,
            attached.len(),
            world.volumes
        ));
    }
}

// === selectors ===

fn selectors(machine: &Machine, world: &World, found: &mut Vec<String>) {
    for pod in &machine.placed {
        if !node_matches(pod, &world.labels) {
            found.push(format!(
                "{} is on {}, whose labels it does not select",
                name(pod),
                machine.name
            ));
        }
    }
}

/// nodeSelector and required node affinity, as kube-scheduler reads them.
pub(crate) fn node_matches(pod: &Pod, labels: &Labels) -> bool {
    let selected = spec(pod)
        .node_selector
        .iter()
        .flatten()
        .all(|(key, value)| labels.get(key) == Some(value));
    let required = spec(pod)
        .affinity
        .as_ref()
        .and_then(|a| a.node_affinity.as_ref())
        .and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
    selected
        && required.is_none_or(|selector| {
            selector
                .node_selector_terms
                .iter()
                .any(|term| term_matches(term, labels))
        })
}

fn term_matches(term: &NodeSelectorTerm, labels: &Labels) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    !expressions.is_empty()
        && expressions
            .iter()
            .all(|expression| expression_matches(expression, labels))
}

fn expression_matches(expression: &NodeSelectorRequirement, labels: &Labels) -> bool {
    let value = labels.get(&expression.key);
    let values = expression.values.as_deref().unwrap_or_default();
    let number = |text: &String| text.parse::<i64>().ok();
    let compare = |test: fn(&i64, &i64) -> bool| {
        value
            .and_then(number)
            .zip(values.first().and_then(number))
            .is_some_and(|(have, want)| test(&have, &want))
    };
    match expression.operator.as_str() {
        "In" => value.is_some_and(|v| values.contains(v)),
        "NotIn" => value.is_none_or(|v| !values.contains(v)),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compare(i64::gt),
        "Lt" => compare(i64::lt),
        other => panic!("operator {other} is not one that test pods use"),
    }
}

// === pod affinity ===

fn label_selector_matches(selector: Option<&LabelSelector>, pod: &Pod) -> bool {
    let Some(selector) = selector else { return false };
    let empty = Labels::new();
    let labels = pod.metadata.labels.as_ref().unwrap_or(&empty);
    assert!(
        selector.match_expressions.is_none(),
        "the naive checker knows only matchLabels"
    );
    selector
        .match_labels
        .iter()
        .flatten()
        .all(|(key, value)| labels.get(key) == Some(value))
}

fn term_selects(term: &PodAffinityTerm, owner: &Pod, other: &Pod) -> bool {
    assert!(
        term.namespace_selector.is_none(),
        "the naive checker knows no namespace selectors"
    );
    let namespaces: BTreeSet<&str> = match term.namespaces.as_deref() {
        None | Some([]) => BTreeSet::from([namespace(owner)]),
        Some(list) => list.iter().map(String::as_str).collect(),
    };
    namespaces.contains(namespace(other)) && label_selector_matches(term.label_selector.as_ref(), other)
}

fn required_affinity(pod: &Pod) -> Vec<PodAffinityTerm> {
    let affinity = spec(pod).affinity.as_ref().and_then(|a| a.pod_affinity.as_ref());
    affinity
        .and_then(|a| a.required_during_scheduling_ignored_during_execution.clone())
        .unwrap_or_default()
}

fn required_anti_affinity(pod: &Pod) -> Vec<PodAffinityTerm> {
    let affinity = spec(pod).affinity.as_ref().and_then(|a| a.pod_anti_affinity.as_ref());
    affinity
        .and_then(|a| a.required_during_scheduling_ignored_during_execution.clone())
        .unwrap_or_default()
}

fn anti_affinity(chosen: &[Chosen<'_>], found: &mut Vec<String>) {
    for (at, owner) in all_pods(chosen) {
        for term in required_anti_affinity(owner) {
            let Some(domain) = at.domain(&term.topology_key) else {
                continue;
            };
            for (other_at, other) in all_pods(chosen) {
                let both_bound = spec(owner).node_name.is_some() && spec(other).node_name.is_some();
                if both_bound || name(owner) == name(other) || other_at.domain(&term.topology_key) != Some(domain) {
                    continue;
                }
                if term_selects(&term, owner, other) {
                    found.push(format!(
                        "{} and {} share {} {domain}, which anti-affinity forbids",
                        name(owner),
                        name(other),
                        term.topology_key
                    ));
                }
            }
        }
    }
}

fn affinity(chosen: &[Chosen<'_>], found: &mut Vec<String>) {
    for (at, pod) in placed_pods(chosen) {
        for term in required_affinity(pod) {
            let key = &term.topology_key;
            let Some(domain) = at.domain(key) else {
                found.push(format!("{} is on {}, which has no {key}", name(pod), at.machine.name));
                continue;
            };
            let others: Vec<Option<&str>> = all_pods(chosen)
                .filter(|(_, other)| name(other) != name(pod) && term_selects(&term, pod, other))
                // Pods where this one can't go don't keep it from being the first where it can.
                .filter(|(other_at, _)| node_matches(pod, other_at.labels))
                // Nor do pods that can't come here: they were the first where they can (scheduling.md §5.5).
                .filter(|(_, other)| node_matches(other, at.labels))
                .map(|(other_at, _)| other_at.domain(key))
                .collect();
            let first_of_its_kind = term_selects(&term, pod, pod) && others.iter().all(Option::is_none);
            if !others.contains(&Some(domain)) && !first_of_its_kind {
                found.push(format!(
                    "{} is in {key} {domain} without the pods it has affinity to",
                    name(pod)
                ));
            }
        }
    }
}

// === topology spread ===

/// Skew is a promise at the moment of placing; it survives to the end where every pod that counts made the same promise.
fn spread(chosen: &[Chosen<'_>], found: &mut Vec<String>) {
    for (at, pod) in placed_pods(chosen) {
        for constraint in spec(pod).topology_spread_constraints.iter().flatten() {
            if constraint.when_unsatisfiable != "DoNotSchedule" {
                continue;
            }
            let key = &constraint.topology_key;
            let Some(domain) = at.domain(key) else {
                found.push(format!("{} is on {}, which has no {key}", name(pod), at.machine.name));
                continue;
            };
            let selector = constraint.label_selector.as_ref();
            let counted: Vec<_> = all_pods(chosen)
                .filter(|(_, other)| namespace(other) == namespace(pod) && label_selector_matches(selector, other))
                .collect();
            let same_promise = |other: &Pod| {
                spec(other)
                    .topology_spread_constraints
                    .iter()
                    .flatten()
                    .any(|c| c == constraint)
                    && spec(other).node_selector == spec(pod).node_selector
                    && spec(other).affinity.as_ref().and_then(|a| a.node_affinity.as_ref())
                        == spec(pod).affinity.as_ref().and_then(|a| a.node_affinity.as_ref())
            };
            if !counted.iter().all(|(_, other)| same_promise(other)) || !label_selector_matches(selector, pod) {
                continue;
            }
            let mut counts: BTreeMap<&str, i32> = BTreeMap::new();
            if key != "kubernetes.io/hostname" {
                // Only domains of nodes that the pod could use count towards the minimum.
                for c in chosen.iter().filter(|c| node_matches(pod, c.labels)) {
                    if let Some(d) = c.domain(key) {
                        counts.entry(d).or_default();
                    }
                }
            }
            // Nor do pods count that run where this one could not go (nodeAffinityPolicy: Honor).
            for (other_at, _) in counted.iter().filter(|(at, _)| node_matches(pod, at.labels)) {
                if let Some(d) = other_at.domain(key) {
                    *counts.entry(d).or_default() += 1;
                }
            }
            let lowest = if key == "kubernetes.io/hostname" {
                0
            } else {
                counts.values().copied().min().unwrap_or(0)
            };
            if counts.get(domain).copied().unwrap_or(0) - lowest > constraint.max_skew {
                found.push(format!(
                    "{key} {domain} holds more than {} pods over the emptiest for {}",
                    constraint.max_skew,
                    name(pod)
                ));
            }
        }
    }
}
