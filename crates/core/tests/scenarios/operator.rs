//! The process as a whole: when it starts, and when it says that it is ready.

use std::sync::Arc;

use axum::body::{Body, to_bytes};
use http::Request;
use karpenter_cloud::fake::FakeProvider;
use karpenter_core::controllers;
use karpenter_core::operator::{Build, Operator, Setup};
use karpenter_core::options::Options;
use karpenter_sandbox::Sandbox;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::world::{clock, install};

fn operator(sandbox: &Sandbox) -> Operator {
    let options = Options {
        disable_leader_election: true,
        ..Options::default()
    };
    let setup = Setup {
        client: sandbox.client_as("karpenter"),
        election_client: sandbox.client_as("karpenter"),
        clock: clock(sandbox),
        options,
        cloud: Arc::new(FakeProvider::new(clock(sandbox))),
        build: Build::default(),
    };
    Operator::new(setup).expect("nothing is missing")
}

#[tokio::test]
async fn without_the_kinds_it_starts_and_says_what_is_missing() {
    let sandbox = Sandbox::builder().api_server_only().start();
    let operator = operator(&sandbox);
    let (_, probes) = operator.routers();
    let all = controllers::all(operator.context());
    let stop = CancellationToken::new();
    let running = tokio::spawn(operator.with_controllers(all).work(stop.clone()));
    sandbox.settle().await;
    let ask = async |path: &str| {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = probes.clone().oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        let body = to_bytes(response.into_body(), 10_000).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    };
    assert_eq!(ask("/healthz").await.0, 200);
    let (status, text) = ask("/readyz/crd").await;
    assert_eq!(status, 500);
    assert!(text.contains("karpenter crds | kubectl apply -f -"), "{text}");
    assert!(!running.is_finished(), "it waits for them");
    install(&sandbox);
    assert_eq!(ask("/readyz/crd").await.0, 200);
    stop.cancel();
}
