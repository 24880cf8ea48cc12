//! The end of a NodeClaim: its Nodes drain, its machine goes, and only then does the claim.

use k8s_openapi::api::core::v1::Node;
use karpenter_api::conditions::StatusConditions;
use karpenter_api::labels::annotations::TERMINATION_TIMESTAMP;
use karpenter_api::node_claim::condition::{INSTANCE_TERMINATING, LAUNCHED, REGISTERED};
use karpenter_api::{NodeClaim, labels};
use karpenter_cloud::provider::Deletion;
use kube::ResourceExt;

use super::Lifecycle;
use crate::claims;
use crate::error::{Error, Result};
use crate::events::{self, Regarding};
use crate::nodes;
use crate::patch::Written;
use crate::runner::Next;
use crate::termination::instance_poll;

impl Lifecycle {
    /// One step towards the end of a claim that is being deleted.
    pub(super) async fn finalize(&self, claim: &NodeClaim) -> Result<Next> {
        if !claim
            .metadata
            .finalizers
            .iter()
            .flatten()
            .any(|finalizer| finalizer == labels::TERMINATION_FINALIZER)
        {
            self.launched.forget(claim);
            return Ok(Next::Wait);
        }
        let Some(claim) = self.set_deadline(claim).await? else {
            return Ok(Next::Wait);
        };
        let claim = self.with_machine(claim).await?;
        // A Node that never registered has no finalizer of ours: there is nothing to drain, and it goes with its machine.
        if self.is_registered(&claim) && self.delete_nodes(&claim).await? == Remaining::Some {
            return Ok(Next::Wait);
        }
        let claim = match self.terminate_instance(claim).await? {
            Termination::Gone(claim) => claim,
            Termination::InProgress(claim) => return Ok(Next::After(instance_poll(&claim, self.ctx.clock.now()))),
        };
        self.release(&claim).await?;
        Ok(Next::Wait)
    }

    /// Notes by when all pods must be gone, once; a deadline that is already there stands.
    async fn set_deadline(&self, claim: &NodeClaim) -> Result<Option<NodeClaim>> {
        let mut changed = claim.clone();
        let annotations = changed.metadata.annotations.get_or_insert_default();
        let (Some(period), Some(deleted)) = (claim.spec.termination_grace_period, &claim.metadata.deletion_timestamp)
        else {
            return Ok(Some(claim.clone()));
        };
        if annotations.contains_key(TERMINATION_TIMESTAMP) {
            return Ok(Some(claim.clone()));
        }
        let deadline = deleted
            .0
            .saturating_add(period.as_signed())
            .unwrap_or(jiff::Timestamp::MAX);
        annotations.insert(TERMINATION_TIMESTAMP.to_owned(), deadline.to_string());
        self.ctx.events.publish(events::termination_grace_period_expiring(
            Regarding::of(claim),
            deadline,
        ));
        match self.ctx.claim_writer.write(claim, &changed).await? {
            Written::Changed(written) => Ok(Some(written)),
            Written::Unchanged => Ok(Some(changed)),
            Written::Gone => Ok(None),
        }
    }

    /// The claim with its machine: pods may run on that before the claim says whose it is, if writing so has failed until now. Whoever
    /// deletes the claim then must not have the machine go without a drain.
    async fn with_machine(&self, claim: NodeClaim) -> Result<NodeClaim> {
        if claim.provider_id().is_some() {
            return Ok(claim);
        }
        let mut known = claim.clone();
        match self.launched.get(&claim) {
            Some(instance) => instance.apply_to(&mut known),
            None => {
                let nodes = self.ctx.nodes.list();
                let Some(node) = nodes.iter().find(|node| is_registered_for(node, &claim)) else {
                    return Ok(claim);
                };
                known.status.get_or_insert_default().provider_id = nodes::provider_id(node).map(str::to_owned);
            }
        }
        let _ = known.set_true(LAUNCHED, self.ctx.clock.now());
        Ok(match self.ctx.claim_writer.write(&claim, &known).await? {
            Written::Changed(written) => written,
            Written::Unchanged | Written::Gone => known,
        })
    }

    /// The Node takes part in the registration first, and pods may run on it before the claim says so.
    fn is_registered(&self, claim: &NodeClaim) -> bool {
        let holds_a_node = |id: &str| self.ctx.relations.nodes_of(id).iter().any(|node| nodes::is_held(node));
        claim.is_true(REGISTERED) || claim.provider_id().is_some_and(holds_a_node)
    }

    async fn delete_nodes(&self, claim: &NodeClaim) -> Result<Remaining> {
        let Some(provider_id) = claim.provider_id() else {
            return Ok(Remaining::None);
        };
        let nodes = self.ctx.relations.nodes_of(provider_id);
        for node in nodes.iter().filter(|node| node.metadata.deletion_timestamp.is_none()) {
            self.ctx.node_writer.delete(node).await?;
        }
        // The removal of the last Node wakes the claim again.
        Ok(if nodes.is_empty() {
            Remaining::None
        } else {
            Remaining::Some
        })
    }

    /// Has the machine terminated.
    async fn terminate_instance(&self, claim: NodeClaim) -> Result<Termination> {
        let name = claim.name_any();
        if claim.provider_id().is_none() {
            let abandoned = Deletion::settle(self.ctx.cloud.abandon(&claim).await);
            let abandoned =
                abandoned.map_err(|error| Error::failed(format!("abandoning the launch of {name}: {error}")))?;
            return Ok(match abandoned {
                Deletion::Gone => Termination::Gone(claim),
                Deletion::InProgress => Termination::InProgress(claim),
            });
        }
        let deletion = Deletion::settle(self.ctx.cloud.delete(&claim).await);
        let deletion =
            deletion.map_err(|error| Error::failed(format!("terminating the instance of {name}: {error}")))?;
        let now = self.ctx.clock.now();
        let mut changed = claim.clone();
        let _ = changed.set_true(INSTANCE_TERMINATING, now);
        let claim = match self.ctx.claim_writer.write(&claim, &changed).await? {
            Written::Changed(written) => written,
            Written::Unchanged | Written::Gone => changed,
        };
        if deletion == Deletion::InProgress {
            return Ok(Termination::InProgress(claim));
        }
        if let Some(terminating) = claim.condition(INSTANCE_TERMINATING) {
            let seconds = now.duration_since(terminating.transitioned_at()).as_secs_f64();
            self.metrics
                .instance_termination
                .observe([claims::label(&claim, labels::NODEPOOL)], seconds);
        }
        Ok(Termination::Gone(claim))
    }

    async fn release(&self, claim: &NodeClaim) -> Result<()> {
        let mut released = claim.clone();
        released
            .metadata
            .finalizers
            .get_or_insert_default()
            .retain(|held| held != labels::TERMINATION_FINALIZER);
        let Written::Changed(_) = self.ctx.claim_writer.write(claim, &released).await? else {
            return Ok(());
        };
        self.launched.forget(claim);
        let pool = claims::label(claim, labels::NODEPOOL);
        if let Some(deleted) = &claim.metadata.deletion_timestamp {
            let seconds = self.ctx.clock.since(deleted.0).as_secs_f64();
            self.metrics.termination.observe([pool], seconds);
        }
        let (capacity_type, zone) = (
            claims::label(claim, labels::CAPACITY_TYPE),
            claims::label(claim, labels::ZONE),
        );
        self.ctx.metrics.shared.nodeclaim_terminated(pool, capacity_type, zone);
        tracing::info!(NodeClaim = claim.name_any(), "terminated nodeclaim");
        Ok(())
    }
}

/// Whether registration has made the node this claim's.
fn is_registered_for(node: &Node, claim: &NodeClaim) -> bool {
    let mut owners = node.metadata.owner_references.iter().flatten();
    nodes::is_held(node)
        && claim.metadata.uid.is_some()
        && owners.any(|owner| Some(&owner.uid) == claim.metadata.uid.as_ref())
}

/// How the end of a claim's machine stands, with the claim as it was last written.
enum Termination {
    Gone(NodeClaim),
    InProgress(NodeClaim),
}

#[derive(PartialEq, Eq)]
enum Remaining {
    Some,
    None,
}
