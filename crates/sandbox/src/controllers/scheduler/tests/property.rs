//! Random clusters: the scheduler agrees with the naive checker on every pod and node, at every step.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::naive::NaiveCluster;
use super::*;

fn node(index: usize) -> impl Strategy<Value = Node> {
    let zone = prop_oneof![3 => Just(Some("a")), 3 => Just(Some("b")), 2 => Just(Some("c")), 1 => Just(None)];
    let disk = prop_oneof![Just("ssd"), Just("hdd")];
    let taint = prop_oneof![
        4 => Just(None),
        1 => Just(Some(json!({"key": "t", "value": "v", "effect": "NoSchedule"}))),
        1 => Just(Some(json!({"key": "e", "effect": "NoExecute"}))),
        1 => Just(Some(json!({"key": "s", "effect": "PreferNoSchedule"}))),
    ];
    (zone, disk, taint, prop::bool::weighted(0.1), 1..=4_u32, 1..=5_u32, 0..=2_u32).prop_map(
        move |(zone, disk, taint, cordoned, cpu, pods, gpu)| {
            let name = format!("n{index}");
            let mut node = json!({
                "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "disk": disk, "cores": cpu.to_string()}},
                "spec": {"unschedulable": cordoned},
                "status": {"allocatable": {"cpu": cpu.to_string(), "memory": format!("{}Gi", cpu * 2), "pods": pods.to_string(),
                    "example.com/gpu": gpu.to_string()}},
            });
            if let Some(zone) = zone {
                node["metadata"]["labels"]["zone"] = json!(zone);
            }
            if let Some(taint) = taint {
                node["spec"]["taints"] = json!([taint]);
            }
            serde_json::from_value(node).expect("a node")
        },
    )
}

fn selector() -> impl Strategy<Value = Value> {
    prop_oneof![
        4 => prop_oneof![Just("x"), Just("y")].prop_map(|app| json!({"matchLabels": {"app": app}})),
        1 => Just(json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["x", "y"]}]})),
        1 => Just(json!({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["x"]}]})),
        1 => Just(json!({})),
    ]
}

fn topology_key() -> impl Strategy<Value = &'static str> {
    prop_oneof![Just("zone"), Just("kubernetes.io/hostname")]
}

fn constraint() -> impl Strategy<Value = Value> {
    let policies = (prop::bool::ANY, prop::bool::ANY);
    (
        topology_key(),
        1..=2_i32,
        selector(),
        prop::option::of(1..=4_i32),
        policies,
        prop::bool::weighted(0.8),
    )
        .prop_map(|(key, skew, selector, domains, (affinity, taints), hard)| {
            json!({"topologyKey": key, "maxSkew": skew, "labelSelector": selector,
                "minDomains": domains.filter(|_| hard),
                "whenUnsatisfiable": if hard { "DoNotSchedule" } else { "ScheduleAnyway" },
                "nodeAffinityPolicy": if affinity { "Honor" } else { "Ignore" },
                "nodeTaintsPolicy": if taints { "Honor" } else { "Ignore" }})
        })
}

fn affinity_terms() -> impl Strategy<Value = Value> {
    let term =
        (topology_key(), selector()).prop_map(|(key, selector)| json!({"topologyKey": key, "labelSelector": selector}));
    prop::collection::vec(term, 0..=2)
        .prop_map(|terms| json!({"requiredDuringSchedulingIgnoredDuringExecution": terms}))
}

fn node_affinity() -> impl Strategy<Value = Value> {
    let expression = prop_oneof![
        Just(json!({"key": "disk", "operator": "In", "values": ["ssd"]})),
        Just(json!({"key": "zone", "operator": "NotIn", "values": ["a"]})),
        Just(json!({"key": "zone", "operator": "Exists"})),
        Just(json!({"key": "zone", "operator": "DoesNotExist"})),
        Just(json!({"key": "cores", "operator": "Gt", "values": ["2"]})),
        Just(json!({"key": "cores", "operator": "Lt", "values": ["3"]})),
    ];
    let term = prop::collection::vec(expression, 0..=2).prop_map(|e| json!({"matchExpressions": e}));
    prop::collection::vec(term, 1..=2)
        .prop_map(|terms| json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}))
}

fn toleration() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!({"key": "t", "operator": "Equal", "value": "v"})),
        Just(json!({"key": "t", "operator": "Exists", "effect": "NoExecute"})),
        Just(json!({"key": "e", "operator": "Exists"})),
        Just(json!({"operator": "Exists"})),
    ]
}

fn pod() -> impl Strategy<Value = Pod> {
    let app = prop_oneof![Just("x"), Just("y"), Just("z")];
    let cpu = prop_oneof![Just("0"), Just("500m"), Just("1"), Just("2")];
    let rare = |p| prop::bool::weighted(p);
    (
        (
            app,
            cpu,
            rare(0.1),
            rare(0.15),
            prop_oneof![Just("default"), Just("other")],
        ),
        prop::option::weighted(0.3, constraint()),
        prop::option::weighted(0.15, affinity_terms()),
        prop::option::weighted(0.25, affinity_terms()),
        prop::option::weighted(0.25, node_affinity()),
        prop::collection::vec(toleration(), 0..=1),
        rare(0.1),
    )
        .prop_map(
            |((app, cpu, gpu, port, namespace), spread, near, far, node_affinity, tolerations, terminating)| {
                let mut requests = json!({"cpu": cpu, "memory": "1Gi"});
                if gpu {
                    requests["example.com/gpu"] = json!("1");
                }
                let mut container = json!({"name": "c", "image": "i", "resources": {"requests": requests}});
                if port {
                    container["ports"] = json!([{"containerPort": 80, "hostPort": 80}]);
                }
                let mut affinity = json!({});
                for (key, value) in [
                    ("podAffinity", near),
                    ("podAntiAffinity", far),
                    ("nodeAffinity", node_affinity),
                ] {
                    if let Some(value) = value {
                        affinity[key] = value;
                    }
                }
                let mut pod = json!({
                    "metadata": {"namespace": namespace, "labels": {"app": app}},
                    "spec": {"containers": [container], "affinity": affinity, "tolerations": tolerations,
                        "topologySpreadConstraints": spread.into_iter().collect::<Vec<_>>()},
                });
                if terminating {
                    pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
                }
                serde_json::from_value(pod).expect("a pod")
            },
        )
}

fn cluster() -> impl Strategy<Value = (Vec<Node>, Vec<Pod>)> {
    let nodes = (1..=6_usize).prop_flat_map(|count| (0..count).map(node).collect::<Vec<_>>());
    (nodes, prop::collection::vec(pod(), 1..=14))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_pod_is_bound_where_the_filters_would_refuse_it((nodes, pods) in cluster()) {
        let backoff = Backoff { initial: std::time::Duration::ZERO, max: std::time::Duration::ZERO };
        let mut scheduler = Scheduler::new(7, backoff);
        let mut reader = PodReader::default();
        let mut naive = NaiveCluster { nodes: nodes.clone(), placed: Vec::new() };
        for node in &nodes {
            scheduler.view.set_node(Arc::new(NodeFacts::new(node.clone())));
        }
        for namespace in ["default", "other"] {
            scheduler.view.namespaces.insert(namespace.to_owned(), Default::default());
        }
        for (i, mut pod) in pods.into_iter().enumerate() {
            pod.metadata.name = Some(format!("p{i}"));
            pod.metadata.uid = Some(format!("uid{i}"));
            let facts = reader.read(pod.clone(), None);
            let attempt = Attempt::new(&scheduler.view, &facts).expect("no volumes");
            for (node, state) in scheduler.view.existing() {
                let typed = nodes.iter().find(|n| n.metadata.name.as_deref() == Some(&*node.name)).expect("known");
                let refusal = attempt.refuse(node, state);
                prop_assert_eq!(
                    refusal.is_none(), naive.fits(&pod, typed),
                    "pod {} on {}: {:?}\n{:#?}", i, node.name, refusal, pod
                );
            }
            if let Decision::Bind { node } = scheduler.decide(&facts, at(0)) {
                let typed = nodes.iter().find(|n| n.metadata.name.as_deref() == Some(&*node)).expect("known");
                prop_assert!(naive.fits(&pod, typed), "bound {} to {}", i, node);
                naive.placed.push((pod, node.to_string()));
            } else {
                prop_assert!(!nodes.iter().any(|n| naive.fits(&pod, n)), "refused {} although it fits", i);
            }
        }
    }
}
