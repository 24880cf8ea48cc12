//! Two replicas: the leader dies in the middle of a scale-up, and the other finishes it.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use karpenter_api::NodeClaim;
use karpenter_api::conditions::StatusConditions;
use karpenter_api::node_claim::condition::LAUNCHED;
use karpenter_cloud::fake::FakeProvider;
use karpenter_core::controllers;
use karpenter_core::operator::{Build, Operator, OperatorError, Setup};
use karpenter_core::options::Options;
use karpenter_sandbox::Sandbox;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::world::{clock, install};

const PODS: usize = 3;

const DEFAULTS: &str = "
apiVersion: karpenter.test.sh/v1alpha1
kind: TestNodeClass
metadata: {name: default}
status: {conditions: [{type: Ready, status: 'True', reason: Ready, message: '', lastTransitionTime: '2026-01-01T00:00:00Z'}]}
---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: default}
spec: {template: {spec: {requirements: [], nodeClassRef: {group: karpenter.test.sh, kind: TestNodeClass, name: default}}}}
";

fn replica(sandbox: &Sandbox, cloud: &FakeProvider, name: &str) -> JoinHandle<Result<(), OperatorError>> {
    let options = Options {
        leader_election_namespace: "default".to_owned(),
        ..Options::default()
    };
    let setup = Setup {
        client: sandbox.client_as(name),
        election_client: sandbox.client_as(name),
        clock: clock(sandbox),
        options,
        cloud: Arc::new(cloud.clone()),
        build: Build::default(),
    };
    let operator = Operator::new(setup).expect("the namespace of the lease is given");
    let all = controllers::all(operator.context());
    tokio::spawn(operator.with_controllers(all).work(CancellationToken::new()))
}

/// A pod that shares its node with no sibling.
fn lonely_pod(name: usize) -> Value {
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": format!("web-{name}"), "namespace": "default", "labels": { "app": "web" } },
        "spec": { "containers": [{ "name": "c", "image": "i", "resources": { "requests": { "cpu": "100m" } } }],
            "affinity": { "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [{
                "topologyKey": "kubernetes.io/hostname", "labelSelector": { "matchLabels": { "app": "web" } } }] } } } })
}

/// When the leader dies.
#[derive(Clone, Copy, Debug)]
enum Death {
    AfterWrites(usize),
    Never,
}

/// Scales up by [`PODS`] nodes; how many writes the first leader made for that, its lease included.
async fn scale_up(death: Death) -> usize {
    let sandbox = Sandbox::builder().api_server_only().start();
    install(&sandbox);
    sandbox.apply(DEFAULTS).expect("the defaults are valid");
    let cloud = FakeProvider::new(clock(&sandbox));
    let first = replica(&sandbox, &cloud, "first");
    sandbox.run_for(Duration::from_secs(3)).await;
    let second = replica(&sandbox, &cloud, "second");
    sandbox.run_for(Duration::from_secs(3)).await;
    sandbox.requests().clear();
    if let Death::AfterWrites(writes) = death {
        sandbox.faults().after_writes("first", writes, {
            let (sandbox, first) = (sandbox.clone(), first.abort_handle());
            move || {
                sandbox.faults().cut_off("first");
                first.abort();
            }
        });
    }
    let unschedulable = json!({ "status": { "phase": "Pending", "conditions": [
        { "type": "PodScheduled", "status": "False", "reason": "Unschedulable" }] } });
    for number in 0..PODS {
        let pod: Pod = serde_json::from_value(lonely_pod(number)).expect("a pod");
        sandbox.objects().create(&pod).expect("the pod is accepted");
        let name = format!("web-{number}");
        sandbox
            .objects()
            .patch_status::<Pod>("default", &name, &unschedulable)
            .expect("it is there");
    }
    let scaled_up = sandbox
        .run_until(Duration::from_secs(120), |objects| {
            let claims: Vec<NodeClaim> = objects.list("");
            let launched = claims.iter().filter(|claim| claim.is_true(LAUNCHED));
            launched.count() == PODS && cloud.machines().len() == PODS
        })
        .await;
    assert!(scaled_up, "{death:?}");
    let writes = sandbox.requests().writes("first");
    // Whatever was done twice shows itself by now.
    sandbox.run_for(Duration::from_secs(40)).await;
    let claims = sandbox.objects().list::<NodeClaim>("").len();
    assert_eq!(
        (claims, cloud.machines().len(), cloud.launches()),
        (PODS, PODS, PODS as u64),
        "{death:?}"
    );
    assert_eq!(first.is_finished(), matches!(death, Death::AfterWrites(_)), "{death:?}");
    assert!(!second.is_finished(), "{death:?}");
    writes
}

#[tokio::test]
async fn a_leader_that_dies_after_any_write_of_a_scale_up_loses_nothing_and_doubles_nothing() {
    let writes = scale_up(Death::Never).await;
    assert!(writes >= 3 * PODS, "{writes}");
    for writes in 1..=writes {
        scale_up(Death::AfterWrites(writes)).await;
    }
}
