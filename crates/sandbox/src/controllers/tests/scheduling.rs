use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::json;

use super::*;
use crate::Change;

#[tokio::test]
async fn a_refused_pod_gets_an_event_and_then_the_condition() {
    let sandbox = cluster_of(&["n1"]).await;
    let server = sandbox.objects().server().clone();
    let mut feed = server.store().feed();
    while feed.try_next().is_some() {}
    create::<Pod>(&sandbox, &pod_yaml("p", "nodeSelector: {no: such}"));
    sandbox.settle().await;
    let order: Vec<(String, Change)> = std::iter::from_fn(|| feed.try_next())
        .map(|e| (e.collection.to_string(), e.change))
        .collect();
    let expected = [
        ("pods", Change::Added),
        ("events", Change::Added),
        ("pods", Change::Modified),
    ];
    let expected: Vec<(String, Change)> = expected.iter().map(|(c, change)| ((*c).to_owned(), *change)).collect();
    assert_eq!(order, expected);
    let (status, message) = condition(&pod(&sandbox, "p").expect("there"), "PodScheduled").expect("refused");
    assert_eq!(status, "False");
    assert!(
        message.starts_with("0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector. "),
        "{message}"
    );
    assert_eq!(
        events(&sandbox, "FailedScheduling")[0].type_.as_deref(),
        Some("Warning")
    );
}

#[tokio::test]
async fn an_unchanged_refusal_is_not_written_again() {
    let sandbox = Sandbox::start();
    create::<Pod>(&sandbox, &pod_yaml("p", ""));
    sandbox.run_for(seconds(5)).await;
    let version = pod(&sandbox, "p").expect("there").metadata.resource_version;
    sandbox.run_for(seconds(1200)).await;
    assert_eq!(pod(&sandbox, "p").expect("there").metadata.resource_version, version);
}

#[tokio::test]
async fn a_fitting_node_is_used_without_waiting_for_the_flush() {
    let sandbox = Sandbox::start();
    create::<Pod>(&sandbox, &pod_yaml("p", ""));
    sandbox.run_for(seconds(30)).await;
    assert_eq!(node_of(&sandbox, "p"), None);
    sandbox.kubelets().boot(Machine::new("n1"));
    sandbox.run_for(seconds(1)).await;
    assert_eq!(node_of(&sandbox, "p").as_deref(), Some("n1"));
    let messages: Vec<String> = events(&sandbox, "Scheduled")
        .into_iter()
        .filter_map(|e| e.message)
        .collect();
    assert_eq!(messages, ["Successfully assigned default/p to n1"]);
}

#[tokio::test]
async fn room_made_by_a_deleted_pod_is_used() {
    let sandbox = cluster();
    sandbox.kubelets().boot(Machine::new("n1").capacity("cpu", "1"));
    let big = |name: &str| {
        format!(
            "{{metadata: {{name: {name}}}, spec: {{containers: [{{name: c, image: i, resources: {{requests: {{cpu: 1}}}}}}]}}}}"
        )
    };
    create::<Pod>(&sandbox, &big("first"));
    sandbox.settle().await;
    create::<Pod>(&sandbox, &big("second"));
    sandbox.settle().await;
    assert_eq!(node_of(&sandbox, "second"), None);
    delete::<Pod>(&sandbox, "default", "first");
    sandbox.run_for(seconds(1)).await;
    assert_eq!(node_of(&sandbox, "second").as_deref(), Some("n1"));
}

#[tokio::test]
async fn a_pod_takes_over_its_nodes_zone_label() {
    let sandbox = cluster_of(&["n1"]).await;
    create::<Pod>(&sandbox, &pod_yaml("p", ""));
    sandbox.settle().await;
    let labels = pod(&sandbox, "p").expect("there").metadata.labels.unwrap_or_default();
    assert_eq!(labels.get("topology.kubernetes.io/zone").map(String::as_str), Some("a"));
}

#[tokio::test]
async fn a_gate_holds_a_pod_back_until_it_is_removed() {
    let sandbox = cluster_of(&["n1"]).await;
    create::<Pod>(&sandbox, &pod_yaml("p", "schedulingGates: [{name: example.com/wait}]"));
    sandbox.settle().await;
    assert_eq!(node_of(&sandbox, "p"), None);
    let open = json!({"spec": {"schedulingGates": null}});
    sandbox
        .objects()
        .patch::<Pod>("default", "p", &open)
        .expect("gates may be removed");
    sandbox.settle().await;
    assert_eq!(node_of(&sandbox, "p").as_deref(), Some("n1"));
}

#[tokio::test]
async fn spread_over_five_wanted_domains_of_two_leaves_the_second_round_pending() {
    let sandbox = cluster_of(&["n1", "n2"]).await;
    create::<Deployment>(
        &sandbox,
        "{metadata: {name: web}, spec: {replicas: 4, selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, \
          spec: {containers: [{name: c, image: i}], topologySpreadConstraints: [{topologyKey: topology.kubernetes.io/zone, maxSkew: 1, \
          minDomains: 5, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: web}}}]}}}}",
    );
    sandbox.settle().await;
    assert_eq!(
        spread(&sandbox),
        [("n1".to_owned(), 1), ("n2".to_owned(), 1), ("pending".to_owned(), 2)].into()
    );
}

#[tokio::test]
async fn a_bare_node_object_receives_pods() {
    let sandbox = cluster();
    create::<Node>(
        &sandbox,
        "{metadata: {name: bare}, status: {capacity: {cpu: '4', memory: 8Gi, pods: '10'}}}",
    );
    create::<Pod>(&sandbox, &pod_yaml("p", ""));
    sandbox.settle().await;
    assert_eq!(node_of(&sandbox, "p").as_deref(), Some("bare"));
    assert_eq!(phase_of(&sandbox, "p"), "Pending", "nobody runs it");
}
