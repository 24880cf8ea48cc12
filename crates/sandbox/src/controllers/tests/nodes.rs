use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::json;

use super::*;
use crate::NodeConditionOrder;

#[tokio::test]
async fn a_machine_boots_registers_and_becomes_ready() {
    let sandbox = cluster();
    let machine = Machine::new("n1")
        .provider_id("sim://n1")
        .taint("karpenter.sh/unregistered", "", "NoExecute")
        .boots_after(seconds(30))
        .ready_after(seconds(20));
    sandbox.kubelets().boot(machine);
    sandbox.run_for(seconds(29)).await;
    assert!(sandbox.objects().get::<Node>("", "n1").is_none());
    sandbox.run_for(seconds(1)).await;
    assert_eq!(ready_status(&sandbox, "n1"), "False");
    let registered = taints(&sandbox, "n1");
    assert!(
        registered.contains(&"karpenter.sh/unregistered:NoExecute".to_owned()),
        "{registered:?}"
    );
    assert!(
        registered.contains(&"not-ready:NoSchedule".to_owned()),
        "{registered:?}"
    );
    sandbox.run_for(seconds(20)).await;
    assert_eq!(ready_status(&sandbox, "n1"), "True");
    assert_eq!(taints(&sandbox, "n1"), ["karpenter.sh/unregistered:NoExecute"]);
    let made = node(&sandbox, "n1");
    assert_eq!(made.spec.and_then(|s| s.provider_id).as_deref(), Some("sim://n1"));
    let lease: Lease = sandbox
        .objects()
        .get("kube-node-lease", "n1")
        .expect("the kubelet has a lease");
    assert_eq!(lease.spec.and_then(|s| s.holder_identity).as_deref(), Some("n1"));
}

#[tokio::test]
async fn a_machine_that_never_registers_leaves_no_node() {
    let sandbox = cluster();
    sandbox.kubelets().boot(Machine::new("n1").never_registers());
    sandbox.kubelets().boot(Machine::new("n2").never_ready());
    sandbox.run_for(seconds(600)).await;
    assert!(sandbox.objects().get::<Node>("", "n1").is_none());
    assert_eq!(ready_status(&sandbox, "n2"), "False");
}

#[tokio::test]
async fn a_cordoned_node_carries_the_unschedulable_taint_until_uncordoned() {
    let sandbox = cluster_of(&["n1"]).await;
    let cordon = |value: serde_json::Value| {
        sandbox
            .objects()
            .patch::<Node>("", "n1", &json!({"spec": {"unschedulable": value}}))
            .expect("patched")
    };
    cordon(json!(true));
    sandbox.settle().await;
    assert_eq!(taints(&sandbox, "n1"), ["unschedulable:NoSchedule"]);
    cordon(json!(null));
    sandbox.settle().await;
    assert!(taints(&sandbox, "n1").is_empty());
}

#[tokio::test]
async fn a_silent_node_turns_unknown_after_50_seconds_and_its_pods_are_evicted() {
    let sandbox = cluster_of(&["n1", "n2"]).await;
    create::<Pod>(
        &sandbox,
        &pod_yaml(
            "p",
            "nodeSelector: {kubernetes.io/hostname: n1}, tolerations: [{key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 5}]",
        ),
    );
    sandbox.settle().await;
    assert_eq!(phase_of(&sandbox, "p"), "Running");
    sandbox.kubelets().freeze("n1");
    sandbox.run_for(seconds(49)).await;
    assert_eq!(ready_status(&sandbox, "n1"), "True");
    sandbox.run_for(seconds(2)).await;
    assert_eq!(ready_status(&sandbox, "n1"), "Unknown");
    assert_eq!(ready_status(&sandbox, "n2"), "True");
    let silent = taints(&sandbox, "n1");
    assert!(silent.contains(&"unreachable:NoSchedule".to_owned()), "{silent:?}");
    assert!(silent.contains(&"unreachable:NoExecute".to_owned()), "{silent:?}");
    assert!(!is_ready(&pod(&sandbox, "p").expect("still there")));
    sandbox.run_for(seconds(5)).await;
    let evicted = pod(&sandbox, "p").expect("nobody ends it while the kubelet is silent");
    assert!(evicted.metadata.deletion_timestamp.is_some());
    assert!(condition(&evicted, "DisruptionTarget").is_some());
    sandbox.kubelets().thaw("n1");
    sandbox.run_for(seconds(40)).await;
    assert_eq!(ready_status(&sandbox, "n1"), "True");
    assert!(taints(&sandbox, "n1").is_empty());
    assert!(pod(&sandbox, "p").is_none(), "the kubelet ends the pod once it is back");
}

#[tokio::test]
async fn when_all_nodes_are_silent_nobody_is_evicted() {
    let sandbox = cluster_of(&["n1"]).await;
    sandbox.kubelets().freeze("n1");
    sandbox.run_for(seconds(120)).await;
    assert_eq!(taints(&sandbox, "n1"), ["unreachable:NoSchedule"]);
}

#[tokio::test]
async fn a_node_with_the_kwok_annotation_runs_pods_and_one_without_turns_unknown() {
    let sandbox = cluster();
    create::<Node>(
        &sandbox,
        "{metadata: {name: fake, annotations: {kwok.x-k8s.io/node: fake}, labels: {kind: fake}}}",
    );
    create::<Node>(&sandbox, "{metadata: {name: bare}}");
    create::<Pod>(&sandbox, &pod_yaml("p", "nodeSelector: {kind: fake}"));
    sandbox.settle().await;
    assert_eq!(ready_status(&sandbox, "fake"), "True");
    assert_eq!(phase_of(&sandbox, "p"), "Running");
    sandbox.run_for(seconds(61)).await;
    assert_eq!(ready_status(&sandbox, "fake"), "True");
    assert_eq!(ready_status(&sandbox, "bare"), "Unknown");
}

#[tokio::test]
async fn a_deleted_node_takes_its_lease_at_once_and_its_pods_after_the_quarantine() {
    let sandbox = cluster_of(&["n1", "n2"]).await;
    create::<Pod>(&sandbox, &pod_yaml("p", "nodeSelector: {kubernetes.io/hostname: n1}"));
    sandbox.settle().await;
    sandbox.kubelets().stop("n1");
    delete::<Node>(&sandbox, "", "n1");
    sandbox.settle().await;
    assert!(sandbox.objects().get::<Lease>("kube-node-lease", "n1").is_none());
    sandbox.run_for(seconds(39)).await;
    assert_eq!(phase_of(&sandbox, "p"), "Running");
    sandbox.run_for(seconds(21)).await;
    assert_eq!(phase_of(&sandbox, "p"), "gone");
}

#[tokio::test]
async fn a_node_deleted_under_a_running_kubelet_comes_back_only_after_a_restart() {
    let sandbox = cluster_of(&["n1"]).await;
    delete::<Node>(&sandbox, "", "n1");
    sandbox.run_for(seconds(60)).await;
    assert!(sandbox.objects().get::<Node>("", "n1").is_none());
    sandbox.kubelets().restart("n1");
    sandbox.settle().await;
    assert_eq!(ready_status(&sandbox, "n1"), "True");
}

#[tokio::test]
async fn a_condition_set_from_outside_is_reported_and_mirrored_as_a_taint() {
    let sandbox = cluster_of(&["n1"]).await;
    sandbox.kubelets().set_condition(
        "n1",
        NodeConditionOrder {
            kind: "DiskPressure".into(),
            status: "True".into(),
            reason: "DiskFull".into(),
            message: "no space".into(),
        },
    );
    sandbox.settle().await;
    assert_eq!(taints(&sandbox, "n1"), ["disk-pressure:NoSchedule"]);
}

#[tokio::test]
async fn extended_resources_may_arrive_after_readiness() {
    let sandbox = cluster();
    let mut machine = Machine::new("gpu");
    machine.late_resources.insert("example.com/gpu".into(), "2".into());
    machine.late_resources_delay = seconds(30);
    sandbox.kubelets().boot(machine);
    let request = "{metadata: {name: p}, spec: {containers: [{name: c, image: i, resources: {requests: {example.com/gpu: 1}, limits: {example.com/gpu: 1}}}]}}";
    create::<Pod>(&sandbox, request);
    sandbox.settle().await;
    let (_, message) = condition(&pod(&sandbox, "p").expect("pending"), "PodScheduled").expect("refused");
    assert!(
        message.starts_with("0/1 nodes are available: 1 Insufficient example.com/gpu."),
        "{message}"
    );
    sandbox.run_for(seconds(31)).await;
    assert_eq!(node_of(&sandbox, "p").as_deref(), Some("gpu"));
}

#[tokio::test]
async fn a_pod_goes_through_start_readiness_and_a_graceful_end() {
    let sandbox = Sandbox::builder()
        .timing(Timing {
            pod_start: seconds(3),
            pod_exit: seconds(10),
            ..Timing::instant()
        })
        .start();
    sandbox.kubelets().boot(Machine::new("n1"));
    create::<Pod>(&sandbox, &pod_yaml("p", ""));
    sandbox.settle().await;
    assert_eq!(phase_of(&sandbox, "p"), "Pending");
    sandbox.run_for(seconds(3)).await;
    let started = pod(&sandbox, "p").expect("there");
    assert!(is_ready(&started));
    assert!(
        started
            .status
            .as_ref()
            .is_some_and(|s| s.pod_ip.is_some() && s.container_statuses.is_some())
    );
    delete::<Pod>(&sandbox, "default", "p");
    sandbox.run_for(seconds(9)).await;
    assert!(!is_ready(&pod(&sandbox, "p").expect("still ending")));
    sandbox.run_for(seconds(1)).await;
    assert!(pod(&sandbox, "p").is_none());
}

#[tokio::test]
async fn shortening_the_grace_shortens_the_wait() {
    let sandbox = Sandbox::builder()
        .timing(Timing {
            pod_exit: seconds(600),
            ..Timing::instant()
        })
        .start();
    sandbox.kubelets().boot(Machine::new("n1"));
    create::<Pod>(&sandbox, &pod_yaml("p", "terminationGracePeriodSeconds: 300"));
    sandbox.settle().await;
    delete::<Pod>(&sandbox, "default", "p");
    sandbox.run_for(seconds(10)).await;
    assert!(pod(&sandbox, "p").is_some());
    let options = DeleteOptions {
        grace_period_seconds: Some(20),
        ..DeleteOptions::default()
    };
    sandbox
        .objects()
        .delete::<Pod>("default", "p", &options)
        .expect("shortened");
    sandbox.run_for(seconds(20)).await;
    assert!(pod(&sandbox, "p").is_none());
}

#[tokio::test]
async fn an_hour_passes_in_a_moment() {
    let sandbox = cluster_of(&["n1", "n2", "n3"]).await;
    let before = std::time::Instant::now();
    sandbox.run_for(seconds(3600)).await;
    assert!(before.elapsed() < seconds(5), "took {:?}", before.elapsed());
    assert_eq!(ready_status(&sandbox, "n3"), "True");
    let lease: Lease = sandbox
        .objects()
        .get("kube-node-lease", "n3")
        .expect("the lease is there");
    let renewed = lease.spec.and_then(|s| s.renew_time).expect("renewed").0;
    assert!(sandbox.clock().now().duration_since(renewed) <= jiff::SignedDuration::from_secs(300));
}

#[tokio::test]
async fn written_heartbeats_renew_the_lease_every_ten_seconds() {
    let sandbox = Sandbox::start();
    sandbox.kubelets().boot(Machine::new("n1"));
    sandbox.run_for(seconds(95)).await;
    let lease: Lease = sandbox
        .objects()
        .get("kube-node-lease", "n1")
        .expect("the lease is there");
    let renewed = lease.spec.and_then(|s| s.renew_time).expect("renewed").0;
    assert_eq!(
        sandbox.clock().now().duration_since(renewed),
        jiff::SignedDuration::from_secs(5)
    );
    sandbox.kubelets().stop("n1");
    sandbox.run_for(seconds(46)).await;
    assert_eq!(
        ready_status(&sandbox, "n1"),
        "Unknown",
        "50 seconds after the last renewal"
    );
}
