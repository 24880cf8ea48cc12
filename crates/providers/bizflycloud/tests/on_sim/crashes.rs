//! The controller is killed at every HTTP exchange of a launch and of a termination: nothing is leaked, nothing made twice.

use std::{collections::VecDeque, time::Duration};

use karpenter_bizflycloud::{
    BizflyCloudProvider,
    sim::{Fault, HangAt, Often, SimOptions},
};
use karpenter_cloud::{CloudProvider, Deletion};
use serde_json::json;

use crate::environment::{Setting, World, claim};

/// The points at which the controller is killed: after every exchange, and before those that change something.
pub(crate) struct Points(VecDeque<(usize, HangAt)>);

async fn world() -> World {
    World::with(Setting {
        options: SimOptions {
            // Long enough to be killed while waiting, short enough that there are few exchanges.
            volume_delay: Some(Duration::from_secs(4)),
            build_delay: Some(Duration::from_secs(3)),
            ..SimOptions::default()
        },
        // Disks besides the root disk must go too.
        class: Some(json!({"dataDisks": [{"size": 20}, {"size": 50, "type": "HDD"}]})),
        ..Setting::default()
    })
    .await
}

impl Points {
    pub(crate) fn new() -> Self {
        Self([(0, HangAt::AfterEffect)].into())
    }

    pub(crate) fn next(&mut self) -> Option<(usize, HangAt)> {
        self.0.pop_front()
    }

    /// Kills the controller when the request after some others hangs; `false` if the work was done before that.
    pub(crate) async fn kill(&mut self, world: &World, point: (usize, HangAt), work: impl Future<Output = ()>) -> bool {
        let (after, when) = point;
        world.cloud.inject(Fault::Hang { after, when }, Often::Times(1));
        let killed = tokio::select! {
            () = work => false,
            () = world.cloud.hung() => true,
        };
        world.cloud.heal();
        if killed && when == HangAt::AfterEffect {
            let asked = world.cloud.requests().pop().expect("the one that hangs");
            if asked.method != "GET" {
                self.0.push_back((after, HangAt::BeforeEffect));
            }
            self.0.push_back((after + 1, HangAt::AfterEffect));
        }
        killed
    }
}

async fn abandon(world: &World, provider: &BizflyCloudProvider, claim: &karpenter_api::NodeClaim) {
    for _ in 0..120 {
        match provider.abandon(claim).await.expect("asked") {
            Deletion::Gone => return,
            Deletion::InProgress => world.clock.sleep(Duration::from_secs(5)).await,
        }
    }
    panic!("the launch is never undone");
}

#[tokio::test]
async fn a_launch_killed_at_any_exchange_is_continued_with_one_server() {
    let world = world().await;
    let (mut points, mut killed, mut number) = (Points::new(), 0, 0);
    while let Some(point) = points.next() {
        number += 1;
        let own = world.stored(&claim(number, json!([])));
        let doomed = world.new_provider();
        let launch = async { drop(doomed.create(&own).await.expect("launched")) };
        if !points.kill(&world, point, launch).await {
            // It was done before: there are no more points.
            break;
        }
        drop(doomed);
        killed += 1;
        let restarted = world.new_provider();
        let mut made = restarted.create(&own).await;
        for _ in 0..3 {
            // An order whose answer was lost is looked for, and repeated by the next attempt at the earliest.
            if made.is_err() {
                made = restarted.create(&own).await;
            }
        }
        let made = made.unwrap_or_else(|error| panic!("{point:?}: {error}"));
        world.clock.sleep(Duration::from_secs(120)).await;
        let mut launched = own.clone();
        made.apply_to(&mut launched);
        assert_eq!(world.live().len(), 1, "{point:?}");
        world.terminate(&restarted, &launched).await;
        assert_eq!(world.cloud.leaks(), [], "{point:?}");
    }
    assert!(
        killed >= 10,
        "a launch has at least five exchanges, {killed} kills were tried"
    );
}

#[tokio::test]
async fn a_launch_killed_at_any_exchange_is_undone_without_a_trace() {
    let world = world().await;
    let (mut points, mut killed, mut number) = (Points::new(), 0, 0);
    while let Some(point) = points.next() {
        number += 1;
        let own = world.stored(&claim(number, json!([])));
        let doomed = world.new_provider();
        let launch = async { drop(doomed.create(&own).await.expect("launched")) };
        let was_killed = points.kill(&world, point, launch).await;
        drop(doomed);
        abandon(&world, &world.new_provider(), &own).await;
        world.clock.sleep(Duration::from_secs(300)).await;
        assert_eq!(world.cloud.leaks(), [], "{point:?}");
        if !was_killed {
            break;
        }
        killed += 1;
    }
    assert!(
        killed >= 10,
        "a launch has at least five exchanges, {killed} kills were tried"
    );
}

#[tokio::test]
async fn a_termination_killed_at_any_exchange_is_completed_with_all_disks() {
    let world = world().await;
    let (mut points, mut killed, mut number) = (Points::new(), 0, 0);
    while let Some(point) = points.next() {
        number += 1;
        let claim = world.launch(number, json!([])).await;
        let doomed = world.new_provider();
        let was_killed = points.kill(&world, point, world.terminate(&doomed, &claim)).await;
        drop(doomed);
        world.terminate(&world.new_provider(), &claim).await;
        assert_eq!(world.cloud.leaks(), [], "{point:?}");
        if !was_killed {
            break;
        }
        killed += 1;
    }
    assert!(
        killed >= 8,
        "a termination has at least four exchanges, {killed} kills were tried"
    );
}

#[tokio::test]
async fn a_killed_launch_whose_claim_is_gone_is_collected_with_its_disks() {
    use karpenter_cloud::garbage_collection::{GarbageCollector, KnownClaims};

    let world = world().await;
    let (mut points, mut killed, mut number) = (Points::new(), 0, 0);
    while let Some(point) = points.next() {
        number += 1;
        // The claim is not in the cluster: only garbage collection can find the server.
        let forgotten = claim(number, json!([]));
        let doomed = world.new_provider();
        let launch = async { drop(doomed.create(&forgotten).await.expect("launched")) };
        let was_killed = points.kill(&world, point, launch).await;
        drop(doomed);
        let restarted = world.new_provider();
        let mut collector = GarbageCollector::new(restarted.caution());
        world.clock.sleep(Duration::from_secs(330)).await;
        for _ in 0..3 {
            let collected = restarted.collect_garbage(&mut collector, &KnownClaims::default()).await;
            collected.expect("no faults");
            world.clock.sleep(Duration::from_secs(60)).await;
        }
        assert_eq!(world.cloud.leaks(), [], "{point:?}");
        if !was_killed {
            break;
        }
        killed += 1;
    }
    assert!(
        killed >= 10,
        "a launch has at least five exchanges, {killed} kills were tried"
    );
}
