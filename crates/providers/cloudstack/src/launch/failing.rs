//! What a launch that failed means: for this claim, and for the offers of the next.

use jiff::Timestamp;
use karpenter_cloud::{ClaimMark, CloudError};

use super::{After, Attempt, Names, Plan, unavailable};
use crate::{
    catalogue::Entry,
    client::{ApiError, Class, Failure},
    labels,
    node_class::CloudStackNodeClass,
    provider::Shared,
    resolve::ResolvedZone,
};

impl Shared {
    /// A refusal at once; a record may be there all the same.
    pub(super) async fn refused(
        &self,
        plan: &Plan<'_>,
        error: ApiError,
        names: &mut Names,
        deadline: Timestamp,
    ) -> Attempt {
        let failure = match error {
            ApiError::Refused(failure) => failure,
            ApiError::Local(error) => return Attempt::Fail(error),
            ApiError::NotSent(_) | ApiError::Unknown(_) | ApiError::Unreadable { .. } => {
                return Attempt::Fail(unavailable(&error));
            }
        };
        let was_dispatched = match failure.class {
            Class::Auth | Class::Throttled(_) | Class::Unsupported => false,
            _ => failure.code != 432,
        };
        for id in &failure.left_behind {
            self.discard(id, plan.origin()).await;
        }
        if was_dispatched {
            match self.look(plan.class, plan.mark, None, names, After::Refusal).await {
                Ok(Some(vm)) => match self.await_adopted(vm, plan.origin(), deadline).await {
                    Ok(Some(vm)) => return self.furnished(&plan.to_furnish(), Box::new(vm), names).await,
                    Ok(None) => return Attempt::Again,
                    Err(error) => return Attempt::Fail(error),
                },
                Ok(None) => {}
                Err(error) => return Attempt::Fail(unavailable(&error)),
            }
        }
        if failure.class == Class::NameTaken {
            names.used(|attempt| self.fleet.name(plan.mark, attempt));
            return Attempt::Again;
        }
        if failure.class == Class::Generic {
            // Ordinary users are not told; an exhausted network is one of the reasons, and can be seen.
            self.inventory.flush_networks();
            let project = self.inventory.project(plan.class).await.ok().flatten();
            let networks = self.inventory.networks(&plan.zone.zone.id, project.as_deref()).await;
            let is_full =
                networks.is_ok_and(|all| all.iter().any(|own| own.id == plan.network.id && !own.canusefordeploy));
            if is_full {
                self.unavailable
                    .mark_network(&plan.network.id, "it has no free address");
                return Attempt::Next(format!(
                    "network {} has no free address; enlarge it, or add another",
                    plan.network.name
                ));
            }
        }
        self.failed(plan, &failure).await
    }

    /// What a failure means for further attempts.
    pub(super) async fn failed(&self, plan: &Plan<'_>, failure: &Failure) -> Attempt {
        let (class, own, shape, zone) = (plan.class, &plan.entry.offering, plan.entry.shape, &plan.zone.zone.id);
        let name = &plan.entry.instance_type.name;
        self.count_failure(plan.mark, plan.entry, plan.zone, failure);
        let short = failure.short_text();
        let create = |reason: &str, sentence: String| Attempt::Fail(CloudError::create(reason, sentence));
        match &failure.class {
            Class::Capacity | Class::Quota(_) => self.lacking(class, plan.entry, plan.zone, failure),
            Class::StartFailed => {
                self.unavailable.mark_start_failed(class, own, shape, zone);
                Attempt::Next(format!(
                    "a machine of {name} did not start in zone {}; the management server's log says why",
                    plan.zone.zone.name
                ))
            }
            Class::Network => {
                self.unavailable
                    .mark_network(&plan.network.id, "it has no free address");
                self.inventory.flush_networks();
                Attempt::Next(format!(
                    "network {} has no free address; enlarge it, or add another",
                    plan.network.name
                ))
            }
            Class::Forbidden if short.contains("Zone is currently disabled") => {
                self.unavailable.mark_zone(zone, "it is disabled");
                Attempt::Next(format!(
                    "zone {} is disabled; enable it, or choose another",
                    plan.zone.zone.name
                ))
            }
            Class::Auth => create(
                "CloudStackUnauthorized",
                format!("CloudStack refuses the API key; check key, secret and clock: {short}"),
            ),
            Class::Forbidden | Class::ExpungeDenied => create(
                "CloudStackForbidden",
                format!("the API key lacks a permission: {short}"),
            ),
            Class::UserDataTooLong => create(
                "UserDataTooLong",
                format!("user data is too long for this CloudStack; shorten it or compress it: {short}"),
            ),
            Class::Unsupported => create(
                "UnsupportedByCloudStack",
                format!("this CloudStack cannot do that: {short}"),
            ),
            Class::Invalid
            | Class::Internal
            | Class::NotFound
            | Class::NameTaken
            | Class::PageSize(_)
            | Class::Protected
            | Class::NeedsPost => create(
                "InvalidLaunchConfiguration",
                format!("CloudStack refuses the settings of NodeClass {}: {short}", class.name()),
            ),
            Class::Throttled(_) | Class::Conflict => {
                create("CloudStackUnavailable", format!("CloudStack is busy: {short}"))
            }
            Class::Ambiguous => Attempt::Again,
            Class::Transient | Class::Generic => {
                self.unavailable.note_unexplained(class, own, shape, zone);
                if self.unavailable.refuses(class, own, shape, plan.zone) {
                    return Attempt::Next(format!("{name} failed repeatedly in zone {}", plan.zone.zone.name));
                }
                create(
                    "LaunchFailed",
                    format!("CloudStack could not make the machine: {short}"),
                )
            }
        }
    }

    pub(super) fn count_failure(&self, mark: &ClaimMark, entry: &Entry, zone: &ResolvedZone, failure: &Failure) {
        let name = &entry.instance_type.name;
        let zone_label = labels::label(&zone.zone.name);
        self.client
            .metrics()
            .launch_failures
            .with_label_values(&[failure.class.name(), &zone_label, name])
            .inc();
        tracing::info!(claim = mark.name, instance_type = name, zone = zone_label, %failure, "a launch failed");
    }

    /// There is no quota left, or else no capacity.
    pub(super) fn lacking(
        &self,
        class: &CloudStackNodeClass,
        entry: &Entry,
        zone: &ResolvedZone,
        failure: &Failure,
    ) -> Attempt {
        let (own, shape, zone) = (&entry.offering, entry.shape, &zone.zone);
        let Class::Quota(resource) = &failure.class else {
            self.unavailable
                .mark_offering(class, own, shape, &zone.id, "CloudStack has no capacity for it");
            return Attempt::Next(format!(
                "CloudStack has no capacity for {} in zone {}; add hosts, or allow other instance types or zones",
                entry.instance_type.name, zone.name
            ));
        };
        self.unavailable.mark_quota(class, resource, shape);
        self.inventory.flush_quota();
        let short = failure.short_text();
        let sentence = format!("the quota of {resource} is reached; raise the limit or free some: {short}");
        match resource.as_str() {
            "cpu" | "memory" | "gpu" => Attempt::Next(sentence),
            _ => Attempt::Exhausted(sentence),
        }
    }
}
