//! Keeps claims and machines in step when one side is lost: claims whose machine vanished, machines whose claim did.
//!
//! Losing either should not happen; it does when people delete machines by hand, and when a process dies at the wrong
//! moment. Both directions are careful, because both delete: a node that reports Ready outweighs the cloud's list, and
//! which machines are nobody's is judged by [`karpenter_cloud::garbage_collection`].

use std::sync::Arc;

use futures::StreamExt;
use jiff::SignedDuration;
use karpenter_api::conditions::StatusConditions;
use karpenter_api::node_claim::condition::REGISTERED;
use karpenter_api::{NodeClaim, pods};
use karpenter_cloud::garbage_collection::{Caution, GarbageCollector, KnownClaims, Orphan, Sighting, Verdict};
use karpenter_cloud::instance::{ClaimMark, Instance};
use karpenter_cloud::ownership::Owner;
use parking_lot::Mutex;
use rustc_hash::FxHashSet;

use crate::claims::Reason;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::index::Found;
use crate::nodes;
use crate::runner::{Controller, Next, Runnable, Singleton};

const PERIOD: SignedDuration = SignedDuration::from_mins(2);
const PARALLEL: usize = 20;

/// The claims whose machine is not among `instances`.
///
/// Only registered ones: a list that lags behind must not kill a fresh launch, and liveness covers those.
pub fn without_machine(claims: &[Arc<NodeClaim>], instances: &[Instance]) -> Vec<Arc<NodeClaim>> {
    let live: FxHashSet<&str> = instances
        .iter()
        .filter(|instance| !instance.is_terminating())
        .map(|instance| instance.provider_id.as_str())
        .collect();
    claims
        .iter()
        .filter(|claim| claim.is_true(REGISTERED) && !claim.is_terminating())
        .filter(|claim| claim.provider_id().is_some_and(|id| !live.contains(id)))
        .cloned()
        .collect()
}

/// The `nodeclaim.garbagecollection` controller.
pub fn controller(ctx: &Context) -> Runnable {
    let machines = Mutex::new(GarbageCollector::new(Caution::default()));
    let collector = GarbageCollection {
        ctx: ctx.clone(),
        machines,
    };
    Controller::new(&ctx.runner, "nodeclaim.garbagecollection").runs_singleton(collector)
}

struct GarbageCollection {
    ctx: Context,
    machines: Mutex<GarbageCollector>,
}

impl Singleton for GarbageCollection {
    async fn reconcile(&self) -> Result<Next> {
        // The list comes before the claims: a machine made in between is then in neither.
        let instances = self.ctx.cloud.list().await;
        let instances = instances.map_err(|error| Error::failed(format!("listing instances: {error}")))?;
        let manages = self.ctx.manages_claim();
        let claims: Vec<Arc<NodeClaim>> = self
            .ctx
            .claims
            .list()
            .into_iter()
            .filter(|claim| manages(claim))
            .collect();

        let lost = without_machine(&claims, &instances);
        let collected = futures::stream::iter(lost)
            .map(|claim| self.collect_claim(claim))
            .buffer_unordered(PARALLEL);
        let mut errors: Vec<Error> = collected
            .filter_map(|result| std::future::ready(result.err()))
            .collect()
            .await;
        errors.extend(self.collect_machines(&instances).await);
        // A claim that changed while it was judged is judged again in two minutes.
        errors.retain(|error| !error.is_conflict());
        Error::all(errors)?;
        Ok(Next::After(PERIOD))
    }
}

impl GarbageCollection {
    async fn collect_claim(&self, claim: Arc<NodeClaim>) -> Result<()> {
        let node = claim
            .provider_id()
            .map_or(Found::None, |id| self.ctx.relations.node_of(id));
        if let Found::One(node) = &node
            && nodes::is_ready(node)
        {
            return Ok(());
        }
        let node_name = claim.status.as_ref().and_then(|status| status.node_name.as_deref());
        let on_node = node_name
            .map(|name| self.ctx.relations.pods_on(name))
            .unwrap_or_default();
        let moving = on_node.iter().filter(|pod| pods::is_reschedulable(pod)).count();
        self.ctx
            .claim_writer
            .disrupt_with_pods(&claim, Reason::GarbageCollected, moving)
            .await
    }

    async fn collect_machines(&self, instances: &[Instance]) -> Vec<Error> {
        let sightings: Vec<Sighting> = instances.iter().map(sighting).collect();
        let known = self.known_claims();
        let verdict = self.machines.lock().round(&sightings, &known, self.ctx.clock.now());
        let orphans = match verdict {
            Verdict::Collect(orphans) => orphans,
            Verdict::Suspended { orphans, machines } => {
                tracing::error!(
                    orphans,
                    machines,
                    "so many instances without a nodeclaim that none of them is terminated"
                );
                return Vec::new();
            }
        };
        let mut errors = Vec::new();
        for orphan in orphans {
            if let Err(error) = self.collect_machine(&orphan).await {
                errors.push(error);
            }
        }
        errors
    }

    async fn collect_machine(&self, orphan: &Orphan) -> Result<()> {
        let provider_id = &orphan.provider_id;
        let failed = |what: &str, error| Error::failed(format!("{what} the orphaned instance {provider_id}: {error}"));
        let instance = match self.ctx.cloud.get(provider_id).await {
            Ok(instance) => instance,
            Err(error) if error.is_not_found() => return Ok(()),
            Err(error) => return Err(failed("looking up", error)),
        };
        let confirmed = self
            .machines
            .lock()
            .confirm(orphan, Some(&sighting(&instance)), &self.known_claims());
        // The cache may lag; the API server does not.
        if !confirmed || self.ctx.claim_writer.owns(&orphan.claim, provider_id).await? {
            return Ok(());
        }
        tracing::info!(
            provider_id,
            NodeClaim = orphan.claim.name,
            "terminating an instance without a nodeclaim"
        );
        // First, because a machine that is still there is found again, and a Node without one is not: if that fails or we die in
        // between, both are for the next round. A Node that somebody keeps does not keep the machine, which costs money.
        let mut errors = Vec::new();
        for node in self.ctx.relations.nodes_of(provider_id) {
            if node.metadata.deletion_timestamp.is_some() {
                continue;
            }
            match self.ctx.node_writer.delete(&node).await {
                Ok(()) => {}
                Err(refused) if refused.is_refusal() => errors.push(refused),
                Err(passing) => return Err(passing),
            }
        }
        match self.ctx.cloud.delete(&stand_in(&instance, &orphan.claim)).await {
            Err(error) if !error.is_not_found() => errors.push(failed("terminating", error)),
            Ok(_) | Err(_) => {}
        }
        Error::all(errors)
    }

    /// Every claim there is, of other providers and on their way out included.
    fn known_claims(&self) -> KnownClaims {
        let claims = self.ctx.claims.list();
        KnownClaims::of(claims.iter().map(|claim| &**claim))
    }
}

fn sighting(instance: &Instance) -> Sighting {
    Sighting {
        id: instance.provider_id.clone(),
        provider_id: instance.provider_id.clone(),
        owner: instance.claim.clone().map_or(Owner::Unclear, Owner::Ours),
        created_at: instance.created_at,
        terminating: instance.is_terminating(),
    }
}

/// The claim that the machine was made for, as far as the machine remembers it.
fn stand_in(instance: &Instance, mark: &ClaimMark) -> NodeClaim {
    let mut claim = NodeClaim::new(
        &mark.name,
        karpenter_api::node_claim::NodeClaimSpec {
            taints: None,
            startup_taints: None,
            requirements: Vec::new(),
            resources: Default::default(),
            node_class_ref: karpenter_api::NodeClassReference {
                group: String::new(),
                kind: String::new(),
                name: String::new(),
            },
            termination_grace_period: None,
            expire_after: karpenter_api::duration::NillableDuration::never(),
        },
    );
    claim.metadata.uid = Some(mark.uid.clone());
    instance.apply_to(&mut claim);
    claim
}

#[cfg(test)]
mod tests {
    use super::*;
    use karpenter_cloud::instance::InstancePhase;

    fn claim(name: &str, provider_id: &str, registered: &str) -> Arc<NodeClaim> {
        Arc::new(
            serde_norway::from_str(&format!(
                "{{apiVersion: karpenter.sh/v1, kind: NodeClaim, metadata: {{name: {name}, uid: {name}-uid}}, \
                 spec: {{requirements: [], nodeClassRef: {{group: g, kind: K, name: n}}}}, \
                 status: {{providerID: '{provider_id}', conditions: \
                 [{{type: Registered, status: '{registered}', lastTransitionTime: '2026-01-01T00:00:00Z'}}]}}}}"
            ))
            .unwrap(),
        )
    }

    fn machine(provider_id: &str, claim: &str, phase: InstancePhase) -> Instance {
        let mark = (!claim.is_empty()).then(|| ClaimMark {
            name: claim.to_owned(),
            uid: format!("{claim}-uid"),
        });
        Instance {
            provider_id: provider_id.to_owned(),
            claim: mark,
            phase,
            ..Instance::default()
        }
    }

    #[test]
    fn only_registered_claims_can_have_lost_their_machine() {
        let claims = [
            claim("a", "i-a", "True"),
            claim("b", "i-b", "Unknown"),
            claim("c", "i-c", "True"),
        ];
        let lost = without_machine(&claims, &[machine("i-a", "a", InstancePhase::Live)]);
        assert_eq!(lost, [claims[2].clone()]);
    }

    #[test]
    fn a_terminating_machine_counts_as_lost() {
        let claims = [claim("a", "i-a", "True")];
        let lost = without_machine(&claims, &[machine("i-a", "a", InstancePhase::Terminating)]);
        assert_eq!(lost.len(), 1);
    }
}
