//! Destroying machines: ours only, with the disks that are ours, expunged where that is allowed (cloudstack.md §8.4).

use std::time::Duration;

use jiff::Timestamp;
use karpenter_api::NodeClaim;
use karpenter_cloud::{ClaimMark, CloudError, Deletion, clock::later};

use crate::{
    client::{Class, Failure, Priority, Request, jobs::JobEnd, model::VirtualMachine},
    disks::Origin,
    labels,
    machine::{Marks, View},
    node_class::{CloudStackNodeClass, Expunge},
    provider::Shared,
    provider_id,
};

/// How far the destruction of a machine is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Destroying {
    job: Option<String>,
    failures: u32,
    not_before: Option<Timestamp>,
}

/// An answer that expunging is not allowed holds this long.
const DENIED_FOR: Duration = Duration::from_secs(3600);
const PROTECTED_FOR: Duration = Duration::from_secs(60);
/// After so many failures the machine is stopped by force first.
const PATIENCE: u32 = 3;

impl Shared {
    pub(crate) async fn delete(&self, claim: &NodeClaim) -> Result<Deletion, CloudError> {
        let id = claim.provider_id().unwrap_or_default();
        let id = provider_id::machine_id(id).map_err(|_| CloudError::not_found(id))?;
        let class = self.class_by_name(&claim.spec.node_class_ref.name).await?;
        let mark = ClaimMark::of(claim);
        self.destroy(&id, Some(&mark), class.as_ref(), Some(claim)).await
    }

    /// Undoes what an unfinished launch of the claim left.
    pub(crate) async fn abandon(&self, claim: &NodeClaim) -> Result<Deletion, CloudError> {
        let mark = ClaimMark::of(claim);
        let found = self.fleet.of_claim(&mark, Priority::Termination).await?;
        let class = self.class_by_name(&claim.spec.node_class_ref.name).await?;
        let mut all = Deletion::Gone;
        if let Some(vm) = self.unmarked_machine(claim, &mark, Priority::Termination).await?
            && View::of(&vm, self.clock.now()) != View::Gone
        {
            self.discard(&vm.id, Origin::unfinished(&mark, class.as_ref())).await;
            all = Deletion::InProgress;
        }
        for vm in found {
            if View::of(&vm, self.clock.now()) == View::Gone {
                continue;
            }
            if self.destroy(&vm.id, Some(&mark), class.as_ref(), None).await? == Deletion::InProgress {
                all = Deletion::InProgress;
            }
        }
        Ok(all)
    }

    /// Brings the destruction of a machine one step further.
    pub(crate) async fn destroy(
        &self,
        id: &str,
        mark: Option<&ClaimMark>,
        class: Option<&CloudStackNodeClass>,
        claim: Option<&NodeClaim>,
    ) -> Result<Deletion, CloudError> {
        let Some(vm) = self.fleet.read_now(id, Priority::Termination).await? else {
            self.forget(id);
            return Ok(Deletion::Gone);
        };
        let marks = Marks::of(&vm, &self.settings);
        if !marks.is_ours() {
            return Err(CloudError::invalid(format!(
                "machine {id} does not belong to cluster {}; it is left alone",
                self.settings.cluster_name
            )));
        }
        if let (Some(mark), Some(own)) = (mark, marks.claim())
            && own.uid != mark.uid
        {
            return Err(CloudError::invalid(format!(
                "machine {id} was made for another claim, {}; it is left alone",
                own.name
            )));
        }
        let view = View::of(&vm, self.clock.now());
        if view == View::Gone {
            self.expunge_destroyed(&vm, class).await;
            self.forget(id);
            return Ok(Deletion::Gone);
        }
        let mut state = self.destroying.lock().get(id).cloned().unwrap_or_default();
        if state.not_before.is_some_and(|at| at > self.clock.now()) {
            return Err(protected(&vm));
        }
        if let Some(job) = state.job.take() {
            match self
                .jobs
                .look(&job, "destroyVirtualMachine", Priority::Termination)
                .await?
            {
                None => return Ok(Deletion::InProgress),
                Some(JobEnd::Succeeded(_) | JobEnd::Forgotten) => {
                    self.destroying.lock().remove(id);
                    // The read above may have been a moment older than the job's end.
                    return Ok(Deletion::InProgress);
                }
                Some(JobEnd::Failed(failure)) => self.destroy_failed(&vm, &mut state, &failure, claim).await?,
            }
        }
        if state.failures >= PATIENCE && view == View::Running {
            let stop = Request::new("stopVirtualMachine").with("id", id).with("forced", "true");
            if let Err(error) = self.client.call(&stop, Priority::Termination).await {
                tracing::warn!(vm = id, %error, "the machine could not be stopped by force");
            }
        }
        let origin = match (claim, mark) {
            (Some(claim), _) => Origin::Claim { claim, class },
            (None, Some(mark)) => Origin::unfinished(mark, class),
            (None, None) => Origin::Unknown,
        };
        let job = self.submit_destroy(&vm, origin).await?;
        state.job = job;
        self.destroying.lock().insert(id.to_owned(), state);
        if let Some(claim) = claim {
            self.count_deleted(claim);
        }
        Ok(Deletion::InProgress)
    }

    async fn submit_destroy(&self, vm: &VirtualMachine, origin: Origin<'_>) -> Result<Option<String>, CloudError> {
        let ours = self.disks_that_go(vm, origin).await?;
        let mut request = Request::new("destroyVirtualMachine")
            .with("id", vm.id.clone())
            .with_list("volumeids", &ours);
        if self.wants_expunge(origin.class()).await && View::of(vm, self.clock.now()) != View::Failed {
            request.add("expunge", "true");
        }
        match self.client.call(&request, Priority::Termination).await {
            Ok(content) => {
                self.unavailable.clear_quota();
                self.inventory.flush_quota();
                Ok(content.text("jobid").map(str::to_owned))
            }
            Err(error) if error.class() == Some(&Class::NotFound) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    async fn wants_expunge(&self, class: Option<&CloudStackNodeClass>) -> bool {
        if self.expunge_denied.lock().is_some_and(|until| until > self.clock.now()) {
            return false;
        }
        match class.and_then(|class| class.spec.expunge).unwrap_or_default() {
            Expunge::Always => true,
            Expunge::Never => false,
            Expunge::Auto => self
                .inventory
                .capabilities()
                .await
                .is_ok_and(|own| own.allowuserexpungerecovervm),
        }
    }

    /// A machine that is destroyed still holds its name and addresses until it is expunged; one request, not waited for.
    async fn expunge_destroyed(&self, vm: &VirtualMachine, class: Option<&CloudStackNodeClass>) {
        if vm.state != "Destroyed" || !self.wants_expunge(class).await {
            return;
        }
        let request = Request::new("expungeVirtualMachine").with("id", vm.id.clone());
        if let Err(error) = self.client.call(&request, Priority::Termination).await {
            tracing::debug!(vm = vm.id, %error, "a destroyed machine could not be expunged");
        }
    }

    async fn destroy_failed(
        &self,
        vm: &VirtualMachine,
        state: &mut Destroying,
        failure: &Failure,
        claim: Option<&NodeClaim>,
    ) -> Result<(), CloudError> {
        match failure.class {
            Class::ExpungeDenied => {
                tracing::info!(
                    "the account may not expunge machines; they are destroyed only, and expunged by the server later"
                );
                *self.expunge_denied.lock() = Some(later(self.clock.now(), DENIED_FOR));
            }
            Class::Protected => {
                state.not_before = Some(later(self.clock.now(), PROTECTED_FOR));
                self.destroying.lock().insert(vm.id.clone(), state.clone());
                if let Some(claim) = claim {
                    let message = format!(
                        "machine {} has delete protection; turn it off to let the node go",
                        vm.name
                    );
                    self.tell_claim(claim, "InstanceDeleteProtected", &message).await;
                }
                return Err(protected(vm));
            }
            Class::NotFound => {}
            _ => {
                state.failures += 1;
                tracing::warn!(vm = vm.id, %failure, failures = state.failures, "a machine could not be destroyed");
            }
        }
        Ok(())
    }

    /// Destroys a leftover of a launch; what fails is repeated by garbage collection.
    pub(crate) async fn discard(&self, id: &str, origin: Origin<'_>) {
        let mut request = Request::new("destroyVirtualMachine").with("id", id);
        if origin.may_have_disks() {
            match self.leftover_disks(id, origin).await {
                Ok(disks) => request = request.with_list("volumeids", &disks),
                Err(error) => {
                    tracing::warn!(vm = id, %error, "a leftover of a launch is destroyed later, with its data disks");
                    return;
                }
            }
        }
        match self.client.call(&request, Priority::Termination).await {
            Ok(_) => {}
            Err(error) if error.class() == Some(&Class::NotFound) => {}
            Err(error) => tracing::warn!(vm = id, %error, "a leftover of a launch could not be destroyed yet"),
        }
    }

    async fn leftover_disks(&self, id: &str, origin: Origin<'_>) -> Result<Vec<String>, CloudError> {
        match self.fleet.read_now(id, Priority::Termination).await? {
            Some(vm) => self.disks_that_go(&vm, origin).await,
            None => Ok(Vec::new()),
        }
    }

    pub(crate) fn is_being_destroyed(&self, id: &str) -> bool {
        self.destroying.lock().contains_key(id)
    }

    fn forget(&self, id: &str) {
        self.destroying.lock().remove(id);
    }

    fn count_deleted(&self, claim: &NodeClaim) {
        let label = |key: &str| {
            let labels = claim.metadata.labels.as_ref();
            labels.and_then(|own| own.get(key)).cloned().unwrap_or_default()
        };
        let values = [
            claim.node_pool().unwrap_or_default().to_owned(),
            label(labels::ZONE_NAME),
            label(karpenter_api::labels::INSTANCE_TYPE),
            label(karpenter_api::labels::CAPACITY_TYPE),
        ];
        let values: Vec<&str> = values.iter().map(String::as_str).collect();
        self.client.metrics().deleted.with_label_values(&values).inc();
    }
}

fn protected(vm: &VirtualMachine) -> CloudError {
    CloudError::invalid(format!(
        "machine {} has delete protection; turn it off to let the node go",
        vm.name
    ))
}
