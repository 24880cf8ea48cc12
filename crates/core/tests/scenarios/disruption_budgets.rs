//! Random budgets, faults and jumps of time: never are more nodes disrupted than the budget allows.

use std::time::Duration;

use karpenter_api::NodeClaim;
use karpenter_api::conditions::StatusConditions;
use karpenter_cloud::provider::DriftReason;
use karpenter_sandbox::faults::Fault;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::json;

use crate::cluster::Cluster;

const NODES: usize = 6;

/// Nodes that are being disrupted: chosen by us, or on their way out.
fn disrupted(cluster: &Cluster) -> usize {
    let claims: Vec<NodeClaim> = cluster.objects().list("");
    let is_disrupted = |claim: &&NodeClaim| {
        claim.is_terminating() || claim.condition("DisruptionReason").is_some_and(|own| own.is_true())
    };
    claims.iter().filter(is_disrupted).count()
}

/// Replacements finish their pods' move: what a kubelet would do with pods that were asked to leave.
async fn finish_evicted(cluster: &Cluster) {
    for nth in 0..NODES {
        let name = format!("pod-{nth}");
        if cluster.is_terminating(&name) {
            cluster.finish(&name).await;
        }
    }
}

async fn check(seed: u64) {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let allowed = random.random_range(1..=3);
    let cluster = Cluster::start().await;
    let budget = json!({"consolidateAfter": "Never", "budgets": [{"nodes": "5"}, {"nodes": allowed.to_string()}]});
    cluster.open_pool(budget).await;
    for nth in 0..NODES {
        let name = format!("node-{nth}");
        cluster.claim(&name, "expireAfter: Never").await;
        // One pod must never leave.
        let metadata = match nth {
            0 => "annotations: {karpenter.sh/do-not-disrupt: 'true'}",
            _ => "",
        };
        cluster.pod_on(&name, &format!("pod-{nth}"), "1500m", metadata).await;
    }
    for machine in cluster.cloud.machines() {
        let reason = DriftReason("ImageDrifted".to_owned());
        cluster.cloud.set_drifted(&machine.instance.provider_id, Some(reason));
    }
    for code in [409, 500] {
        for verb in ["patch", "create", "delete"] {
            cluster
                .sandbox
                .faults()
                .inject(Fault::fail(code).verb(verb).probability(0.03));
        }
    }
    for step in 0..24 {
        cluster
            .cloud
            .set_boot_delay(Duration::from_secs(random.random_range(0..90)));
        // Long jumps let conditions, timeouts and backoffs come due together.
        let seconds = if random.random_bool(0.2) {
            120
        } else {
            random.random_range(1..30)
        };
        cluster.seconds(seconds).await;
        let now = disrupted(&cluster);
        assert!(
            now <= allowed,
            "seed {seed}, step {step}: {now} nodes are disrupted, {allowed} are allowed"
        );
        assert!(
            !cluster.is_terminating("pod-0"),
            "seed {seed}, step {step}: a protected pod was evicted"
        );
        finish_evicted(&cluster).await;
    }
    cluster.sandbox.faults().clear();
    for _ in 0..20 {
        cluster.seconds(60).await;
        finish_evicted(&cluster).await;
    }
    for nth in 1..NODES {
        assert!(
            cluster.get_claim(&format!("node-{nth}")).is_none(),
            "seed {seed}: node-{nth} was never replaced"
        );
    }
    assert!(!cluster.is_leaving("node-0"), "seed {seed}");
}

#[tokio::test]
async fn no_budget_is_exceeded_whatever_fails() {
    for seed in 0..3 {
        check(seed).await;
    }
}
