//! Getting a machine for a NodeClaim, once.

use std::sync::Arc;

use jiff::Timestamp;
use karpenter_api::conditions::StatusConditions;
use karpenter_api::node_claim::condition::LAUNCHED;
use karpenter_api::{NodeClaim, pods};
use karpenter_cloud::error::{CloudError, LaunchEffect};
use karpenter_cloud::instance::Instance;
use kube::ResourceExt;
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};
use tokio_util::sync::CancellationToken;

use super::{Lifecycle, Progress};
use crate::claims::Reason;
use crate::error::{Error, Result};
use crate::events::{self, Regarding, truncate};
use crate::runner::Next;
use crate::watch::Key;

/// Machines that exist but whose claim does not say so yet, by claim UID.
///
/// If the write that would record a launch fails, the next attempt finds the machine here instead of asking for it
/// again. Providers must bear the repetition anyway (a crash loses this memory); this spares them most of them.
#[derive(Debug, Default)]
pub(super) struct Launched(Mutex<FxHashMap<String, Arc<Instance>>>);

impl Launched {
    pub(super) fn get(&self, claim: &NodeClaim) -> Option<Arc<Instance>> {
        self.0.lock().get(claim.metadata.uid.as_deref()?).cloned()
    }

    fn remember(&self, claim: &NodeClaim, instance: Arc<Instance>) {
        self.0
            .lock()
            .insert(claim.metadata.uid.clone().unwrap_or_default(), instance);
    }

    pub(super) fn forget(&self, claim: &NodeClaim) {
        if let Some(uid) = &claim.metadata.uid {
            self.0.lock().remove(uid);
        }
    }
}

/// Claims that this process has decided to delete, by UID. The cache may show them alive for a moment longer, and a machine that is
/// launched in that moment is launched for nobody.
#[derive(Debug, Default)]
pub(super) struct GivenUp(Mutex<FxHashSet<String>>);

impl GivenUp {
    fn has(&self, claim: &NodeClaim) -> bool {
        let uid = claim.metadata.uid.as_deref();
        uid.is_some_and(|uid| self.0.lock().contains(uid))
    }

    pub(super) fn remember(&self, claim: &NodeClaim) {
        self.0.lock().extend(claim.metadata.uid.clone());
    }

    /// The claim is gone, or known to be going.
    pub(super) fn forget(&self, claim: &NodeClaim) {
        if let Some(uid) = &claim.metadata.uid {
            self.0.lock().remove(uid);
        }
    }
}

impl Lifecycle {
    /// Launches the claim's machine unless that has happened.
    pub(super) async fn launch(&self, claim: &mut NodeClaim, deadline: Timestamp) -> Result<Progress> {
        let now = self.ctx.clock.now();
        if claim.is_true(LAUNCHED) {
            let _ = claim.set_true(LAUNCHED, now);
            self.launched.forget(claim);
            return Ok(Progress::Go);
        }
        if self.given_up.has(claim) {
            return Ok(Progress::Deleted);
        }
        let instance = match self.launched.get(claim) {
            Some(instance) => instance,
            None => match self.create(claim, deadline).await {
                Attempt::Launched(instance) => instance,
                Attempt::ClaimDeleted => return Ok(Progress::Deleted),
                Attempt::Overdue => return Ok(Progress::Go),
                Attempt::Failed(error) => return self.launch_failed(claim, error).await,
            },
        };
        self.launched.remember(claim, instance.clone());
        instance.apply_to(claim);
        let _ = claim.set_true(LAUNCHED, self.ctx.clock.now());
        Ok(Progress::Go)
    }

    /// Asks the cloud for the machine, for as long as the claim wants it: some clouds take minutes, and a claim that is
    /// deleted or overdue meanwhile must not wait for them.
    async fn create(&self, claim: &NodeClaim, deadline: Timestamp) -> Attempt {
        let key = Key::of(claim);
        let is_deleted = || {
            let known = self.ctx.claims.get(&key);
            known.is_none_or(|known| known.uid() != claim.uid() || known.is_terminating())
        };
        let launch = async {
            tokio::select! {
                biased;
                result = self.ctx.cloud.create(claim) => match result {
                    Ok(instance) => Attempt::Launched(Arc::new(instance)),
                    Err(error) => Attempt::Failed(error),
                },
                () = self.ctx.clock.sleep_until(deadline) => Attempt::Overdue,
            }
        };
        self.in_flight
            .run(key.clone(), launch, is_deleted)
            .await
            .unwrap_or(Attempt::ClaimDeleted)
    }

    async fn launch_failed(&self, claim: &mut NodeClaim, error: CloudError) -> Result<Progress> {
        match error.launch_effect() {
            LaunchEffect::DeleteForCapacity => {
                let why = error.to_string();
                tracing::error!(NodeClaim = claim.name_any(), error = why, "failed launching nodeclaim");
                let event = events::insufficient_capacity(Regarding::of(claim), &claim.name_any(), &why);
                self.ctx.events.publish(event);
                self.tell_pods(claim, &why);
                self.ctx
                    .claim_writer
                    .give_up(claim, Reason::InsufficientCapacity)
                    .await?;
                self.given_up.remember(claim);
                Ok(Progress::Deleted)
            }
            LaunchEffect::DeleteForNodeClass => {
                tracing::error!(NodeClaim = claim.name_any(), %error, "failed launching nodeclaim");
                self.ctx.claim_writer.give_up(claim, Reason::NodeClassNotReady).await?;
                self.given_up.remember(claim);
                Ok(Progress::Deleted)
            }
            LaunchEffect::Retry { reason, message, after } => {
                let _ = claim.set_unknown(LAUNCHED, &reason, &truncate(&message), self.ctx.clock.now());
                match after.and_then(|after| after.try_into().ok()) {
                    Some(after) => Ok(Progress::Stop(Next::After(after))),
                    None => Err(Error::failed(format!(
                        "launching NodeClaim {}: {error}",
                        claim.name_any()
                    ))),
                }
            }
        }
    }

    /// Pods that were waiting for this machine learn why they wait longer.
    fn tell_pods(&self, claim: &NodeClaim, why: &str) {
        let name = claim.name_any();
        for assigned in self.ctx.state.pods_assigned_to(&name) {
            let Some(pod) = self.ctx.pods.get(&assigned.key) else {
                continue;
            };
            let is_same = pod.metadata.uid.as_deref() == Some(&assigned.uid);
            if is_same && pods::is_active(&pod) && !pods::is_scheduled(&pod) {
                self.ctx
                    .events
                    .publish(events::pod_insufficient_capacity(Regarding::of(&*pod), &name, why));
            }
        }
    }
}

/// Launches in progress, so that the deletion of their claim can end them.
#[derive(Debug, Default)]
pub(super) struct InFlight(Mutex<FxHashMap<Key, CancellationToken>>);

impl InFlight {
    /// Ends the launch of a claim, if there is one.
    pub(super) fn cancel(&self, key: &Key) {
        if let Some(launch) = self.0.lock().get(key) {
            launch.cancel();
        }
    }

    /// Runs `launch` unless [`InFlight::cancel`] ends it first.
    async fn run<T>(&self, key: Key, launch: impl Future<Output = T>, is_deleted: impl Fn() -> bool) -> Option<T> {
        let token = CancellationToken::new();
        self.0.lock().insert(key.clone(), token.clone());
        // The claim may have been deleted before the token was in place.
        let result = if is_deleted() {
            None
        } else {
            token.run_until_cancelled(launch).await
        };
        self.0.lock().remove(&key);
        result
    }
}

enum Attempt {
    Launched(Arc<Instance>),
    Failed(CloudError),
    ClaimDeleted,
    Overdue,
}
