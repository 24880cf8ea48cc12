//! The CloudProvider over Node objects.

mod pending;

use std::sync::Arc;

use async_trait::async_trait;
use futures::TryStreamExt;
use k8s_openapi::api::core::v1::Node;
use karpenter_api::{NodeClaim, NodePool, conditions::StatusConditions, labels::LabelRules};
use karpenter_cloud::{
    BackgroundTask, ClaimMark, CloudError, CloudProvider, Deletion, DriftReason, Instance, InstanceTypes,
    NodeClassKind, RebootOperation, RepairPolicy,
    clock::Clock,
    error::CloudContext,
    ownership::short_hash,
    selection::{self, Candidate},
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions},
};
use serde_json::json;

use crate::{catalogue::Catalogue, node, node_class::KwokNodeClass, readiness, repair};
use pending::{GivenUp, PendingNodes};

/// Launches Nodes instead of machines.
#[derive(Clone)]
pub struct KwokProvider {
    client: Client,
    catalogue: Arc<Catalogue>,
    pending: PendingNodes,
}

/// Pages of a Node list.
const PAGE: u32 = 500;

impl KwokProvider {
    pub fn new(client: Client, clock: Clock, catalogue: Catalogue) -> Self {
        let pending = PendingNodes::new(Api::all(client.clone()), clock);
        Self {
            client,
            catalogue: Arc::new(catalogue),
            pending,
        }
    }

    fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    /// The class of a claim, if it may be launched with.
    async fn class(&self, claim: &NodeClaim) -> Result<KwokNodeClass, CloudError> {
        let name = &claim.spec.node_class_ref.name;
        let classes: Api<KwokNodeClass> = Api::all(self.client.clone());
        let class = classes
            .get_opt(name)
            .await
            .cloud_context(format!("reading KWOKNodeClass {name}"))?;
        // Upstream counts a missing class as missing capacity, which deletes the claim all the same.
        let class =
            class.ok_or_else(|| CloudError::insufficient_capacity(format!("KWOKNodeClass {name} does not exist")))?;
        if class.metadata.deletion_timestamp.is_some() {
            return Err(CloudError::node_class_not_ready(name, "it is being deleted"));
        }
        match class.conditions().iter().find(|condition| condition.type_ == "Ready") {
            Some(ready) if ready.is_false() => Err(CloudError::node_class_not_ready(name, &ready.message)),
            // Without a verdict, or with an unknown one, upstream launches too.
            Some(_) | None => Ok(class),
        }
    }

    /// The cheapest way to satisfy the claim; among equally cheap ones the claim's UID picks, which spreads claims over
    /// zones and picks alike when asked again.
    fn choose(&self, claim: &NodeClaim) -> Result<Candidate, CloudError> {
        let candidates = selection::candidates(claim, &self.catalogue.types(), self.catalogue.rules());
        let Some(cheapest) = candidates.first() else {
            return Err(CloudError::insufficient_capacity(
                "no instance type of the catalogue satisfies the claim's requirements and requests",
            ));
        };
        let equals = candidates
            .iter()
            .take_while(|own| own.offering.price == cheapest.offering.price)
            .count();
        let hash = short_hash(claim.metadata.uid.as_deref().unwrap_or_default());
        let pick = usize::from_str_radix(&hash, 16).unwrap_or_default() % equals;
        Ok(candidates[pick].clone())
    }

    /// The live Node of this claim, made earlier.
    async fn made_earlier(&self, mark: &ClaimMark) -> Result<Option<Node>, CloudError> {
        if let Some(pending) = self.pending.get(&node::name(mark)) {
            return Ok(Some(pending));
        }
        let found = self
            .nodes()
            .get_opt(&node::name(mark))
            .await
            .cloud_context("looking for the claim's node")?;
        Ok(found.filter(|found| node::claim_mark(found).as_deref() == Some(&mark.uid)))
    }

    async fn create_now(&self, mark: &ClaimMark, planned: &Node) -> Result<Instance, CloudError> {
        match self.nodes().create(&PostParams::default(), planned).await {
            Ok(created) => launched(&created),
            // An earlier or a concurrent attempt for this claim was faster.
            Err(kube::Error::Api(status)) if status.code == 409 => match self.made_earlier(mark).await? {
                Some(made) => launched(&made),
                None => Err(CloudError::create(
                    "NodeNameTaken",
                    format!(
                        "a node named {} exists and was not made for this claim",
                        node::name(mark)
                    ),
                )),
            },
            Err(error) => Err(CloudError::from(error).context("creating the node")),
        }
    }

    /// Deletes the Node object. Core's finalizer, if it is there, holds it until core has let go.
    async fn delete_node(&self, found: &Node) -> Result<(), CloudError> {
        let name = found.metadata.name.as_deref().unwrap_or_default();
        let this_one = Preconditions {
            uid: found.metadata.uid.clone(),
            resource_version: None,
        };
        let params = DeleteParams {
            preconditions: Some(this_one),
            ..DeleteParams::default()
        };
        match self.nodes().delete(name, &params).await {
            // Gone, or replaced by another Node of that name, which is not ours to delete.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
            result => result.map(drop).cloud_context(format!("deleting node {name}")),
        }
    }
}

#[async_trait]
impl CloudProvider for KwokProvider {
    fn name(&self) -> &str {
        "kwok"
    }

    fn supported_node_classes(&self) -> Vec<NodeClassKind> {
        vec![NodeClassKind::of::<KwokNodeClass>()]
    }

    fn extend_label_rules(&self, rules: LabelRules) -> LabelRules {
        let own = self.catalogue.rules();
        let rules = own.well_known().fold(rules, LabelRules::with_well_known);
        own.restricted_domains().fold(rules, LabelRules::with_restricted_domain)
    }

    fn repair_policies(&self) -> Vec<RepairPolicy> {
        repair::policies()
    }

    fn background_tasks(&self) -> Vec<BackgroundTask> {
        let (client, pending, catalogue) = (self.client.clone(), self.pending.clone(), self.catalogue.clone());
        let resumed = self.client.clone();
        vec![
            BackgroundTask::new("kwok.nodeclass", |stop| readiness::keep_ready(client, stop)),
            BackgroundTask::new("kwok.resume", move |stop| async move {
                stop.run_until_cancelled_owned(pending.resume(resumed, catalogue)).await;
            }),
        ]
    }

    /// Two requests in the usual case: the class is read, and the Node's deterministic name makes its creation the check
    /// for an earlier one.
    async fn create(&self, claim: &NodeClaim) -> Result<Instance, CloudError> {
        let mark = ClaimMark::of(claim);
        if let Some(pending) = self.pending.get(&node::name(&mark)) {
            return launched(&pending);
        }
        let planned = match self.class(claim).await {
            Ok(class) => self
                .choose(claim)
                .map(|candidate| (node::build(claim, &candidate), class.registration_delay())),
            Err(error) => Err(error),
        };
        let (planned, delay) = match planned {
            Ok(planned) => planned,
            // What was launched before stays launched, whatever became of the class since.
            Err(error) => {
                return self
                    .made_earlier(&mark)
                    .await?
                    .map_or(Err(error), |made| launched(&made));
            }
        };
        if delay.is_zero() {
            return self.create_now(&mark, &planned).await;
        }
        match self.made_earlier(&mark).await? {
            Some(made) => launched(&made),
            None => launched(&self.pending.add(planned, delay)),
        }
    }

    async fn abandon(&self, claim: &NodeClaim) -> Result<Deletion, CloudError> {
        let mark = ClaimMark::of(claim);
        if let GivenUp::Settled(deletion) = self.pending.give_up(&node::name(&mark)) {
            return Ok(deletion);
        }
        if let Some(made) = self.made_earlier(&mark).await? {
            self.delete_node(&made).await?;
        }
        Ok(Deletion::Gone)
    }

    /// Instant, as upstream's: there is no machine that would take its time to stop.
    async fn delete(&self, claim: &NodeClaim) -> Result<Deletion, CloudError> {
        let id = claim.provider_id().unwrap_or_default();
        let name = node::name_of(id).ok_or_else(|| CloudError::not_found(id))?;
        if let GivenUp::Settled(deletion) = self.pending.give_up(name) {
            return Ok(deletion);
        }
        let Some(found) = self
            .nodes()
            .get_opt(name)
            .await
            .cloud_context("looking for the claim's node")?
        else {
            return Ok(Deletion::Gone);
        };
        let uid = claim.metadata.uid.as_deref();
        // A Node without a mark was made by upstream's provider, for the claim that names it.
        if node::claim_mark(&found).is_some_and(|marked| Some(marked.as_str()) != uid) {
            return Err(CloudError::invalid(format!(
                "node {name} was made for another claim; it is left alone"
            )));
        }
        if !node::is_deleting(&found) {
            self.delete_node(&found).await?;
        }
        Ok(Deletion::Gone)
    }

    async fn get(&self, provider_id: &str) -> Result<Instance, CloudError> {
        let not_found = || CloudError::not_found(provider_id);
        let name = node::name_of(provider_id).ok_or_else(not_found)?;
        if let Some(pending) = self.pending.get(name) {
            return launched(&pending);
        }
        let found = self
            .nodes()
            .get_opt(name)
            .await
            .cloud_context(format!("reading node {name}"))?;
        launched(&found.filter(|found| !node::is_deleting(found)).ok_or_else(not_found)?)
    }

    async fn list(&self) -> Result<Vec<Instance>, CloudError> {
        let nodes = self.nodes();
        let pages = futures::stream::try_unfold(Some(String::new()), |token| {
            let nodes = nodes.clone();
            async move {
                let Some(token) = token else { return Ok(None) };
                let mut params = ListParams::default().limit(PAGE);
                params.continue_token = Some(token).filter(|token| !token.is_empty());
                let page = nodes.list(&params).await?;
                let next = page.metadata.continue_.clone().filter(|token| !token.is_empty());
                Ok::<_, kube::Error>(Some((page.items, next)))
            }
        });
        let listed: Vec<Vec<Node>> = pages.try_collect().await.cloud_context("listing nodes")?;
        let pending = self.pending.all();
        let mut instances = Vec::new();
        for node in listed.iter().flatten().chain(&pending) {
            instances.extend(node::instance(node)?);
        }
        // A Node may have been created between the two reads.
        instances.sort_by(|a, b| a.provider_id.cmp(&b.provider_id));
        instances.dedup_by(|a, b| a.provider_id == b.provider_id);
        Ok(instances)
    }

    async fn instance_types(&self, _pool: &NodePool) -> Result<InstanceTypes, CloudError> {
        Ok(self.catalogue.types())
    }

    /// Never: nothing of a KWOKNodeClass outlives the launch.
    async fn is_drifted(&self, _claim: &NodeClaim) -> Result<Option<DriftReason>, CloudError> {
        Ok(None)
    }

    async fn reboot(&self, claim: &NodeClaim, operation: &RebootOperation) -> Result<(), CloudError> {
        let id = claim.provider_id().unwrap_or_default();
        let name = node::name_of(id).ok_or_else(|| CloudError::not_found(id))?;
        let boot_id = format!("kwok-{}", operation.0);
        let patch = json!({"status": {"nodeInfo": {"bootID": boot_id}}});
        match self
            .nodes()
            .patch_status(name, &PatchParams::default(), &Patch::Merge(&patch))
            .await
        {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Err(CloudError::not_found(id)),
            Err(error) => Err(CloudError::from(error).context(format!("rebooting node {name}"))),
        }
    }
}

fn launched(made: &Node) -> Result<Instance, CloudError> {
    node::instance(made)?.ok_or_else(|| {
        let name = made.metadata.name.as_deref().unwrap_or_default();
        CloudError::invalid(format!("node {name} has a provider ID that is not KWOK's"))
    })
}

impl std::fmt::Debug for KwokProvider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KwokProvider")
            .field("pending", &self.pending)
            .finish_non_exhaustive()
    }
}
