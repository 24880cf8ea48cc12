//! Watches survive what API servers do to them.

use k8s_openapi::api::core::v1::Pod;
use karpenter_core::watch::Key;
use karpenter_sandbox::DeleteOptions;
use karpenter_sandbox::faults::Fault;
use serde_json::json;

use crate::world::World;

async fn watching() -> World {
    World::start(|_| Vec::new()).await
}

fn knows(world: &World, pod: &str) -> bool {
    let key = Key::namespaced("default", pod);
    let (cached, fact) = (world.ctx.pods.get(&key).is_some(), world.ctx.state.pod(&key).is_some());
    assert_eq!(cached, fact, "cache and state agree");
    cached
}

#[tokio::test]
async fn a_watch_that_is_cut_goes_on_where_it_was() {
    let world = watching().await;
    world.pending_pod("before", "1", json!({}));
    world.pass(1).await;
    world.sandbox.faults().drop_watches();
    world.pending_pod("after", "1", json!({}));
    world.pass(5).await;
    assert!(knows(&world, "before") && knows(&world, "after"));
}

#[tokio::test]
async fn a_version_that_is_too_old_leads_to_a_new_list_that_notices_deletions() {
    let world = watching().await;
    world.pending_pod("gone", "1", json!({}));
    world.pending_pod("kept", "1", json!({}));
    world.pass(1).await;
    world
        .sandbox
        .faults()
        .inject(Fault::fail(503).resource("pods").times(2));
    world.sandbox.faults().drop_watches();
    world
        .sandbox
        .objects()
        .delete::<Pod>("default", "gone", &DeleteOptions::now())
        .unwrap();
    world.sandbox.expire_resource_versions();
    world.pass(10).await;
    assert!(!knows(&world, "gone") && knows(&world, "kept"));
}

#[tokio::test]
async fn a_410_as_the_answer_to_the_request_does_not_repeat_for_ever() {
    let world = watching().await;
    world.pending_pod("before", "1", json!({}));
    world.pass(1).await;
    world
        .sandbox
        .faults()
        .inject(Fault::fail(410).verb("watch").resource("pods").times(1));
    world.sandbox.faults().drop_watches();
    world.pending_pod("after", "1", json!({}));
    world.pass(10).await;
    assert!(knows(&world, "before") && knows(&world, "after"));
}
