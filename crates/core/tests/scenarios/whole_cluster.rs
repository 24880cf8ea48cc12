//! A cluster with everything in it: scheduler, workloads, kubelets, a cloud whose machines boot, and our controllers.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Node, Pod};
use karpenter_api::{NodeClaim, NodePool};
use karpenter_cloud::fake::FakeProvider;
use karpenter_cloud::provider::DriftReason;
use karpenter_core::context::Context;
use karpenter_core::controllers;
use karpenter_core::metrics::Metrics;
use karpenter_core::options::Options;
use karpenter_sandbox::requests::LoggedRequest;
use karpenter_sandbox::{DeleteOptions, Machine, Objects, Sandbox, Timing};
use kube::ResourceExt;
use parking_lot::Mutex;
use serde_json::json;
use tokio::task::{AbortHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::world::{clock, install};

const DEFAULTS: &str = "
apiVersion: karpenter.test.sh/v1alpha1
kind: TestNodeClass
metadata: {name: default}
status: {conditions: [{type: Ready, status: 'True', reason: Ready, message: '', lastTransitionTime: '2026-01-01T00:00:00Z'}]}
---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: default}
spec:
  disruption: {consolidationPolicy: WhenEmpty, consolidateAfter: 0s, budgets: [{nodes: '100%'}]}
  template:
    spec:
      expireAfter: Never
      requirements: []
      nodeClassRef: {group: karpenter.test.sh, kind: TestNodeClass, name: default}
";

pub(crate) struct WholeCluster {
    pub(crate) sandbox: Sandbox,
    pub(crate) cloud: FakeProvider,
    agent: String,
    tasks: JoinSet<()>,
    running: Arc<Mutex<Vec<AbortHandle>>>,
    /// How many writes the controllers live for.
    lifetime: Option<usize>,
    drifted: Mutex<Vec<String>>,
}

impl WholeCluster {
    pub(crate) async fn start(seed: u64) -> Self {
        let sandbox = Sandbox::builder().timing(Timing::instant()).seed(seed).start();
        install(&sandbox);
        sandbox.apply(DEFAULTS).expect("the defaults are valid");
        let cloud = FakeProvider::new(clock(&sandbox));
        let (on_boot, on_gone) = (sandbox.clone(), sandbox.clone());
        cloud.on_boot(move |machine| on_boot.kubelets().boot(booted(machine)));
        cloud.on_gone(move |machine| {
            on_gone.kubelets().stop(machine.name.clone());
            // What a cloud's node controller does: a Node that never registered has nobody else.
            let _ = on_gone
                .objects()
                .delete::<Node>("", &machine.name, &DeleteOptions::default());
        });
        let mut cluster = Self {
            sandbox,
            cloud,
            agent: "karpenter-0".to_owned(),
            tasks: JoinSet::new(),
            running: Arc::default(),
            lifetime: None,
            drifted: Mutex::default(),
        };
        let _ = cluster.run().await;
        cluster
    }

    /// Whether these controllers have died of the lifetime they were given is in the answer.
    async fn run(&mut self) -> Arc<AtomicBool> {
        let clock = clock(&self.sandbox);
        let ctx = Context::new(
            self.sandbox.client_as(&self.agent),
            clock.clone(),
            Arc::new(Options::default()),
            Metrics::new(clock),
            Arc::new(self.cloud.clone()),
        );
        let mut watches = ctx.watch();
        ctx.synced().await;
        let died = self
            .lifetime
            .map_or_else(Arc::default, |writes| self.cut_off_after(writes));
        let watching = async move { while watches.join_next().await.is_some() {} };
        let mut running = vec![self.tasks.spawn(watching)];
        let controllers = controllers::all(&ctx).into_iter();
        running.extend(controllers.map(|controller| self.tasks.spawn(controller.run(CancellationToken::new()))));
        *self.running.lock() = running;
        self.sandbox.settle().await;
        died
    }

    /// Has the controllers die right after their `writes`-th write from now on, before they hear of its success; whether that
    /// happened yet.
    pub(crate) fn cut_off_after(&self, writes: usize) -> Arc<AtomicBool> {
        let happened = Arc::new(AtomicBool::new(false));
        let (sandbox, agent, seen) = (self.sandbox.clone(), self.agent.clone(), happened.clone());
        let running = self.running.clone();
        self.sandbox.faults().after_writes(&self.agent, writes, move || {
            sandbox.faults().cut_off(&agent);
            running.lock().iter().for_each(AbortHandle::abort);
            seen.store(true, Ordering::SeqCst);
        });
        happened
    }

    /// The controllers die where they stand, and others take over with an empty memory.
    pub(crate) async fn restart(&mut self) {
        self.bury().await;
        let _ = self.run().await;
    }

    /// One life of the controllers follows another, each of which ends with the given number of writes, or after a minute in which
    /// it had no more to write.
    pub(crate) async fn live_through(&mut self, lives: impl IntoIterator<Item = usize>) {
        for writes in lives {
            self.lifetime = Some(writes);
            self.bury().await;
            let died = self.run().await;
            self.until(1, |_| died.load(Ordering::SeqCst)).await;
        }
        self.lifetime = None;
        self.restart().await;
    }

    async fn bury(&mut self) {
        self.tasks.abort_all();
        while self.tasks.join_next().await.is_some() {}
        self.agent.push('\'');
    }

    /// The user agent of the controllers that run now.
    pub(crate) fn agent(&self) -> &str {
        &self.agent
    }

    pub(crate) fn objects(&self) -> Objects {
        self.sandbox.objects()
    }

    /// A Deployment whose pods share a node with no sibling.
    pub(crate) fn deploy(&self, name: &str, replicas: usize) {
        let affinity = json!({ "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [{
            "topologyKey": "kubernetes.io/hostname", "labelSelector": { "matchLabels": { "app": name } } }] } });
        let object = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": name, "namespace": "default" },
            "spec": { "replicas": replicas, "selector": { "matchLabels": { "app": name } }, "template": {
                "metadata": { "labels": { "app": name } },
                "spec": { "affinity": affinity, "terminationGracePeriodSeconds": 1, "containers": [
                    { "name": "c", "image": "i", "resources": { "requests": { "cpu": "1" } } }] } } } });
        self.sandbox
            .apply(&object.to_string())
            .expect("the Deployment is accepted");
    }

    /// The UIDs of the pods of a Deployment.
    pub(crate) fn pods(&self, app: &str) -> BTreeSet<String> {
        let pods = self.objects().list::<Pod>("").into_iter();
        let is_of = |pod: &Pod| pod.labels().get("app").is_some_and(|own| own == app);
        pods.filter(is_of).filter_map(|pod| pod.metadata.uid).collect()
    }

    /// A user deletes every NodeClaim there is.
    pub(crate) fn delete_claims(&self) {
        for claim in self.objects().list::<NodeClaim>("") {
            let name = claim.name_any();
            self.objects()
                .delete::<NodeClaim>("", &name, &DeleteOptions::default())
                .expect("it is there");
        }
    }

    pub(crate) fn scale(&self, name: &str, replicas: usize) {
        let patch = json!({ "spec": { "replicas": replicas } });
        self.objects()
            .patch::<Deployment>("default", name, &patch)
            .expect("it is there");
    }

    /// Gives the pool `default` other rules for disruption.
    pub(crate) fn set_disruption(&self, disruption: serde_json::Value) {
        let spec = json!({ "spec": { "disruption": disruption } });
        self.objects()
            .patch::<NodePool>("", "default", &spec)
            .expect("it is there");
    }

    /// The first machines there are drift.
    pub(crate) fn drift(&self, machines: usize) {
        let ids = self.cloud.machines().into_iter().map(|own| own.instance.provider_id);
        let drifted: Vec<String> = ids.take(machines).collect();
        for id in &drifted {
            let reason = DriftReason("ImageDrifted".to_owned());
            self.cloud.set_drifted(id, Some(reason));
        }
        *self.drifted.lock() = drifted;
    }

    /// Whether any machine is left of those that drifted.
    pub(crate) fn has_drifted(&self) -> bool {
        let drifted = self.drifted.lock();
        let machines = self.cloud.machines().into_iter();
        machines
            .map(|own| own.instance.provider_id)
            .any(|id| drifted.contains(&id))
    }

    /// Lets time pass until `holds`, for at most `minutes`; whether it does.
    pub(crate) async fn until(&self, minutes: u64, holds: impl Fn(&Self) -> bool) -> bool {
        let limit = Duration::from_secs(60 * minutes);
        self.sandbox.run_until(limit, |_| holds(self)).await
    }

    /// Lets time pass until `pods` pods run, for at most `minutes`; whether they do.
    pub(crate) async fn until_running(&self, pods: usize, minutes: u64) -> bool {
        let limit = Duration::from_secs(60 * minutes);
        self.sandbox.run_until(limit, |objects| running(objects) == pods).await
    }

    /// Lets time pass until nothing of ours is left, for at most `minutes`; whether that is so.
    pub(crate) async fn until_empty(&self, minutes: u64) -> bool {
        self.until(minutes, Self::is_empty).await
    }

    /// No claim, node or machine is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.objects().list::<NodeClaim>("").is_empty()
            && self.objects().list::<Node>("").is_empty()
            && self.cloud.machines().is_empty()
    }

    /// As many pods run, on as many nodes, claims and machines, and there is nothing else.
    pub(crate) fn runs(&self, pods: usize, nodes: usize) -> bool {
        let claims: Vec<NodeClaim> = self.objects().list("");
        running(&self.objects()) == pods
            && claims.len() == nodes
            && !claims.iter().any(NodeClaim::is_terminating)
            && self.counts() == (nodes, nodes, nodes)
    }

    /// As many pods run, each on a node, claim and machine of its own, and there is nothing else.
    pub(crate) fn runs_exactly(&self, pods: usize) -> bool {
        self.runs(pods, pods)
    }

    /// Claims, nodes and machines; claims that share a machine count once.
    pub(crate) fn counts(&self) -> (usize, usize, usize) {
        let claims: Vec<NodeClaim> = self.objects().list("");
        let mut ids: Vec<_> = claims
            .iter()
            .map(|claim| claim.provider_id().map(str::to_owned))
            .collect();
        ids.sort();
        ids.dedup();
        (
            ids.len(),
            self.objects().list::<Node>("").len(),
            self.cloud.machines().len(),
        )
    }

    /// Every write of our controllers, in order.
    pub(crate) fn story(&self) -> String {
        let writes = self.sandbox.requests().matching(|request| {
            let is_ours = request.attributes.agent.starts_with("karpenter-0");
            is_ours && request.attributes.is_write() && request.code < 300
        });
        let line = |request: &LoggedRequest| {
            let of = &request.attributes;
            let what = format!("{}/{}", of.resource, of.subresource);
            format!("{} {} {what} {}", of.agent, of.verb, of.name)
        };
        writes.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    pub(crate) fn summary(&self) -> String {
        let pods: Vec<Pod> = self.objects().list("");
        format!(
            "{} pods, {} run; {:?} claims, nodes, machines",
            pods.len(),
            running(&self.objects()),
            self.counts()
        )
    }
}

fn running(objects: &Objects) -> usize {
    let pods = objects.list::<Pod>("").into_iter();
    let is_running = |pod: &Pod| {
        pod.metadata.deletion_timestamp.is_none()
            && pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running")
    };
    pods.filter(is_running).count()
}

fn booted(machine: &karpenter_cloud::fake::Machine) -> Machine {
    let instance = &machine.instance;
    let mut booted = Machine::new(machine.name.clone())
        .provider_id(instance.provider_id.clone())
        .taint("karpenter.sh/unregistered", "", "NoExecute");
    for (resource, amount) in &instance.capacity {
        booted = booted.capacity(resource.clone(), amount.to_string());
    }
    booted
}
