//! The controllers die after every single write they make, and in the end nothing is lost, leaked or doubled.

use std::sync::atomic::Ordering;

use crate::whole_cluster::WholeCluster;

const PODS: usize = 1;

/// A pod up and down again, with a crash right after the `writes`-th write; whether it came to that.
async fn crash_after(writes: usize) -> bool {
    let mut cluster = WholeCluster::start(0).await;
    let crashed = cluster.cut_off_after(writes);
    cluster.deploy("web", PODS);
    let mut up = cluster.until_running(PODS, 1).await;
    let crashed_early = crashed.load(Ordering::SeqCst);
    if crashed_early {
        cluster.restart().await;
        up = cluster.until_running(PODS, 20).await;
    }
    assert!(up, "after write {writes}: {}", cluster.summary());
    assert_eq!(cluster.counts(), (PODS, PODS, PODS), "after write {writes}");

    cluster.scale("web", 0);
    let mut down = cluster.until_empty(3).await;
    if crashed.load(Ordering::SeqCst) && !crashed_early {
        cluster.restart().await;
        down = cluster.until_empty(20).await;
    }
    assert!(down, "after write {writes}: {}", cluster.summary());
    crashed.load(Ordering::SeqCst)
}

#[tokio::test]
async fn a_crash_after_any_write_of_a_scale_up_or_scale_down_loses_leaks_and_doubles_nothing() {
    let mut writes = 1;
    while crash_after(writes).await {
        writes += 1;
        assert!(writes < 100, "a node up and down needs no hundred writes");
    }
    assert!(writes > 10, "{writes}");
}
