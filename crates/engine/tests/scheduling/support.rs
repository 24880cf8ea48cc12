//! A cluster in a few readable lines, and what came out of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use karpenter_api::labels::{self, LabelRules};
use karpenter_api::requirement::{Operator, Requirement, Requirements};
use karpenter_api::resources::ResourceList;
use karpenter_engine::model::*;
use karpenter_engine::{Catalog, Plan, PoolTypes, Simulator, WhatIf, solve};

pub(crate) const ZONE: &str = labels::ZONE;
pub(crate) const HOSTNAME: &str = labels::HOSTNAME;
pub(crate) const ZONES: [&str; 3] = ["zone-1", "zone-2", "zone-3"];
pub(crate) const RESERVATION: &str = "example.com/reservation-id";

pub(crate) fn resources(list: &[(&str, &str)]) -> ResourceList {
    list.iter()
        .map(|(name, amount)| (*name, amount.parse().unwrap()))
        .collect()
}

pub(crate) fn labels_of(list: &[(&str, &str)]) -> Labels {
    list.iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

pub(crate) fn within(key: &str, values: &[&str]) -> Requirement {
    Requirement::within(key, values.iter().copied())
}

pub(crate) fn not_in(key: &str, values: &[&str]) -> Requirement {
    Requirement::new(key, Operator::NotIn, values.iter().copied())
}

/// An instance type with on-demand and spot offerings in all zones, at 0.10 a core.
pub(crate) fn shape(name: &str, cpu: u32, memory: &str) -> InstanceType {
    shape_in(name, cpu, memory, &ZONES)
}

pub(crate) fn shape_in(name: &str, cpu: u32, memory: &str, zones: &[&str]) -> InstanceType {
    let mut offerings = Vec::new();
    for zone in zones {
        offerings.push(offering(zone, "on-demand", 0.1 * f64::from(cpu)));
        offerings.push(offering(zone, "spot", 0.04 * f64::from(cpu)));
    }
    InstanceType {
        name: name.to_owned(),
        requirements: Requirements::from_iter([
            within(labels::INSTANCE_TYPE, &[name]),
            within(labels::ARCH, &["amd64"]),
            within(labels::OS, &["linux"]),
            within(ZONE, zones),
            within(labels::CAPACITY_TYPE, &["on-demand", "spot"]),
        ]),
        offerings,
        capacity: resources(&[("cpu", &cpu.to_string()), ("memory", memory), ("pods", "110")]),
        overhead: Overhead::default(),
        volume_limits: BTreeMap::new(),
        capacity_overlaid: false,
    }
}

pub(crate) fn offering(zone: &str, capacity_type: &str, price: f64) -> Offering {
    Offering {
        requirements: Requirements::from_iter([within(ZONE, &[zone]), within(labels::CAPACITY_TYPE, &[capacity_type])]),
        price,
        available: true,
        reservation_capacity: 0,
        overrides: OfferingOverrides::default(),
        price_overlaid: false,
    }
}

pub(crate) fn reserved(zone: &str, id: &str, slots: u32) -> Offering {
    let mut offering = offering(zone, "reserved", 0.001);
    offering.requirements.add(within(RESERVATION, &[id]));
    offering.reservation_capacity = slots;
    offering
}

/// 1, 2, 4, 8 and 16 cores with 4 GiB each.
pub(crate) fn shapes() -> Vec<InstanceType> {
    [1, 2, 4, 8, 16]
        .map(|cpu| shape(&format!("m-{cpu}"), cpu, &format!("{}Gi", cpu * 4)))
        .into()
}

pub(crate) fn pool(name: &str) -> NodePool {
    NodePool {
        name: name.to_owned(),
        uid: name.to_owned(),
        weight: 0,
        labels: Labels::new(),
        annotations: Labels::new(),
        requirements: Requirements::new(),
        taints: Vec::new(),
        startup_taints: Vec::new(),
        limits: ResourceList::default(),
        node_class: NodeClassRef::default(),
        seeds_claims: true,
        hash: String::new(),
    }
}

pub(crate) fn taint(key: &str, effect: Effect) -> Taint {
    Taint {
        key: key.to_owned(),
        value: String::new(),
        effect,
    }
}

pub(crate) fn toleration(key: &str) -> Toleration {
    Toleration {
        key: key.to_owned(),
        operator: TolerationOperator::Exists,
        value: String::new(),
        effect: None,
    }
}

pub(crate) fn port(ip: &str, port: u16, protocol: Protocol) -> HostPort {
    HostPort {
        ip: ip.parse().unwrap(),
        port,
        protocol,
    }
}

/// Pods of one workload: `name-0`, `name-1`, … with the label `app: name`.
#[derive(Clone)]
pub(crate) struct Pods {
    pub(crate) name: String,
    pub(crate) count: usize,
    pub(crate) namespace: String,
    pub(crate) labels: Labels,
    pub(crate) requests: ResourceList,
    pub(crate) spec: PodSpec,
    pub(crate) claims: Vec<String>,
    pub(crate) own_claims: bool,
    pub(crate) controller: Option<ControllerRef>,
}

pub(crate) fn pods(count: usize, name: &str) -> Pods {
    Pods {
        name: name.to_owned(),
        count,
        namespace: "default".to_owned(),
        labels: labels_of(&[("app", name)]),
        requests: resources(&[("cpu", "1"), ("memory", "1Gi"), ("pods", "1")]),
        spec: PodSpec::default(),
        claims: Vec::new(),
        own_claims: false,
        controller: None,
    }
}

pub(crate) fn pod(name: &str) -> Pods {
    pods(1, name)
}

impl Pods {
    pub(crate) fn requests(mut self, list: &[(&str, &str)]) -> Pods {
        self.requests = resources(list);
        self.requests.entry("pods".to_owned()).or_insert("1".parse().unwrap());
        self
    }

    pub(crate) fn cpu(self, cpu: &str) -> Pods {
        self.requests(&[("cpu", cpu), ("memory", "128Mi")])
    }

    pub(crate) fn label(mut self, key: &str, value: &str) -> Pods {
        self.labels.insert(key.to_owned(), value.to_owned());
        self
    }

    pub(crate) fn namespace(mut self, namespace: &str) -> Pods {
        self.namespace = namespace.to_owned();
        self
    }

    pub(crate) fn selector(mut self, key: &str, value: &str) -> Pods {
        self.spec.node_selector.insert(key.to_owned(), value.to_owned());
        self
    }

    pub(crate) fn requires(mut self, requirement: Requirement) -> Pods {
        match self.spec.required_node_terms.first_mut() {
            Some(term) => term.push(requirement),
            None => self.spec.required_node_terms.push(vec![requirement]),
        }
        self
    }

    /// One more required term (OR).
    pub(crate) fn or_requires(mut self, requirement: Requirement) -> Pods {
        self.spec.required_node_terms.push(vec![requirement]);
        self
    }

    pub(crate) fn prefers(mut self, weight: i32, requirement: Requirement) -> Pods {
        self.spec.preferred_node_terms.push(PreferredNodeTerm {
            weight,
            expressions: vec![requirement],
        });
        self
    }

    pub(crate) fn tolerates(mut self, key: &str) -> Pods {
        self.spec.tolerations.push(toleration(key));
        self
    }

    pub(crate) fn spread(self, key: &str, max_skew: i32) -> Pods {
        let selector = LabelSelector::labels([("app", self.labels["app"].clone().as_str())]);
        self.spread_with(SpreadConstraint {
            selector,
            max_skew,
            ..constraint(key)
        })
    }

    pub(crate) fn spread_with(mut self, constraint: SpreadConstraint) -> Pods {
        self.spec.spread.push(constraint);
        self
    }

    pub(crate) fn near(mut self, key: &str, app: &str) -> Pods {
        self.spec.affinity.required.push(term(key, app));
        self
    }

    pub(crate) fn away_from(mut self, key: &str, app: &str) -> Pods {
        self.spec.anti_affinity.required.push(term(key, app));
        self
    }

    pub(crate) fn would_rather_avoid(mut self, weight: i32, key: &str, app: &str) -> Pods {
        self.spec.anti_affinity.preferred.push(WeightedPodTerm {
            weight,
            term: term(key, app),
        });
        self
    }

    pub(crate) fn host_port(mut self, wanted: HostPort) -> Pods {
        self.spec.host_ports.push(wanted);
        self
    }

    /// All pods use these claims.
    pub(crate) fn claim(mut self, name: &str) -> Pods {
        self.claims.push(name.to_owned());
        self
    }

    /// Each pod uses a claim of its own, `name-0`, `name-1`, ….
    pub(crate) fn claim_each(mut self) -> Pods {
        self.own_claims = true;
        self
    }

    pub(crate) fn build(&self) -> Vec<Arc<Pod>> {
        let (labels, spec) = (Arc::new(self.labels.clone()), Arc::new(self.spec.clone()));
        let requests = Arc::new(self.requests.clone());
        let one = |nth: usize| {
            let name = if self.count == 1 {
                self.name.clone()
            } else {
                format!("{}-{nth}", self.name)
            };
            let mut claims: Vec<Box<str>> = self.claims.iter().map(|claim| claim.as_str().into()).collect();
            if self.own_claims {
                claims.push(name.as_str().into());
            }
            Arc::new(Pod {
                uid: format!("{}-{nth:05}", self.name).into(),
                namespace: self.namespace.as_str().into(),
                name: name.into(),
                created: Timestamp::UNIX_EPOCH,
                started: None,
                priority: 0,
                labels: labels.clone(),
                spec: spec.clone(),
                requests: requests.clone(),
                volume_claims: claims.into(),
                node_name: None,
                owner: Owner::Other,
                controller: self.controller.clone().map(Arc::new),
                phase: PodPhase::Pending,
                terminating: false,
                ready: false,
                do_not_disrupt: None,
                limits: Default::default(),
                deletion_cost: 0,
                disruption_cost: None,
                buffer: None,
            })
        };
        (0..self.count).map(one).collect()
    }

    /// The same pods, running on a node.
    pub(crate) fn on(&self, node: &str) -> Vec<Arc<Pod>> {
        let bound = |pod: &Arc<Pod>| {
            let mut pod = Pod::clone(pod);
            pod.node_name = Some(node.into());
            pod.uid = format!("{}@{node}", pod.uid).into();
            pod.phase = PodPhase::Running;
            Arc::new(pod)
        };
        self.build().iter().map(bound).collect()
    }
}

pub(crate) fn constraint(key: &str) -> SpreadConstraint {
    SpreadConstraint {
        topology_key: key.to_owned(),
        max_skew: 1,
        min_domains: None,
        when_unsatisfiable: WhenUnsatisfiable::DoNotSchedule,
        selector: LabelSelector::everything(),
        match_label_keys: Vec::new(),
        node_affinity_policy: SpreadPolicy::Honor,
        node_taints_policy: SpreadPolicy::Ignore,
    }
}

pub(crate) fn term(key: &str, app: &str) -> PodAffinityTerm {
    PodAffinityTerm {
        topology_key: key.to_owned(),
        selector: LabelSelector::labels([("app", app)]),
        namespaces: NamespaceScope::Own,
    }
}

/// A node of 8 cores and 32 GiB in a zone.
pub(crate) fn node(name: &str, zone: &str) -> Node {
    let labels = labels_of(&[
        (HOSTNAME, name),
        (ZONE, zone),
        (labels::ARCH, "amd64"),
        (labels::OS, "linux"),
        (labels::CAPACITY_TYPE, "on-demand"),
        (labels::INSTANCE_TYPE, "m-8"),
        (labels::NODEPOOL, "default"),
    ]);
    let capacity = resources(&[("cpu", "8"), ("memory", "32Gi"), ("pods", "110")]);
    let mut node = Node::new(name, Arc::new(labels), capacity.clone(), capacity);
    node.node_pool = Some("default".into());
    node.lifecycle = Lifecycle::Initialized;
    node
}

pub(crate) struct Cluster {
    pub(crate) pools: Vec<PoolTypes>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) pods: Vec<Arc<Pod>>,
    pub(crate) daemons: Vec<Arc<DaemonPod>>,
    pub(crate) volumes: VolumeFacts,
    pub(crate) namespaces: BTreeMap<String, Labels>,
    pub(crate) workloads: WorkloadSelectors,
    pub(crate) options: Options,
    pub(crate) rules: LabelRules,
}

/// One pool named `default` over [`shapes`].
pub(crate) fn cluster() -> Cluster {
    Cluster::of(pool("default"), shapes())
}

impl Cluster {
    pub(crate) fn empty() -> Cluster {
        Cluster {
            pools: Vec::new(),
            nodes: Vec::new(),
            pods: Vec::new(),
            daemons: Vec::new(),
            volumes: VolumeFacts::default(),
            namespaces: BTreeMap::new(),
            workloads: WorkloadSelectors::default(),
            options: Options::default(),
            rules: LabelRules::default().with_well_known(RESERVATION),
        }
    }

    pub(crate) fn of(pool: NodePool, types: Vec<InstanceType>) -> Cluster {
        Cluster::empty().pool(pool, types)
    }

    pub(crate) fn pool(mut self, pool: NodePool, types: Vec<InstanceType>) -> Cluster {
        let instance_types = types.into_iter().map(Arc::new).collect();
        self.pools.push(PoolTypes {
            pool: Arc::new(pool),
            instance_types,
        });
        self
    }

    pub(crate) fn pods(mut self, pods: Pods) -> Cluster {
        self.pods.extend(pods.build());
        self
    }

    pub(crate) fn node(self, node: Node) -> Cluster {
        self.node_with(node, &[])
    }

    pub(crate) fn node_with(mut self, mut node: Node, running: &[Pods]) -> Cluster {
        for pods in running {
            for pod in pods.on(&node.name.clone()) {
                node.bind(pod);
            }
        }
        self.nodes.push(node);
        self
    }

    pub(crate) fn daemon(mut self, pods: Pods) -> Cluster {
        self.daemons.push(Arc::new(DaemonPod {
            namespace: "kube-system".into(),
            name: pods.name.as_str().into(),
            spec: Arc::new(pods.spec),
            requests: Arc::new(pods.requests),
        }));
        self
    }

    pub(crate) fn volume(mut self, name: &str, driver: Option<&str>, topology: ClaimTopology) -> Cluster {
        self.volumes.insert(
            "default",
            name,
            ClaimFacts {
                driver: driver.map(Into::into),
                topology,
            },
        );
        self
    }

    pub(crate) fn options(mut self, change: impl FnOnce(&mut Options)) -> Cluster {
        change(&mut self.options);
        self
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let catalog = Catalog::new(self.pools.clone(), self.rules.clone());
        let mut snapshot = Snapshot::new(Arc::new(catalog), self.options.clone());
        snapshot.nodes = self.nodes.iter().cloned().map(Arc::new).collect();
        snapshot.pods = self.pods.clone().into();
        snapshot.daemons = self.daemons.clone().into();
        snapshot.volumes = Arc::new(self.volumes.clone());
        snapshot.namespaces = Arc::new(self.namespaces.clone());
        snapshot.workloads = Arc::new(self.workloads.clone());
        snapshot
    }

    pub(crate) fn solve(self) -> Outcome {
        Outcome(solve(&self.snapshot()))
    }

    /// What happens when these nodes go and their pods must move.
    pub(crate) fn without(self, nodes: &[&str]) -> Outcome {
        let snapshot = self.snapshot();
        let gone = snapshot.nodes.iter().filter(|node| nodes.contains(&&*node.name));
        let moved = gone.clone().flat_map(|node| node.pods().to_vec()).collect();
        let question = WhatIf::without_nodes(gone.map(|node| &**node), moved);
        Outcome(Simulator::new(&snapshot).run(&question))
    }
}

pub(crate) struct Outcome(pub Plan);

impl Outcome {
    /// Pods per new node, ascending.
    pub(crate) fn sizes(&self) -> Vec<usize> {
        let mut sizes: Vec<usize> = self.0.claims.iter().map(|claim| claim.pods.len()).collect();
        sizes.sort_unstable();
        sizes
    }

    pub(crate) fn nodes(&self) -> usize {
        self.0.claims.len()
    }

    pub(crate) fn scheduled(&self) -> usize {
        let existing: usize = self.0.existing.iter().map(|placement| placement.pods.len()).sum();
        self.sizes().iter().sum::<usize>() + existing
    }

    pub(crate) fn pending(&self) -> Vec<String> {
        let all = self.0.unschedulable.iter().chain(&self.0.deferred);
        let mut names: Vec<String> = all.map(|failed| failed.pod.name.to_string()).collect();
        names.sort();
        names
    }

    pub(crate) fn codes(&self) -> Vec<&'static str> {
        let failed = self.0.unschedulable.iter().chain(&self.0.deferred);
        let codes: BTreeSet<_> = failed
            .flat_map(|failed| failed.reason.codes())
            .map(|code| code.as_str())
            .collect();
        codes.into_iter().collect()
    }

    pub(crate) fn reason(&self) -> String {
        self.0.unschedulable[0].reason.to_string()
    }

    /// New-node pods by the single value that their node has for a key.
    pub(crate) fn by(&self, key: &str) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for claim in &self.0.claims {
            let value = claim
                .requirements
                .get(key)
                .and_then(|r| r.single_value())
                .unwrap_or("?");
            *counts.entry(value.to_owned()).or_default() += claim.pods.len();
        }
        counts
    }

    /// Pods per zone, ascending.
    pub(crate) fn zone_counts(&self) -> Vec<usize> {
        let mut counts: Vec<usize> = self.by(ZONE).into_values().collect();
        counts.sort_unstable();
        counts
    }

    /// Pods on an existing node.
    pub(crate) fn on(&self, node: &str) -> usize {
        self.0
            .existing
            .iter()
            .filter(|placement| &*placement.node == node)
            .map(|placement| placement.pods.len())
            .sum()
    }

    pub(crate) fn pool_of(&self, pod: &str) -> Option<&str> {
        let claim = self
            .0
            .claims
            .iter()
            .find(|claim| claim.pods.iter().any(|p| &*p.name == pod))?;
        Some(&claim.node_pool.name)
    }

    pub(crate) fn types(&self, nth: usize) -> Vec<&str> {
        self.0.claims[nth]
            .instance_types
            .iter()
            .map(|t| t.name.as_str())
            .collect()
    }
}
