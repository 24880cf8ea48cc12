//! A sandbox with the KWOK provider in it, and the means to make its API server misbehave.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures::future::{BoxFuture, FutureExt};
use http::Method;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use karpenter_api::{NodeClaim, NodePool};
use karpenter_cloud::{
    CloudProvider,
    clock::{Clock, TimeSource},
    conformance::{Environment, Fault, Support},
};
use karpenter_kwok::{Catalogue, KwokNodeClass, KwokProvider};
use karpenter_sandbox::{Sandbox, faults};
use serde_json::json;

pub(crate) struct KwokEnvironment {
    pub(crate) sandbox: Sandbox,
    lose_answer: Arc<AtomicBool>,
    provider: KwokProvider,
}

/// The sandbox's clock as ours.
#[derive(Debug)]
struct SandboxTime(karpenter_sandbox::Clock);

impl TimeSource for SandboxTime {
    fn now(&self) -> Timestamp {
        self.0.now()
    }

    fn sleep_until(&self, deadline: Timestamp) -> BoxFuture<'static, ()> {
        self.0.sleep_until(deadline).boxed()
    }
}

impl KwokEnvironment {
    pub(crate) fn start() -> Self {
        Self::with_class(json!({}))
    }

    /// A cluster with one KWOKNodeClass, `default`.
    pub(crate) fn with_class(spec: serde_json::Value) -> Self {
        let sandbox = Sandbox::start();
        let crds = karpenter_api::crd::all()
            .into_iter()
            .chain(karpenter_kwok::node_class::crds());
        for crd in crds {
            sandbox.apply(&crd.to_yaml()).expect("the CRD is accepted");
        }
        let class = json!({
            "apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": "KWOKNodeClass", "metadata": {"name": "default"},
            "spec": spec,
        });
        sandbox.apply(&class.to_string()).expect("the class is accepted");
        let lose_answer = Arc::new(AtomicBool::new(false));
        let provider = provider(&sandbox, &lose_answer);
        Self {
            sandbox,
            lose_answer,
            provider,
        }
    }

    /// A provider with nothing in memory.
    pub(crate) fn new_provider(&self) -> KwokProvider {
        provider(&self.sandbox, &self.lose_answer)
    }

    pub(crate) fn nodes(&self) -> Vec<Node> {
        self.sandbox.objects().list::<Node>("")
    }
}

fn provider(sandbox: &Sandbox, lose_answer: &Arc<AtomicBool>) -> KwokProvider {
    let clock = Clock::from_source(SandboxTime(sandbox.clock().clone()));
    KwokProvider::new(
        forgetful(sandbox.client(), lose_answer.clone()),
        clock,
        Catalogue::built_in(),
    )
}

/// A client that loses the answer to the next creation when told to.
fn forgetful(inner: kube::Client, lose_answer: Arc<AtomicBool>) -> kube::Client {
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let (inner, lose_answer) = (inner.clone(), lose_answer.clone());
        async move {
            let creates = request.method() == Method::POST;
            let answer = inner.send(request).await?;
            if creates && lose_answer.swap(false, Ordering::Relaxed) {
                return Err(kube::Error::Service(
                    "connection reset after the request was sent".into(),
                ));
            }
            Ok::<_, kube::Error>(answer)
        }
    });
    kube::Client::new(service, "default")
}

#[async_trait]
impl Environment for KwokEnvironment {
    fn provider(&self) -> Arc<dyn CloudProvider> {
        Arc::new(self.provider.clone())
    }

    fn node_pool(&self) -> NodePool {
        serde_json::from_value(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "default"},
            "spec": {"template": {"spec": {
                "requirements": [],
                "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"},
            }}},
        }))
        .expect("a NodePool")
    }

    async fn restart(&self) -> Arc<dyn CloudProvider> {
        Arc::new(self.new_provider())
    }

    async fn machines(&self) -> Vec<String> {
        let live = self
            .nodes()
            .into_iter()
            .filter(|node| node.metadata.deletion_timestamp.is_none());
        live.filter_map(|node| node.spec?.provider_id).collect()
    }

    async fn pass(&self, duration: Duration) {
        self.sandbox.run_for(duration).await;
    }

    async fn inject(&self, fault: Fault) -> Support {
        let fail = |verb: &str| faults::Fault::fail(500).verb(verb).resource("nodes");
        let inject = |fault| self.sandbox.faults().inject(fault);
        match fault {
            Fault::LoseLaunchAnswer => self.lose_answer.store(true, Ordering::Relaxed),
            Fault::FailLaunch => inject(fail("create").times(1)),
            Fault::FailReads => {
                inject(fail("get"));
                inject(fail("list"));
            }
            Fault::FailTerminations => inject(fail("delete")),
            // Nodes without machines never run out.
            Fault::SellOutEverything => return Support::No,
        }
        Support::Yes
    }

    async fn heal(&self) {
        self.lose_answer.store(false, Ordering::Relaxed);
        self.sandbox.faults().clear();
    }

    async fn add_foreign_machine(&self) -> Option<String> {
        let id = "other-cloud:///i-1".to_owned();
        let node: Node = serde_json::from_value(json!({"metadata": {"name": "foreign"}, "spec": {"providerID": id}}))
            .expect("a Node");
        self.sandbox.objects().create(&node).expect("accepted");
        Some(id)
    }

    async fn vanish(&self, provider_id: &str) -> Support {
        let name = provider_id.strip_prefix("kwok://").expect("one of ours");
        self.sandbox
            .objects()
            .delete::<Node>("", name, &Default::default())
            .expect("deleted");
        Support::Yes
    }

    async fn unready_node_class(&self) -> Support {
        let status = json!({"status": {"conditions": [{
            "type": "Ready", "status": "False", "reason": "OutOfService", "message": "taken out of service",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]}});
        self.sandbox
            .objects()
            .patch_status::<KwokNodeClass>("", "default", &status)
            .expect("accepted");
        Support::Yes
    }

    async fn cause_drift(&self, _claim: &NodeClaim) -> Support {
        Support::No
    }
}
