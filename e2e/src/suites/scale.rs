//! How it holds up: thousands of pods to running and back to nothing, with time, CPU and memory of the controller.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::{Deployment, DeploymentStatus};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use karpenter_api::NodeClaim;
use kube::api::{Api, DeleteParams, ListParams};
use kube::{Client, runtime::reflector};
use serde_json::json;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::manifests::{Pool, Source, deployment};
use crate::controlplane::{Process, Usage};
use crate::installation::{Installation, NAMESPACE, start_upstream};
use crate::runner::{Case, Environment, Runs, Suite};
use crate::world::{self, World};

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
    let controller = installation.start_direct(environment).await?;
    let ours = measure(environment, controller, load).await?;
    let upstream = match &environment.upstream {
        Some(program) => {
            let process = start_upstream(environment, program).await?;
            let theirs = measure(environment, process, load).await?;
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
async fn measure(environment: &Environment, mut controller: Process, load: &Load) -> Result<Measured> {
    let client = environment.control_plane.admin().await?;
    let measured = up_and_down(&Sight::open(client.clone()).await?, &controller, load).await?;
    controller.stop().await;
    // Upstream's does not give it back, and whoever is measured next would wait for it to run out.
    Api::<Lease>::namespaced(client.clone(), NAMESPACE)
        .delete_collection(&DeleteParams::default(), &ListParams::default())
        .await?;
    let world = World::watch(client).await?;
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

async fn up_and_down(sight: &Sight, controller: &Process, load: &Load) -> Result<Measured> {
    // The pool that upstream was measured with.
    let disruption = "{consolidationPolicy: WhenEmpty, consolidateAfter: 10s, budgets: [{nodes: \"100%\"}]}";
    let pool = Pool::new("default").disruption(disruption);
    world::apply(&sight.client, &pool.yaml(&Source::kwok())).await?;

    let started = Instant::now();
    for shape in load.shapes {
        let pods = load.pods * shape.percent / 100;
        let yaml = deployment(shape.name, pods, shape.cpu, shape.memory, shape.more);
        world::apply(&sight.client, &yaml).await?;
    }
    let mut last_claim = Duration::ZERO;
    let mut seen = 0;
    let growing = async {
        while !sight.all_run(load.pods) {
            let claims = sight.claims.len();
            if claims != seen {
                seen = claims;
                last_claim = started.elapsed();
            }
            tokio::time::sleep(LOOK).await;
        }
    };
    within_limit(growing, "pods do not run", sight).await?;
    let running = started.elapsed();
    let nodes = sight.nodes.len();

    within_limit(sight.settle(), "the cluster does not come to rest", sight).await?;
    let shrinking = Instant::now();
    for shape in load.shapes {
        world::scale(&sight.client, shape.name, 0).await?;
    }
    let (mut last_pod_deleted, mut last_pod_gone) = (None, None);
    let emptying = async {
        while !sight.nodes.is_empty() || !sight.claims.is_empty() {
            if last_pod_deleted.is_none() && sight.pods_wanted() == 0 {
                last_pod_deleted = Some(shrinking.elapsed());
            }
            if last_pod_deleted.is_some() && last_pod_gone.is_none() && !sight.has_pods().await {
                last_pod_gone = Some(shrinking.elapsed());
            }
            tokio::time::sleep(LOOK).await;
        }
    };
    within_limit(emptying, "nodes stay", sight).await?;
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

/// How often the measured is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// How many writes a second there are in a cluster at rest, at most: its nodes renew their leases, and the leader its own.
const AT_REST: u64 = 60;

async fn within_limit(work: impl Future<Output = ()>, complaint: &str, sight: &Sight) -> Result<()> {
    let done = tokio::time::timeout(Duration::from_secs(600), work).await;
    done.with_context(|| {
        format!(
            "{complaint}: {} nodes, {} claims, {} pods ready of {}",
            sight.nodes.len(),
            sight.claims.len(),
            sight.pods_ready(),
            sight.pods_wanted()
        )
    })
}

/// What is watched while a load is measured: few objects. To read every change of thousands of pods would take a tenth of the two cores
/// that everybody shares here.
struct Sight {
    client: Client,
    nodes: reflector::Store<Node>,
    claims: reflector::Store<NodeClaim>,
    deployments: reflector::Store<Deployment>,
    _watches: JoinSet<()>,
}

// === impl Sight ===

impl Sight {
    async fn open(client: Client) -> Result<Self> {
        let mut watches = JoinSet::new();
        let nobody = Arc::new(Notify::new());
        let sight = Self {
            nodes: world::follow(&client, &nobody, &mut watches),
            claims: world::follow(&client, &nobody, &mut watches),
            deployments: world::follow(&client, &nobody, &mut watches),
            client,
            _watches: watches,
        };
        sight.nodes.wait_until_ready().await?;
        sight.claims.wait_until_ready().await?;
        sight.deployments.wait_until_ready().await?;
        Ok(sight)
    }

    fn all_run(&self, pods: usize) -> bool {
        self.pods_ready() == pods && self.pods_wanted() == pods
    }

    fn pods_ready(&self) -> usize {
        self.sum(|status| status.ready_replicas)
    }

    /// Pods that nobody has asked to go.
    fn pods_wanted(&self) -> usize {
        self.sum(|status| status.replicas)
    }

    fn sum(&self, of: impl Fn(&DeploymentStatus) -> Option<i32>) -> usize {
        let deployments = self.deployments.state();
        let counts = deployments
            .iter()
            .filter_map(|deployment| of(deployment.status.as_ref()?));
        counts.map(|count| usize::try_from(count).unwrap_or_default()).sum()
    }

    /// Waits until hardly anything is written any more: kwok says of many pods twice that they run, seconds after all of them do,
    /// and the way down would begin with the rest of that.
    async fn settle(&self) {
        let mut last = self.revision().await;
        let mut quiet = 0;
        while quiet < 3 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let now = self.revision().await;
            let written = last.zip(now).map(|(last, now)| now.saturating_sub(last));
            quiet = match written {
                Some(..=AT_REST) => quiet + 1,
                _ => 0,
            };
            last = now;
        }
    }

    /// How often anything was written in this cluster so far; `None` if the API server does not say.
    async fn revision(&self) -> Option<u64> {
        let one = ListParams::default().limit(1);
        let pods = Api::<Pod>::all(self.client.clone()).list_metadata(&one).await.ok()?;
        pods.metadata.resource_version?.parse().ok()
    }

    /// Whether there is a pod, be it on its way out. If the API server does not say, there may be.
    async fn has_pods(&self) -> bool {
        let one = ListParams::default().limit(1);
        let pods = Api::<Pod>::all(self.client.clone()).list_metadata(&one).await;
        pods.map_or(true, |pods| !pods.items.is_empty())
    }
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
                    "       {title:<22} {:>10} {:>12} {:>8}   aim",
                    "ours", "upstream", "ratio"
                );
                // A thousand pods are planned for at once: most of what either takes is the second in which more pods may come.
                let claims_aim = (load.pods >= 5_000).then_some(0.25);
                let theirs = [
                    (upstream.cpu_seconds, Some(0.2)),
                    (upstream.peak_mib, Some(0.2)),
                    (upstream.claims_seconds, claims_aim),
                    (upstream.empty_seconds, Some(0.5)),
                ];
                for ((what, ours), (theirs, aim)) in rows.into_iter().zip(theirs) {
                    let ratio = ours / theirs;
                    let aim = match aim {
                        Some(aim) if ratio <= aim => format!("{aim:.2}"),
                        Some(aim) => format!("{aim:.2}  missed"),
                        None => "-".to_owned(),
                    };
                    println!("       {what:<22} {ours:>10.1} {theirs:>12.1} {ratio:>8.2}   {aim}");
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
