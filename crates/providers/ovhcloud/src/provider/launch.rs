//! Getting a machine for a claim.

use karpenter_api::NodeClaim;
use karpenter_cloud::{ClaimMark, CloudError, Instance, events::Announcement, instance::ADOPT_ANNOTATION, selection};

use super::{Shared, hash_annotations, readiness_of};
use crate::{
    client::{
        ApiErrorKind,
        model::{NodeClass, Pool, PoolNode},
    },
    names,
    node_class::OvhNodeClass,
    pool::{PoolKey, actor::Outcome, engine::Machine, key::PoolDesign, placement::Wish, plan::Failure},
};

/// Offerings tried in one launch.
const ATTEMPTS: usize = 5;

impl Shared {
    pub(super) async fn launch(&self, claim: &NodeClaim) -> Result<Instance, CloudError> {
        let mark = ClaimMark::of(claim);
        let ledger = self.engine.ledger();
        ledger.load().await?;
        let Some(current) = ledger.read(&mark).await? else {
            return Err(CloudError::create("ClaimDeleted", "the claim does not exist any more"));
        };
        if current.metadata.deletion_timestamp.is_some() {
            return Err(CloudError::create("ClaimDeleted", "the claim is being deleted"));
        }
        let class_name = &current.spec.node_class_ref.name;
        let class = self.class(class_name).await?;
        if let Some(instance) = self.made_earlier(&mark, class.as_ref()).await? {
            return Ok(instance);
        }
        let Some(class) = class else {
            self.metrics.provisioned("", "", "nodeclass_not_ready");
            return Err(CloudError::node_class_not_ready(class_name, "it does not exist"));
        };
        if let Err(why) = readiness_of(&class) {
            self.metrics.provisioned("", "", "nodeclass_not_ready");
            return Err(CloudError::node_class_not_ready(class_name, why));
        }
        if let Some(instance) = self.adopt(&current, &mark, &class).await? {
            return Ok(instance);
        }
        self.launch_with(&current, &mark, &class).await
    }

    async fn launch_with(
        &self,
        claim: &NodeClaim,
        mark: &ClaimMark,
        class: &OvhNodeClass,
    ) -> Result<Instance, CloudError> {
        let ledger = self.engine.ledger();
        let mut refused = Vec::new();
        for _ in 0..ATTEMPTS {
            let (design, pool, flavor, zone) = match self.reserved(claim, mark, class).await? {
                Some(reserved) => reserved,
                None => {
                    let wishes = self.wishes(claim, class).await?;
                    if wishes.is_empty() {
                        self.metrics.provisioned("", "", "no_flavor");
                        return Err(CloudError::insufficient_capacity(self.nothing(&refused)));
                    }
                    let (design, place) = match self.engine.reserve(claim, &wishes).await {
                        Ok(reserved) => reserved,
                        Err(error) if error.is_insufficient_capacity() => {
                            self.metrics.provisioned("", "", "pool_limit");
                            return Err(error);
                        }
                        Err(error) => return Err(error),
                    };
                    (design, place.pool, place.flavor, place.zone)
                }
            };
            let outcome = self.engine.machine_of(&mark.uid, &pool, design).await;
            let count = |status: &str| self.metrics.provisioned(&flavor, &zone, status);
            match outcome {
                Some(Outcome::Bound { pool, node }) => {
                    count("success");
                    return self.launched(*pool, *node, mark, Some(class)).await;
                }
                Some(Outcome::Moved) => {}
                Some(Outcome::Refused { kind, message }) => {
                    count(match kind {
                        ApiErrorKind::Quota => "quota",
                        ApiErrorKind::PoolLimit => "pool_limit",
                        ApiErrorKind::Capacity => "out_of_stock",
                        _ => "pool_error",
                    });
                    refused.push(message);
                }
                Some(failed @ Outcome::Failed { failure, .. }) => {
                    count(match failure {
                        Failure::OutOfStock => "out_of_stock",
                        Failure::Quota => "quota",
                        Failure::Broken => "error",
                    });
                    return Err(failed.into());
                }
                Some(Outcome::Error(error)) => {
                    count("error");
                    if matches!(
                        error.kind,
                        ApiErrorKind::Auth | ApiErrorKind::NotGranted | ApiErrorKind::Expired
                    ) {
                        self.suspicion.notify_one();
                    }
                    return Err(Outcome::Error(error).into());
                }
                None => {
                    count("timeout");
                    // The reservation holds: the next attempt goes on waiting.
                    let message = format!("OVHcloud is still making the machine in node pool {pool}");
                    return Err(CloudError::create("InstancePending", message));
                }
            }
            // A claim that was deleted meanwhile needs nothing any more.
            if ledger
                .read(mark)
                .await?
                .is_none_or(|claim| claim.metadata.deletion_timestamp.is_some())
            {
                return Err(CloudError::create("ClaimDeleted", "the claim is being deleted"));
            }
        }
        Err(CloudError::insufficient_capacity(self.nothing(&refused)))
    }

    /// Everything that satisfies the claim now, with the pool that it would come from.
    async fn wishes(&self, claim: &NodeClaim, class: &OvhNodeClass) -> Result<Vec<Wish>, CloudError> {
        let node_pool = claim.node_pool().unwrap_or_default();
        let types = self.types(class, node_pool).await?;
        let mut candidates = selection::candidates(claim, &types, &self.rules);
        let requests = claim.spec.resources.requests.as_ref();
        let wants_gpu = requests.is_some_and(|requests| requests.contains_key(names::GPU_RESOURCE));
        let has_gpu = |own: &selection::Candidate| own.instance_type.capacity.contains_key(names::GPU_RESOURCE);
        // GPUs are scarce: they are not for those who can do without.
        if !wants_gpu && candidates.iter().any(|own| !has_gpu(own)) {
            candidates.retain(|own| !has_gpu(own));
        }
        let wish = |own: &selection::Candidate| {
            let zone = selection::zone(&own.offering)?;
            Some(Wish {
                design: self.design(claim, class, &own.instance_type.name, zone)?,
                price: own.offering.price,
            })
        };
        Ok(candidates.iter().filter_map(wish).collect())
    }

    fn design(&self, claim: &NodeClaim, class: &OvhNodeClass, flavor: &str, zone: &str) -> Option<PoolDesign> {
        let connection = self.directory.known(class.name())?;
        let taints = claim.spec.taints.as_deref().unwrap_or_default();
        let key = PoolKey::new(claim.node_pool().unwrap_or_default(), class, flavor, zone, taints);
        let cap = class.spec.pool_cap(self.settings.engine.max_nodes);
        Some(PoolDesign::new(key, class, connection.zones.kind, cap))
    }

    /// The claim's reservation, if it has one that still makes sense.
    async fn reserved(
        &self,
        claim: &NodeClaim,
        mark: &ClaimMark,
        class: &OvhNodeClass,
    ) -> Result<Option<(PoolDesign, String, String, String)>, CloudError> {
        self.connection(class).await?;
        let ledger = self.engine.ledger();
        let Some(entry) = ledger.get(&mark.uid).filter(|entry| entry.stored) else {
            return Ok(None);
        };
        let design = self.design(claim, class, &entry.flavor, &entry.zone);
        let is_current = |design: &PoolDesign| {
            let first = design.pool_name(0);
            first.strip_suffix('0').is_some_and(|stem| entry.pool.starts_with(stem))
        };
        match design.filter(is_current) {
            Some(design) => Ok(Some((design, entry.pool, entry.flavor, entry.zone))),
            None => {
                // The class or the taints changed since: such a pool would be drifted from the start.
                ledger.withdraw(mark).await?;
                self.engine.kick(&entry.pool);
                Ok(None)
            }
        }
    }

    /// The machine that an earlier attempt got, whatever became of the class since.
    async fn made_earlier(
        &self,
        mark: &ClaimMark,
        class: Option<&OvhNodeClass>,
    ) -> Result<Option<Instance>, CloudError> {
        let Some(entry) = self.engine.ledger().get(&mark.uid) else {
            return Ok(None);
        };
        let (Some(node_id), Some(pool_id)) = (entry.node_id, entry.pool_id) else {
            return Ok(None);
        };
        self.any_connection().await?;
        let found = self.engine.pool(&pool_id).await?;
        let machine = found.and_then(|(pool, nodes)| Some((pool, nodes.into_iter().find(|node| node.id == node_id)?)));
        match machine {
            Some((pool, node)) if node.class() != NodeClass::Gone => {
                self.launched(pool, node, mark, class).await.map(Some)
            }
            _ => Err(CloudError::insufficient_capacity(format!(
                "machine {node_id} of the claim is gone"
            ))),
        }
    }

    async fn adopt(
        &self,
        claim: &NodeClaim,
        mark: &ClaimMark,
        class: &OvhNodeClass,
    ) -> Result<Option<Instance>, CloudError> {
        let annotations = claim.metadata.annotations.as_ref();
        let Some(wanted) = annotations.and_then(|own| own.get(ADOPT_ANNOTATION)) else {
            return Ok(None);
        };
        let machines = self.machines().await?;
        let is_it = |machine: &&Machine| machine.node.provider_id().as_ref() == Some(wanted);
        let machine = machines.iter().find(is_it);
        let Some(machine) = machine.filter(|machine| machine.claim.is_none()) else {
            return Err(CloudError::insufficient_capacity(format!(
                "machine {wanted}, which the claim should adopt, is gone or has another claim"
            )));
        };
        self.engine.ledger().adopt(mark, &machine.pool, &machine.node).await?;
        self.engine.kick(&machine.pool.name);
        self.metrics.adopted();
        let message = format!("took over machine {}, which MKS made by itself", machine.node.name);
        let told = Announcement::normal("NodeAdopted", message);
        self.events.on_claim(mark, &told).await;
        let node_pool = claim.node_pool().unwrap_or_default();
        self.events.on_node_pool(node_pool, told).await;
        self.launched(machine.pool.clone(), machine.node.clone(), mark, Some(class))
            .await
            .map(Some)
    }

    async fn launched(
        &self,
        pool: Pool,
        node: PoolNode,
        mark: &ClaimMark,
        class: Option<&OvhNodeClass>,
    ) -> Result<Instance, CloudError> {
        let id = node.id.clone();
        let machine = Machine {
            pool,
            node,
            claim: Some(mark.clone()),
        };
        let instance = self.instance(&machine).await?;
        let mut instance = instance
            .ok_or_else(|| CloudError::create("InstancePending", format!("machine {id} has no instance yet")))?;
        if let Some(class) = class {
            instance.annotations.extend(hash_annotations(class));
        }
        Ok(instance)
    }

    fn nothing(&self, refused: &[String]) -> String {
        if !refused.is_empty() {
            return refused.join("; ");
        }
        let marks = self.supply.marks();
        if marks.is_empty() {
            return "no flavor satisfies the claim's requirements and requests; OVHcloud has on-demand machines only, no spot"
                .to_owned();
        }
        let mut counts = std::collections::BTreeMap::new();
        for (_, _, reason) in marks {
            *counts.entry(reason).or_insert(0) += 1;
        }
        let counted: Vec<String> = counts
            .into_iter()
            .map(|(reason, count)| format!("{count} {reason}"))
            .collect();
        format!(
            "no flavor that satisfies the claim can be had now ({})",
            counted.join(", ")
        )
    }
}
