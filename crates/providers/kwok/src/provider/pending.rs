//! Nodes that were launched but wait for their registration delay to pass.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use k8s_openapi::api::core::v1::Node;
use karpenter_api::{NodeClaim, conditions::StatusConditions, labels, node_claim::condition};
use karpenter_cloud::{
    ClaimMark, CloudError, Deletion,
    clock::{Clock, later},
    error::CloudContext,
    kubernetes::inherited,
    selection::{self, Candidate},
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, PostParams},
};
use parking_lot::Mutex;
use tokio_util::task::AbortOnDropHandle;

use crate::{catalogue::Catalogue, node, node_class::KwokNodeClass};

/// The Nodes to come. Cheap to clone; clones share. Dropping the last ends the waiting.
#[derive(Clone)]
pub(super) struct PendingNodes {
    nodes: Api<Node>,
    clock: Clock,
    waiting: Arc<WaitingNodes>,
}

type WaitingNodes = Mutex<BTreeMap<String, Waiting>>;

struct Waiting {
    node: Node,
    phase: Phase,
    _task: AbortOnDropHandle<()>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nothing was sent yet.
    Delayed,
    /// The API server may have the Node already.
    Creating,
    /// As `Creating`, but nobody wants the Node any more.
    GivenUp,
}

/// What became of a Node that was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GivenUp {
    /// It was waiting here; no need to look for it in the cluster.
    Settled(Deletion),
    NotWaiting,
}

const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(60);

impl PendingNodes {
    pub(super) fn new(nodes: Api<Node>, clock: Clock) -> Self {
        Self {
            nodes,
            clock,
            waiting: Arc::default(),
        }
    }

    /// Has the Node created after `delay`. Answers the Node that waits under that name, which may be an earlier one.
    pub(super) fn add(&self, node: Node, delay: Duration) -> Node {
        let name = node.metadata.name.clone().unwrap_or_default();
        let mut waiting = self.waiting.lock();
        if let Some(earlier) = waiting.get(&name) {
            return earlier.node.clone();
        }
        let task = create_after(
            self.nodes.clone(),
            self.clock.clone(),
            node.clone(),
            delay,
            Arc::downgrade(&self.waiting),
        );
        let task = AbortOnDropHandle::new(tokio::spawn(inherited(task)));
        waiting.insert(
            name,
            Waiting {
                node: node.clone(),
                phase: Phase::Delayed,
                _task: task,
            },
        );
        node
    }

    pub(super) fn get(&self, name: &str) -> Option<Node> {
        let waiting = self.waiting.lock();
        let found = waiting.get(name).filter(|waiting| waiting.phase != Phase::GivenUp)?;
        Some(found.node.clone())
    }

    pub(super) fn all(&self) -> Vec<Node> {
        let waiting = self.waiting.lock();
        let wanted = waiting.values().filter(|waiting| waiting.phase != Phase::GivenUp);
        wanted.map(|waiting| waiting.node.clone()).collect()
    }

    /// Gives a Node up. One that may have reached the API server already is deleted there by its own task.
    pub(super) fn give_up(&self, name: &str) -> GivenUp {
        let mut waiting = self.waiting.lock();
        let Some(found) = waiting.get_mut(name) else {
            return GivenUp::NotWaiting;
        };
        match found.phase {
            Phase::Delayed => {
                waiting.remove(name);
                GivenUp::Settled(Deletion::Gone)
            }
            Phase::Creating | Phase::GivenUp => {
                found.phase = Phase::GivenUp;
                GivenUp::Settled(Deletion::InProgress)
            }
        }
    }

    /// Takes up the launches of an earlier process: claims that were launched and have no Node yet.
    pub(super) async fn resume(self, client: Client, catalogue: Arc<Catalogue>) {
        let mut retry = FIRST_RETRY;
        while let Err(error) = self.try_resume(&client, &catalogue).await {
            tracing::warn!(%error, "cannot look for launches of an earlier process");
            self.clock.sleep(retry).await;
            retry = (retry * 2).min(LONGEST_RETRY);
        }
    }

    async fn try_resume(&self, client: &Client, catalogue: &Catalogue) -> Result<(), CloudError> {
        let claims: Api<NodeClaim> = Api::all(client.clone());
        let classes: Api<KwokNodeClass> = Api::all(client.clone());
        let claims = claims
            .list(&ListParams::default())
            .await
            .cloud_context("listing claims")?;
        for claim in claims.items.iter().filter(|claim| is_unfinished(claim)) {
            let name = node::name(&ClaimMark::of(claim));
            let made = self
                .nodes
                .get_opt(&name)
                .await
                .cloud_context("looking for a claim's node")?;
            if made.is_some() || self.get(&name).is_some() {
                continue;
            }
            let Some(candidate) = bought(claim, catalogue) else {
                tracing::warn!(
                    claim = claim.metadata.name,
                    "its instance type is not in the catalogue any more"
                );
                continue;
            };
            let class = &claim.spec.node_class_ref.name;
            let class = classes
                .get_opt(class)
                .await
                .cloud_context("reading a claim's class")?
                .unwrap_or_default();
            let created = claim
                .metadata
                .creation_timestamp
                .as_ref()
                .map_or(self.clock.now(), |time| time.0);
            let left = later(created, class.registration_delay()).duration_since(self.clock.now());
            self.add(
                node::build(claim, &candidate),
                Duration::try_from(left).unwrap_or_default(),
            );
        }
        Ok(())
    }
}

/// Launched by us, by its deterministic name, and not registered yet.
fn is_unfinished(claim: &NodeClaim) -> bool {
    let id = node::provider_id(&node::name(&ClaimMark::of(claim)));
    let registered = claim
        .conditions()
        .iter()
        .any(|own| own.type_ == condition::REGISTERED && own.is_true());
    claim.provider_id() == Some(id.as_str()) && !registered && !claim.is_terminating()
}

/// What was bought for a claim, from the labels that the launch left on it.
fn bought(claim: &NodeClaim, catalogue: &Catalogue) -> Option<Candidate> {
    let label = |key: &str| claim.metadata.labels.as_ref()?.get(key).map(String::as_str);
    let types = catalogue.types();
    let instance_type = types
        .iter()
        .find(|own| Some(own.name.as_str()) == label(labels::INSTANCE_TYPE))?;
    let offering = instance_type.offerings.iter().find(|offering| {
        selection::zone(offering) == label(labels::ZONE)
            && selection::capacity_type(offering) == label(labels::CAPACITY_TYPE)
    })?;
    Some(Candidate {
        instance_type: instance_type.clone(),
        offering: offering.clone(),
    })
}

async fn create_after(nodes: Api<Node>, clock: Clock, node: Node, delay: Duration, waiting: Weak<WaitingNodes>) {
    let name = node.metadata.name.clone().unwrap_or_default();
    clock.sleep(delay).await;
    {
        let Some(waiting) = waiting.upgrade() else { return };
        let mut waiting = waiting.lock();
        let Some(own) = waiting.get_mut(&name) else { return };
        own.phase = Phase::Creating;
    }
    until_settled(&clock, &name, || create(&nodes, &node)).await;
    if let Some(waiting) = waiting.upgrade() {
        let mut waiting = waiting.lock();
        if waiting.get(&name).is_none_or(|own| own.phase != Phase::GivenUp) {
            // Ends this very task, which has nothing more to do.
            waiting.remove(&name);
            return;
        }
    }
    until_settled(&clock, &name, || delete(&nodes, &name)).await;
    if let Some(waiting) = waiting.upgrade() {
        waiting.lock().remove(&name);
    }
}

async fn create(nodes: &Api<Node>, node: &Node) -> Result<(), kube::Error> {
    nodes.create(&PostParams::default(), node).await.map(drop)
}

async fn delete(nodes: &Api<Node>, name: &str) -> Result<(), kube::Error> {
    nodes.delete(name, &DeleteParams::default()).await.map(drop)
}

/// Repeats a write until it took effect, by this attempt or by an earlier one whose answer was lost.
async fn until_settled<F>(clock: &Clock, name: &str, write: impl Fn() -> F)
where
    F: Future<Output = Result<(), kube::Error>>,
{
    let mut retry = FIRST_RETRY;
    loop {
        match write().await {
            Ok(()) => return,
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => return,
            Err(error) => {
                tracing::warn!(node = name, %error, "a launched node cannot be written yet");
                clock.sleep(retry).await;
                retry = (retry * 2).min(LONGEST_RETRY);
            }
        }
    }
}

impl fmt::Debug for PendingNodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.waiting.lock().keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use karpenter_cloud::kubernetes::LastWord;
    use kube::client::Body;

    use super::*;

    #[tokio::test]
    async fn whoever_launched_has_the_last_word_on_the_node_that_waits() {
        let (written, mut writes) = tokio::sync::mpsc::unbounded_channel();
        let service = tower::service_fn(move |_: Request<Body>| {
            let written = written.clone();
            async move {
                written.send(LastWord::current().is_some()).expect("the test listens");
                let node = r#"{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}}"#;
                Ok::<_, std::convert::Infallible>(Response::new(Body::from(node.as_bytes().to_vec())))
            }
        });
        let nodes = Api::all(Client::new(service, "default"));
        let pending = PendingNodes::new(nodes, Clock::system());
        let mut node = Node::default();
        node.metadata.name = Some("a".to_owned());
        let launch = async { pending.add(node, Duration::ZERO) };
        LastWord::new(|| Ok::<_, CloudError>(())).over(launch).await;
        assert_eq!(writes.recv().await, Some(true));
    }
}
