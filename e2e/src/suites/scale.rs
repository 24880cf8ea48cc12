//! How it holds up: thousands of pods to running and back to nothing, with time, CPU and memory of the controller.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::manifests::{Pool, deployment};
use crate::installation::Installation;
use crate::runner::{Case, Environment, Runs, Suite};
use crate::world::{View, World};

/// What upstream's Go controller needs on the same machine and control plane: the better end of what was measured.
struct Upstream {
    cpu_seconds: f64,
    peak_mib: f64,
    claims_seconds: f64,
    empty_seconds: f64,
}

struct Load {
    pods: usize,
    upstream: Upstream,
}

const LOADS: [Load; 2] = [
    Load {
        pods: 1_000,
        upstream: Upstream {
            cpu_seconds: 4.8,
            peak_mib: 152.0,
            claims_seconds: 14.0,
            empty_seconds: 42.0,
        },
    },
    Load {
        pods: 5_000,
        upstream: Upstream {
            cpu_seconds: 39.0,
            peak_mib: 455.0,
            claims_seconds: 77.0,
            empty_seconds: 62.0,
        },
    },
];

pub(crate) fn suite() -> Suite {
    let cases = LOADS.iter().map(|load| Case {
        name: format!("{}_pods_to_running_and_back_to_zero", load.pods),
        run: Box::new(move |environment| Box::pin(run(environment, load))),
        limit: Duration::from_secs(600),
    });
    Suite {
        name: "scale",
        runs: Runs::Alone,
        cases: cases.collect(),
    }
}

async fn run(environment: &mut Environment, load: &Load) -> Result<()> {
    let installation = Installation::install(environment).await?;
    let mut replica = installation.start(environment, &[]).await?;
    let world = World::watch(environment.control_plane.admin().await?).await?;
    // The pool that upstream was measured with.
    let disruption = "{consolidationPolicy: WhenEmpty, consolidateAfter: 10s, budgets: [{nodes: \"100%\"}]}";
    world.apply(&Pool::new("default").disruption(disruption).yaml()).await?;

    let started = Instant::now();
    world.apply(&deployment("load", load.pods, "500m", "512Mi", "")).await?;
    let mut claims_after = Duration::ZERO;
    let mut seen = 0;
    poll(&world, "pods do not run", |view| {
        if view.claims.len() != seen {
            seen = view.claims.len();
            claims_after = started.elapsed();
        }
        view.all_run(load.pods)
    })
    .await?;
    let running_after = started.elapsed();
    let nodes = world.view().nodes.len();

    let shrinking = Instant::now();
    world.scale("load", 0).await?;
    let mut left_after = None;
    poll(&world, "nodes stay", |view| {
        if left_after.is_none() && view.alive() == 0 {
            left_after = Some(shrinking.elapsed());
        }
        view.nodes.is_empty() && view.claims.is_empty()
    })
    .await?;
    let empty_after = shrinking.elapsed();
    let usage = replica.process.usage().context("the controller's process is gone")?;
    replica.process.stop().await;
    world.clear().await.or_else(|error| {
        // The controller is stopped already; pools without nodes need nobody to go away.
        if world.view().claims.is_empty() {
            Ok(())
        } else {
            Err(error)
        }
    })?;

    let (claims, empty) = (claims_after.as_secs_f64(), empty_after.as_secs_f64());
    // How long the control plane took to let go of the last pod: nothing is empty before.
    let left = left_after.unwrap_or(empty_after).as_secs_f64();
    let upstream = &load.upstream;
    println!(
        "       {:<22} {:>10} {:>12} {:>8} {:>6}",
        format!("{} pods, {nodes} nodes", load.pods),
        "ours",
        "upstream",
        "ratio",
        "aim"
    );
    for (what, ours, theirs, aim) in [
        ("CPU seconds", usage.cpu_seconds, upstream.cpu_seconds, 0.2),
        ("peak MiB", usage.peak_mib, upstream.peak_mib, 0.2),
        ("last claim after, s", claims, upstream.claims_seconds, 0.25),
        ("empty again after, s", empty, upstream.empty_seconds, 0.5),
    ] {
        let ratio = ours / theirs;
        let verdict = if ratio <= aim { "" } else { "  missed" };
        println!("       {what:<22} {ours:>10.1} {theirs:>12.1} {ratio:>8.2} {aim:>6.2}{verdict}");
    }
    println!(
        "       the last pod was deleted after {left:.1} s, the last node {:.1} s later",
        empty - left
    );
    let record = json!({
        "pods": load.pods,
        "nodes": nodes,
        "cpuSeconds": usage.cpu_seconds,
        "peakMiB": usage.peak_mib,
        "lastClaimSeconds": claims,
        "runningSeconds": running_after.as_secs_f64(),
        "lastPodDeletedSeconds": left,
        "emptySeconds": empty,
    });
    std::fs::write(
        environment.logs.join(format!("scale-{}.json", load.pods)),
        format!("{record:#}\n"),
    )?;
    // How busy the machine is shows in every figure: the table says how near the aims are, and only what no such noise explains fails.
    for (what, ours, theirs) in [
        ("memory", usage.peak_mib, upstream.peak_mib),
        ("CPU time", usage.cpu_seconds, upstream.cpu_seconds),
    ] {
        ensure!(ours <= theirs / 2.0, "{what} is above half of upstream's");
    }
    Ok(())
}

/// Looks ten times a second: at every change would be thousands of times, on the two cores that everybody shares here.
async fn poll(world: &World, complaint: &str, mut holds: impl FnMut(&View) -> bool) -> Result<()> {
    let looks = async {
        while !holds(&world.view()) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(300), looks)
        .await
        .with_context(|| format!("{complaint}: {}", world.view().summary()))
}
