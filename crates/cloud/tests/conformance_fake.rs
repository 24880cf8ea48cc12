//! The fake cloud passes the suite that real providers have to pass.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use jiff::Timestamp;
use karpenter_api::{NodeClaim, NodePool};
use karpenter_cloud::{
    CloudError, CloudProvider, DriftReason, Instance, Readiness,
    clock::ManualClock,
    conformance::{Environment, Fault, Support},
    fake::{FakeProvider, Machine, Method, Moment, default_types},
    garbage_collection::{Caution, GarbageCollector, KnownClaims, Sighting, Verdict},
    ownership::Owner,
    selection,
};
use serde_json::json;

struct FakeEnvironment {
    clock: ManualClock,
    cloud: FakeProvider,
    sold_out: AtomicBool,
}

async fn environment() -> FakeEnvironment {
    let clock = ManualClock::starting_at(Timestamp::UNIX_EPOCH);
    let cloud = FakeProvider::new(clock.clock());
    cloud.set_termination_delay(Duration::from_secs(12));
    FakeEnvironment {
        clock,
        cloud,
        sold_out: AtomicBool::new(false),
    }
}

#[async_trait]
impl Environment for FakeEnvironment {
    fn provider(&self) -> Arc<dyn CloudProvider> {
        Arc::new(self.cloud.clone())
    }

    fn node_pool(&self) -> NodePool {
        serde_json::from_value(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "default"},
            "spec": {"template": {"spec": {
                "requirements": [],
                "nodeClassRef": {"group": "karpenter.test.sh", "kind": "TestNodeClass", "name": "default"},
            }}},
        }))
        .expect("a NodePool")
    }

    async fn restart(&self) -> Arc<dyn CloudProvider> {
        self.provider()
    }

    async fn machines(&self) -> Vec<String> {
        let live = self
            .cloud
            .machines()
            .into_iter()
            .filter(|machine| machine.gone_at.is_none());
        live.map(|machine| machine.instance.provider_id).collect()
    }

    async fn pass(&self, duration: Duration) {
        self.clock.advance(duration);
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    }

    async fn inject(&self, fault: Fault) -> Support {
        let fail = |methods: &'static [Method]| {
            self.cloud.fail_when(move |method| {
                methods
                    .contains(&method)
                    .then(|| (Moment::Before, CloudError::transient("injected")))
            });
        };
        match fault {
            Fault::LoseLaunchAnswer => {
                self.cloud
                    .fail_next(Method::Create, Moment::After, CloudError::transient("lost"));
            }
            Fault::FailLaunch => self
                .cloud
                .fail_next(Method::Create, Moment::Before, CloudError::transient("failed")),
            Fault::SellOutEverything => {
                self.sold_out.store(true, Ordering::Relaxed);
                for own in default_types() {
                    for offering in &own.offerings {
                        let zone = selection::zone(offering).expect("a zone");
                        let capacity_type = selection::capacity_type(offering).expect("a capacity type");
                        self.cloud.sell_out(&own.name, zone, capacity_type);
                    }
                }
            }
            Fault::FailReads => fail(&[Method::Get, Method::List, Method::Delete]),
            Fault::FailTerminations => fail(&[Method::Delete, Method::Abandon]),
        }
        Support::Yes
    }

    async fn heal(&self) {
        self.cloud.stop_failing();
        if self.sold_out.swap(false, Ordering::Relaxed) {
            self.cloud.restock();
        }
    }

    async fn vanish(&self, provider_id: &str) -> Support {
        self.cloud.vanish(provider_id);
        Support::Yes
    }

    async fn cause_drift(&self, claim: &NodeClaim) -> Support {
        let id = claim.provider_id().expect("launched");
        self.cloud.set_drifted(id, Some(DriftReason("ImageDrifted".to_owned())));
        Support::Yes
    }

    async fn unready_node_class(&self) -> Support {
        let message = "the image does not exist".to_owned();
        self.cloud.set_readiness(Readiness::NotReady {
            reason: "NoImage".to_owned(),
            message,
        });
        Support::Yes
    }

    /// As a provider's own collector does it: two rounds, then one more read of what is to go.
    async fn collect_garbage(&self, claims: &[NodeClaim]) -> Support {
        let mut collector = GarbageCollector::new(Caution::default());
        let claims = KnownClaims::of(claims);
        let clock = self.clock.clock();
        for _ in 0..2 {
            let seen: Vec<Sighting> = self
                .cloud
                .machines()
                .iter()
                .map(|machine| sighting(&machine.instance))
                .collect();
            let Verdict::Collect(orphans) = collector.round(&seen, &claims, clock.now()) else {
                panic!("three machines are not too many")
            };
            for orphan in orphans {
                let read = self.cloud.get(&orphan.provider_id).await.ok();
                if collector.confirm(&orphan, read.as_ref().map(sighting).as_ref(), &claims) {
                    self.cloud.vanish(&orphan.provider_id);
                }
            }
            self.pass(Duration::from_secs(60)).await;
        }
        Support::Yes
    }
}

fn sighting(instance: &Instance) -> Sighting {
    Sighting {
        id: instance.provider_id.clone(),
        provider_id: instance.provider_id.clone(),
        owner: instance.claim.clone().map_or(Owner::Foreign, Owner::Ours),
        created_at: instance.created_at,
        terminating: instance.is_terminating(),
    }
}

karpenter_cloud::conformance_tests!(environment);

#[tokio::test]
async fn a_machine_that_nobody_marked_survives_garbage_collection() {
    let environment = environment().await;
    environment.cloud.add_machine(Machine {
        name: "foreign".into(),
        instance: Instance {
            provider_id: "fake:///foreign".into(),
            ..Instance::default()
        },
        boot_id: String::new(),
        reboots: std::collections::BTreeSet::new(),
        gone_at: None,
    });
    assert_eq!(environment.collect_garbage(&[]).await, Support::Yes);
    assert_eq!(environment.machines().await, ["fake:///foreign"]);
}
