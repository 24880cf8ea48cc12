//! One test per filter, and a property: the view never lets a pod go where a naive reading of the rules would not.

mod naive;
mod property;

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSINode, StorageClass};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::filters::{Attempt, Refusal, feasible};
use super::view::ClusterView;
use super::{Backoff, Decision, Scheduler};
use crate::controllers::node::NodeFacts;
use crate::controllers::pod::{PodFacts, PodReader};

fn yaml<T: DeserializeOwned>(text: &str) -> T {
    let value: Value = serde_norway::from_str(text).expect("test YAML parses");
    serde_json::from_value(value).expect("test YAML has the kind's shape")
}

/// A cluster made of YAML.
#[derive(Default)]
struct Fixture {
    view: ClusterView,
    reader: PodReader,
    pods: u32,
}

impl Fixture {
    /// Nodes of 4 cpus and 10 pods; `extra` is merged in, e.g. `{spec: {unschedulable: true}}`.
    fn node(mut self, name: &str, extra: &str) -> Self {
        let mut node = json!({
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
            "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"}},
        });
        let extra: Value = serde_norway::from_str(extra).expect("test YAML parses");
        json_patch::merge(&mut node, &extra);
        let node: Node = serde_json::from_value(node).expect("a node");
        self.view.set_node(Arc::new(NodeFacts::new(node)));
        self
    }

    /// A pod that is already on a node.
    fn placed(mut self, node: &str, pod: &str) -> Self {
        let mut facts = self.facts(pod);
        facts.node = Some(Arc::from(node));
        self.view.set_pod(&facts);
        self
    }

    fn facts(&mut self, pod: &str) -> PodFacts {
        self.pods += 1;
        let mut value: Value = serde_norway::from_str(pod).expect("test YAML parses");
        let defaults = json!({"metadata": {"namespace": "default", "name": format!("p{}", self.pods)}});
        let mut merged = defaults;
        json_patch::merge(&mut merged, &value.take());
        if merged["spec"]["containers"].is_null() {
            merged["spec"]["containers"] = json!([{"name": "c", "image": "i"}]);
        }
        merged["metadata"]["uid"] = json!(format!("uid-{}", self.pods));
        let pod: Pod = serde_json::from_value(merged).expect("a pod");
        self.reader.read(pod, None)
    }

    fn claim(mut self, text: &str) -> Self {
        let claim: PersistentVolumeClaim = yaml(text);
        let name = claim.metadata.name.clone().expect("named");
        self.view
            .volumes
            .claims
            .insert(format!("default/{name}"), Arc::new(claim));
        self
    }

    fn volume(mut self, text: &str) -> Self {
        let volume: PersistentVolume = yaml(text);
        self.view
            .volumes
            .volumes
            .insert(volume.metadata.name.clone().expect("named"), Arc::new(volume));
        self
    }

    fn class(mut self, text: &str) -> Self {
        let class: StorageClass = yaml(text);
        self.view
            .volumes
            .classes
            .insert(class.metadata.name.clone().expect("named"), Arc::new(class));
        self
    }

    fn csi_node(mut self, text: &str) -> Self {
        let node: CSINode = yaml(text);
        self.view
            .volumes
            .csi_nodes
            .insert(node.metadata.name.clone().expect("named"), Arc::new(node));
        self
    }

    /// Why the pod can't go to the node.
    fn refusal(&mut self, pod: &str, node: &str) -> Option<Refusal> {
        let pod = self.facts(pod);
        let attempt = Attempt::new(&self.view, &pod).expect("the pod itself is fine");
        let state = &self.view.nodes[node];
        attempt.refuse(state.facts.as_ref().expect("the node exists"), state)
    }

    /// The sentence for `PodScheduled=False`, up to its first full stop.
    fn message(&mut self, pod: &str) -> String {
        let pod = self.facts(pod);
        let message = match Attempt::new(&self.view, &pod) {
            Err(problem) => problem,
            Ok(attempt) => feasible(&attempt, 0, 100).expect_err("no node fits"),
        };
        message
            .split_once(". ")
            .map_or(message.clone(), |(first, _)| first.to_owned())
    }
}

/// A node `n`, a pod that it refuses for `reason`, and one that it takes.
fn check(fixture: Fixture, refused: &str, reason: &str, accepted: &str) {
    let mut fixture = fixture;
    assert_eq!(fixture.message(refused), format!("0/1 nodes are available: 1 {reason}"));
    assert_eq!(fixture.refusal(accepted, "n"), None, "{accepted}");
}

fn requests(resources: &str) -> String {
    format!("{{spec: {{containers: [{{name: c, image: i, resources: {{requests: {resources}}}}}]}}}}")
}

#[test]
fn an_unschedulable_node_takes_only_pods_that_tolerate_it() {
    check(
        Fixture::default().node("n", "{spec: {unschedulable: true}}"),
        "{}",
        "node(s) were unschedulable",
        "{spec: {tolerations: [{key: node.kubernetes.io/unschedulable, operator: Exists}]}}",
    );
}

#[test]
fn taints_must_be_tolerated() {
    let tainted = || Fixture::default().node("n", "{spec: {taints: [{key: a, value: b, effect: NoSchedule}]}}");
    check(
        tainted(),
        "{spec: {tolerations: [{key: a, value: c}]}}",
        "node(s) had untolerated taint(s)",
        "{spec: {tolerations: [{key: a, value: b}]}}",
    );
    check(
        tainted(),
        "{}",
        "node(s) had untolerated taint(s)",
        "{spec: {tolerations: [{operator: Exists}]}}",
    );
    check(
        Fixture::default().node("n", "{spec: {taints: [{key: a, effect: NoExecute}]}}"),
        "{spec: {tolerations: [{key: a, operator: Exists, effect: NoSchedule}]}}",
        "node(s) had untolerated taint(s)",
        "{spec: {tolerations: [{key: a, operator: Exists, effect: NoExecute}]}}",
    );
    let mut soft = Fixture::default().node("n", "{spec: {taints: [{key: a, effect: PreferNoSchedule}]}}");
    assert_eq!(soft.refusal("{}", "n"), None);
}

#[test]
fn node_selector_and_required_affinity_must_match() {
    let labelled = || Fixture::default().node("n", "{metadata: {labels: {disk: ssd, cores: '8'}}}");
    let affinity = |terms: &str| {
        format!(
            "{{spec: {{affinity: {{nodeAffinity: {{requiredDuringSchedulingIgnoredDuringExecution: {{nodeSelectorTerms: {terms}}}}}}}}}}}"
        )
    };
    let reason = "node(s) didn't match Pod's node affinity/selector";
    check(
        labelled(),
        "{spec: {nodeSelector: {disk: hdd}}}",
        reason,
        "{spec: {nodeSelector: {disk: ssd}}}",
    );
    let expression = |e: &str| affinity(&format!("[{{matchExpressions: [{e}]}}]"));
    for (refused, accepted) in [
        (
            "{key: disk, operator: In, values: [hdd]}",
            "{key: disk, operator: In, values: [hdd, ssd]}",
        ),
        (
            "{key: disk, operator: NotIn, values: [ssd]}",
            "{key: other, operator: NotIn, values: [x]}",
        ),
        ("{key: other, operator: Exists}", "{key: disk, operator: Exists}"),
        (
            "{key: disk, operator: DoesNotExist}",
            "{key: other, operator: DoesNotExist}",
        ),
        (
            "{key: cores, operator: Gt, values: ['8']}",
            "{key: cores, operator: Gt, values: ['7']}",
        ),
        (
            "{key: cores, operator: Lt, values: ['8']}",
            "{key: cores, operator: Lt, values: ['9']}",
        ),
    ] {
        check(labelled(), &expression(refused), reason, &expression(accepted));
    }
    check(
        labelled(),
        &affinity("[{}]"),
        reason,
        &affinity("[{}, {matchExpressions: [{key: disk, operator: Exists}]}]"),
    );
    check(
        labelled(),
        &affinity("[{matchFields: [{key: metadata.name, operator: In, values: [m]}]}]"),
        reason,
        &affinity("[{matchFields: [{key: metadata.name, operator: In, values: [n]}]}]"),
    );
}

#[test]
fn host_ports_must_be_free() {
    let port = |port: u16, more: &str| {
        format!(
            "{{spec: {{containers: [{{name: c, image: i, ports: [{{containerPort: 1, hostPort: {port} {more}}}]}}]}}}}"
        )
    };
    let reason = "node(s) didn't have free ports for the requested pod ports";
    check(
        Fixture::default().node("n", "{}").placed("n", &port(80, "")),
        &port(80, ""),
        reason,
        &port(81, ""),
    );
    check(
        Fixture::default()
            .node("n", "{}")
            .placed("n", &port(80, ", hostIP: 1.1.1.1")),
        &port(80, ""),
        reason,
        &port(80, ", hostIP: 2.2.2.2"),
    );
    check(
        Fixture::default()
            .node("n", "{}")
            .placed("n", &port(80, ", protocol: UDP")),
        &port(80, ", protocol: UDP"),
        reason,
        &port(80, ""),
    );
}

#[test]
fn resources_are_counted_over_pods_and_every_shortage_is_named() {
    let busy = || {
        Fixture::default()
            .node("n", "{}")
            .placed("n", &requests("{cpu: 3, memory: 6Gi}"))
    };
    check(
        busy(),
        &requests("{cpu: 1001m}"),
        "Insufficient cpu",
        &requests("{cpu: 1}"),
    );
    check(
        busy(),
        &requests("{cpu: 2, memory: 3Gi, example.com/gpu: 1}"),
        "Insufficient cpu, 1 Insufficient example.com/gpu, 1 Insufficient memory",
        &requests("{example.com/gpu: 0}"),
    );
    let full = Fixture::default()
        .node("n", "{status: {allocatable: {pods: '1'}}}")
        .placed("n", "{}");
    let mut full = full;
    assert_eq!(full.message("{}"), "0/1 nodes are available: 1 Too many pods");
}

#[test]
fn init_containers_sidecars_and_overhead_count() {
    let spec = |cpu: &str| {
        format!(
            "{{spec: {{overhead: {{cpu: 100m}}, initContainers: [\
             {{name: side, image: i, restartPolicy: Always, resources: {{requests: {{cpu: 500m}}}}}}, \
             {{name: init, image: i, resources: {{requests: {{cpu: {cpu}}}}}}}], \
             containers: [{{name: c, image: i, resources: {{requests: {{cpu: 1}}}}}}]}}}}"
        )
    };
    // init beside the sidecar is the peak: 500m + 3400m + 100m = 4.
    check(
        Fixture::default().node("n", "{}"),
        &spec("3401m"),
        "Insufficient cpu",
        &spec("3400m"),
    );
}

#[test]
fn pods_that_have_ended_take_no_room_and_terminating_ones_do() {
    let mut fixture = Fixture::default().node("n", "{}").placed("n", &requests("{cpu: 4}"));
    let mut ended = fixture.facts(&requests("{cpu: 4}"));
    ended.node = Some(Arc::from("n"));
    ended.phase = crate::controllers::pod::Phase::Succeeded;
    fixture.view.set_pod(&ended);
    assert_eq!(
        fixture.message(&requests("{cpu: 1}")),
        "0/1 nodes are available: 1 Insufficient cpu"
    );
    fixture.view.remove_pod("default/p1");
    assert_eq!(fixture.refusal(&requests("{cpu: 1}"), "n"), None);
}

const USES_CLAIM: &str = "{spec: {volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]}}";

fn bound_claim(mode: &str) -> String {
    format!(
        "{{metadata: {{name: data, namespace: default}}, spec: {{volumeName: pv, accessModes: [{mode}]}}, status: {{phase: Bound}}}}"
    )
}

#[test]
fn claims_must_exist_and_immediate_ones_must_be_bound() {
    let mut missing = Fixture::default().node("n", "{}");
    assert_eq!(missing.message(USES_CLAIM), "persistentvolumeclaim \"data\" not found");
    let mut unbound = Fixture::default()
        .node("n", "{}")
        .class("{metadata: {name: now}, provisioner: p, volumeBindingMode: Immediate}")
        .claim("{metadata: {name: data, namespace: default}, spec: {storageClassName: now}}");
    assert_eq!(
        unbound.message(USES_CLAIM),
        "pod has unbound immediate PersistentVolumeClaims"
    );
}

#[test]
fn a_bound_volume_must_be_reachable() {
    let zonal = |zone: &str| {
        format!(
            "{{metadata: {{name: pv}}, spec: {{nodeAffinity: {{required: {{nodeSelectorTerms: [{{matchExpressions: \
             [{{key: zone, operator: In, values: [{zone}]}}]}}]}}}}}}}}"
        )
    };
    let node = |volume: &str| {
        Fixture::default()
            .node("n", "{metadata: {labels: {zone: a}}}")
            .claim(&bound_claim("ReadWriteOnce"))
            .volume(volume)
    };
    let reason = "0/1 nodes are available: 1 node(s) didn't match PersistentVolume's node affinity";
    assert_eq!(node(&zonal("b")).message(USES_CLAIM), reason);
    assert_eq!(node(&zonal("a")).refusal(USES_CLAIM, "n"), None);
}

#[test]
fn volume_zone_labels_must_match() {
    let volume = "{metadata: {name: pv, labels: {topology.kubernetes.io/zone: a__b}}}";
    let node = |zone: &str| {
        Fixture::default()
            .node(
                "n",
                &format!("{{metadata: {{labels: {{topology.kubernetes.io/zone: {zone}}}}}}}"),
            )
            .claim(&bound_claim("ReadWriteOnce"))
            .volume(volume)
    };
    assert_eq!(
        node("c").message(USES_CLAIM),
        "0/1 nodes are available: 1 node(s) had no available volume zone"
    );
    assert_eq!(node("b").refusal(USES_CLAIM, "n"), None);
}

#[test]
fn a_claim_of_one_pod_is_not_shared() {
    let mut fixture = Fixture::default()
        .node("n", "{}")
        .claim(&bound_claim("ReadWriteOncePod"))
        .volume("{metadata: {name: pv}}")
        .placed("n", USES_CLAIM);
    assert_eq!(fixture.refusal(USES_CLAIM, "n"), Some(Refusal::ExclusiveClaimInUse));
}

#[test]
fn a_node_attaches_no_more_volumes_than_its_driver_can() {
    let csi = |name: &str, handle: &str| {
        format!("{{metadata: {{name: {name}}}, spec: {{csi: {{driver: d, volumeHandle: {handle}}}}}}}")
    };
    let mut fixture = Fixture::default()
        .node("n", "{}")
        .csi_node("{metadata: {name: n}, spec: {drivers: [{name: d, nodeID: n, allocatable: {count: 1}}]}}")
        .claim(&bound_claim("ReadWriteOnce"))
        .volume(&csi("pv", "h1"))
        .claim("{metadata: {name: other, namespace: default}, spec: {volumeName: pv2}, status: {phase: Bound}}")
        .volume(&csi("pv2", "h2"))
        .placed("n", USES_CLAIM);
    let other = "{spec: {volumes: [{name: v, persistentVolumeClaim: {claimName: other}}]}}";
    assert_eq!(fixture.refusal(other, "n"), Some(Refusal::VolumeLimit));
    assert_eq!(
        fixture.refusal(USES_CLAIM, "n"),
        None,
        "the same volume again takes no more room"
    );
}

#[test]
fn a_delayed_claim_goes_where_its_class_allows() {
    let class = |zone: &str| {
        format!(
            "{{metadata: {{name: late}}, provisioner: p, volumeBindingMode: WaitForFirstConsumer, allowedTopologies: \
             [{{matchLabelExpressions: [{{key: zone, values: [{zone}]}}]}}]}}"
        )
    };
    let fixture = |zone: &str| {
        Fixture::default()
            .node("n", "{metadata: {labels: {zone: a}}}")
            .class(&class(zone))
            .claim("{metadata: {name: data, namespace: default}, spec: {storageClassName: late}}")
    };
    assert_eq!(fixture("b").refusal(USES_CLAIM, "n"), Some(Refusal::NoVolume));
    assert_eq!(fixture("a").refusal(USES_CLAIM, "n"), None);
}

fn zoned(names: &[(&str, &str)]) -> Fixture {
    names.iter().fold(Fixture::default(), |fixture, (name, zone)| {
        fixture.node(name, &format!("{{metadata: {{labels: {{zone: {zone}}}}}}}"))
    })
}

fn spread(more: &str) -> String {
    format!(
        "{{metadata: {{labels: {{app: x}}}}, spec: {{topologySpreadConstraints: [{{topologyKey: zone, maxSkew: 1, \
         whenUnsatisfiable: DoNotSchedule, labelSelector: {{matchLabels: {{app: x}}}} {more}}}]}}}}"
    )
}

#[test]
fn spread_keeps_the_skew() {
    let mut fixture = zoned(&[("n1", "a"), ("n2", "b")])
        .node("n3", "{}")
        .placed("n1", "{metadata: {labels: {app: x}}}");
    assert_eq!(fixture.refusal(&spread(""), "n1"), Some(Refusal::Spread));
    assert_eq!(fixture.refusal(&spread(""), "n2"), None);
    assert_eq!(fixture.refusal(&spread(""), "n3"), Some(Refusal::SpreadLabelMissing));
    assert_eq!(
        Refusal::SpreadLabelMissing.reasons(),
        ["node(s) didn't match pod topology spread constraints (missing required label)"]
    );
}

#[test]
fn spread_counts_only_living_pods_of_the_namespace() {
    let mut fixture = zoned(&[("n1", "a"), ("n2", "b")])
        .placed("n1", "{metadata: {namespace: other, labels: {app: x}}}")
        .placed(
            "n1",
            "{metadata: {labels: {app: x}, deletionTimestamp: '2026-01-01T00:00:00Z'}}",
        );
    assert_eq!(fixture.refusal(&spread(""), "n1"), None);
}

#[test]
fn spread_over_fewer_domains_than_wanted_measures_against_zero() {
    let mut fixture = zoned(&[("n1", "a"), ("n2", "b")])
        .placed("n1", "{metadata: {labels: {app: x}}}")
        .placed("n2", "{metadata: {labels: {app: x}}}");
    assert_eq!(fixture.refusal(&spread(""), "n1"), None);
    assert_eq!(fixture.refusal(&spread(", minDomains: 5"), "n1"), Some(Refusal::Spread));
}

#[test]
fn spread_policies_choose_the_nodes_that_count() {
    let fixture = || {
        zoned(&[("n1", "a")])
            .node(
                "n2",
                "{metadata: {labels: {zone: b}}, spec: {taints: [{key: t, effect: NoSchedule}]}}",
            )
            .placed("n1", "{metadata: {labels: {app: x}}}")
    };
    assert_eq!(
        fixture().refusal(&spread(""), "n1"),
        Some(Refusal::Spread),
        "the tainted zone counts by default"
    );
    assert_eq!(fixture().refusal(&spread(", nodeTaintsPolicy: Honor"), "n1"), None);
}

#[test]
fn match_label_keys_narrow_the_count() {
    let mut fixture = zoned(&[("n1", "a"), ("n2", "b")]).placed("n1", "{metadata: {labels: {app: x, hash: old}}}");
    let pod = spread(", matchLabelKeys: [hash]").replace("{app: x}}, spec", "{app: x, hash: new}}, spec");
    assert_eq!(fixture.refusal(&pod, "n1"), None);
}

fn affine(kind: &str, app: &str, label: &str) -> String {
    format!(
        "{{metadata: {{labels: {{app: {label}}}}}, spec: {{affinity: {{{kind}: {{requiredDuringSchedulingIgnoredDuringExecution: \
         [{{topologyKey: zone, labelSelector: {{matchLabels: {{app: {app}}}}}}}]}}}}}}}}"
    )
}

#[test]
fn affinity_wants_company() {
    let mut fixture = zoned(&[("n1", "a"), ("n2", "b")]).placed("n1", "{metadata: {labels: {app: db}}}");
    assert_eq!(fixture.refusal(&affine("podAffinity", "db", "web"), "n1"), None);
    assert_eq!(
        fixture.refusal(&affine("podAffinity", "db", "web"), "n2"),
        Some(Refusal::Affinity)
    );
}

#[test]
fn the_first_pod_of_a_self_affine_group_may_land_anywhere_with_the_key() {
    let mut fixture = zoned(&[("n1", "a")]).node("bare", "{}");
    assert_eq!(fixture.refusal(&affine("podAffinity", "x", "x"), "n1"), None);
    assert_eq!(
        fixture.refusal(&affine("podAffinity", "x", "x"), "bare"),
        Some(Refusal::Affinity)
    );
    assert_eq!(
        fixture.refusal(&affine("podAffinity", "x", "y"), "n1"),
        Some(Refusal::Affinity)
    );
}

#[test]
fn anti_affinity_wants_distance_in_both_directions() {
    let own = affine("podAntiAffinity", "x", "y");
    let mut fixture = zoned(&[("n1", "a"), ("n2", "a"), ("n3", "b")]).placed("n1", "{metadata: {labels: {app: x}}}");
    assert_eq!(fixture.refusal(&own, "n2"), Some(Refusal::AntiAffinity));
    assert_eq!(fixture.refusal(&own, "n3"), None);
    let mut fixture = zoned(&[("n1", "a"), ("n2", "a"), ("n3", "b")]).placed("n1", &own);
    assert_eq!(
        fixture.refusal("{metadata: {labels: {app: x}}}", "n2"),
        Some(Refusal::ExistingAntiAffinity)
    );
    assert_eq!(fixture.refusal("{metadata: {labels: {app: x}}}", "n3"), None);
    assert_eq!(fixture.refusal("{metadata: {labels: {app: z}}}", "n2"), None);
    let mut bare = Fixture::default()
        .node("n", "{}")
        .placed("n", "{metadata: {labels: {app: x}}}");
    assert_eq!(bare.refusal(&own, "n"), None, "a node without the key never blocks");
}

#[test]
fn namespaces_of_affinity_terms_are_respected() {
    let elsewhere = "{metadata: {namespace: other, labels: {app: x}}}";
    let fixture = || {
        let mut fixture = zoned(&[("n1", "a")]).placed("n1", elsewhere);
        fixture
            .view
            .namespaces
            .insert("other".into(), [("team".to_owned(), "red".to_owned())].into());
        fixture
    };
    let term = |scope: &str| {
        affine("podAntiAffinity", "x", "y").replace("topologyKey: zone", &format!("topologyKey: zone {scope}"))
    };
    assert_eq!(fixture().refusal(&term(""), "n1"), None);
    assert_eq!(
        fixture().refusal(&term(", namespaces: [other]"), "n1"),
        Some(Refusal::AntiAffinity)
    );
    assert_eq!(
        fixture().refusal(&term(", namespaceSelector: {}"), "n1"),
        Some(Refusal::AntiAffinity)
    );
    let red = ", namespaceSelector: {matchLabels: {team: red}}";
    assert_eq!(fixture().refusal(&term(red), "n1"), Some(Refusal::AntiAffinity));
    let blue = ", namespaceSelector: {matchLabels: {team: blue}}";
    assert_eq!(fixture().refusal(&term(blue), "n1"), None);
}

#[test]
fn reasons_are_counted_and_sorted() {
    let mut fixture = Fixture::default()
        .node("n1", "{spec: {unschedulable: true}}")
        .node("n2", "{spec: {taints: [{key: a, effect: NoSchedule}]}}")
        .node("n3", "{}");
    assert_eq!(
        fixture.message(&requests("{cpu: 5}")),
        "0/3 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint(s), 1 node(s) were unschedulable"
    );
    assert_eq!(Fixture::default().message("{}"), "no nodes available to schedule pods");
}

fn scheduler(fixture: Fixture) -> (Scheduler, Fixture) {
    let backoff = Backoff {
        initial: std::time::Duration::from_secs(1),
        max: std::time::Duration::from_secs(10),
    };
    let mut scheduler = Scheduler::new(1, backoff);
    let mut fixture = fixture;
    scheduler.view = std::mem::take(&mut fixture.view);
    (scheduler, fixture)
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).expect("in range")
}

#[test]
fn the_emptier_node_is_preferred() {
    let (mut scheduler, mut fixture) = scheduler(
        Fixture::default()
            .node("busy", "{}")
            .node("idle", "{}")
            .placed("busy", &requests("{cpu: 2, memory: 4Gi}")),
    );
    let pod = fixture.facts(&requests("{cpu: 1}"));
    assert_eq!(
        scheduler.decide(&pod, at(0)),
        Decision::Bind {
            node: Arc::from("idle")
        }
    );
}

#[test]
fn preferred_affinity_and_soft_taints_steer() {
    let fixture = Fixture::default()
        .node("n1", "{spec: {taints: [{key: a, effect: PreferNoSchedule}]}}")
        .node("n2", "{}")
        .node("n3", "{metadata: {labels: {disk: ssd}}}");
    let (mut scheduler, mut fixture) = scheduler(fixture);
    let pod = fixture.facts(
        "{spec: {affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 50, \
          preference: {matchExpressions: [{key: disk, operator: Exists}]}}]}}}}",
    );
    assert_eq!(scheduler.decide(&pod, at(0)), Decision::Bind { node: Arc::from("n3") });
}

#[test]
fn important_pods_come_first_and_then_the_earlier_ones() {
    let (mut scheduler, mut fixture) = scheduler(Fixture::default());
    for priority in [0, 5, 0, 10] {
        let pod = fixture.facts(&format!("{{spec: {{priority: {priority}}}}}"));
        scheduler.observe(&pod, at(0));
    }
    let order: Vec<Arc<str>> = std::iter::from_fn(|| scheduler.pop()).collect();
    let order: Vec<&str> = order.iter().map(|key| &**key).collect();
    assert_eq!(order, ["default/p4", "default/p2", "default/p1", "default/p3"]);
}

#[test]
fn a_refused_pod_waits_for_a_change_and_for_its_backoff() {
    let (mut scheduler, mut fixture) = scheduler(Fixture::default());
    let pod = fixture.facts("{}");
    scheduler.observe(&pod, at(0));
    scheduler.pop().expect("queued");
    assert!(matches!(scheduler.decide(&pod, at(0)), Decision::Refuse { .. }));
    scheduler.wake(at(5));
    assert_eq!(scheduler.pop(), None, "nothing has changed");
    let node: Node = yaml("{metadata: {name: n}, status: {allocatable: {pods: '10'}}}");
    scheduler.view.set_node(Arc::new(NodeFacts::new(node)));
    scheduler.wake(at(0));
    assert_eq!(scheduler.pop(), None, "it rests for a second");
    assert_eq!(scheduler.next_backoff(), Some(at(1)));
    scheduler.wake(at(1));
    assert_eq!(scheduler.pop(), Some(Arc::clone(&pod.key)));
    assert_eq!(scheduler.decide(&pod, at(1)), Decision::Bind { node: Arc::from("n") });
}

#[test]
fn pods_of_others_and_gated_ones_are_left_alone() {
    let (mut scheduler, mut fixture) = scheduler(Fixture::default());
    for spec in [
        "{spec: {schedulerName: mine}}",
        "{spec: {schedulingGates: [{name: g}]}}",
        "{spec: {nodeName: n}}",
    ] {
        let pod = fixture.facts(spec);
        scheduler.observe(&pod, at(0));
    }
    assert_eq!(scheduler.pop(), None);
}
