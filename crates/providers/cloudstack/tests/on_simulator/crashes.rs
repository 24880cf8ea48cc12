//! The controller is killed at every HTTP exchange of a launch and of a termination; nothing is leaked, nothing made twice.

use std::time::Duration;

use karpenter_cloud::{CloudProvider, Deletion, conformance::Environment};
use karpenter_cloudstack::sim::{Fault, FaultKind};
use serde_json::json;

use crate::environment::{Cloud, claim};

/// More exchanges than either operation needs.
const MOST: usize = 30;

fn points() -> impl Iterator<Item = (usize, FaultKind)> {
    (0..MOST).flat_map(|after| [(after, FaultKind::HangBefore), (after, FaultKind::HangAfter)])
}

#[tokio::test]
async fn a_launch_killed_at_any_exchange_is_continued_or_collected() {
    let cloud = Cloud::start().await;
    let mut killed = 0;
    for (number, (after, kind)) in (1..).zip(points()) {
        let claim = cloud.stored(&claim(number, "1", json!([])));
        let doomed = cloud.new_provider().await;
        cloud
            .simulator
            .inject(Fault::everything(kind.clone()).after(after).times(1));
        let finished = tokio::select! {
            launched = doomed.create(&claim) => { launched.expect("launched"); true }
            () = cloud.simulator.hung() => false,
        };
        drop(doomed);
        cloud.simulator.heal();
        if finished {
            break;
        }
        killed += 1;
        let restarted = cloud.new_provider().await;
        let before = cloud.live().len();
        if number % 2 == 0 {
            // The claim is still wanted: its launch goes on.
            let instance = restarted.create(&claim).await.expect("continued");
            let mine: Vec<_> = cloud
                .live()
                .into_iter()
                .filter(|own| own.details["karpenter.nodeclaim.uid"] == claim.metadata.uid.clone().expect("a uid"))
                .collect();
            assert_eq!(mine.len(), 1, "killed {kind:?} exchange {after}");
            assert!(instance.provider_id.ends_with(&mine[0].id));
        } else {
            // The claim is deleted meanwhile: what was made goes.
            for _ in 0..20 {
                if restarted.abandon(&claim).await.expect("asked") == Deletion::Gone {
                    break;
                }
                cloud.pass(Duration::from_secs(5)).await;
            }
            assert!(cloud.live().len() <= before);
            let mine = cloud
                .live()
                .into_iter()
                .filter(|own| own.details["karpenter.nodeclaim.uid"] == claim.metadata.uid.clone().expect("a uid"))
                .count();
            assert_eq!(mine, 0, "killed {kind:?} exchange {after}");
        }
    }
    assert_eq!(cloud.simulator.violations(), [""; 0]);
    assert!(
        killed >= 8,
        "a launch has at least four exchanges, {killed} kills were tried"
    );
}

#[tokio::test]
async fn a_machine_of_a_launch_that_was_killed_and_forgotten_is_collected() {
    let cloud = Cloud::start().await;
    // The claim never makes it into the cluster: only garbage collection can find the machine.
    for (number, (after, kind)) in (1..).zip(points().take(16)) {
        let doomed = cloud.new_provider().await;
        cloud.simulator.inject(Fault::everything(kind).after(after).times(1));
        let forgotten = claim(number, "1", json!([]));
        tokio::select! {
            _ = doomed.create(&forgotten) => {}
            () = cloud.simulator.hung() => {}
        }
        cloud.simulator.heal();
    }
    let restarted = cloud.new_provider().await;
    cloud.pass(Duration::from_secs(130)).await;
    // At most ten orphans are believed at once: more look like a lost cluster state.
    for _ in 0..3 {
        let mut live = cloud.live();
        live.sort_by(|a, b| a.id.cmp(&b.id));
        for extra in live.iter().skip(10) {
            cloud.simulator.operate(|operator| operator.expunge(&extra.id));
        }
        cloud.collect(&restarted, 3).await;
    }
    assert!(cloud.live().is_empty());
    assert_eq!(cloud.simulator.violations(), [""; 0]);
}

#[tokio::test]
async fn a_termination_killed_at_any_exchange_is_completed() {
    let cloud = Cloud::start().await;
    let mut killed = 0;
    for (number, (after, kind)) in (1..).zip(points()) {
        let claim = cloud.launch(&claim(number, "1", json!([]))).await;
        let doomed = cloud.new_provider().await;
        cloud
            .simulator
            .inject(Fault::everything(kind.clone()).after(after).times(1));
        let run = async {
            for _ in 0..40 {
                if doomed.delete(&claim).await.is_ok_and(|own| own == Deletion::Gone) {
                    return;
                }
                cloud.pass(Duration::from_secs(5)).await;
            }
        };
        let finished = tokio::select! {
            () = run => true,
            () = cloud.simulator.hung() => false,
        };
        cloud.simulator.heal();
        let restarted = cloud.new_provider().await;
        let mut gone = false;
        for _ in 0..40 {
            gone = restarted.delete(&claim).await.is_ok_and(|own| own == Deletion::Gone);
            if gone {
                break;
            }
            cloud.pass(Duration::from_secs(5)).await;
        }
        assert!(gone && cloud.live().is_empty(), "killed {kind:?} exchange {after}");
        if finished {
            break;
        }
        killed += 1;
    }
    assert_eq!(cloud.simulator.violations(), [""; 0]);
    assert!(
        killed >= 6,
        "a termination has at least three exchanges, {killed} kills were tried"
    );
}
