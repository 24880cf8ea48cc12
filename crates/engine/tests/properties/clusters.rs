//! Random small clusters, and the engine's answer for them in the checker's terms.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1 as kube;
use karpenter_engine::catalog_file::{self, FileInstanceType};
use karpenter_engine::convert::{self, NodeObjects, PodIntake};
use karpenter_engine::model::{ClaimFacts, ClaimTopology, InstanceType, Options, Snapshot, VolumeFacts};
use karpenter_engine::{Catalog, Plan, PoolTypes};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::naive::{Amounts, Labels, Machine, World, milli};

/// Kubernetes objects and a catalogue.
#[derive(Clone, Debug)]
pub(crate) struct Cluster {
    pub(crate) pools: Vec<Value>,
    pub(crate) nodes: Vec<Value>,
    pub(crate) bound: Vec<Value>,
    pub(crate) pending: Vec<Value>,
    pub(crate) daemons: Vec<Value>,
    pub(crate) types: Vec<FileInstanceType>,
}

const DRIVER: &str = "csi.example.com";
const NODE_VOLUMES: usize = 3;
const LAUNCHED_VOLUMES: usize = 4;
const ZONES: [&str; 3] = ["zone-a", "zone-b", "zone-c"];

/// Types of 1 to 16 cores in two architectures; `spread` shifts which zones sell what.
pub(crate) fn types(seed: u8) -> Vec<FileInstanceType> {
    let mut types = Vec::new();
    for (index, cpu) in [1_u32, 2, 4, 8, 16].into_iter().enumerate() {
        for architecture in ["amd64", "arm64"] {
            let price = f64::from(cpu) * 0.05 + f64::from(seed % 7) * 0.001;
            let offerings: Vec<Value> = ZONES
                .iter()
                .enumerate()
                .filter(|(zone, _)| (zone + index + usize::from(seed)) % 4 != 0)
                .flat_map(|(_, zone)| {
                    ["spot", "on-demand"].map(|capacity_type| {
                        json!({ "Price": if capacity_type == "spot" { price * 0.6 } else { price }, "Available": true, "Requirements": [
                            { "key": "karpenter.sh/capacity-type", "operator": "In", "values": [capacity_type] },
                            { "key": "topology.kubernetes.io/zone", "operator": "In", "values": [zone] }] })
                    })
                })
                .collect();
            types.push(json!({ "name": format!("t-{cpu}x-{architecture}"), "architecture": architecture, "operatingSystems": ["linux"],
                "resources": { "cpu": cpu.to_string(), "memory": format!("{}Gi", cpu * 2), "pods": "8" }, "offerings": offerings }));
        }
    }
    catalog_file::parse(&serde_json::to_vec(&types).unwrap()).unwrap()
}

/// What pods may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Constraints {
    /// Selectors, tolerations and sizes: pods that don't look at each other.
    Independent,
    /// Also ports, spread, affinity and anti-affinity.
    All,
}

pub(crate) fn cluster(constraints: Constraints) -> impl Strategy<Value = Cluster> {
    let pools = prop::collection::vec(pool(), 1..4);
    let nodes = prop::collection::vec((0..3_usize, 1..9_u32, any::<bool>()), 0..5);
    let bound = prop::collection::vec((0..5_usize, pod(constraints)), 0..8);
    let pending = prop::collection::vec(pod(constraints), 0..24);
    let daemons = prop::collection::vec((50..400_u32, any::<bool>()), 0..3);
    (pools, nodes, bound, pending, daemons, any::<u8>()).prop_map(
        move |(pools, nodes, bound, pending, daemons, seed)| Cluster {
            pools: pools
                .into_iter()
                .enumerate()
                .map(|(i, pool)| named(pool, &format!("pool-{i}")))
                .collect(),
            bound: bound
                .into_iter()
                .filter(|(node, _)| *node < nodes.len())
                .enumerate()
                .map(|(i, (node, pod))| bind(named(pod, &format!("bound-{i}")), node))
                .collect(),
            nodes: nodes
                .into_iter()
                .enumerate()
                .map(|(i, (zone, cpu, arm))| node(i, zone, cpu, arm))
                .collect(),
            pending: pending
                .into_iter()
                .enumerate()
                .map(|(i, pod)| named(pod, &format!("p-{i:02}")))
                .collect(),
            daemons: daemons
                .into_iter()
                .enumerate()
                .map(|(i, (cpu, everywhere))| daemon(i, cpu, everywhere))
                .collect(),
            types: types(seed),
        },
    )
}

fn named(mut object: Value, name: &str) -> Value {
    object["metadata"]["name"] = name.into();
    object
}

fn pool() -> impl Strategy<Value = Value> {
    let requirement = prop_oneof![
        3 => Just(json!([])),
        1 => Just(json!([{ "key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"] }])),
        1 => Just(json!([{ "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"] }])),
        1 => Just(json!([{ "key": "karpenter.kwok.sh/instance-cpu", "operator": "Lt", "values": ["9"] }])),
        1 => Just(json!([{ "key": "topology.kubernetes.io/zone", "operator": "NotIn", "values": ["zone-b"] }])),
    ];
    let taints = prop_oneof![
        3 => Just(json!([])),
        1 => Just(json!([{ "key": "dedicated", "value": "x", "effect": "NoSchedule" }])),
        1 => Just(json!([{ "key": "soft", "effect": "PreferNoSchedule" }])),
    ];
    (requirement, taints, 1..4_i32, prop::sample::select(vec!["red", "blue"])).prop_map(|(requirements, taints, weight, team)| {
        json!({ "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {}, "spec": { "weight": weight, "template": {
            "metadata": { "labels": { "team": team } },
            "spec": { "requirements": requirements, "taints": taints,
                "nodeClassRef": { "group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default" } } } } })
    })
}

fn node(index: usize, zone: usize, cpu: u32, arm: bool) -> Value {
    let name = format!("node-{index}");
    let amounts = json!({ "cpu": cpu.to_string(), "memory": format!("{}Gi", cpu * 2), "pods": "8" });
    json!({ "apiVersion": "v1", "kind": "Node",
        "metadata": { "name": name, "labels": { "kubernetes.io/hostname": name, "topology.kubernetes.io/zone": ZONES[zone],
            "kubernetes.io/arch": if arm { "arm64" } else { "amd64" }, "kubernetes.io/os": "linux", "team": "red" } },
        "spec": { "taints": if index == 3 { json!([{ "key": "dedicated", "value": "x", "effect": "NoSchedule" }]) } else { json!([]) } },
        "status": { "capacity": amounts, "allocatable": amounts } })
}

fn bind(mut pod: Value, node: usize) -> Value {
    pod["spec"]["nodeName"] = format!("node-{node}").into();
    pod["status"] = json!({ "phase": "Running" });
    pod
}

fn daemon(index: usize, cpu: u32, everywhere: bool) -> Value {
    let tolerations = if everywhere {
        json!([{ "operator": "Exists" }])
    } else {
        json!([])
    };
    json!({ "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": { "name": format!("daemon-{index}"), "namespace": "kube-system" },
        "spec": { "selector": {}, "template": { "metadata": {}, "spec": { "tolerations": tolerations,
            "containers": [{ "name": "c", "resources": { "requests": { "cpu": format!("{cpu}m"), "memory": "64Mi" } } }] } } } })
}

fn pod(constraints: Constraints) -> impl Strategy<Value = Value> {
    let app = prop::sample::select(vec!["a", "b", "c"]);
    let cpu = prop::sample::select(vec![100_u32, 250, 500, 1000, 3000, 9000, 20000]);
    let memory = prop::sample::select(vec![64_u32, 512, 2048, 8192]);
    (app, cpu, memory, placement(), rule(constraints)).prop_map(|(app, cpu, memory, placement, rule)| {
        let mut spec = json!({ "containers": [{ "name": "c", "resources": { "requests": { "cpu": format!("{cpu}m"), "memory": format!("{memory}Mi") } } }] });
        for part in [placement, rule.spec(app)] {
            for (key, value) in part.as_object().unwrap() {
                spec[key] = value.clone();
            }
        }
        if let Rule::Port(port) = rule {
            spec["containers"][0]["ports"] = json!([{ "containerPort": 80, "hostPort": port }]);
        }
        if let Some(node) = spec.as_object_mut().and_then(|spec| spec.remove("nodeAffinity")) {
            spec["affinity"]["nodeAffinity"] = node;
        }
        // Rules are the same for all pods of an app, so that a promise about skew is one about the end, too.
        json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "labels": { "app": format!("{app}-{}", rule.name()) } }, "spec": spec })
    })
}

/// Where a pod wants to be, whatever the others do.
fn placement() -> impl Strategy<Value = Value> {
    let required = |expressions: Value| json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": expressions } } });
    prop_oneof![
        6 => Just(json!({})),
        1 => prop::sample::select(ZONES.to_vec()).prop_map(|zone| json!({ "nodeSelector": { "topology.kubernetes.io/zone": zone } })),
        1 => Just(json!({ "nodeSelector": { "kubernetes.io/arch": "arm64" } })),
        1 => Just(json!({ "nodeSelector": { "team": "blue" }, "tolerations": [{ "key": "dedicated", "operator": "Exists" }] })),
        1 => Just(json!({ "tolerations": [{ "operator": "Exists" }] })),
        1 => Just(required(json!([
            { "matchExpressions": [{ "key": "team", "operator": "DoesNotExist" }] },
            { "matchExpressions": [{ "key": "kubernetes.io/arch", "operator": "NotIn", "values": ["amd64"] }] }]))),
        1 => Just(required(json!([{ "matchExpressions": [{ "key": "topology.kubernetes.io/zone", "operator": "NotIn", "values": ["zone-a"] },
            { "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"] }] }]))),
    ]
}

/// How a pod relates to the others of its app.
#[derive(Clone, Copy, Debug)]
enum Rule {
    None,
    Port(u16),
    Volumes(u8),
    Spread(&'static str),
    Near(&'static str),
    Apart(&'static str),
}

const ZONE: &str = "topology.kubernetes.io/zone";
const HOSTNAME: &str = "kubernetes.io/hostname";

fn rule(constraints: Constraints) -> impl Strategy<Value = Rule> {
    let keys = || prop::sample::select(vec![ZONE, HOSTNAME]);
    let all = prop_oneof![
        4 => Just(Rule::None),
        1 => prop::sample::select(vec![8080_u16, 9090]).prop_map(Rule::Port),
        1 => (0..5_u8).prop_map(Rule::Volumes),
        2 => keys().prop_map(Rule::Spread),
        1 => keys().prop_map(Rule::Near),
        2 => keys().prop_map(Rule::Apart),
    ];
    match constraints {
        Constraints::Independent => Just(Rule::None).boxed(),
        Constraints::All => all.boxed(),
    }
}

impl Rule {
    fn name(self) -> String {
        let short = |key: &str| if key == ZONE { "zone" } else { "host" };
        match self {
            Self::None => "plain".to_owned(),
            Self::Port(port) => format!("port-{port}"),
            Self::Volumes(first) => format!("volumes-{first}"),
            Self::Spread(key) => format!("spread-{}", short(key)),
            Self::Near(key) => format!("near-{}", short(key)),
            Self::Apart(key) => format!("apart-{}", short(key)),
        }
    }

    fn spec(self, app: &str) -> Value {
        let selector = json!({ "matchLabels": { "app": format!("{app}-{}", self.name()) } });
        let term = |key: &str| json!({ "requiredDuringSchedulingIgnoredDuringExecution": [{ "topologyKey": key, "labelSelector": selector }] });
        match self {
            Self::None | Self::Port(_) => json!({}),
            Self::Volumes(first) => json!({ "volumes": [
                { "name": "a", "persistentVolumeClaim": { "claimName": format!("claim-{first}") } },
                { "name": "b", "persistentVolumeClaim": { "claimName": format!("claim-{}", first + 1) } }] }),
            Self::Spread(key) => json!({ "topologySpreadConstraints": [
                { "maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector }] }),
            Self::Near(key) => json!({ "affinity": { "podAffinity": term(key) } }),
            Self::Apart(key) => json!({ "affinity": { "podAntiAffinity": term(key) } }),
        }
    }
}

fn parse<T: serde::de::DeserializeOwned>(object: &Value) -> T {
    serde_json::from_value(object.clone()).unwrap()
}

impl Cluster {
    pub(crate) fn snapshot(&self, options: Options) -> Snapshot {
        let rules = Arc::new(catalog_file::label_rules(&self.types));
        let mut intake = PodIntake::new(rules.clone());
        let instance_type = |file: &FileInstanceType| {
            let volume_limits = [(DRIVER.to_owned(), LAUNCHED_VOLUMES as u32)].into();
            let model = file.to_model(&rules);
            Arc::new(InstanceType { volume_limits, ..model })
        };
        let instance_types: Vec<Arc<InstanceType>> = self.types.iter().map(instance_type).collect();
        let pools = self.pools.iter().map(|pool| PoolTypes {
            pool: Arc::new(convert::node_pool(&rules, &parse(pool), String::new()).unwrap()),
            instance_types: instance_types.clone(),
        });
        let mut snapshot = Snapshot::new(Arc::new(Catalog::new(pools.collect(), (*rules).clone())), options);
        let mut nodes = BTreeMap::new();
        for object in &self.nodes {
            let node: kube::Node = parse(object);
            let converted = convert::node(
                intake.interner(),
                NodeObjects {
                    node: Some(&node),
                    ..NodeObjects::default()
                },
            );
            let mut converted = converted.unwrap().unwrap();
            converted.volume_limits = [(DRIVER.to_owned(), Some(NODE_VOLUMES as u32))].into();
            nodes.insert(converted.name.to_string(), converted);
        }
        for object in &self.bound {
            let (pod, _) = intake.pod(&parse(object)).unwrap();
            nodes
                .get_mut(pod.node_name.as_deref().unwrap())
                .unwrap()
                .bind(Arc::new(pod));
        }
        let mut volumes = VolumeFacts::default();
        for claim in 0..6 {
            let facts = ClaimFacts {
                driver: Some(DRIVER.into()),
                topology: ClaimTopology::Anywhere,
            };
            volumes.insert("default", format!("claim-{claim}"), facts);
        }
        snapshot.volumes = Arc::new(volumes);
        snapshot.nodes = nodes.into_values().map(Arc::new).collect();
        snapshot.pods = self
            .pending
            .iter()
            .map(|object| {
                let (pod, problems) = intake.pod(&parse(object)).unwrap();
                assert!(problems.is_empty(), "{problems:?}");
                Arc::new(pod)
            })
            .collect();
        let daemon_sets = self.daemons.iter().map(parse::<DaemonSet>);
        snapshot.daemons = daemon_sets
            .map(|set| Arc::new(convert::daemon_from_template(&mut intake, &set).unwrap()))
            .collect();
        snapshot
    }

    /// The plan as nodes with pods on them, for the checker.
    pub(crate) fn machines(&self, plan: &Plan) -> Vec<Machine> {
        let pods: BTreeMap<String, kube::Pod> = self
            .pending
            .iter()
            .map(|object| {
                (
                    format!("default/{}", object["metadata"]["name"].as_str().unwrap()),
                    parse(object),
                )
            })
            .collect();
        let daemons: Vec<kube::Pod> = self.daemons.iter().map(daemon_pod).collect();
        let mut machines: Vec<Machine> = self.nodes.iter().map(|node| self.machine(node, &daemons)).collect();
        for placement in &plan.existing {
            let machine = machines
                .iter_mut()
                .find(|machine| machine.name == *placement.node)
                .unwrap();
            machine
                .placed
                .extend(placement.pods.iter().map(|pod| pods[&pod.key()].clone()));
        }
        for (index, claim) in plan.claims.iter().enumerate() {
            let pool = self
                .pools
                .iter()
                .find(|pool| pool["metadata"]["name"] == claim.node_pool.name.as_str())
                .unwrap();
            let name = format!("claim-{index}");
            machines.push(Machine {
                taints: parse(&pool["spec"]["template"]["spec"]["taints"]),
                worlds: worlds(&name, claim),
                bound: Vec::new(),
                placed: claim.pods.iter().map(|pod| pods[&pod.key()].clone()).collect(),
                daemons: daemons.clone(),
                name,
            });
        }
        machines
    }

    fn machine(&self, object: &Value, daemons: &[kube::Pod]) -> Machine {
        let node: kube::Node = parse(object);
        let name = node.metadata.name.unwrap();
        let allocatable: Amounts = node
            .status
            .unwrap()
            .allocatable
            .unwrap()
            .iter()
            .map(|(resource, amount)| (resource.clone(), milli(amount)))
            .collect();
        let bound = self.bound.iter().map(parse::<kube::Pod>);
        Machine {
            taints: node.spec.unwrap().taints.unwrap_or_default(),
            worlds: vec![World {
                labels: node.metadata.labels.unwrap(),
                allocatable,
                volumes: NODE_VOLUMES,
            }],
            bound: bound
                .filter(|pod| pod.spec.as_ref().unwrap().node_name.as_ref() == Some(&name))
                .collect(),
            placed: Vec::new(),
            daemons: daemons.to_vec(),
            name,
        }
    }
}

fn daemon_pod(set: &Value) -> kube::Pod {
    let mut pod = set["spec"]["template"].clone();
    pod["metadata"]["name"] = set["metadata"]["name"].clone();
    parse(&pod)
}

/// Every type and offering that the claim leaves open.
fn worlds(name: &str, claim: &karpenter_engine::plan::PlannedClaim) -> Vec<World> {
    let allows = |key: &str, value: &str| {
        claim
            .requirements
            .get(key)
            .is_none_or(|requirement| requirement.has(value))
    };
    let mut worlds = Vec::new();
    for instance_type in claim.instance_types.iter() {
        for offering in instance_type.offerings.iter().filter(|offering| offering.available) {
            let mut labels: Labels = (*claim.labels).clone();
            labels.insert(HOSTNAME.to_owned(), name.to_owned());
            let known = instance_type.requirements.iter().chain(offering.requirements.iter());
            labels.extend(known.filter_map(|r| Some((r.key().to_owned(), r.single_value()?.to_owned()))));
            for requirement in offering.requirements.iter() {
                labels.insert(
                    requirement.key().to_owned(),
                    requirement.single_value().unwrap().to_owned(),
                );
            }
            if [ZONE, "karpenter.sh/capacity-type"]
                .iter()
                .all(|key| allows(key, &labels[*key]))
            {
                let allocatable = instance_type
                    .capacity
                    .iter()
                    .map(|(resource, amount)| (resource.clone(), i128::from(amount.milli())));
                worlds.push(World {
                    labels,
                    allocatable: allocatable.collect(),
                    volumes: LAUNCHED_VOLUMES,
                });
            }
        }
    }
    worlds
}
