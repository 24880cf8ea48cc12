//! Every kind of input has its effect.

use serde_json::json;

use super::{POOL, claims, pod, pods_of, run, simulate};

fn workload(api: &str, kind: &str, spec: &str) -> String {
    format!(
        "
---
apiVersion: {api}
kind: {kind}
metadata: {{ name: web }}
spec:
  {spec}
  template:
    metadata: {{ labels: {{ app: web }} }}
    spec: {{ containers: [{{ name: c, image: x, resources: {{ limits: {{ cpu: 500m, memory: 256Mi }} }} }}] }}
"
    )
}

fn pods_placed(input: &str) -> Vec<String> {
    let report = simulate(&format!("{POOL}{input}"), &[]);
    claims(&report)
        .iter()
        .flat_map(|claim| pods_of(claim))
        .map(str::to_owned)
        .collect()
}

#[test]
fn workloads_stand_for_their_pods() {
    for (api, kind, spec, expect) in [
        ("apps/v1", "Deployment", "replicas: 3\n  selector: {}", 3),
        ("apps/v1", "Deployment", "selector: {}", 1),
        ("apps/v1", "ReplicaSet", "replicas: 2\n  selector: {}", 2),
        (
            "apps/v1",
            "StatefulSet",
            "replicas: 2\n  serviceName: web\n  selector: {}",
            2,
        ),
        ("batch/v1", "Job", "parallelism: 4", 4),
        ("batch/v1", "Job", "parallelism: 4\n  completions: 2", 2),
        ("batch/v1", "Job", "suspend: true", 0),
    ] {
        let placed = pods_placed(&workload(api, kind, spec));
        assert_eq!(placed.len(), expect, "{kind} {spec}");
    }
}

#[test]
fn limits_of_a_template_count_as_requests() {
    let report = simulate(
        &format!(
            "{POOL}{}",
            workload("apps/v1", "Deployment", "replicas: 3\n  selector: {}")
        ),
        &[],
    );
    assert_eq!(claims(&report)[0]["requests"]["cpu"], "1500m");
}

#[test]
fn a_workload_with_pods_in_the_input_stands_for_nothing_more() {
    let owned = "
---
apiVersion: v1
kind: Pod
metadata:
  name: web-abc-1
  labels: { app: web, pod-template-hash: abc }
  ownerReferences: [{ apiVersion: apps/v1, kind: ReplicaSet, name: web-abc, uid: u, controller: true }]
spec: { containers: [{ name: c, image: x }] }
";
    let deployment = workload("apps/v1", "Deployment", "replicas: 3\n  selector: {}");
    assert_eq!(pods_placed(&format!("{deployment}{owned}")), ["default/web-abc-1"]);
}

#[test]
fn a_deployment_and_a_stateful_set_of_one_name_both_count() {
    let deployment = workload("apps/v1", "Deployment", "selector: {}");
    let stateful = workload("apps/v1", "StatefulSet", "serviceName: web\n  selector: {}");
    assert_eq!(pods_placed(&format!("{deployment}{stateful}")).len(), 2);
}

#[test]
fn absurdly_many_replicas_are_refused() {
    let input = workload("apps/v1", "Deployment", "replicas: 2000000000\n  selector: {}");
    let output = run(&["-f", "-"], &input);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("at most 1000000"));
}

#[test]
fn daemon_sets_take_their_share_of_a_new_node() {
    let daemon = workload("apps/v1", "DaemonSet", "selector: {}");
    let report = simulate(&format!("{POOL}{daemon}{}", pod("app", "1", "")), &[]);
    assert_eq!(claims(&report)[0]["requests"]["cpu"], "1500m");
    assert_eq!(claims(&report)[0]["requests"]["pods"], "2");
}

const NODE: &str = "
---
apiVersion: v1
kind: Node
metadata:
  name: node-a
  labels: { kubernetes.io/hostname: node-a, kubernetes.io/os: linux, karpenter.sh/nodepool: default,
    node.kubernetes.io/instance-type: c-2x-amd64-linux, topology.kubernetes.io/zone: test-zone-a, karpenter.sh/capacity-type: spot }
spec: { providerID: 'kwok://node-a' }
status: { capacity: { cpu: '2', memory: 4Gi, pods: '32' }, allocatable: { cpu: '2', memory: 4Gi, pods: '32' } }
";

#[test]
fn room_on_existing_nodes_is_used_first() {
    let running = pod("running", "1", ", nodeName: node-a");
    let input = format!("{POOL}{NODE}{running}{}{}", pod("fits", "1", ""), pod("more", "1", ""));
    let report = simulate(&input, &[]);
    assert_eq!(
        report["existingNodes"],
        json!([{ "name": "node-a", "pods": ["default/fits"] }])
    );
    assert_eq!(claims(&report).len(), 1);
    assert!(report["cost"]["currentPerHour"].as_f64().unwrap() > 0.0);
    assert!(report["cost"]["afterPerHour"].as_f64() > report["cost"]["currentPerHour"].as_f64());
}

#[test]
fn pods_of_a_deleting_node_move() {
    let deleting = NODE.replace(
        "name: node-a\n  labels",
        "name: node-a\n  deletionTimestamp: '2026-01-01T00:00:00Z'\n  labels",
    );
    let moving = pod("moving", "1", ", nodeName: node-a");
    let kept = pod("kept", "1", ", nodeName: node-a");
    let budget = "
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: { name: kept }
spec: { maxUnavailable: 0, selector: { matchLabels: { app: kept } } }
";
    let report = simulate(&format!("{POOL}{deleting}{moving}{kept}{budget}"), &[]);
    assert_eq!(pods_of(&claims(&report)[0]), ["default/moving"]);
}

#[test]
fn volumes_bind_pods_to_their_zone() {
    let volume = "
---
apiVersion: v1
kind: PersistentVolume
metadata: { name: pv }
spec:
  csi: { driver: d, volumeHandle: h }
  nodeAffinity: { required: { nodeSelectorTerms: [{ matchExpressions: [{ key: topology.kubernetes.io/zone, operator: In, values: [test-zone-c] }] }] } }
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: { name: data, annotations: { pv.kubernetes.io/bind-completed: 'yes' } }
spec: { volumeName: pv }
";
    let user = pod(
        "db",
        "1",
        ", volumes: [{ name: d, persistentVolumeClaim: { claimName: data } }]",
    );
    let report = simulate(&format!("{POOL}{volume}{user}"), &[]);
    assert_eq!(claims(&report)[0]["cheapest"]["zone"], "test-zone-c");
    let report = simulate(&format!("{POOL}{user}"), &[]);
    assert_eq!(report["unschedulable"][0]["codes"], json!(["VolumeUnresolved"]));
}

#[test]
fn stateful_sets_bring_their_claims() {
    let class = "
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: { name: fast }
provisioner: d
volumeBindingMode: WaitForFirstConsumer
allowedTopologies: [{ matchLabelExpressions: [{ key: topology.kubernetes.io/zone, values: [test-zone-b] }] }]
";
    let spec = "serviceName: web\n  selector: {}\n  volumeClaimTemplates: [{ metadata: { name: data }, spec: { storageClassName: fast } }]";
    let report = simulate(
        &format!("{POOL}{class}{}", workload("apps/v1", "StatefulSet", spec)),
        &[],
    );
    assert_eq!(claims(&report)[0]["cheapest"]["zone"], "test-zone-b", "{report}");
}

#[test]
fn overlays_change_prices() {
    let overlay = "
---
apiVersion: karpenter.sh/v1alpha1
kind: NodeOverlay
metadata: { name: spot-is-dear }
spec:
  requirements: [{ key: karpenter.sh/capacity-type, operator: In, values: [spot] }]
  price: '100'
";
    let report = simulate(&format!("{POOL}{overlay}{}", pod("web", "1", "")), &[]);
    assert_eq!(claims(&report)[0]["cheapest"]["capacityType"], "on-demand");
}

#[test]
fn buffers_keep_room() {
    let buffer = "
---
apiVersion: autoscaling.x-k8s.io/v1beta1
kind: CapacityBuffer
metadata: { name: spare, namespace: default }
spec: { scalableRef: { apiGroup: apps, kind: Deployment, name: web }, replicas: 2 }
";
    let deployment = workload("apps/v1", "Deployment", "selector: {}");
    let placed = pods_placed(&format!("{deployment}{buffer}"));
    assert_eq!(
        placed,
        [
            "default/capacity-buffer-spare-1",
            "default/capacity-buffer-spare-2",
            "default/web-0"
        ]
    );
}

#[test]
fn gated_and_terminal_pods_are_left_out() {
    let gated = pod("gated", "1", ", schedulingGates: [{ name: wait }]");
    assert!(pods_placed(&gated).is_empty());
    let done = format!("{}status: {{ phase: Succeeded }}\n", pod("done", "1", ""));
    assert!(pods_placed(&done).is_empty());
}

#[test]
fn a_pool_whose_node_class_is_not_ready_launches_nothing() {
    let class = |status: &str| {
        format!(
            "---\napiVersion: karpenter.kwok.sh/v1alpha1\nkind: KWOKNodeClass\nmetadata: {{ name: default }}\nstatus: {{ conditions: [{{ type: Ready, status: '{status}' }}] }}\n"
        )
    };
    let web = pod("web", "1", "");
    let report = simulate(&format!("{POOL}{}{web}", class("False")), &[]);
    assert_eq!(report["unschedulable"][0]["codes"], json!(["NoNodePool"]));
    let report = simulate(&format!("{POOL}{}{web}", class("True")), &[]);
    assert_eq!(claims(&report).len(), 1);
}

#[test]
fn preferences_can_be_ignored() {
    let apart = ", affinity: { podAntiAffinity: { preferredDuringSchedulingIgnoredDuringExecution: [{ weight: 1, \
        podAffinityTerm: { topologyKey: kubernetes.io/hostname, labelSelector: {} } }] } }";
    let input = format!("{POOL}{}{}", pod("a", "1", apart), pod("b", "1", apart));
    assert_eq!(claims(&simulate(&input, &[])).len(), 2);
    assert_eq!(claims(&simulate(&input, &["--preference-policy", "Ignore"])).len(), 1);
}

#[test]
fn min_values_can_be_best_effort() {
    let pool = POOL.replace(
        "      requirements:\n",
        "      requirements:\n      - { key: karpenter.kwok.sh/instance-family, operator: Exists, minValues: 9 }\n",
    );
    let input = format!("{pool}{}", pod("web", "1", ""));
    let strict = simulate(&input, &[]);
    assert_eq!(strict["unschedulable"].as_array().unwrap().len(), 1);
    let relaxed = simulate(&input, &["--min-values-policy", "BestEffort"]);
    assert_eq!(claims(&relaxed).len(), 1);
}
