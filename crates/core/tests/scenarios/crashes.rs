//! The controllers die after every single write they make, and in the end nothing is lost, leaked or doubled.

use std::sync::atomic::Ordering;

use karpenter_cloud::CloudError;
use karpenter_cloud::fake::{Method, Moment};

use crate::whole_cluster::WholeCluster;

const BUDGET: &str = "
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web, namespace: default}
spec: {maxUnavailable: 1, selector: {matchLabels: {app: web}}}
";

/// Something that the controllers are given to do, and how the cluster looks once it is done.
struct Task {
    begin: fn(&WholeCluster),
    is_done: fn(&WholeCluster) -> bool,
    /// Machines launched until then, counted from the beginning of all.
    launches: usize,
}

/// Pods that need a node each; one launch fails for want of capacity.
fn up<const PODS: usize>() -> Task {
    Task {
        begin: |cluster| {
            cluster.sandbox.apply(BUDGET).expect("the budget is valid");
            let error = CloudError::insufficient_capacity("none of these is left");
            cluster.cloud.fail_next(Method::Create, Moment::Before, error);
            cluster.deploy("web", PODS);
        },
        is_done: |cluster| cluster.runs_exactly(PODS),
        launches: PODS,
    }
}

/// All pods go, and the nodes after them.
fn down<const PODS: usize>() -> Task {
    Task {
        begin: |cluster| cluster.scale("web", 0),
        is_done: WholeCluster::is_empty,
        launches: PODS,
    }
}

/// Does one task after the other, with a crash after the `writes`-th write of the last; whether it came to that.
async fn crash_after(writes: usize, before: &[Task], task: &Task) -> bool {
    let mut cluster = WholeCluster::start(0).await;
    for task in before {
        (task.begin)(&cluster);
        assert!(cluster.until(10, task.is_done).await, "{}", cluster.summary());
    }
    let crashed = cluster.cut_off_after(writes);
    (task.begin)(&cluster);
    let is_over = |cluster: &WholeCluster| crashed.load(Ordering::SeqCst) || (task.is_done)(cluster);
    assert!(
        cluster.until(30, is_over).await,
        "after write {writes}: {}",
        cluster.summary()
    );
    let has_crashed = crashed.load(Ordering::SeqCst);
    if has_crashed {
        cluster.restart().await;
        let done = cluster.until(30, task.is_done).await;
        assert!(done, "after write {writes}: {}", cluster.summary());
    }
    let launches = cluster.cloud.launches();
    assert_eq!(
        launches,
        task.launches as u64,
        "after write {writes}: {}",
        cluster.story()
    );
    has_crashed
}

async fn crash_after_every_write(before: &[Task], task: &Task) {
    let mut writes = 1;
    while crash_after(writes, before, task).await {
        writes += 1;
        assert!(writes < 200, "this needs no two hundred writes");
    }
    assert!(writes > 20, "{writes}");
}

#[tokio::test]
async fn a_crash_after_any_write_of_a_scale_up_loses_leaks_and_doubles_nothing() {
    crash_after_every_write(&[], &up::<2>()).await;
}

#[tokio::test]
async fn a_crash_after_any_write_of_a_scale_down_loses_leaks_and_doubles_nothing() {
    crash_after_every_write(&[up::<2>()], &down::<2>()).await;
}
