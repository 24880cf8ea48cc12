//! Random clusters with everything in them, faults and jumps of time: what budgets, PodDisruptionBudgets and owners of pods
//! ask for holds at every step, and in the end nothing moves any more.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use karpenter_api::budget::{DisruptionReason, UNLIMITED};
use karpenter_api::conditions::StatusConditions;
use karpenter_api::{NodeClaim, NodePool};
use karpenter_cloud::provider::DriftReason;
use karpenter_sandbox::faults::Fault;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use crate::whole_cluster::WholeCluster;

const POOLS: [&str; 2] = ["left", "right"];
const STEPS: usize = 30;
const LOOK: Duration = Duration::from_secs(6);
/// Longer than a machine takes to boot, a node to come up and a pod to be bound, with a few failed calls in between.
const LONGEST_WAIT: SignedDuration = SignedDuration::from_mins(8);

/// The cluster, and what was seen of it at the last look.
struct Watched {
    cluster: WholeCluster,
    seed: u64,
    /// Nodes per pool that counted at the last look.
    nodes: BTreeMap<String, u32>,
    /// Pods that must not be disturbed.
    protected: BTreeSet<String>,
    pending: BTreeMap<String, Timestamp>,
    /// Disruptions that were checked already.
    judged: BTreeSet<String>,
    /// How many nodes were disrupted for each reason.
    seen: BTreeMap<String, usize>,
}

/// One way to limit disruptions: always or by schedule, for some reasons or all of them.
fn budget(random: &mut ChaCha8Rng) -> Value {
    let nodes = match random.random_range(0..3) {
        0 => random.random_range(0..3).to_string(),
        1 => format!("{}%", random.random_range(1..8) * 10),
        _ => "100%".to_owned(),
    };
    let mut budget = json!({ "nodes": nodes });
    if random.random_bool(0.4) {
        let all = ["Empty", "Drifted", "Underutilized"];
        let reasons: Vec<&str> = all.into_iter().filter(|_| random.random_bool(0.5)).collect();
        budget["reasons"] = json!(if reasons.is_empty() { vec!["Empty"] } else { reasons });
    }
    if random.random_bool(0.4) {
        budget["schedule"] = json!(format!("*/{} * * * *", random.random_range(2..9)));
        budget["duration"] = json!(format!("{}m", random.random_range(1..4)));
    }
    budget
}

fn budgets(random: &mut ChaCha8Rng) -> Value {
    let count = random.random_range(1..4);
    (0..count).map(|_| budget(random)).collect()
}

fn pool(name: &str, budgets: Value, consolidate_after: &str) -> Value {
    json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": { "name": name },
        "spec": {
            "disruption": { "consolidateAfter": consolidate_after, "budgets": budgets },
            "template": { "spec": {
                "expireAfter": "Never",
                "requirements": [
                    { "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"] },
                    { "key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["fake-1x", "fake-2x", "fake-4x"] },
                ],
                "nodeClassRef": { "group": "karpenter.test.sh", "kind": "TestNodeClass", "name": "default" },
            } },
        },
    })
}

/// A Deployment that runs in one pool, with more annotations for its pods.
fn deployment(name: &str, pool: &str, replicas: usize, cpu: &str, annotations: Value) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": name, "namespace": "default" },
        "spec": { "replicas": replicas, "selector": { "matchLabels": { "app": name } }, "template": {
            "metadata": { "labels": { "app": name }, "annotations": annotations },
            "spec": {
                "nodeSelector": { "karpenter.sh/nodepool": pool }, "terminationGracePeriodSeconds": 1,
                "containers": [{ "name": "c", "image": "i", "resources": { "requests": { "cpu": cpu } } }],
            },
        } },
    })
}

fn disruption_budget(name: &str) -> Value {
    json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": { "name": name, "namespace": "default" },
        "spec": { "maxUnavailable": 1, "selector": { "matchLabels": { "app": name } } },
    })
}

fn app(pod: &Pod) -> &str {
    let labels = pod.metadata.labels.as_ref();
    labels.and_then(|labels| labels.get("app")).map_or("", String::as_str)
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let ready = conditions
        .into_iter()
        .any(|own| own.type_ == "Ready" && own.status == "True");
    ready && pod.metadata.deletion_timestamp.is_none()
}

fn is_bound(pod: &Pod) -> bool {
    pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some())
}

impl Watched {
    /// Two pools with an ordinary workload and one under a PodDisruptionBudget each, and one pod that must not be disturbed.
    async fn start(seed: u64, random: &mut ChaCha8Rng) -> Watched {
        let cluster = WholeCluster::start(seed).await;
        // Long enough that no disruption is over between two looks.
        cluster.cloud.set_termination_delay(2 * LOOK);
        let mut pods = 0;
        for name in POOLS {
            let after = ["0s", "30s"][random.random_range(0..2)];
            let apply = |object: Value| cluster.sandbox.apply(&object.to_string()).expect("the object is valid");
            apply(pool(name, budgets(random), after));
            let cpu = ["700m", "1200m", "1800m"][random.random_range(0..3)];
            let replicas = random.random_range(3..7);
            apply(deployment(&format!("{name}-plain"), name, replicas, cpu, json!({})));
            apply(deployment(&format!("{name}-covered"), name, 3, "600m", json!({})));
            apply(disruption_budget(&format!("{name}-covered")));
            pods += replicas + 3;
        }
        let forever = json!({ "karpenter.sh/do-not-disrupt": "true" });
        let protected = deployment("left-protected", POOLS[0], 1, "300m", forever);
        cluster
            .sandbox
            .apply(&protected.to_string())
            .expect("the object is valid");
        pods += 1;
        assert!(
            cluster.until_running(pods, 20).await,
            "seed {seed}: {}",
            cluster.summary()
        );
        let all: Vec<Pod> = cluster.objects().list("");
        let protected = all.iter().filter(|pod| app(pod).ends_with("-protected"));
        let protected = protected.map(|pod| pod.metadata.name.clone().unwrap()).collect();
        let mut watched = Watched {
            cluster,
            seed,
            nodes: BTreeMap::new(),
            protected,
            pending: BTreeMap::new(),
            judged: BTreeSet::new(),
            seen: BTreeMap::new(),
        };
        watched.nodes = watched.count_nodes();
        watched
    }

    fn now(&self) -> Timestamp {
        self.cluster.sandbox.clock().now()
    }

    fn claims(&self) -> Vec<NodeClaim> {
        self.cluster.objects().list("")
    }

    fn count_nodes(&self) -> BTreeMap<String, u32> {
        let mut counts = BTreeMap::new();
        for claim in self.claims() {
            if claim.is_true("Initialized") && !claim.is_true("InstanceTerminating") {
                *counts
                    .entry(claim.node_pool().unwrap_or_default().to_owned())
                    .or_default() += 1;
            }
        }
        counts
    }

    /// What something random that happens in clusters is.
    fn stir(&self, random: &mut ChaCha8Rng) {
        let pool = POOLS[random.random_range(0..2)];
        match random.random_range(0..8) {
            // A rollout.
            0 => {
                let version = random.random_range(0..1000).to_string();
                let patch = json!({ "spec": { "template": { "metadata": { "labels": { "version": version } } } } });
                self.patch_pool(pool, &patch);
            }
            // One machine that no longer is what it should be.
            1 => {
                let machines = self.cluster.cloud.machines();
                if !machines.is_empty() {
                    let chosen = &machines[random.random_range(0..machines.len())];
                    let reason = DriftReason("ImageDrifted".to_owned());
                    self.cluster
                        .cloud
                        .set_drifted(&chosen.instance.provider_id, Some(reason));
                }
            }
            // Other rules.
            2 => self.patch_pool(
                pool,
                &json!({ "spec": { "disruption": { "budgets": budgets(random) } } }),
            ),
            // More or fewer pods.
            3..=5 => self.cluster.scale(&format!("{pool}-plain"), random.random_range(0..7)),
            _ => {}
        }
    }

    fn patch_pool(&self, pool: &str, patch: &Value) {
        self.cluster
            .objects()
            .patch::<NodePool>("", pool, patch)
            .expect("the pool is there");
    }

    /// Lets time pass, with a look every now and then.
    async fn pass(&mut self, looks: u64, step: usize) {
        for _ in 0..looks {
            self.cluster.sandbox.run_for(LOOK).await;
            self.check(step);
        }
    }

    /// Conditions, timeouts and backoffs come due together: the clock runs ahead, and only then anyone acts.
    async fn jump(&mut self, duration: Duration) {
        let clock = self.cluster.sandbox.clock();
        let ahead = clock.now() + SignedDuration::try_from(duration).unwrap();
        clock.advance_to(ahead);
        self.cluster.sandbox.settle().await;
    }

    fn check(&mut self, step: usize) {
        let context = format!("seed {}, step {step}", self.seed);
        self.check_budgets(&context);
        self.check_pods(&context);
    }

    /// Of every disruption that began since the last look: when it began, were there fewer nodes on their way out than the
    /// budgets of that moment allow for its reason?
    fn check_budgets(&mut self, context: &str) {
        let nodes = self.count_nodes();
        let claims = self.claims();
        let began = |claim: &NodeClaim| {
            let chosen = claim.condition("DisruptionReason").filter(|own| own.is_true())?;
            Some((chosen.transitioned_at(), chosen.reason.clone()))
        };
        for claim in &claims {
            let Some((at, reason)) = began(claim) else { continue };
            let uid = claim.metadata.uid.clone().unwrap();
            if !self.judged.insert(format!("{uid} {at}")) {
                continue;
            }
            *self.seen.entry(reason.clone()).or_default() += 1;
            let name = claim.node_pool().unwrap_or_default();
            let together = claims.iter().filter(|other| {
                let is_ours = other.node_pool() == Some(name) && !other.is_true("InstanceTerminating");
                is_ours
                    && match began(other) {
                        // Of what began in the same second for another reason it is not known which was first.
                        Some((other_at, other_reason)) => other_at < at || (other_at == at && other_reason == reason),
                        None => false,
                    }
            });
            let disrupted = u32::try_from(together.count()).unwrap();
            let counted = |nodes: &BTreeMap<String, u32>| nodes.get(name).copied().unwrap_or(0);
            let most = counted(&nodes).max(counted(&self.nodes));
            let allowed = self.allowed(name, &reason, at, most);
            assert!(
                disrupted <= allowed,
                "{context}: {disrupted} nodes of {name} were on their way out when {:?} was chosen as {reason}, and {allowed} are allowed",
                claim.metadata.name
            );
        }
        self.nodes = nodes;
    }

    /// The budgets of a moment, or of shortly before: a command takes a moment from its decision to its first mark.
    fn allowed(&self, pool: &str, reason: &str, at: Timestamp, nodes: u32) -> u32 {
        let pool: NodePool = self.cluster.objects().get("", pool).expect("the pool is there");
        let reason = DisruptionReason::ALL
            .into_iter()
            .find(|own| own.as_str() == reason)
            .expect("a known reason");
        let at_moment = |at: Timestamp| {
            let applying = pool
                .spec
                .disruption
                .budgets
                .iter()
                .filter(|budget| budget.applies_to(reason));
            applying
                .map(|budget| budget.allowed_disruptions(at, nodes).expect("the budget can be read"))
                .min()
                .unwrap_or(UNLIMITED)
        };
        (0..=3)
            .map(|ago| at_moment(at - SignedDuration::from_secs(ago)))
            .max()
            .unwrap_or(0)
    }

    fn check_pods(&mut self, context: &str) {
        let pods: Vec<Pod> = self.cluster.objects().list("");
        for name in &self.protected {
            let pod = pods.iter().find(|pod| pod.metadata.name.as_ref() == Some(name));
            let is_there = pod.is_some_and(|pod| pod.metadata.deletion_timestamp.is_none());
            assert!(is_there, "{context}: {name} must not be disturbed, and was");
        }
        for pool in POOLS {
            let covered = format!("{pool}-covered");
            let ready = pods.iter().filter(|pod| app(pod) == covered && is_ready(pod)).count();
            assert!(
                ready >= 2,
                "{context}: {ready} pods of {covered} are left, and its budget asks for 2"
            );
        }
        let now = self.now();
        let waiting: BTreeSet<String> = pods
            .iter()
            .filter(|pod| !is_bound(pod) && pod.metadata.deletion_timestamp.is_none())
            .map(|pod| pod.metadata.name.clone().unwrap())
            .collect();
        self.pending.retain(|name, _| waiting.contains(name));
        for name in waiting {
            let since = *self.pending.entry(name.clone()).or_insert(now);
            let waited = now.duration_since(since);
            assert!(
                waited <= LONGEST_WAIT,
                "{context}: {name} has been waiting for {waited:?}"
            );
        }
    }

    /// How the cluster looks: nodes by name, and which pods run where.
    fn picture(&self) -> (Vec<String>, BTreeMap<String, Option<String>>) {
        let mut claims: Vec<String> = self
            .claims()
            .into_iter()
            .filter_map(|claim| claim.metadata.name)
            .collect();
        claims.sort();
        let pods: Vec<Pod> = self.cluster.objects().list("");
        let placed = pods
            .into_iter()
            .map(|pod| (pod.metadata.name.unwrap(), pod.spec.unwrap().node_name))
            .collect();
        (claims, placed)
    }
}

/// Thirty random steps; how many nodes were disrupted for each reason.
async fn check(seed: u64) -> BTreeMap<String, usize> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut watched = Watched::start(seed, &mut random).await;
    for code in [409, 500] {
        for verb in ["patch", "create", "delete"] {
            let faults = watched.cluster.sandbox.faults();
            let agent = watched.cluster.agent();
            faults.inject(Fault::fail(code).agent(agent).verb(verb).probability(0.02));
        }
    }
    for step in 0..STEPS {
        watched.stir(&mut random);
        let boot = Duration::from_secs(random.random_range(0..60));
        watched.cluster.cloud.set_boot_delay(boot);
        let looks = random.random_range(1..6);
        watched.pass(looks, step).await;
        if random.random_bool(0.1) {
            watched.jump(Duration::from_secs(random.random_range(60..240))).await;
        }
    }
    settles(&mut watched).await;
    watched.seen
}

/// With nothing left that changes, the cluster comes to rest and stays so.
async fn settles(watched: &mut Watched) {
    watched.cluster.sandbox.faults().clear();
    watched.cluster.cloud.set_boot_delay(Duration::from_secs(5));
    for pool in POOLS {
        watched.patch_pool(
            pool,
            &json!({ "spec": { "disruption": { "budgets": [{ "nodes": "100%" }] } } }),
        );
    }
    watched.pass(60, STEPS).await;
    // Drift is looked at every five minutes, and so is what was found to have no use before.
    watched.cluster.sandbox.run_for(Duration::from_secs(7 * 60)).await;
    let picture = watched.picture();
    watched.cluster.sandbox.run_for(Duration::from_secs(7 * 60)).await;
    assert_eq!(
        watched.picture(),
        picture,
        "seed {}: something moved without a reason",
        watched.seed
    );
}

#[tokio::test]
async fn budgets_owners_and_pods_are_respected_whatever_happens_and_then_there_is_peace() {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for seed in 0..2 {
        for (reason, count) in check(seed).await {
            *seen.entry(reason).or_default() += count;
        }
    }
    // The clusters give every method something to do, else nothing was tested.
    for reason in ["Empty", "Drifted", "Underutilized"] {
        assert!(seen.get(reason).is_some_and(|count| *count >= 3), "{seen:?}");
    }
}
