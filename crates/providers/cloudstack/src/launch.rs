//! Making the machine of a claim, exactly once whatever fails (cloudstack.md §8.1).

mod failing;
mod request;
mod waiting;

use std::{collections::BTreeSet, time::Duration};

use jiff::Timestamp;
use karpenter_api::{
    NodeClaim,
    requirement::{Requirements, Undefined},
};
use karpenter_cloud::{
    ClaimMark, CloudError, Instance,
    clock::later,
    selection::{self, Candidate},
};

use crate::{
    bootstrap::{self, Boot, BootstrapError, Secrets},
    catalogue::Entry,
    client::{
        ApiError, Class, Priority, Request,
        model::{Network, VirtualMachine},
    },
    disks::{Furnished, Origin},
    drift::MadeWith,
    labels,
    machine::{self, Known, Marks, View},
    node_class::{CloudStackNodeClass, HASH_ANNOTATION, HASH_VERSION_ANNOTATION, hash::HASH_VERSION},
    provider::Shared,
    resolve::{Resolution, ResolvedTemplate, ResolvedZone},
};
use waiting::Finish;

/// One way to launch, decided in full.
#[derive(Clone, Debug)]
pub(crate) struct Plan<'a> {
    pub(crate) class: &'a CloudStackNodeClass,
    pub(crate) claim: &'a NodeClaim,
    pub(crate) mark: &'a ClaimMark,
    pub(crate) resolution: &'a Resolution,
    pub(crate) entry: &'a Entry,
    pub(crate) zone: &'a ResolvedZone,
    pub(crate) template: &'a ResolvedTemplate,
    pub(crate) network: &'a Network,
    pub(crate) candidate: &'a Candidate,
    pub(crate) secrets: &'a Secrets,
}

/// Whose machine gets its disks, and where it is.
struct ToFurnish<'a> {
    claim: &'a NodeClaim,
    mark: &'a ClaimMark,
    class: &'a CloudStackNodeClass,
    resolution: &'a Resolution,
    /// Unknown for a machine whose type the class does not have any more.
    place: Option<(&'a Entry, &'a ResolvedZone)>,
}

impl<'a> Plan<'a> {
    fn origin(&self) -> Origin<'a> {
        Origin::Unfinished {
            mark: self.mark,
            class: self.class,
        }
    }

    fn to_furnish(&self) -> ToFurnish<'a> {
        ToFurnish {
            claim: self.claim,
            mark: self.mark,
            class: self.class,
            resolution: self.resolution,
            place: Some((self.entry, self.zone)),
        }
    }
}

/// What became of one attempt.
enum Attempt {
    Launched(Box<VirtualMachine>),
    /// Something else may work.
    Next(String),
    /// A quota that nothing else would satisfy either.
    Exhausted(String),
    /// The same may work under another name.
    Again,
    Fail(CloudError),
}

/// Pauses before looking whether a request without an answer was carried out.
const LOOKS: [u64; 3] = [2, 5, 10];
/// Names tried before giving up; each failed record keeps one.
const MOST_NAMES: u32 = 20;

impl Shared {
    /// Launches, or finds what an earlier launch of this claim made.
    pub(crate) async fn create(&self, claim: &NodeClaim) -> Result<Instance, CloudError> {
        let mark = ClaimMark::of(claim);
        let lock = self.creating.lock().entry(mark.uid.clone()).or_default().clone();
        let _alone = lock.lock().await;
        let launched = self.create_alone(claim, &mark).await;
        self.creating.lock().remove(&mark.uid);
        launched
    }

    async fn create_alone(&self, claim: &NodeClaim, mark: &ClaimMark) -> Result<Instance, CloudError> {
        let started = self.clock.now();
        let deadline = later(started, self.settings.launch_wait);
        let class = self.ready_class(claim).await?;
        let mut secrets = self
            .secrets(&class)
            .await
            .map_err(|problem| CloudError::node_class_not_ready(class.name(), problem.message))?;
        if let Some(bootstrap) = class.spec.bootstrap.as_ref().filter(|own| own.manages_tokens()) {
            secrets.token = Some(self.managed_token(claim, bootstrap).await?);
        }
        let resolution = self
            .inventory
            .resolve(&class)
            .await
            .map_err(|error| unavailable(&error))?;
        let entries = self
            .entries(&class, &resolution)
            .await
            .map_err(|error| unavailable(&error))?;
        let known = Known {
            resolution: &resolution,
            entries: &entries,
        };
        let hash = class.static_hash(secrets.user_data.as_deref());
        let mut names = Names::default();
        let mut last = String::new();
        let unmarked = self
            .unmarked_machine(claim, mark, Priority::Launch)
            .await
            .map_err(|error| unavailable(&error))?;
        if let Some(vm) = self
            .look(&class, mark, unmarked, &mut names, After::Start)
            .await
            .map_err(|error| unavailable(&error))?
        {
            let stored = self.as_stored(claim).await?;
            let made_with = MadeWith::of(&stored, &hash);
            if !Marks::of(&vm, &self.settings).is_ours() {
                match made_with {
                    MadeWith::This | MadeWith::Unsaid => self.tag_new(claim, mark, &class, &vm.id).await,
                    // Which of its disks go is not known any more.
                    MadeWith::Another => self.tag_machine(claim, mark, &class, &vm.id).await,
                }
            }
            let origin = Origin::Unfinished { mark, class: &class };
            match self.await_adopted(vm, origin, deadline).await? {
                Some(vm) => {
                    let to_furnish = ToFurnish {
                        claim,
                        mark,
                        class: &class,
                        resolution: &resolution,
                        place: known.entry(&vm).zip(resolution.zone(&vm.zoneid)),
                    };
                    let furnished = match made_with {
                        MadeWith::This | MadeWith::Unsaid => {
                            self.furnished(&to_furnish, Box::new(vm), &mut names).await
                        }
                        // What the class asks for today is for the machine that replaces this one.
                        MadeWith::Another => Attempt::Launched(Box::new(vm)),
                    };
                    match furnished {
                        Attempt::Launched(vm) => {
                            let mut instance = self.launched(&vm, &class, &secrets, known);
                            // The class may have been changed since its machine was asked for.
                            instance.annotations.extend(recorded_hash(&stored));
                            return Ok(instance);
                        }
                        Attempt::Exhausted(why) => return Err(self.exhausted(claim, why).await),
                        Attempt::Fail(error) => return Err(error),
                        // It was given up: another one comes in its place.
                        Attempt::Next(why) => last = why,
                        Attempt::Again => {}
                    }
                }
                None => names.taken(&self.fleet.name(mark, names.attempt)),
            }
        }
        let mut candidates = self.candidates(claim, &entries);
        if candidates.is_empty() {
            return Err(CloudError::insufficient_capacity(if last.is_empty() {
                "all requested instance types were unavailable during launch".to_owned()
            } else {
                last
            }));
        }
        candidates.truncate(self.settings.launch_attempts.max(1));
        self.record_hash(claim, &hash).await?;
        for candidate in &candidates {
            if self.clock.now() >= deadline {
                break;
            }
            let Some(entry) = entries
                .iter()
                .find(|own| own.instance_type.name == candidate.instance_type.name)
            else {
                continue;
            };
            let Some((zone, template, network)) = self.place(claim, &resolution, candidate, entry) else {
                if last.is_empty() {
                    let zone = selection::zone(&candidate.offering).unwrap_or_default();
                    last = format!("no template or network in zone {zone} fits the claim");
                }
                continue;
            };
            let plan = Plan {
                class: &class,
                claim,
                mark,
                resolution: &resolution,
                entry,
                zone,
                template,
                network,
                candidate,
                secrets: &secrets,
            };
            loop {
                let attempt = self.attempt(&plan, &mut names, deadline).await;
                let class_name = match &attempt {
                    Attempt::Launched(_) => "success",
                    Attempt::Again => "again",
                    Attempt::Next(_) | Attempt::Exhausted(_) | Attempt::Fail(_) => "failure",
                };
                let took = self.clock.since(started).as_secs_f64();
                let zone_label = labels::label(&zone.zone.name);
                self.client
                    .metrics()
                    .launch_duration
                    .with_label_values(&[&zone_label, class_name])
                    .observe(took);
                match attempt {
                    Attempt::Launched(vm) => {
                        self.count_created(&plan);
                        return Ok(self.launched(&vm, &class, &secrets, known));
                    }
                    Attempt::Again if names.attempt < MOST_NAMES => {}
                    Attempt::Again => {
                        return Err(CloudError::create("NoFreeName", "every name for the machine is taken"));
                    }
                    Attempt::Next(why) => {
                        last = why;
                        break;
                    }
                    Attempt::Exhausted(why) => return Err(self.exhausted(claim, why).await),
                    Attempt::Fail(error) => return Err(error),
                }
            }
        }
        Err(CloudError::insufficient_capacity(if last.is_empty() {
            "no instance type could be launched in time".to_owned()
        } else {
            last
        }))
    }

    async fn exhausted(&self, claim: &NodeClaim, why: String) -> CloudError {
        self.tell_claim(claim, "QuotaExceeded", &why).await;
        CloudError::insufficient_capacity(why)
    }

    /// What an earlier attempt for this claim made and still runs. Leftovers are destroyed and their names skipped.
    async fn look(
        &self,
        class: &CloudStackNodeClass,
        mark: &ClaimMark,
        unmarked: Option<VirtualMachine>,
        names: &mut Names,
        after: After,
    ) -> Result<Option<VirtualMachine>, ApiError> {
        let origin = Origin::Unfinished { mark, class };
        let mut found = self.fleet.of_claim(mark, Priority::Launch).await?;
        if let Some(own) = unmarked
            && found.iter().all(|known| known.id != own.id)
        {
            found.push(own);
        }
        let now = self.clock.now();
        let mut adopted = None;
        for vm in found {
            names.taken(&vm.name);
            // A record without a job that a refused request left will never start.
            if after == After::Refusal && vm.state == "Stopped" && !vm.has_pending_job() {
                self.discard(&vm.id, origin).await;
                continue;
            }
            match View::of(&vm, now) {
                View::Launching | View::Running if adopted.is_none() && !self.is_being_destroyed(&vm.id) => {
                    adopted = Some(vm);
                }
                View::Launching | View::Running | View::Gone | View::Stopping => {}
                View::Failed | View::Stopped => self.discard(&vm.id, origin).await,
            }
        }
        names.advance(|attempt| self.fleet.name(mark, attempt));
        Ok(adopted)
    }

    fn candidates(&self, claim: &NodeClaim, entries: &[Entry]) -> Vec<Candidate> {
        let types: Vec<_> = entries.iter().map(|own| own.instance_type.clone()).collect();
        let mut candidates = selection::candidates(claim, &types, &self.rules);
        // Spot first where the claim takes both.
        candidates.sort_by_key(|own| selection::capacity_type(&own.offering) != Some("spot"));
        candidates
    }

    fn place<'a>(
        &self,
        claim: &NodeClaim,
        resolution: &'a Resolution,
        candidate: &Candidate,
        entry: &Entry,
    ) -> Option<(&'a ResolvedZone, &'a ResolvedTemplate, &'a Network)> {
        let wanted = selection::zone(&candidate.offering)?;
        let zone = resolution
            .zones
            .iter()
            .find(|own| labels::label(&own.zone.name) == wanted)?;
        let mut asked = Requirements::from_wire(&self.rules, &claim.spec.requirements);
        let template = zone.templates.iter().find(|own| {
            let id = |key: &str, value: &str| asked.get(key).is_none_or(|wanted| wanted.has(value));
            own.runs_on(&entry.offering.offering.id)
                && asked.is_compatible(&own.requirements, Undefined::WellKnown(&self.rules))
                && id(labels::TEMPLATE_ID, &own.template.id)
                && id(labels::TEMPLATE_NAME, &labels::label(&own.template.name))
        })?;
        asked.remove(labels::TEMPLATE_ID);
        let busy = self.machines_per_network.lock().clone();
        let network = zone
            .networks
            .iter()
            .filter(|own| !self.unavailable.is_network_marked(&own.id))
            .filter(|own| asked.get(labels::NETWORK_ID).is_none_or(|wanted| wanted.has(&own.id)))
            .filter(|own| {
                asked
                    .get(labels::NETWORK_NAME)
                    .is_none_or(|wanted| wanted.has(&labels::label(&own.name)))
            })
            .min_by_key(|own| busy.get(&own.id).copied().unwrap_or_default())?;
        Some((zone, template, network))
    }

    async fn attempt(&self, plan: &Plan<'_>, names: &mut Names, deadline: Timestamp) -> Attempt {
        let name = self.fleet.name(plan.mark, names.attempt);
        let (request, seat) = match self.deploy_request(plan, &name).await {
            Ok(request) => request,
            Err(error) => return Attempt::Fail(error),
        };
        let sent = self.send_deploy(plan, &request, &name).await;
        drop(seat);
        let (id, job) = match sent {
            Ok(Sent::Accepted { id, job }) => (id, job),
            Ok(Sent::Found(vm)) => match self.await_adopted(*vm, plan.origin(), deadline).await {
                Ok(Some(vm)) => return self.furnished(&plan.to_furnish(), Box::new(vm), names).await,
                Ok(None) => {
                    names.used(|attempt| self.fleet.name(plan.mark, attempt));
                    return Attempt::Again;
                }
                Err(error) => return Attempt::Fail(error),
            },
            Err(error) => return self.refused(plan, error, names, deadline).await,
        };
        self.record_job(plan.claim, &job).await;
        let (finished, ()) = futures::future::join(
            self.finish(&id, &job, deadline),
            self.tag_new(plan.claim, plan.mark, plan.class, &id),
        )
        .await;
        match finished {
            Finish::Launched(vm) => self.furnished(&plan.to_furnish(), vm, names).await,
            Finish::Nothing => {
                self.discard(&id, plan.origin()).await;
                names.used(|attempt| self.fleet.name(plan.mark, attempt));
                Attempt::Again
            }
            Finish::Failed(failure) => {
                self.discard(&id, plan.origin()).await;
                names.used(|attempt| self.fleet.name(plan.mark, attempt));
                self.failed(plan, &failure).await
            }
            Finish::Unknown(error) => Attempt::Fail(unavailable(&error)),
        }
    }

    /// A machine with all of its disks; one that the account has no more disks for is given up.
    async fn furnished(&self, own: &ToFurnish<'_>, vm: Box<VirtualMachine>, names: &mut Names) -> Attempt {
        match self.bring_disks(own.claim, own.class, own.resolution, &vm).await {
            // What starts late gets its disks by the sweep.
            Ok(Furnished::Fully | Furnished::NotYet) => Attempt::Launched(vm),
            Err(ApiError::Refused(failure)) if matches!(failure.class, Class::Quota(_) | Class::Capacity) => {
                let origin = Origin::Unfinished {
                    mark: own.mark,
                    class: own.class,
                };
                self.discard(&vm.id, origin).await;
                names.taken(&vm.name);
                names.advance(|attempt| self.fleet.name(own.mark, attempt));
                let Some((entry, zone)) = own.place else {
                    return Attempt::Next(format!(
                        "CloudStack has no room for the disks of {}: {failure}",
                        vm.name
                    ));
                };
                self.count_failure(own.mark, entry, zone, &failure);
                self.lacking(own.class, entry, zone, &failure)
            }
            // The next try finds the machine, and what it has already.
            Err(error) => Attempt::Fail(unfurnished(&vm.name, &error)),
        }
    }

    /// Sends the deploy; if its answer is lost, looks whether it was carried out before it is sent again.
    async fn send_deploy(&self, plan: &Plan<'_>, request: &Request, name: &str) -> Result<Sent, ApiError> {
        for _ in 0..2 {
            let permit = self.deploys.acquire().await;
            let answer = self.client.call(request, Priority::Launch).await;
            drop(permit);
            match answer {
                Ok(content) => {
                    let (Some(id), Some(job)) = (content.text("id"), content.text("jobid")) else {
                        return Err(ApiError::Unreadable {
                            command: request.command.to_owned(),
                            reason: "neither id nor jobid".to_owned(),
                        });
                    };
                    return Ok(Sent::Accepted {
                        id: id.to_owned(),
                        job: job.to_owned(),
                    });
                }
                Err(ApiError::Unknown(_) | ApiError::Unreadable { .. }) => {}
                Err(error) => return Err(error),
            }
            for pause in LOOKS {
                self.clock.sleep(Duration::from_secs(pause)).await;
                let found = self.fleet.of_claim(plan.mark, Priority::Launch).await?;
                if let Some(vm) = found.into_iter().find(|vm| vm.name.eq_ignore_ascii_case(name)) {
                    return Ok(Sent::Found(Box::new(vm)));
                }
            }
        }
        Err(ApiError::Unknown(
            "deployVirtualMachine: no answer, and no machine appeared".to_owned(),
        ))
    }

    fn launched(
        &self,
        vm: &VirtualMachine,
        class: &CloudStackNodeClass,
        secrets: &Secrets,
        known: Known<'_>,
    ) -> Instance {
        let provider_id = self.provider_id(vm);
        let mut instance = machine::instance(vm, provider_id, Some(known), &self.settings, self.clock.now());
        let hash = class.static_hash(secrets.user_data.as_deref());
        instance.annotations.insert(HASH_ANNOTATION.to_owned(), hash);
        instance
            .annotations
            .insert(HASH_VERSION_ANNOTATION.to_owned(), HASH_VERSION.to_owned());
        instance
    }

    fn count_created(&self, plan: &Plan<'_>) {
        let pool = plan.claim.node_pool().unwrap_or_default();
        let zone = labels::label(&plan.zone.zone.name);
        let capacity_type = plan.entry.offering.capacity_type.label();
        let values = [pool, &zone, &plan.entry.instance_type.name, capacity_type];
        self.client.metrics().created.with_label_values(&values).inc();
    }

    /// Encoded user data of a plan.
    pub(crate) fn user_data(&self, plan: &Plan<'_>, vm_name: &str) -> Result<Option<String>, BootstrapError> {
        let mut own_labels = selection::single_valued_labels(plan.candidate);
        own_labels.extend(plan.claim.metadata.labels.clone().unwrap_or_default());
        let pods = plan.entry.instance_type.capacity.amount(karpenter_api::resources::PODS);
        bootstrap::user_data(&Boot {
            class: plan.class,
            claim: plan.claim,
            cluster_name: &self.settings.cluster_name,
            vm_name,
            zone: &plan.zone.zone.name,
            instance_type: &plan.entry.instance_type.name,
            offering_id: &plan.entry.offering.offering.id,
            template_id: &plan.template.template.id,
            provider_id_prefix: &self.format().prefix(&plan.zone.zone.name),
            max_pods: pods.value(),
            labels: &own_labels,
            secrets: plan.secrets,
        })
    }
}

/// Why a look is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    Start,
    /// A deploy was refused just now.
    Refusal,
}

enum Sent {
    Accepted {
        id: String,
        job: String,
    },
    /// The answer was lost, but the machine is there.
    Found(Box<VirtualMachine>),
}

/// Which names are taken, and the next one to try.
#[derive(Debug)]
struct Names {
    attempt: u32,
    taken: BTreeSet<String>,
}

impl Default for Names {
    fn default() -> Self {
        Self {
            attempt: 1,
            taken: BTreeSet::new(),
        }
    }
}

impl Names {
    fn taken(&mut self, name: &str) {
        self.taken.insert(name.to_lowercase());
    }

    /// The name of this attempt is used up.
    fn used(&mut self, name: impl Fn(u32) -> String) {
        self.taken(&name(self.attempt));
        self.advance(name);
    }

    fn advance(&mut self, name: impl Fn(u32) -> String) {
        while self.taken.contains(&name(self.attempt)) && self.attempt < MOST_NAMES {
            self.attempt += 1;
        }
    }
}

/// The hash of the class that the machine of a claim was asked for with.
fn recorded_hash(claim: &NodeClaim) -> Vec<(String, String)> {
    let annotations = claim.metadata.annotations.iter().flatten();
    annotations
        .filter(|(key, _)| [HASH_ANNOTATION, HASH_VERSION_ANNOTATION].contains(&key.as_str()))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

fn unfurnished(machine: &str, error: &ApiError) -> CloudError {
    CloudError::create("LaunchFailed", format!("machine {machine} lacks data disks: {error}"))
}

/// CloudStack could not be asked; the claim waits.
fn unavailable(error: &ApiError) -> CloudError {
    match error {
        ApiError::Refused(failure) if failure.class == Class::Auth => CloudError::create(
            "CloudStackUnauthorized",
            format!(
                "CloudStack refuses the API key; check key, secret and clock: {}",
                failure.short_text()
            ),
        ),
        ApiError::Refused(failure) if failure.class == Class::Forbidden => CloudError::create(
            "CloudStackForbidden",
            format!("the API key lacks a permission: {}", failure.short_text()),
        ),
        _ => CloudError::create("CloudStackUnavailable", format!("CloudStack cannot be asked: {error}")),
    }
}
