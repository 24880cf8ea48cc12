//! A fleet in a few words.
//!
//! Instance types are `<letter><cpus>`: `s2` has 2 CPUs and costs 2 per hour on demand, half of that as spot. Nodes are
//! initialized, Ready, consolidatable and in a pool with all budgets open, unless a test says otherwise.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use karpenter_api::budget::Budget;
use karpenter_api::labels::{self, LabelRules};
use karpenter_api::node_pool::ConsolidationPolicy;
use karpenter_api::requirement::{Requirement, Requirements};
use karpenter_api::resources::ResourceList;
use karpenter_engine::disruption::{
    Blocked, Budgets, ClaimFacts, Command, FixedSize, Fleet, Gates, Health, Member, Method, PodDisruptionBudget,
    PodDisruptionBudgets, PoolPolicy, Standing, Tuning, forecast, static_drift,
};
use karpenter_engine::model::{
    InstanceType, LabelSelector, Labels, Lifecycle, NamespaceScope, Node, NodePool, Offering, Options, Overhead, Owner,
    Pod, PodAffinityTerm, PodPhase, PodSpec, Snapshot,
};
use karpenter_engine::{Catalog, PoolTypes};

pub(crate) const NOW: &str = "2026-11-15T12:00:00Z";

/// The label that names a reservation.
pub(crate) const RESERVATION: &str = "test.sh/reservation-id";

pub(crate) fn now() -> Timestamp {
    NOW.parse().unwrap()
}

pub(crate) fn minutes(minutes: i64) -> SignedDuration {
    SignedDuration::from_mins(minutes)
}

pub(crate) struct Builder {
    types: Vec<Arc<InstanceType>>,
    pools: BTreeMap<String, (NodePool, PoolPolicy)>,
    members: Vec<Member>,
    pending: Vec<Arc<Pod>>,
    budgets: Vec<PodDisruptionBudget>,
    pub(crate) gates: Gates,
}

/// A fleet with the pool `default` and the instance types named.
pub(crate) fn fleet(types: &str) -> Builder {
    let builder = Builder {
        types: types
            .split_whitespace()
            .map(|name| Arc::new(instance_type(name)))
            .collect(),
        pools: BTreeMap::new(),
        members: Vec::new(),
        pending: Vec::new(),
        budgets: Vec::new(),
        gates: Gates::default(),
    };
    builder.pool("default")
}

impl Builder {
    pub(crate) fn pool(mut self, name: &str) -> Builder {
        let pool = NodePool {
            name: name.to_owned(),
            uid: name.to_owned(),
            weight: 0,
            labels: Labels::new(),
            annotations: Labels::new(),
            requirements: Requirements::default(),
            taints: Vec::new(),
            startup_taints: Vec::new(),
            limits: ResourceList::default(),
            node_class: Default::default(),
            seeds_claims: true,
            hash: String::new(),
        };
        let policy = PoolPolicy {
            fixed: None,
            consolidation_policy: ConsolidationPolicy::WhenEmptyOrUnderutilized,
            consolidate_after: Some(SignedDuration::ZERO),
            budgets: vec![Budget {
                nodes: "100%".to_owned(),
                ..Budget::default()
            }],
            tracked_cost: 0.0,
            has_instance_types: true,
            tuning: Tuning::default(),
        };
        self.pools.insert(name.to_owned(), (pool, policy));
        self
    }

    /// Changes the pool that was added last by name.
    pub(crate) fn with_policy(mut self, pool: &str, change: impl FnOnce(&mut PoolPolicy)) -> Builder {
        change(&mut self.pools.get_mut(pool).unwrap().1);
        self
    }

    pub(crate) fn with_requirement(mut self, pool: &str, requirement: Requirement) -> Builder {
        self.pools.get_mut(pool).unwrap().0.requirements.add(requirement);
        self
    }

    pub(crate) fn allow(self, pool: &str, nodes: &str) -> Builder {
        let nodes = nodes.to_owned();
        self.with_policy(pool, |policy| {
            policy.budgets = vec![Budget {
                nodes,
                ..Budget::default()
            }];
        })
    }

    /// A node of the pool `default` with pods given as CPU requests: `node("a", "s4", &["1", "500m"])`.
    pub(crate) fn node(self, name: &str, kind: &str, pods: &[&str]) -> Builder {
        self.node_in("default", name, kind, pods)
    }

    pub(crate) fn node_in(mut self, pool: &str, name: &str, kind: &str, pods: &[&str]) -> Builder {
        let (kind, capacity_type) = kind.split_once(':').unwrap_or((kind, labels::CAPACITY_TYPE_ON_DEMAND));
        let shape = instance_type(kind);
        let node_labels: Labels = [
            (labels::NODEPOOL, pool),
            (labels::INSTANCE_TYPE, kind),
            (labels::ZONE, "zone-a"),
            (labels::CAPACITY_TYPE, capacity_type),
            (labels::HOSTNAME, name),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into();
        let mut node = Node::new(
            name,
            Arc::new(node_labels),
            shape.capacity.clone(),
            shape.capacity.clone(),
        );
        node.node_pool = Some(pool.into());
        node.node_claim = Some(name.into());
        node.provider_id = Some(format!("test://{name}").into());
        if capacity_type == labels::CAPACITY_TYPE_RESERVED {
            Arc::make_mut(&mut node.labels).insert(RESERVATION.to_owned(), reservation(kind));
        }
        node.lifecycle = Lifecycle::Initialized;
        for (nth, cpu) in pods.iter().enumerate() {
            let mut pod = pod(&format!("{name}-{nth}"), cpu);
            pod.node_name = Some(name.into());
            node.bind(Arc::new(pod));
        }
        let claim = ClaimFacts {
            name: name.to_owned(),
            uid: format!("uid-{name}"),
            created: now() - minutes(600),
            expire_after: None,
            termination_grace_period: None,
            initialized_since: Some(now() - minutes(590)),
            last_pod_event: None,
            consolidatable: true,
            drifted_since: None,
            drift_reason: None,
        };
        self.members.push(Member {
            node: Arc::new(node),
            claim: Some(Arc::new(claim)),
            standing: Standing::default(),
            health: Health::default(),
        });
        self
    }

    pub(crate) fn pending(mut self, name: &str, cpu: &str) -> Builder {
        let mut pod = pod(name, cpu);
        pod.phase = PodPhase::Pending;
        self.pending.push(Arc::new(pod));
        self
    }

    /// A pod that stands for the room that a CapacityBuffer asks for.
    pub(crate) fn buffered(mut self, name: &str, cpu: &str) -> Builder {
        let mut pod = pod(name, cpu);
        pod.buffer = Some("buffer".into());
        self.pending.push(Arc::new(pod));
        self
    }

    /// Changes an instance type that was named in [`fleet`].
    pub(crate) fn type_where(mut self, name: &str, change: impl FnOnce(&mut InstanceType)) -> Builder {
        let kind = self.types.iter_mut().find(|kind| kind.name == name).unwrap();
        change(Arc::make_mut(kind));
        self
    }

    /// Gives the pool another place among its siblings.
    pub(crate) fn weighing(mut self, pool: &str, weight: i32) -> Builder {
        self.pools.get_mut(pool).unwrap().0.weight = weight;
        self
    }

    pub(crate) fn budget(mut self, budget: PodDisruptionBudget) -> Builder {
        self.budgets.push(budget);
        self
    }

    /// Changes the node that was added last.
    pub(crate) fn node_where(mut self, change: impl FnOnce(&mut Node)) -> Builder {
        change(Arc::make_mut(&mut self.members.last_mut().unwrap().node));
        self
    }

    pub(crate) fn claim_where(mut self, change: impl FnOnce(&mut ClaimFacts)) -> Builder {
        change(Arc::make_mut(self.members.last_mut().unwrap().claim.as_mut().unwrap()));
        self
    }

    pub(crate) fn health(mut self, change: impl FnOnce(&mut Health)) -> Builder {
        change(&mut self.members.last_mut().unwrap().health);
        self
    }

    /// Makes a pool static: `replicas` nodes, all of them here, with room for `limit`.
    pub(crate) fn fixed(self, pool: &str, replicas: usize, limit: usize) -> Builder {
        let mut built = self.with_policy(pool, |policy| {
            policy.fixed = Some(FixedSize {
                replicas,
                limit,
                active: replicas,
                pending_disruption: 0,
                deleting: 0,
                reserved: 0,
                refills: true,
            });
        });
        built.pools.get_mut(pool).unwrap().0.seeds_claims = false;
        built
    }

    pub(crate) fn standing(mut self, change: impl FnOnce(&mut Standing)) -> Builder {
        change(&mut self.members.last_mut().unwrap().standing);
        self
    }

    /// Changes every pod of the node that was added last.
    pub(crate) fn pods_where(self, change: impl Fn(&mut Pod)) -> Builder {
        self.node_where(|node| {
            let pods: Vec<Arc<Pod>> = node.pods().to_vec();
            for old in pods {
                node.unbind(&old.uid);
                let mut pod = (*old).clone();
                change(&mut pod);
                node.bind(Arc::new(pod));
            }
        })
    }

    pub(crate) fn build(self) -> Fleet {
        let pools = self.pools.values().map(|(pool, _)| PoolTypes {
            pool: Arc::new(pool.clone()),
            instance_types: self.types.clone(),
        });
        let catalog = Arc::new(Catalog::new(
            pools.collect(),
            LabelRules::default().with_well_known(RESERVATION),
        ));
        let mut snapshot = Snapshot::new(
            catalog,
            Options {
                now: now(),
                ..Options::default()
            },
        );
        snapshot.nodes = self
            .members
            .iter()
            .map(|member| {
                let mut node = (*member.node).clone();
                node.deleting = member.standing.leaving;
                Arc::new(node)
            })
            .collect();
        snapshot.pods = self.pending.into();
        Fleet {
            snapshot,
            members: self.members.into(),
            pools: Arc::new(
                self.pools
                    .into_iter()
                    .map(|(name, (_, policy))| (name, policy))
                    .collect(),
            ),
            pod_budgets: Arc::new(PodDisruptionBudgets::new(self.budgets)),
            gates: self.gates,
            reservation_label: Some(RESERVATION.to_owned()),
        }
    }

    /// The first command of a method, in words: `delete a, b` or `replace a by s2 s4`.
    pub(crate) fn decides(self, method: Method) -> String {
        decision(&self.build(), method)
    }

    /// All that static drift would do at once, in words, and what it refuses.
    pub(crate) fn static_drift(self) -> (Vec<String>, Vec<Blocked>) {
        let fleet = self.build();
        let candidates = forecast::candidates(&fleet, Method::StaticDrift);
        let budgets = Budgets::of(&fleet, Method::StaticDrift.reason());
        let (commands, blocked) = static_drift::compute(&fleet, candidates, &budgets);
        (
            commands.iter().map(words).collect(),
            blocked.into_iter().map(|(_, reason)| reason).collect(),
        )
    }

    /// What a method holds against a node.
    pub(crate) fn blocked(self, method: Method, node: &str) -> Option<Blocked> {
        let blocked = forecast::attempt(&self.build(), method).err()?;
        blocked
            .into_iter()
            .find(|(name, _)| &**name == node)
            .map(|(_, reason)| reason)
    }
}

/// The first command of a method, in words; `nothing` when there is none.
pub(crate) fn decision(fleet: &Fleet, method: Method) -> String {
    match forecast::attempt(fleet, method) {
        Ok(command) => words(&command),
        Err(_) => "nothing".to_owned(),
    }
}

/// Something to buy in a zone, for this price.
pub(crate) fn offering(zone: &str, capacity_type: &str, price: f64) -> Offering {
    Offering {
        requirements: [
            Requirement::within(labels::ZONE, [zone]),
            Requirement::within(labels::CAPACITY_TYPE, [capacity_type]),
        ]
        .into_iter()
        .collect(),
        price,
        available: true,
        reservation_capacity: 0,
        overrides: Default::default(),
        price_overlaid: false,
    }
}

/// Sells an instance type as these offerings say, and only so.
pub(crate) fn sell(kind: &mut InstanceType, offerings: Vec<Offering>) {
    for key in [labels::ZONE, labels::CAPACITY_TYPE] {
        let values: Vec<String> = offerings
            .iter()
            .filter_map(|offering| offering.requirements.get(key)?.single_value().map(str::to_owned))
            .collect();
        kind.requirements.replace(Requirement::within(key, values));
    }
    kind.offerings = offerings;
}

/// Keeps pods of these fleets off each other's node.
pub(crate) fn apart(pod: &mut Pod) {
    let mut spec = (*pod.spec).clone();
    spec.anti_affinity.required.push(PodAffinityTerm {
        topology_key: labels::HOSTNAME.to_owned(),
        selector: LabelSelector::labels([("app", "web")]),
        namespaces: NamespaceScope::Own,
    });
    pod.spec = Arc::new(spec);
}

/// The reservation that a type `r…` is bought from.
pub(crate) fn reservation(kind: &str) -> String {
    format!("res-{kind}")
}

pub(crate) fn words(command: &Command) -> String {
    let mut nodes: Vec<&str> = command.candidates.iter().map(|candidate| candidate.name()).collect();
    nodes.sort_unstable();
    let mut text = format!("{} {}", command.decision().as_str(), nodes.join(", "));
    for pool in &command.from_template {
        text += &format!(" by the template of {pool}");
    }
    for replacement in &command.replacements {
        let types: Vec<&str> = replacement
            .instance_types
            .iter()
            .map(|kind| kind.name.as_str())
            .collect();
        text += &format!(" by {}", types.join(" "));
    }
    text
}

pub(crate) fn pod(name: &str, cpu: &str) -> Pod {
    let requests = ResourceList::new()
        .with("cpu", cpu.parse().unwrap())
        .with("pods", "1".parse().unwrap());
    Pod {
        uid: name.into(),
        namespace: "default".into(),
        name: name.into(),
        created: now() - minutes(120),
        started: Some(now() - minutes(120)),
        priority: 0,
        labels: Arc::new(Labels::from([("app".to_owned(), "web".to_owned())])),
        spec: Arc::new(PodSpec::default()),
        requests: Arc::new(requests),
        volume_claims: Arc::default(),
        node_name: None,
        owner: Owner::Other,
        controller: None,
        phase: PodPhase::Running,
        terminating: false,
        ready: true,
        do_not_disrupt: None,
        limits: Default::default(),
        deletion_cost: 0,
        disruption_cost: None,
        buffer: None,
    }
}

/// `s4` costs 4 on demand and 2 as spot; `d4` is on demand only; a trailing `!` means that none can be had. `r4*1` comes from
/// the reservation `res-r4` only, which has one slot left.
pub(crate) fn instance_type(name: &str) -> InstanceType {
    let (name, slots) = name
        .split_once('*')
        .map_or((name, None), |(name, slots)| (name, Some(slots)));
    let (name, available) = name.strip_suffix('!').map_or((name, true), |name| (name, false));
    let cpus: f64 = name[1..].parse().unwrap();
    let offering = |capacity_type: &str, price: f64| Offering {
        requirements: [
            Requirement::within(labels::ZONE, ["zone-a"]),
            Requirement::within(labels::CAPACITY_TYPE, [capacity_type]),
        ]
        .into_iter()
        .collect(),
        price,
        available,
        reservation_capacity: 0,
        overrides: Default::default(),
        price_overlaid: false,
    };
    let mut offerings = vec![offering(labels::CAPACITY_TYPE_ON_DEMAND, cpus)];
    let mut capacity_types = vec![labels::CAPACITY_TYPE_ON_DEMAND];
    if name.starts_with('s') {
        offerings.push(offering(labels::CAPACITY_TYPE_SPOT, cpus / 2.0));
        capacity_types.push(labels::CAPACITY_TYPE_SPOT);
    }
    if name.starts_with('r') {
        let mut reserved = offering(labels::CAPACITY_TYPE_RESERVED, cpus / 1000.0);
        reserved.reservation_capacity = slots.map_or(0, |slots| slots.parse().unwrap());
        reserved
            .requirements
            .add(Requirement::within(RESERVATION, [reservation(name)]));
        (offerings, capacity_types) = (vec![reserved], vec![labels::CAPACITY_TYPE_RESERVED]);
    }
    InstanceType {
        name: name.to_owned(),
        requirements: [
            Requirement::within(labels::INSTANCE_TYPE, [name]),
            Requirement::within(labels::ZONE, ["zone-a"]),
            Requirement::within(labels::CAPACITY_TYPE, capacity_types),
            Requirement::within(labels::ARCH, ["amd64"]),
            Requirement::within(labels::OS, ["linux"]),
        ]
        .into_iter()
        .collect(),
        offerings,
        capacity: ResourceList::new()
            .with("cpu", name[1..].parse().unwrap())
            .with("memory", "64Gi".parse().unwrap())
            .with("pods", "110".parse().unwrap()),
        overhead: Overhead::default(),
        volume_limits: BTreeMap::new(),
        capacity_overlaid: false,
    }
}
