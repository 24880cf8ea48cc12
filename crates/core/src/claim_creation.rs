//! The one place that creates NodeClaims.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use karpenter_api::labels::{self, LabelRules, annotations};
use karpenter_api::node_claim::{NodeClaimSpec, ResourceRequirements};
use karpenter_api::requirement::Requirements;
use karpenter_api::{NodeClaim, NodePool};
use karpenter_engine::model::Pod;
use karpenter_engine::plan::PlannedClaim;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::{Client, Resource, ResourceExt};

use crate::error::Result;
use crate::metrics::SharedMetrics;
use crate::metrics::shared::MinValues;
use crate::state::Cluster;

/// Creates NodeClaims and tells cluster state at once, before the watch does.
#[derive(Debug, Clone)]
pub struct ClaimCreator {
    api: Api<NodeClaim>,
    state: Arc<Cluster>,
    metrics: Arc<SharedMetrics>,
}

impl ClaimCreator {
    /// A creator that counts what it creates.
    pub fn new(client: Client, state: Arc<Cluster>, metrics: Arc<SharedMetrics>) -> Self {
        Self {
            api: Api::all(client),
            state,
            metrics,
        }
    }

    /// Creates `claim` for `pods`. `reason` is `provisioned` or the disruption reason that it replaces a node for.
    ///
    /// # Errors
    /// With what the API server says. If the answer was lost, the claim may exist: the watch will show it, and the pods
    /// that it was made for find room on it in the next pass.
    pub async fn create(&self, claim: &NodeClaim, pods: &[Arc<Pod>], reason: &str) -> Result<Arc<NodeClaim>> {
        let created = Arc::new(self.api.create(&PostParams::default(), claim).await?);
        let name = created.name_any();
        self.state.claim_created(created.clone());
        self.state.assign(&name, pods);
        let min_values = match created
            .annotations()
            .get(annotations::MIN_VALUES_RELAXED)
            .map(String::as_str)
        {
            Some("true") => MinValues::Relaxed,
            Some(_) | None => MinValues::Kept,
        };
        self.metrics
            .nodeclaim_created(reason, created.node_pool().unwrap_or_default(), min_values);
        Ok(created)
    }

    /// Forgets claims that were created, that no watch ever showed, and that are gone (lifecycle.md §2.13): whatever counts on
    /// them needs others.
    ///
    /// # Errors
    /// With what the API server says.
    pub async fn forget_lost(&self) -> Result<()> {
        for name in self.state.long_unseen() {
            if self.api.get_opt(&name).await?.is_none() {
                self.state.forget_unseen(&name);
            }
        }
        Ok(())
    }
}

/// The NodeClaim that launches `planned`, made from the template of `pool` (scheduling.md §4.8).
pub fn planned_claim(pool: &NodePool, planned: &PlannedClaim, rules: &LabelRules) -> NodeClaim {
    let requirements = planned.launch_requirements(rules);
    let mut marks = BTreeMap::new();
    marks.insert(annotations::MIN_VALUES_RELAXED, planned.min_values_relaxed);
    marks.insert(annotations::PRICE_OVERLAY_APPLIED, planned.price_overlaid);
    marks.insert(annotations::CAPACITY_OVERLAY_APPLIED, planned.capacity_overlaid);
    let mut claim = from_template(pool, &planned.node_pool.hash, (*planned.labels).clone(), &requirements);
    let annotations = claim.metadata.annotations.get_or_insert_default();
    for (key, applies) in marks {
        // Upstream always says whether minValues were relaxed, and the others only when they were.
        if applies || key == annotations::MIN_VALUES_RELAXED {
            annotations.insert(key.to_owned(), applies.to_string());
        }
    }
    claim.spec.resources = ResourceRequirements {
        requests: Some(planned.requests.clone()),
    };
    claim
}

/// The NodeClaim of a static NodePool: its template as it is, with no choice made beforehand.
pub fn static_claim(pool: &NodePool, rules: &LabelRules) -> NodeClaim {
    let template = &pool.spec.template;
    let mut own = template.metadata.labels.clone().unwrap_or_default();
    own.insert(labels::NODEPOOL.to_owned(), pool.name_any());
    own.insert(
        template.spec.node_class_ref.label_key(),
        template.spec.node_class_ref.name.clone(),
    );
    let mut requirements = Requirements::from_wire(rules, &template.spec.requirements);
    requirements.add_all(&Requirements::from_labels(rules, &own));
    from_template(pool, &pool.static_hash(), own, &requirements)
}

fn from_template(
    pool: &NodePool,
    hash: &str,
    labels: BTreeMap<String, String>,
    requirements: &Requirements,
) -> NodeClaim {
    let template = &pool.spec.template;
    let mut all_annotations = template.metadata.annotations.clone().unwrap_or_default();
    all_annotations.insert(annotations::NODEPOOL_HASH.to_owned(), hash.to_owned());
    all_annotations.insert(
        annotations::NODEPOOL_HASH_VERSION.to_owned(),
        karpenter_api::hash::HASH_VERSION.to_owned(),
    );
    let owner = OwnerReference {
        api_version: NodePool::api_version(&()).into_owned(),
        kind: NodePool::kind(&()).into_owned(),
        name: pool.name_any(),
        uid: pool.uid().unwrap_or_default(),
        block_owner_deletion: Some(true),
        controller: None,
    };
    NodeClaim {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}-", pool.name_any())),
            labels: Some(labels),
            annotations: Some(all_annotations),
            owner_references: Some(vec![owner]),
            // Lifecycle would add it before the launch, with a write of its own.
            finalizers: Some(vec![labels::TERMINATION_FINALIZER.to_owned()]),
            ..ObjectMeta::default()
        },
        spec: NodeClaimSpec {
            taints: template.spec.taints.clone(),
            startup_taints: template.spec.startup_taints.clone(),
            requirements: requirements.to_wire(),
            resources: ResourceRequirements::default(),
            node_class_ref: template.spec.node_class_ref.clone(),
            termination_grace_period: template.spec.termination_grace_period,
            expire_after: template.spec.expire_after.clone(),
        },
        status: None,
    }
}
