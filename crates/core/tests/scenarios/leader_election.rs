//! Two processes contend for one Lease.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use karpenter_core::client::{ClientMetrics, Guards};
use karpenter_core::gate::WriteGate;
use karpenter_core::leader::{ElectionConfig, ElectionMetrics, Elector, Ended};
use karpenter_core::metrics::Registry;
use karpenter_sandbox::Sandbox;
use karpenter_sandbox::faults::{Effect, Fault};
use kube::api::{Api, ObjectMeta, PostParams};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::world;

/// A contender that leads when it can, and in between tries to write all the time.
struct Contender {
    gate: WriteGate,
    writes: Api<ConfigMap>,
    stop: CancellationToken,
    task: JoinHandle<Option<Ended>>,
}

fn contend(sandbox: &Sandbox, name: &str) -> Contender {
    let clock = world::clock(sandbox);
    let registry = Registry::new(clock.clone());
    let gate = WriteGate::shut(clock.clone());
    let config = ElectionConfig::new("default", "karpenter-leader-election", name);
    let client = sandbox.client_as(name);
    let elector = Elector::new(
        client.clone(),
        clock,
        config,
        gate.clone(),
        ElectionMetrics::register(&registry),
    );
    let guarded = Guards::new(gate.clone(), Arc::new(ClientMetrics::register(&registry)), name).around(client);
    let stop = CancellationToken::new();
    let task = tokio::spawn({
        let stop = stop.clone();
        async move {
            if !elector.acquire(&stop).await {
                return None;
            }
            let ended = elector.keep(&stop).await;
            if ended == Ended::Stopped {
                elector.release().await;
            }
            Some(ended)
        }
    });
    Contender {
        gate,
        writes: Api::default_namespaced(guarded),
        stop,
        task,
    }
}

impl Contender {
    fn leads(&self) -> bool {
        self.gate.check().is_ok()
    }

    async fn try_to_write(&self, name: &str) -> Result<(), kube::Error> {
        let metadata = ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        };
        let map = ConfigMap {
            metadata,
            ..ConfigMap::default()
        };
        self.writes.create(&PostParams::default(), &map).await.map(|_| ())
    }
}

fn lease(sandbox: &Sandbox) -> Lease {
    sandbox
        .objects()
        .get("default", "karpenter-leader-election")
        .expect("somebody took the lease")
}

#[tokio::test]
async fn one_of_two_leads_and_the_other_writes_nothing() {
    let sandbox = Sandbox::builder().api_server_only().start();
    let first = contend(&sandbox, "first");
    sandbox.settle().await;
    let second = contend(&sandbox, "second");
    sandbox.run_for(Duration::from_secs(60)).await;
    assert!(first.leads() && !second.leads());
    first.try_to_write("from-first").await.unwrap();
    let refused = second.try_to_write("from-second").await.unwrap_err();
    assert!(karpenter_core::Error::from(refused).is_not_leading());
    let written = |name: &str| sandbox.objects().get::<ConfigMap>("default", name).is_some();
    assert!(written("from-first") && !written("from-second"));
    let spec = lease(&sandbox).spec.unwrap();
    assert_eq!(spec.holder_identity.as_deref(), Some("first"));
    assert_eq!(
        (spec.lease_duration_seconds, spec.lease_transitions),
        (Some(15), Some(0))
    );
    assert!(spec.renew_time > spec.acquire_time);
}

#[tokio::test]
async fn when_the_leader_dies_the_other_takes_over_within_the_leases_time() {
    let sandbox = Sandbox::builder().api_server_only().start();
    let first = contend(&sandbox, "first");
    sandbox.settle().await;
    let second = contend(&sandbox, "second");
    sandbox.run_for(Duration::from_secs(10)).await;
    first.task.abort();
    sandbox.run_for(Duration::from_secs(12)).await;
    assert!(!second.leads(), "the lease is respected for its whole time");
    sandbox.run_for(Duration::from_secs(6)).await;
    assert!(second.leads() && !first.leads());
    assert_eq!(lease(&sandbox).spec.unwrap().lease_transitions, Some(1));
}

#[tokio::test]
async fn a_leader_that_is_cut_off_stops_writing_before_anyone_else_may_start() {
    let sandbox = Sandbox::builder().api_server_only().start();
    let first = contend(&sandbox, "first");
    sandbox.settle().await;
    let second = contend(&sandbox, "second");
    sandbox.run_for(Duration::from_secs(10)).await;
    sandbox.faults().cut_off("first");
    for _ in 0..40 {
        sandbox.run_for(Duration::from_millis(500)).await;
        assert!(!(first.leads() && second.leads()), "two leaders at once");
    }
    assert!(second.leads());
    assert_eq!(first.task.await.unwrap(), Some(Ended::Lost));
}

#[tokio::test]
async fn a_leader_that_stops_hands_over_at_once() {
    let sandbox = Sandbox::builder().api_server_only().start();
    let first = contend(&sandbox, "first");
    sandbox.settle().await;
    let second = contend(&sandbox, "second");
    sandbox.run_for(Duration::from_secs(10)).await;
    first.stop.cancel();
    sandbox.settle().await;
    assert_eq!(first.task.await.unwrap(), Some(Ended::Stopped));
    sandbox.run_for(Duration::from_secs(2)).await;
    assert!(second.leads());
}

#[tokio::test]
async fn a_renewal_that_hangs_leaves_time_for_another() {
    let sandbox = Sandbox::builder().api_server_only().start();
    let first = contend(&sandbox, "first");
    sandbox.settle().await;
    let hangs = Fault::new(Effect::Delay(Duration::from_secs(3_600)));
    sandbox
        .faults()
        .inject(hangs.verb("update").resource("leases").times(1));
    for _ in 0..60 {
        sandbox.run_for(Duration::from_millis(500)).await;
        assert!(first.leads(), "one slow answer costs the leadership");
    }
    assert!(!first.task.is_finished());
}
