//! The controllers die after every single write they make, and in the end nothing is lost, leaked or doubled.

use std::sync::atomic::Ordering;
use std::time::Duration;

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use karpenter_cloud::CloudError;
use karpenter_cloud::fake::{Method, Moment};
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

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

/// One of the nodes drifts and is replaced. Nothing that became superfluous would be noticed: consolidation is off.
fn replace<const PODS: usize>() -> Task {
    Task {
        begin: |cluster| {
            cluster.set_disruption(json!({ "consolidateAfter": "Never", "budgets": [{ "nodes": "100%" }] }));
            cluster.drift(1);
        },
        is_done: |cluster| cluster.runs_exactly(PODS) && !cluster.has_drifted(),
        launches: PODS + 1,
    }
}

#[tokio::test]
async fn a_crash_after_any_write_of_a_replacement_loses_leaks_and_doubles_nothing() {
    crash_after_every_write(&[up::<2>()], &replace::<2>()).await;
}

/// Two of three nodes are to be replaced by controllers that live for a few writes only, again and again; how many machines
/// that took.
async fn replace_in_short_lives(seed: u64, disruption: Value) -> u64 {
    let mut cluster = WholeCluster::start(seed).await;
    cluster.set_disruption(disruption);
    cluster.deploy("web", 3);
    assert!(cluster.until(10, |cluster| cluster.runs_exactly(3)).await);
    cluster.drift(2);
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    // After a single write the next life undoes what this one did, and no replacement ever comes to its end.
    let mut lives: Vec<usize> = (0..12).map(|_| random.random_range(2..7)).collect();
    lives.extend([1; 8]);
    lives.shuffle(&mut random);
    cluster.live_through(lives).await;
    let is_done = |cluster: &WholeCluster| cluster.runs_exactly(3) && !cluster.has_drifted();
    let done = cluster.until(30, is_done).await;
    assert!(done, "seed {seed}: {}\n{}", cluster.summary(), cluster.story());
    let launches = cluster.cloud.launches();
    // Whatever was left behind shows itself by now.
    cluster.until(10, |_| false).await;
    assert!(is_done(&cluster), "seed {seed}: {}", cluster.summary());
    assert_eq!(cluster.cloud.launches(), launches, "seed {seed}");
    launches
}

#[tokio::test]
async fn controllers_that_die_again_and_again_while_nodes_are_replaced_leave_nothing_behind() {
    for seed in 0..2 {
        let launches = replace_in_short_lives(seed, json!({ "consolidateAfter": "Never" })).await;
        assert_eq!(
            launches, 5,
            "seed {seed}: what a dead command launched is used by the next"
        );
        // Here a replacement without a command is an empty node, which may go before the next command wants it.
        let eager = json!({ "consolidationPolicy": "WhenEmptyOrUnderutilized", "consolidateAfter": "0s" });
        replace_in_short_lives(seed, eager).await;
    }
}

const HELD: &str = "
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: held, namespace: default}
spec: {minAvailable: 2, selector: {matchLabels: {app: web}}}
";

/// Two nodes with three pods are deleted while a budget keeps one pod on each; it opens after half a minute. The controllers
/// die after their `writes`-th write; whether it came to that.
async fn crash_while_a_budget_holds(writes: usize) -> bool {
    let mut cluster = WholeCluster::start(0).await;
    cluster.sandbox.apply(HELD).expect("the budget is valid");
    cluster.deploy("web", 2);
    cluster.deploy("db", 1);
    assert!(
        cluster.until(10, |cluster| cluster.runs(3, 2)).await,
        "{}",
        cluster.summary()
    );
    let held = cluster.pods("web");
    let crashed = cluster.cut_off_after(writes);
    let has_crashed = || crashed.load(Ordering::SeqCst);
    cluster.delete_claims();
    // The free pods move, and the held ones wait.
    let half_a_minute = Duration::from_secs(30);
    if cluster.sandbox.run_until(half_a_minute, |_| has_crashed()).await {
        cluster.restart().await;
        cluster.sandbox.run_for(half_a_minute).await;
    }
    assert_eq!(cluster.pods("web"), held, "after write {writes}: {}", cluster.story());
    let opened = json!({ "spec": { "minAvailable": 1 } });
    let budgets = cluster.objects();
    budgets
        .patch::<PodDisruptionBudget>("default", "held", &opened)
        .expect("it is there");
    let is_done = |cluster: &WholeCluster| cluster.runs(3, 2);
    let had_crashed = has_crashed();
    let is_over = |cluster: &WholeCluster| has_crashed() != had_crashed || is_done(cluster);
    cluster.until(10, is_over).await;
    if has_crashed() != had_crashed {
        cluster.restart().await;
    }
    let done = cluster.until(10, is_done).await;
    assert!(done, "after write {writes}: {}", cluster.summary());
    assert!(cluster.pods("web").is_disjoint(&held), "after write {writes}");
    assert_eq!(cluster.cloud.launches(), 4, "after write {writes}: {}", cluster.story());
    has_crashed()
}

#[tokio::test]
async fn a_node_that_is_bought_for_a_pod_which_a_budget_holds_is_kept_until_it_comes() {
    let cluster = WholeCluster::start(0).await;
    cluster.sandbox.apply(HELD).expect("the budget is valid");
    cluster.deploy("web", 2);
    assert!(cluster.until(10, |cluster| cluster.runs(2, 2)).await);
    cluster.delete_claims();
    for _ in 0..10 {
        cluster.sandbox.run_for(Duration::from_secs(30)).await;
        assert_eq!(cluster.counts(), (4, 4, 4), "neither removed as empty nor bought again");
        assert_eq!(cluster.cloud.launches(), 4);
    }
}

#[tokio::test]
async fn a_crash_after_any_write_while_a_budget_holds_a_drain_loses_leaks_and_doubles_nothing() {
    let mut writes = 1;
    while crash_while_a_budget_holds(writes).await {
        writes += 1;
        assert!(writes < 200, "this needs no two hundred writes");
    }
    assert!(writes > 20, "{writes}");
}
