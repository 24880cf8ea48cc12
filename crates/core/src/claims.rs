//! The one place that changes and deletes NodeClaims.

mod last_written;

use std::sync::Arc;

use jiff::Timestamp;
use karpenter_api::labels::annotations::TERMINATION_TIMESTAMP;
use karpenter_api::{NodeClaim, labels};
use karpenter_cloud::ClaimMark;
use kube::api::{Api, DeleteParams, Preconditions};
use kube::{Client, ResourceExt};

use crate::claims::last_written::LastWritten;
use crate::clock::Clock;
use crate::error::{Result, ignore_not_found};
use crate::metrics::SharedMetrics;
use crate::metrics::shared::Disrupted;
use crate::patch::{self, Written};
use crate::watch::{Cache, Key};

/// Writes NodeClaims.
#[derive(Debug, Clone)]
pub struct Claims {
    api: Api<NodeClaim>,
    metrics: Arc<SharedMetrics>,
    clock: Clock,
    watched: Arc<Cache<NodeClaim>>,
    last_written: Arc<LastWritten>,
}

/// Why a NodeClaim is deleted before anybody asked for it: the `reason` of `karpenter_nodeclaims_disrupted_total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// It has outlived `expireAfter`.
    Expired,
    /// Its machine has vanished.
    GarbageCollected,
    /// No machine of the kind can be had.
    InsufficientCapacity,
    /// Its NodeClass is not ready.
    NodeClassNotReady,
    /// Its machine did not come into being in time.
    LaunchTimeout,
    /// Its machine did not become a node in time.
    RegistrationTimeout,
    /// Its node is broken; only legacy repair, which knows no budgets.
    Unhealthy,
}

impl Reason {
    fn label(self) -> &'static str {
        match self {
            Reason::Expired => "expired",
            Reason::GarbageCollected => "garbage_collected",
            Reason::InsufficientCapacity => "insufficient_capacity",
            Reason::NodeClassNotReady => "nodeclass_not_ready",
            Reason::LaunchTimeout => "launch_timeout",
            Reason::RegistrationTimeout => "registration_timeout",
            Reason::Unhealthy => "unhealthy",
        }
    }
}

impl Claims {
    /// A writer that counts what it deletes, and remembers what it wrote until `watched` shows it.
    pub fn new(client: Client, metrics: Arc<SharedMetrics>, clock: Clock, watched: Arc<Cache<NodeClaim>>) -> Self {
        let last_written = Arc::new(LastWritten::default());
        let written = last_written.clone();
        watched.observe(move |change| {
            for claim in change.old.iter().chain(&change.new) {
                written.shown(claim, change.new.as_deref());
            }
        });
        Self {
            api: Api::all(client),
            metrics,
            clock,
            watched,
            last_written,
        }
    }

    /// The claim as this process wrote it last, where that is newer than what the watch has shown.
    pub fn newest(&self, known: Arc<NodeClaim>) -> Arc<NodeClaim> {
        let newer = self.last_written.newer_than(&known, self.clock.now());
        newer.unwrap_or(known)
    }

    /// Writes what differs between `before` and `after`, metadata first, then status.
    ///
    /// # Errors
    /// With a conflict if the claim has changed since `before` was read.
    pub async fn write(&self, before: &NodeClaim, after: &NodeClaim) -> Result<Written<NodeClaim>> {
        let written = patch::both(&self.api, before, after).await?;
        if let Written::Changed(claim) = &written {
            self.last_written.remember(claim.clone(), self.clock.now());
            // The watch may have been faster than the answer.
            self.last_written
                .shown(claim, self.watched.get(&Key::of(claim)).as_deref());
        }
        Ok(written)
    }

    /// Writes conditions that a long launch ended with, onto the claim as it is by now: its provider may have written to it
    /// meanwhile, and the news would be lost with the attempt. A claim that is gone or going is left alone.
    ///
    /// # Errors
    /// With a conflict if somebody writes it at the same time, or with what the API server says.
    pub async fn write_conditions(&self, after: &NodeClaim) -> Result<()> {
        let Some(current) = self.api.get_opt(&after.name_any()).await? else {
            return Ok(());
        };
        if current.uid() != after.uid() || current.is_terminating() {
            return Ok(());
        }
        let mut changed = current.clone();
        let status = changed.status.get_or_insert_default();
        let conditions = after.status.iter().flat_map(|status| &status.conditions);
        for condition in conditions {
            status.conditions.retain(|own| own.type_ != condition.type_);
            status.conditions.push(condition.clone());
        }
        patch::status(&self.api, &current, &changed).await?;
        Ok(())
    }

    /// Asks for the claim's deletion; termination does the rest.
    ///
    /// The decision was made about the claim as it was read: if it has changed meanwhile, or another has its name, the
    /// request fails with a conflict, and the decision is made afresh.
    ///
    /// # Errors
    /// With a conflict, or with what the API server says; a claim that is gone is no error.
    pub async fn delete(&self, claim: &NodeClaim) -> Result<()> {
        self.delete_if(claim, claim.resource_version()).await
    }

    async fn delete_if(&self, claim: &NodeClaim, resource_version: Option<String>) -> Result<()> {
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: claim.uid(),
                resource_version,
            }),
            ..DeleteParams::default()
        };
        ignore_not_found(self.api.delete(&claim.name_any(), &params).await)?;
        Ok(())
    }

    /// As [`Claims::delete`], and first sees to it that the claim's node is drained by `deadline`; a deadline that is
    /// earlier already stays.
    ///
    /// # Errors
    /// As [`Claims::delete`]. If the deadline could not be written, nothing is deleted.
    pub async fn delete_by(&self, claim: &NodeClaim, deadline: Option<Timestamp>) -> Result<()> {
        let Some(deadline) = deadline else {
            return self.delete(claim).await;
        };
        let mut bounded = claim.clone();
        let known = bounded
            .annotations()
            .get(TERMINATION_TIMESTAMP)
            .and_then(|text| text.parse::<Timestamp>().ok());
        if known.is_none_or(|known| deadline < known) {
            bounded
                .annotations_mut()
                .insert(TERMINATION_TIMESTAMP.to_owned(), deadline.to_string());
        }
        match self.write(claim, &bounded).await? {
            Written::Changed(written) => self.delete(&written).await,
            Written::Unchanged => self.delete(claim).await,
            Written::Gone => Ok(()),
        }
    }

    /// Deletes the claim and counts it as disrupted.
    ///
    /// # Errors
    /// As [`Claims::delete`]; then nothing is counted.
    pub async fn disrupt(&self, claim: &NodeClaim, reason: Reason) -> Result<()> {
        self.disrupt_by(claim, reason, None).await
    }

    /// Deletes a claim whose launch is hopeless and counts it as disrupted. What has been written on the claim meanwhile, by the
    /// provider for one, changes nothing about that: only another claim of its name is spared.
    ///
    /// # Errors
    /// With what the API server says; then nothing is counted.
    pub async fn give_up(&self, claim: &NodeClaim, reason: Reason) -> Result<()> {
        self.delete_if(claim, None).await?;
        self.count(claim, reason);
        Ok(())
    }

    /// As [`Claims::disrupt`], with a deadline as for [`Claims::delete_by`].
    ///
    /// # Errors
    /// As [`Claims::delete_by`]; then nothing is counted.
    pub async fn disrupt_by(&self, claim: &NodeClaim, reason: Reason, deadline: Option<Timestamp>) -> Result<()> {
        self.delete_by(claim, deadline).await?;
        self.count(claim, reason);
        Ok(())
    }

    fn count(&self, claim: &NodeClaim, reason: Reason) {
        tracing::info!(
            NodeClaim = claim.name_any(),
            reason = reason.label(),
            "deleted nodeclaim"
        );
        self.metrics.nodeclaim_disrupted(&disrupted(claim, reason.label()));
    }

    /// Deletes the claim and counts it and the pods that have to move as disrupted.
    ///
    /// # Errors
    /// As [`Claims::delete`]; then nothing is counted.
    pub async fn disrupt_with_pods(&self, claim: &NodeClaim, reason: Reason, pods: usize) -> Result<()> {
        self.disrupt(claim, reason).await?;
        self.metrics
            .pods_disruption_initiated(&disrupted(claim, reason.label()), pods);
        Ok(())
    }

    /// Whether the claim that a machine was made for exists and may still mean this machine; asked of the API server
    /// itself, not of the cache.
    ///
    /// # Errors
    /// With what the API server says.
    pub async fn owns(&self, mark: &ClaimMark, provider_id: &str) -> Result<bool> {
        let Some(claim) = self.api.get_opt(&mark.name).await? else {
            return Ok(false);
        };
        let means_this_machine = claim.provider_id().is_none_or(|known| known == provider_id);
        Ok(claim.uid().as_deref() == Some(&mark.uid) && means_this_machine)
    }
}

/// The metric labels of a claim that is disrupted for `reason`, outside consolidation.
fn disrupted<'a>(claim: &'a NodeClaim, reason: &'a str) -> Disrupted<'a> {
    Disrupted {
        reason,
        nodepool: label(claim, labels::NODEPOOL),
        capacity_type: label(claim, labels::CAPACITY_TYPE),
        consolidation_policy: "",
        termination_mode: termination_mode(claim),
    }
}

/// How a claim's pods are treated when it goes: waited for, waited for until a deadline, or not waited for.
pub fn termination_mode(claim: &NodeClaim) -> &'static str {
    match claim.spec.termination_grace_period {
        None => "graceful",
        Some(period) if period.nanos() > 0 => "eventual",
        Some(_) => "forceful",
    }
}

/// A label of the claim; empty when it has none.
pub fn label<'a>(claim: &'a NodeClaim, key: &str) -> &'a str {
    claim
        .metadata
        .labels
        .as_ref()
        .and_then(|labels| labels.get(key))
        .map_or("", String::as_str)
}
