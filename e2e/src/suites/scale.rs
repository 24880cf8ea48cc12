//! How it holds up: thousands of pods to running and back to nothing, with time, CPU and memory of the controller.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::manifests::{Pool, deployment};
use crate::controlplane::{Process, Usage};
use crate::installation::{Installation, start_upstream};
use crate::runner::{Case, Environment, Runs, Suite};
use crate::world::{View, World};

/// What upstream's Go controller needs on such a machine and control plane: the better end of what was recorded, unless the run
/// is given upstream's controller and measures it itself.
#[derive(Clone, Copy)]
struct Upstream {
    cpu_seconds: f64,
    peak_mib: f64,
    claims_seconds: f64,
    empty_seconds: f64,
}

/// What pods ask for, as a share of all: upstream was measured with pods of one shape, clusters have many.
struct Shape {
    name: &'static str,
    percent: usize,
    cpu: &'static str,
    memory: &'static str,
    more: &'static str,
}

struct Load {
    name: &'static str,
    pods: usize,
    shapes: &'static [Shape],
    upstream: Option<Upstream>,
}

const PLAIN: [Shape; 1] = [Shape {
    name: "load",
    percent: 100,
    cpu: "500m",
    memory: "512Mi",
    more: "",
}];

const MIXED: [Shape; 5] = [
    Shape {
        name: "small",
        percent: 40,
        cpu: "100m",
        memory: "128Mi",
        more: "",
    },
    Shape {
        name: "web",
        percent: 30,
        cpu: "500m",
        memory: "1Gi",
        more: "
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: topology.kubernetes.io/zone, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: web}}}",
    },
    Shape {
        name: "memory",
        percent: 15,
        cpu: "250m",
        memory: "3Gi",
        more: "",
    },
    Shape {
        name: "pinned",
        percent: 10,
        cpu: "1",
        memory: "1Gi",
        more: "
      nodeSelector: {karpenter.sh/capacity-type: on-demand}",
    },
    Shape {
        name: "large",
        percent: 5,
        cpu: "4",
        memory: "4Gi",
        more: "",
    },
];

const LOADS: [Load; 4] = [
    Load {
        name: "1000_pods_to_running_and_back_to_zero",
        pods: 1_000,
        shapes: &PLAIN,
        upstream: Some(Upstream {
            cpu_seconds: 4.8,
            peak_mib: 152.0,
            claims_seconds: 14.0,
            empty_seconds: 42.0,
        }),
    },
    Load {
        name: "5000_pods_to_running_and_back_to_zero",
        pods: 5_000,
        shapes: &PLAIN,
        upstream: Some(Upstream {
            cpu_seconds: 39.0,
            peak_mib: 455.0,
            claims_seconds: 77.0,
            empty_seconds: 62.0,
        }),
    },
    Load {
        name: "1000_pods_of_mixed_shapes_to_running_and_back_to_zero",
        pods: 1_000,
        shapes: &MIXED,
        upstream: None,
    },
    Load {
        name: "5000_pods_of_mixed_shapes_to_running_and_back_to_zero",
        pods: 5_000,
        shapes: &MIXED,
        upstream: None,
    },
];

/// What a load took.
#[derive(Debug)]
struct Measured {
    nodes: usize,
    usage: Usage,
    last_claim: Duration,
    running: Duration,
    /// How long the control plane took to ask the last pod to go, and until its object was gone: no node is drained before.
    last_pod_deleted: Duration,
    last_pod_gone: Duration,
    empty: Duration,
}

pub(crate) fn suite() -> Suite {
    let cases = LOADS.iter().map(|load| Case {
        name: load.name.to_owned(),
        run: Box::new(move |environment| Box::pin(run(environment, load))),
        limit: Duration::from_secs(1_300),
    });
    Suite {
        name: "scale",
        runs: Runs::Alone,
        cases: cases.collect(),
    }
}

async fn run(environment: &mut Environment, load: &Load) -> Result<()> {
    let installation = Installation::install(environment).await?;
    let world = World::watch(environment.control_plane.admin().await?).await?;
    let controller = installation.start_direct(environment).await?;
    let ours = measure(&world, controller, load).await?;
    let upstream = match &environment.upstream {
        Some(program) => {
            let process = start_upstream(environment, program).await?;
            let theirs = measure(&world, process, load).await?;
            theirs.save(environment, load, "upstream.json")?;
            Some(Upstream::from(&theirs))
        }
        None => load.upstream,
    };
    ours.print(load, upstream);
    ours.save(environment, load, "json")?;
    // How busy the machine is shows in every figure: the table says how near the aims are, and only what no such noise explains fails.
    if let Some(upstream) = upstream {
        for (what, ours, theirs) in [
            ("memory", ours.usage.peak_mib, upstream.peak_mib),
            ("CPU time", ours.usage.cpu_seconds, upstream.cpu_seconds),
        ] {
            ensure!(ours <= theirs / 2.0, "{what} is above half of upstream's");
        }
    }
    Ok(())
}

/// Puts the load on `controller`, which is stopped afterwards, and leaves nothing behind.
async fn measure(world: &World, mut controller: Process, load: &Load) -> Result<Measured> {
    let measured = up_and_down(world, &controller, load).await?;
    controller.stop().await;
    world.clear().await.or_else(|error| {
        // The controller is stopped already; pools without nodes need nobody to go away.
        if world.view().claims.is_empty() {
            Ok(())
        } else {
            Err(error)
        }
    })?;
    Ok(measured)
}

async fn up_and_down(world: &World, controller: &Process, load: &Load) -> Result<Measured> {
    // The pool that upstream was measured with.
    let disruption = "{consolidationPolicy: WhenEmpty, consolidateAfter: 10s, budgets: [{nodes: \"100%\"}]}";
    world.apply_pool(&Pool::new("default").disruption(disruption)).await?;

    let started = Instant::now();
    for shape in load.shapes {
        let pods = load.pods * shape.percent / 100;
        world
            .apply(&deployment(shape.name, pods, shape.cpu, shape.memory, shape.more))
            .await?;
    }
    let mut last_claim = Duration::ZERO;
    let mut seen = 0;
    poll(world, "pods do not run", |view| {
        if view.claims.len() != seen {
            seen = view.claims.len();
            last_claim = started.elapsed();
        }
        view.all_run(load.pods)
    })
    .await?;
    let running = started.elapsed();
    let nodes = world.view().nodes.len();

    let shrinking = Instant::now();
    for shape in load.shapes {
        world.scale(shape.name, 0).await?;
    }
    let (mut last_pod_deleted, mut last_pod_gone) = (None, None);
    poll(world, "nodes stay", |view| {
        if view.alive() == 0 {
            last_pod_deleted.get_or_insert_with(|| shrinking.elapsed());
        }
        if view.pods.is_empty() {
            last_pod_gone.get_or_insert_with(|| shrinking.elapsed());
        }
        view.nodes.is_empty() && view.claims.is_empty()
    })
    .await?;
    let empty = shrinking.elapsed();
    Ok(Measured {
        nodes,
        usage: controller.usage().context("the controller's process is gone")?,
        last_claim,
        running,
        last_pod_deleted: last_pod_deleted.unwrap_or(empty),
        last_pod_gone: last_pod_gone.unwrap_or(empty),
        empty,
    })
}

// === impl Upstream ===

impl From<&Measured> for Upstream {
    fn from(measured: &Measured) -> Self {
        Self {
            cpu_seconds: measured.usage.cpu_seconds,
            peak_mib: measured.usage.peak_mib,
            claims_seconds: measured.last_claim.as_secs_f64(),
            empty_seconds: measured.empty.as_secs_f64(),
        }
    }
}

// === impl Measured ===

impl Measured {
    fn print(&self, load: &Load, upstream: Option<Upstream>) {
        let title = format!("{} pods, {} nodes", load.pods, self.nodes);
        let rows = [
            ("CPU seconds", self.usage.cpu_seconds),
            ("peak MiB", self.usage.peak_mib),
            ("last claim after, s", self.last_claim.as_secs_f64()),
            ("empty again after, s", self.empty.as_secs_f64()),
        ];
        match upstream {
            Some(upstream) => {
                println!(
                    "       {title:<22} {:>10} {:>12} {:>8} {:>6}",
                    "ours", "upstream", "ratio", "aim"
                );
                let theirs = [
                    (upstream.cpu_seconds, 0.2),
                    (upstream.peak_mib, 0.2),
                    (upstream.claims_seconds, 0.25),
                    (upstream.empty_seconds, 0.5),
                ];
                for ((what, ours), (theirs, aim)) in rows.into_iter().zip(theirs) {
                    let ratio = ours / theirs;
                    let verdict = if ratio <= aim { "" } else { "  missed" };
                    println!("       {what:<22} {ours:>10.1} {theirs:>12.1} {ratio:>8.2} {aim:>6.2}{verdict}");
                }
            }
            None => {
                println!("       {title:<22} {:>10}", "ours");
                for (what, ours) in rows {
                    println!("       {what:<22} {ours:>10.1}");
                }
            }
        }
        println!(
            "       all pods ran after {:.1} s; the last one was deleted after {:.1} s and gone after {:.1} s, the last node {:.1} s later",
            self.running.as_secs_f64(),
            self.last_pod_deleted.as_secs_f64(),
            self.last_pod_gone.as_secs_f64(),
            (self.empty - self.last_pod_gone).as_secs_f64()
        );
    }

    fn save(&self, environment: &Environment, load: &Load, extension: &str) -> Result<()> {
        let file = environment.logs.join(format!("{}.{extension}", load.name));
        let record = json!({
            "pods": load.pods,
            "shapes": load.shapes.len(),
            "nodes": self.nodes,
            "cpuSeconds": self.usage.cpu_seconds,
            "peakMiB": self.usage.peak_mib,
            "lastClaimSeconds": self.last_claim.as_secs_f64(),
            "runningSeconds": self.running.as_secs_f64(),
            "lastPodDeletedSeconds": self.last_pod_deleted.as_secs_f64(),
            "lastPodGoneSeconds": self.last_pod_gone.as_secs_f64(),
            "emptySeconds": self.empty.as_secs_f64(),
        });
        std::fs::write(&file, format!("{record:#}\n")).with_context(|| format!("cannot write {}", file.display()))
    }
}

/// Looks ten times a second: at every change would be thousands of times, on the two cores that everybody shares here.
async fn poll(world: &World, complaint: &str, mut holds: impl FnMut(&View) -> bool) -> Result<()> {
    let looks = async {
        while !holds(&world.view()) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(600), looks)
        .await
        .with_context(|| format!("{complaint}: {}", world.view().summary()))
}
