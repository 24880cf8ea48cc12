//! Data disks of machines: which of them are ours, and how a machine gets those that its server cannot make with it
//! (cloudstack.md §3.3, §8.4, §9.3).
//!
//! A disk that is made by itself bears its claim in its name from the first moment; its tags follow.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use karpenter_api::NodeClaim;
use karpenter_cloud::{ClaimMark, CloudError, error::CloudContext};
use uuid::Uuid;

use crate::{
    client::{
        ApiError, Class, Priority, Request,
        jobs::JobEnd,
        model::{VirtualMachine, Volume},
    },
    drift::MadeWith,
    machine::{self, CLAIM_UID_TAG, Marks},
    node_class::{CloudStackNodeClass, DataDisk},
    provider::Shared,
    resolve::{DisksAskedFor, Resolution},
    settings::ProviderSettings,
    tasks::tagging,
};

/// Whether a disk goes with its machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Goes,
    Stays,
}

/// Whether a machine has all of its disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Furnished {
    Fully,
    /// It must run first.
    NotYet,
}

/// What is known of how a machine was made. Which of its untagged disks go is told by the class alone, as it was then.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Origin<'a> {
    /// By a launch that never finished: no pod has written to its disks, so the class of today will do.
    Unfinished {
        mark: &'a ClaimMark,
        class: &'a CloudStackNodeClass,
    },
    /// For this claim, whose launch finished.
    Claim {
        claim: &'a NodeClaim,
        class: Option<&'a CloudStackNodeClass>,
    },
    Unknown,
}

/// Before it is looked whether a request without an answer was carried out.
const LOOK_AFTER: Duration = Duration::from_secs(2);
/// What deploys call the disks that they make; volumes of pods have names of their own.
const OF_DEPLOY: &str = "DATA-";

impl Fate {
    fn of(disk: &DataDisk) -> Self {
        match disk.delete_on_termination {
            Some(false) => Self::Stays,
            Some(true) | None => Self::Goes,
        }
    }
}

impl<'a> Origin<'a> {
    /// What a launch for this claim left that never finished.
    pub(crate) fn unfinished(mark: &'a ClaimMark, class: Option<&'a CloudStackNodeClass>) -> Self {
        match class {
            Some(class) => Self::Unfinished { mark, class },
            None => Self::Unknown,
        }
    }

    /// Whether there can be disks besides the root disk.
    pub(crate) fn may_have_disks(self) -> bool {
        match self {
            Self::Unfinished { class, .. } => class.has_data_disks(),
            Self::Claim { .. } | Self::Unknown => true,
        }
    }

    pub(crate) fn class(self) -> Option<&'a CloudStackNodeClass> {
        match self {
            Self::Unfinished { class, .. } => Some(class),
            Self::Claim { class, .. } => class,
            Self::Unknown => None,
        }
    }

    fn mark(self) -> Option<ClaimMark> {
        match self {
            Self::Unfinished { mark, .. } => Some(mark.clone()),
            Self::Claim { claim, .. } => Some(ClaimMark::of(claim)),
            Self::Unknown => None,
        }
    }
}

/// Whether a disk came with a deploy and bears no mark.
fn is_undecided(disk: &Volume) -> bool {
    disk.name.starts_with(OF_DEPLOY) && !disk.tags.iter().any(|tag| tag.key == CLAIM_UID_TAG)
}

/// Disks that came with a deploy of this very class and are to go, but do not say so yet.
fn deployed_and_going<'a>(disks: &'a [Volume], class: &'a CloudStackNodeClass) -> impl Iterator<Item = &'a Volume> {
    let kept: BTreeSet<i64> = class
        .data_disks()
        .filter(|(_, disk)| Fate::of(disk) == Fate::Stays)
        .map(|(device, _)| device)
        .collect();
    disks.iter().filter(move |disk| {
        let is_kept = disk.deviceid.map_or(!kept.is_empty(), |device| kept.contains(&device));
        class.has_data_disks() && is_undecided(disk) && !is_kept
    })
}

/// How the names of all disks begin that were made by themselves.
fn prefix(cluster: &str) -> String {
    format!("karpenter-{cluster}-")
}

fn name(cluster: &str, claim_uid: &str, device: i64, fate: Fate) -> String {
    let kept = match fate {
        Fate::Goes => "",
        Fate::Stays => "-kept",
    };
    format!("{}{claim_uid}-{device}{kept}", prefix(cluster))
}

/// The claim whose disk a name tells, and what becomes of it. Other clusters may have names that ours is the beginning of.
fn parse<'a>(cluster: &str, name: &'a str) -> Option<(&'a str, Fate)> {
    let rest = name.strip_prefix(&prefix(cluster))?;
    let (uid, rest) = rest.split_at_checked(Uuid::nil().hyphenated().to_string().len())?;
    let rest = rest.strip_prefix('-')?;
    Uuid::parse_str(uid).ok()?;
    let (device, fate) = match rest.strip_suffix("-kept") {
        Some(device) => (device, Fate::Stays),
        None => (rest, Fate::Goes),
    };
    device.parse::<u32>().ok()?;
    Some((uid, fate))
}

/// The claim that a disk was made for, if it is to go when the claim goes.
pub(crate) fn goes_with<'a>(settings: &ProviderSettings, volume: &'a Volume) -> Option<&'a str> {
    let tag = volume.tags.iter().find(|tag| tag.key == CLAIM_UID_TAG);
    if let Some(uid) = tag.and_then(|tag| tag.value.as_deref()) {
        return Some(uid);
    }
    match parse(&settings.cluster_name, &volume.name)? {
        (uid, Fate::Goes) => Some(uid),
        // It never was at a machine: there is nothing in it to keep.
        (uid, Fate::Stays) => (volume.state == "Allocated").then_some(uid),
    }
}

impl Shared {
    /// Brings a running machine the disks that its deploy could not ask for; what an earlier try made is used.
    ///
    /// # Errors
    /// When CloudStack refused one of them or could not be asked.
    pub(crate) async fn bring_disks(
        &self,
        claim: &NodeClaim,
        class: &CloudStackNodeClass,
        resolution: &Resolution,
        vm: &VirtualMachine,
    ) -> Result<Furnished, ApiError> {
        if resolution.disks_asked_for != DisksAskedFor::Afterwards {
            return Ok(Furnished::Fully);
        }
        if vm.state != "Running" {
            return Ok(Furnished::NotYet);
        }
        let mark = ClaimMark::of(claim);
        let pool = claim.node_pool().unwrap_or_default();
        let tags = machine::tags(&self.settings, &mark, pool, class.name(), class.spec.tags.as_ref());
        let project = match &vm.projectid {
            Some(own) => Some(own.clone()),
            None => self.inventory.project(class).await?,
        };
        for (device, disk) in class.data_disks() {
            let fate = Fate::of(disk);
            let name = name(&self.settings.cluster_name, &mark.uid, device, fate);
            let attached = self.fleet.data_disks(&vm.id, Priority::Launch).await?;
            let is_it =
                |own: &Volume| own.name == name || own.name.starts_with(OF_DEPLOY) && own.deviceid == Some(device);
            if attached.iter().any(is_it) {
                continue;
            }
            let made = self.made_disk(&name, vm).await?;
            let is_tagged = made.as_ref().is_some_and(|own| !own.tags.is_empty());
            let id = match made {
                Some(made) => made.id,
                None => {
                    let request = Request::new("createVolume")
                        .with("name", name.clone())
                        .with("zoneid", vm.zoneid.clone())
                        .with("diskofferingid", resolution.disk_offering(&disk.offering))
                        .with_some("size", disk.size.map(|own| own.to_string()))
                        .with_some("miniops", disk.min_iops.map(|own| own.to_string()))
                        .with_some("maxiops", disk.max_iops.map(|own| own.to_string()));
                    let request = self.inventory.scoped(request, project.as_deref());
                    self.make_disk(&request, &name, vm).await?
                }
            };
            if fate == Fate::Goes && !is_tagged {
                self.create_tags("Volume", &id, &tags).await?;
            }
            let is_taken = attached.iter().any(|own| own.deviceid == Some(device));
            // A volume of a pod may have been faster; only who asked for this very device minds.
            let device = Some(device).filter(|_| disk.device_id.is_some() || !is_taken);
            self.attach_disk(&id, vm, device).await?;
        }
        Ok(Furnished::Fully)
    }

    /// A disk of this name that no machine has.
    async fn made_disk(&self, name: &str, vm: &VirtualMachine) -> Result<Option<Volume>, ApiError> {
        let request = self.fleet.widest(Request::new("listVolumes").with("name", name));
        let found: Vec<Volume> = self.client.list(&request, "volume", Priority::Launch).await?;
        Ok(found.into_iter().find(|own| {
            own.name == name
                && own.zoneid == vm.zoneid
                && own.virtualmachineid.is_none()
                && matches!(own.state.as_str(), "Allocated" | "Creating" | "Ready")
        }))
    }

    /// Makes a disk; if the answer is lost, looks for it before it is asked for again.
    async fn make_disk(&self, request: &Request, name: &str, vm: &VirtualMachine) -> Result<String, ApiError> {
        for _ in 0..2 {
            match self.client.call(request, Priority::Launch).await {
                Ok(content) => {
                    let (Some(id), Some(job)) = (content.text("id"), content.text("jobid")) else {
                        return Err(ApiError::Unreadable {
                            command: request.command.to_owned(),
                            reason: "neither id nor jobid".to_owned(),
                        });
                    };
                    let end = self.jobs.settle(job, request.command, Priority::Launch).await?;
                    return match end {
                        Some(JobEnd::Failed(failure)) => Err(ApiError::Refused(failure)),
                        Some(JobEnd::Succeeded(_) | JobEnd::Forgotten) | None => Ok(id.to_owned()),
                    };
                }
                Err(ApiError::Unknown(_) | ApiError::Unreadable { .. }) => {}
                Err(error) => return Err(error),
            }
            self.clock.sleep(LOOK_AFTER).await;
            if let Some(made) = self.made_disk(name, vm).await? {
                return Ok(made.id);
            }
        }
        Err(ApiError::Unknown(format!(
            "createVolume: no answer, and no disk {name} appeared"
        )))
    }

    async fn attach_disk(&self, id: &str, vm: &VirtualMachine, device: Option<i64>) -> Result<(), ApiError> {
        let request = Request::new("attachVolume")
            .with("id", id)
            .with("virtualmachineid", vm.id.clone())
            .with_some("deviceid", device.map(|own| own.to_string()));
        let problem = match self.client.call(&request, Priority::Launch).await {
            Ok(content) => {
                let job = content.text("jobid").unwrap_or_default();
                match self.jobs.settle(job, request.command, Priority::Launch).await? {
                    Some(JobEnd::Succeeded(_)) => return Ok(()),
                    Some(JobEnd::Failed(failure)) => ApiError::Refused(failure),
                    Some(JobEnd::Forgotten) | None => ApiError::Unknown("attachVolume: it is not attached yet".into()),
                }
            }
            Err(error @ (ApiError::Unknown(_) | ApiError::Unreadable { .. })) => error,
            Err(error) => return Err(error),
        };
        // An earlier try may have been carried out after all.
        let attached = self.fleet.data_disks(&vm.id, Priority::Launch).await?;
        match attached.iter().any(|own| own.id == id) {
            true => Ok(()),
            false => Err(problem),
        }
    }

    /// Marks the data disks that came with a machine, so that they go with it, and answers how many had no mark. The class must
    /// be the one that it was made with.
    ///
    /// # Errors
    /// When CloudStack refused or could not be asked.
    pub(crate) async fn tag_disks(
        &self,
        machine: &str,
        class: &CloudStackNodeClass,
        tags: &BTreeMap<String, String>,
        priority: Priority,
    ) -> Result<usize, ApiError> {
        let disks = self.fleet.data_disks(machine, priority).await?;
        let uid = tags.get(CLAIM_UID_TAG).map(String::as_str);
        let is_named = |disk: &&Volume| {
            let own_name = parse(&self.settings.cluster_name, &disk.name);
            let is_tagged = disk.tags.iter().any(|tag| tag.key == CLAIM_UID_TAG);
            own_name.is_some_and(|(own, fate)| Some(own) == uid && fate == Fate::Goes) && !is_tagged
        };
        let mut unmarked = 0;
        for disk in disks.iter().filter(is_named).chain(deployed_and_going(&disks, class)) {
            self.create_tags("Volume", &disk.id, tags).await?;
            unmarked += 1;
        }
        Ok(unmarked)
    }

    /// Whether a machine has disks of which only the class that it was made with tells whether they go.
    ///
    /// # Errors
    /// When CloudStack could not be asked.
    pub(crate) async fn has_undecided_disks(&self, machine: &str, priority: Priority) -> Result<bool, ApiError> {
        match self.fleet.data_disks(machine, priority).await {
            Ok(disks) => Ok(disks.iter().any(is_undecided)),
            Err(error) if matches!(error.class(), Some(Class::NotFound | Class::Forbidden)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether a class still is what the claim's machine was made with. One whose Secret of user data is gone is not.
    ///
    /// # Errors
    /// When the Secret could not be read: neither is known then.
    pub(crate) async fn is_unchanged(
        &self,
        claim: &NodeClaim,
        class: &CloudStackNodeClass,
    ) -> Result<bool, CloudError> {
        let reference = class
            .spec
            .user_data_ref
            .as_ref()
            .and_then(|own| own.secret_ref.as_ref());
        let secret = match reference {
            None => None,
            Some(reference) => match self.secret_data(reference).await {
                Ok(data) => match data.and_then(|mut data| data.remove(&reference.key)) {
                    Some(text) => Some(text),
                    None => return Ok(false),
                },
                Err(kube::Error::Api(status)) if status.code == 403 => return Ok(false),
                Err(error) => return Err(error).cloud_context("reading the Secret of user data"),
            },
        };
        Ok(MadeWith::of(claim, &class.static_hash(secret.as_deref())) == MadeWith::This)
    }

    /// The ids of the data disks that go with a machine: those that we made for its claim. Every other one belongs to a
    /// volume of the cluster. What a launch had no time to tag is tagged now, so that nothing depends on names alone; if it
    /// is not certain that a disk was to go, it stays.
    ///
    /// # Errors
    /// When CloudStack could not be asked, or Kubernetes what decides.
    pub(crate) async fn disks_that_go(
        &self,
        vm: &VirtualMachine,
        origin: Origin<'_>,
    ) -> Result<Vec<String>, CloudError> {
        let disks = match self.fleet.data_disks(&vm.id, Priority::Termination).await {
            Ok(disks) => disks,
            Err(error) if matches!(error.class(), Some(Class::NotFound | Class::Forbidden)) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        };
        let marks = Marks::of(vm, &self.settings);
        // A machine without details may go before it is tagged; whoever asks knows whose it is.
        let Some(mark) = marks.claim().cloned().or_else(|| origin.mark()) else {
            return Ok(Vec::new());
        };
        let mut going: Vec<String> = disks
            .iter()
            .filter(|disk| goes_with(&self.settings, disk) == Some(&mark.uid))
            .map(|disk| disk.id.clone())
            .collect();
        if !disks.iter().any(is_undecided) {
            return Ok(going);
        }
        let class = match origin {
            Origin::Unfinished { class, .. } => Some(class),
            // All that was to go says so: the others are to stay.
            Origin::Claim { claim, .. } if tagging::is_done(claim) => return Ok(going),
            Origin::Claim {
                claim,
                class: Some(class),
            } if self.is_unchanged(claim, class).await? => Some(class),
            Origin::Claim { .. } | Origin::Unknown => None,
        };
        let Some(class) = class else {
            for disk in disks.iter().filter(|disk| is_undecided(disk)) {
                tracing::warn!(
                    volume = disk.id,
                    vm = vm.id,
                    "a data disk was never tagged, and the class that it was made with is gone or was changed: it stays; delete it if nobody needs it"
                );
            }
            return Ok(going);
        };
        let pool = marks.node_pool.as_deref().unwrap_or_default();
        let tags = machine::tags(&self.settings, &mark, pool, class.name(), class.spec.tags.as_ref());
        for disk in deployed_and_going(&disks, class) {
            match self.tag_disk(&disk.id, &tags).await {
                Ok(()) => going.push(disk.id.clone()),
                Err(error) => {
                    tracing::warn!(volume = disk.id, vm = vm.id, %error, "a data disk could not be tagged, and stays");
                }
            }
        }
        Ok(going)
    }

    async fn tag_disk(&self, id: &str, tags: &BTreeMap<String, String>) -> Result<(), ApiError> {
        let Some(job) = self.create_tags("Volume", id, tags).await? else {
            return Ok(());
        };
        match self.jobs.settle(&job, "createTags", Priority::Termination).await? {
            // A launch of ours may have been faster.
            Some(JobEnd::Failed(failure)) if !failure.text.contains("already on") => Err(ApiError::Refused(failure)),
            Some(_) | None => Ok(()),
        }
    }

    /// Every disk of this cluster that was made by itself, tagged or not.
    ///
    /// # Errors
    /// When CloudStack could not be asked.
    pub(crate) async fn named_disks(&self) -> Result<Vec<Volume>, ApiError> {
        let prefix = prefix(&self.settings.cluster_name);
        let request = self.fleet.widest(Request::new("listVolumes").with("keyword", prefix));
        let mut found: Vec<Volume> = self.client.list(&request, "volume", Priority::Discovery).await?;
        found.retain(|own| parse(&self.settings.cluster_name, &own.name).is_some());
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "0b0d7a3e-0000-4000-8000-000000000001";

    #[test]
    fn a_name_tells_the_claim_and_whether_the_disk_stays() {
        for fate in [Fate::Goes, Fate::Stays] {
            assert_eq!(parse("blue", &name("blue", UID, 2, fate)), Some((UID, fate)));
        }
    }

    #[test]
    fn names_of_other_clusters_and_other_things_tell_nothing() {
        for other in [
            name("blue-2", UID, 1, Fate::Goes),
            name("green", UID, 1, Fate::Goes),
            "karpenter-blue-by-hand".to_owned(),
            format!("karpenter-blue-{UID}"),
            format!("karpenter-blue-{UID}-backup"),
            "pvc-1".to_owned(),
            "DATA-12-1".to_owned(),
        ] {
            assert_eq!(parse("blue", &other), None, "{other}");
        }
    }
}
