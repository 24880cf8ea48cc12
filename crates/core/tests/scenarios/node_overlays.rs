//! NodeOverlays: judged, put into force, and seen by whoever asks for instance types.

use karpenter_api::conditions::StatusConditions;
use karpenter_api::{NodeOverlay, NodePool};
use karpenter_cloud::{CloudError, ErrorKind, InstanceTypes};
use karpenter_core::options::Options;
use karpenter_core::{node_overlays, provisioning};
use karpenter_sandbox::DeleteOptions;
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::world::World;

async fn world() -> World {
    let mut options = Options::default();
    options.feature_gates.node_overlay = true;
    World::start_with(options, |ctx| {
        let overlays = ctx.overlays.as_ref().expect("the gate is on");
        let mut controllers = provisioning::controllers(ctx).0;
        controllers.push(node_overlays::controller(ctx, overlays));
        controllers
    })
    .await
}

impl World {
    async fn overlay(&self, name: &str, spec: Value) {
        let object = json!({ "apiVersion": "karpenter.sh/v1alpha1", "kind": "NodeOverlay", "metadata": { "name": name }, "spec": spec });
        self.sandbox
            .apply(&object.to_string())
            .expect("the overlay is accepted");
        self.sandbox.settle().await;
    }

    fn verdict(&self, overlay: &str) -> String {
        let overlay: NodeOverlay = self.sandbox.objects().get("", overlay).expect("it is there");
        let found = overlay.condition("ValidationSucceeded").expect("it was judged");
        let ready = overlay.condition("Ready").expect("it was judged");
        format!("{}/{} Ready={}", found.status, found.reason, ready.status)
    }

    async fn types(&self, pool: &str) -> Result<InstanceTypes, CloudError> {
        let pool: NodePool = self.sandbox.objects().get("", pool).expect("the pool is there");
        self.ctx.cloud.instance_types(&pool).await
    }

    /// The price of the smallest type that is sold as `capacity_type`.
    async fn price(&self, capacity_type: &str) -> f64 {
        let types = self.types("default").await.expect("the pool was evaluated");
        karpenter_cloud::selection::running_price(&types[0], "test-zone-1", capacity_type).expect("it is sold")
    }
}

fn spot() -> Value {
    json!([{ "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"] }])
}

#[tokio::test]
async fn prices_follow_the_overlay_and_return_when_it_goes() {
    let world = world().await;
    world.pool("default", json!({}));
    world.pass(1).await;
    let (spot_before, on_demand) = (world.price("spot").await, world.price("on-demand").await);
    world
        .overlay("a", json!({ "requirements": spot(), "priceAdjustment": "+100%" }))
        .await;
    assert_eq!(world.verdict("a"), "True/ValidationSucceeded Ready=True");
    assert!((world.price("spot").await - 2.0 * spot_before).abs() < 1e-12);
    assert!((world.price("on-demand").await - on_demand).abs() < 1e-12);
    world
        .sandbox
        .objects()
        .delete::<NodeOverlay>("", "a", &DeleteOptions::default())
        .expect("deleted");
    world.sandbox.settle().await;
    assert!((world.price("spot").await - spot_before).abs() < 1e-12);
}

#[tokio::test]
async fn of_two_overlays_with_one_weight_the_first_by_alphabet_is_the_conflict() {
    let world = world().await;
    world.pool("default", json!({}));
    world.overlay("a", json!({ "requirements": [], "price": "5" })).await;
    assert_eq!(world.verdict("a"), "True/ValidationSucceeded Ready=True");
    world
        .overlay("b", json!({ "requirements": spot(), "price": "5" }))
        .await;
    assert_eq!(world.verdict("a"), "False/Conflict Ready=False");
    assert_eq!(world.verdict("b"), "True/ValidationSucceeded Ready=True");
    assert!((world.price("spot").await - 5.0).abs() < 1e-12);
    assert!(world.price("on-demand").await < 1.0, "the conflict applies nowhere");
    world
        .overlay("a", json!({ "requirements": [], "price": "7", "weight": 10 }))
        .await;
    assert_eq!(world.verdict("a"), "True/ValidationSucceeded Ready=True");
    assert_eq!(world.verdict("b"), "True/ValidationSucceeded Ready=True");
    assert!((world.price("spot").await - 7.0).abs() < 1e-12, "the heavier wins");
}

#[tokio::test]
async fn an_overlay_that_cannot_be_applied_says_so_and_changes_nothing() {
    let world = world().await;
    world.pool("default", json!({}));
    world.pass(1).await;
    let before = world.price("spot").await;
    let unknown = json!([{ "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["rented"] }]);
    world
        .overlay("a", json!({ "requirements": unknown, "price": "5" }))
        .await;
    assert_eq!(world.verdict("a"), "False/RuntimeValidation Ready=False");
    assert!((world.price("spot").await - before).abs() < 1e-12);
}

#[tokio::test]
async fn nodes_are_bought_at_the_overlaid_price_and_say_so() {
    let world = world().await;
    world.pool("default", json!({}));
    world
        .overlay(
            "a",
            json!({ "requirements": [], "capacity": { "example.com/fpga": "1" } }),
        )
        .await;
    let container = json!([{ "name": "c", "image": "i", "resources": { "requests": { "cpu": "1", "example.com/fpga": "1" }, "limits": { "example.com/fpga": "1" } } }]);
    world.pending_pod("web", "1", json!({ "spec": { "containers": container } }));
    world.pass(2).await;
    let [claim] = world.claims().try_into().expect("one claim");
    assert_eq!(claim.annotations()["karpenter.sh/capacity-overlay-applied"], "true");
    assert!(!claim.annotations().contains_key("karpenter.sh/price-overlay-applied"));
}

#[tokio::test]
async fn a_pool_whose_types_cannot_be_listed_waits_without_holding_up_the_others() {
    let world = world().await;
    world.pool("default", json!({}));
    world.pass(1).await;
    world.cloud.break_types_of("broken");
    world.pool("broken", json!({}));
    world.pending_pod("web", "1", json!({}));
    world.pass(3).await;
    assert_eq!(world.claims().len(), 1, "the other pool serves");
    assert!(world.types("default").await.is_ok());
    world.cloud.stop_failing();
    let unevaluated = world.types("broken").await.expect_err("nobody has looked at it again");
    assert_eq!(unevaluated.kind(), ErrorKind::Unevaluated);
    world.pass(120).await;
    assert!(world.types("broken").await.is_ok(), "it was tried again");
    assert!(
        world
            .events("web")
            .iter()
            .all(|event| !event.starts_with("FailedScheduling"))
    );
}
