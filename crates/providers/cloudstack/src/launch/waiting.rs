//! From an accepted deploy to its end: the job that is waited for, and what is written on the claim for whoever comes after a
//! crash.

use jiff::Timestamp;
use karpenter_api::NodeClaim;
use karpenter_cloud::{ClaimMark, CloudError, error::CloudContext};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{MOST_NAMES, unavailable};
use crate::{
    client::{ApiError, Class, Failure, Priority, jobs::JobEnd, model::VirtualMachine},
    disks::Origin,
    machine::{Marks, View},
    node_class::{HASH_ANNOTATION, HASH_VERSION_ANNOTATION, JOB_ANNOTATION, hash::HASH_VERSION},
    provider::Shared,
    settings::OwnershipDetails,
};

/// How a deploy ended.
pub(super) enum Finish {
    Launched(Box<VirtualMachine>),
    /// Without a machine and without a reason.
    Nothing,
    Failed(Failure),
    /// CloudStack could not be asked; the next look at the claim finds what was made.
    Unknown(ApiError),
}

impl Shared {
    /// Waits for a deploy.
    pub(super) async fn finish(&self, id: &str, job: &str, deadline: Timestamp) -> Finish {
        let started = self.clock.now();
        let end = tokio::select! {
            end = self.jobs.wait(job, id) => Some(end),
            () = self.clock.sleep_until(deadline) => None,
        };
        let status = match &end {
            Some(JobEnd::Succeeded(_)) => "succeeded",
            Some(JobEnd::Failed(_)) => "failed",
            Some(JobEnd::Forgotten) => "forgotten",
            None => "late",
        };
        let took = self.clock.since(started).as_secs_f64();
        self.client
            .metrics()
            .job_duration
            .with_label_values(&["deployVirtualMachine", status])
            .observe(took);
        match end {
            Some(JobEnd::Succeeded(job)) => {
                // A destroy of ours may have waited for the start; then the job's success means nothing.
                if self.is_being_destroyed(id) {
                    return Finish::Nothing;
                }
                let told = job
                    .jobresult
                    .and_then(|result| serde_json::from_value(result["virtualmachine"].clone()).ok());
                match told.filter(|vm: &VirtualMachine| vm.id == id) {
                    Some(vm) => Finish::Launched(Box::new(vm)),
                    None => Finish::Nothing,
                }
            }
            Some(JobEnd::Failed(failure)) if failure.class != Class::Ambiguous => Finish::Failed(failure),
            Some(JobEnd::Failed(_) | JobEnd::Forgotten) => self.found(id, |view| view == View::Running).await,
            // The first copy of a template may take longer than core waits: the sweep follows it from here.
            None => {
                self.found(id, |view| matches!(view, View::Running | View::Launching))
                    .await
            }
        }
    }

    /// The machine, if it is as it should be; what could not be read may be.
    async fn found(&self, id: &str, is_meant: impl Fn(View) -> bool) -> Finish {
        match self.fleet.read_now(id, Priority::Launch).await {
            Ok(Some(vm)) if is_meant(View::of(&vm, self.clock.now())) => Finish::Launched(Box::new(vm)),
            Ok(_) => Finish::Nothing,
            Err(error) => Finish::Unknown(error),
        }
    }

    /// Waits for a machine that was found launching; `None` if it came to nothing.
    pub(super) async fn await_adopted(
        &self,
        vm: VirtualMachine,
        origin: Origin<'_>,
        deadline: Timestamp,
    ) -> Result<Option<VirtualMachine>, CloudError> {
        let Some(job) = vm.jobid.clone().filter(|_| vm.has_pending_job()) else {
            return Ok(Some(vm));
        };
        match self.finish(&vm.id, &job, deadline).await {
            Finish::Launched(vm) => Ok(Some(*vm)),
            // It is not running and nobody makes it run: another one comes in its place.
            Finish::Nothing => {
                self.discard(&vm.id, origin).await;
                Ok(None)
            }
            Finish::Failed(failure) => {
                tracing::info!(vm = vm.id, %failure, "a machine that was found launching failed");
                self.discard(&vm.id, origin).await;
                Ok(None)
            }
            Finish::Unknown(error) => Err(unavailable(&error)),
        }
    }

    /// Writes on the claim with which class its machine is made, before it is asked for: nothing else tells later which of its
    /// disks were to stay.
    ///
    /// # Errors
    /// When it could not be written; a claim that is gone is no error, its machine is nobody's.
    pub(super) async fn record_hash(&self, claim: &NodeClaim, hash: &str) -> Result<(), CloudError> {
        let annotations = json!({HASH_ANNOTATION: hash, HASH_VERSION_ANNOTATION: HASH_VERSION});
        match self.annotate(claim, &annotations).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            written => written.cloud_context("writing the hash of the NodeClass on the claim"),
        }
    }

    /// Writes on the claim which job makes its machine, so that whoever starts after a crash finds it. The marks on the machine
    /// say the same: a claim that cannot be written is launched all the same.
    pub(super) async fn record_job(&self, claim: &NodeClaim, job: &str) {
        if let Err(error) = self.annotate(claim, &json!({JOB_ANNOTATION: job})).await {
            let claim = claim.metadata.name.as_deref();
            tracing::debug!(claim, job, %error, "the job of a launch could not be written on its claim");
        }
    }

    async fn annotate(&self, claim: &NodeClaim, annotations: &Value) -> Result<(), kube::Error> {
        let claims: Api<NodeClaim> = Api::all(self.kube.clone());
        let name = claim.metadata.name.as_deref().unwrap_or_default();
        let patch = json!({"metadata": {"uid": claim.metadata.uid, "annotations": annotations}});
        let written = claims.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await;
        written.map(drop)
    }

    /// The claim as it is stored: an earlier try may have written on it what core has not seen yet.
    ///
    /// # Errors
    /// When it could not be read.
    pub(super) async fn as_stored(&self, claim: &NodeClaim) -> Result<NodeClaim, CloudError> {
        let claims: Api<NodeClaim> = Api::all(self.kube.clone());
        let name = claim.metadata.name.as_deref().unwrap_or_default();
        let stored = claims.get_opt(name).await.cloud_context("reading the claim")?;
        let stored = stored.filter(|own| own.metadata.uid == claim.metadata.uid);
        Ok(stored.unwrap_or_else(|| claim.clone()))
    }

    /// The machine that the job on the claim made, if the server still knows it.
    pub(crate) async fn recorded_machine(
        &self,
        claim: &NodeClaim,
        priority: Priority,
    ) -> Result<Option<VirtualMachine>, ApiError> {
        let annotations = claim.metadata.annotations.as_ref();
        let Some(job) = annotations.and_then(|own| own.get(JOB_ANNOTATION)) else {
            return Ok(None);
        };
        let made = match self.client.job(job, priority).await {
            Ok(job) => job.jobinstanceid,
            // Forgotten after a day, or somebody else's.
            Err(error) if matches!(error.class(), Some(Class::NotFound | Class::Forbidden)) => None,
            Err(error) => return Err(error),
        };
        match made {
            Some(id) => self.fleet.read_now(&id, priority).await,
            None => Ok(None),
        }
    }

    /// Where machines carry no details, one that was not tagged yet is known by what is written on its claim alone.
    pub(crate) async fn unmarked_machine(
        &self,
        claim: &NodeClaim,
        mark: &ClaimMark,
        priority: Priority,
    ) -> Result<Option<VirtualMachine>, ApiError> {
        if self.settings.ownership_details == OwnershipDetails::Written {
            return Ok(None);
        }
        let recorded = self.recorded_machine(claim, priority).await?;
        Ok(recorded.filter(|vm| {
            let is_named = |attempt: u32| self.fleet.name(mark, attempt).eq_ignore_ascii_case(&vm.name);
            !Marks::of(vm, &self.settings).is_ours() && (1..=MOST_NAMES).any(is_named)
        }))
    }
}
