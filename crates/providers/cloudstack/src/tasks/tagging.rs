//! Keeps the tags of machines and data disks what they should be, without ever counting as drift (cloudstack.md §9.3).

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use karpenter_api::NodeClaim;
use karpenter_cloud::ClaimMark;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;

use crate::{
    client::{
        ApiError, Priority, Request,
        jobs::JobEnd,
        model::{Tag, VirtualMachine},
    },
    disks::Furnished,
    machine,
    node_class::CloudStackNodeClass,
    provider::Shared,
};

/// On a NodeClaim: the keys of `spec.tags` that were written, so that a key dropped from the class is also removed.
const APPLIED: &str = "karpenter.k8s.cloudstack/applied-tags";
const TAGGED: &str = "karpenter.k8s.cloudstack/instance-tagged";
/// Tags are a matter of a second; a job that hangs must not hold up the other machines.
const PATIENCE: Duration = Duration::from_secs(30);

/// Whether all that was made for the claim bears its tags.
pub(crate) fn is_done(claim: &NodeClaim) -> bool {
    let annotations = claim.metadata.annotations.as_ref();
    annotations
        .and_then(|own| own.get(TAGGED))
        .is_some_and(|own| own == "true")
}

/// What must be done about the tags of a resource.
#[derive(Debug, PartialEq, Eq)]
struct Change {
    create: BTreeMap<String, String>,
    delete: BTreeMap<String, String>,
}

fn change(own: &[Tag], wanted: &BTreeMap<String, String>, applied: &BTreeSet<String>) -> Change {
    let value = |key: &str| {
        own.iter()
            .find(|tag| tag.key == key)
            .map(|tag| tag.value.clone().unwrap_or_default())
    };
    let mut change = Change {
        create: BTreeMap::new(),
        delete: BTreeMap::new(),
    };
    for (key, wanted) in wanted {
        match value(key) {
            Some(own) if own == *wanted => {}
            // There is no overwriting: the key is deleted, then created.
            Some(own) => {
                change.delete.insert(key.clone(), own);
                change.create.insert(key.clone(), wanted.clone());
            }
            None => {
                change.create.insert(key.clone(), wanted.clone());
            }
        }
    }
    for key in applied.iter().filter(|key| !wanted.contains_key(*key)) {
        if let Some(own) = value(key) {
            change.delete.insert(key.clone(), own);
        }
    }
    change
}

/// Repairs the tags of a claim's machine. Failures are told and tried again at the next look.
pub(super) async fn repair(
    shared: &Shared,
    claim: &NodeClaim,
    vm: &VirtualMachine,
    class: Option<&CloudStackNodeClass>,
) {
    let mark = ClaimMark::of(claim);
    let pool = claim.node_pool().unwrap_or_default();
    let own = class.and_then(|class| class.spec.tags.as_ref());
    let wanted = machine::tags(&shared.settings, &mark, pool, &claim.spec.node_class_ref.name, own);
    let annotations = claim.metadata.annotations.clone().unwrap_or_default();
    let applied: BTreeSet<String> = annotations
        .get(APPLIED)
        .and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_default();
    let needed = change(&vm.tags, &wanted, &applied);
    let is_tagged = is_done(claim);
    let written = write(shared, "UserVm", &vm.id, &needed).await;
    let disks = match is_tagged {
        true => Ok(Disks::Settled),
        false => look_after_disks(shared, claim, vm, class, &wanted).await,
    };
    let untagged = |error| {
        let message = format!("the tags of machine {} could not be written: {error}", vm.name);
        ("TaggingFailed", message)
    };
    let disks = match written.map_err(untagged).and(disks) {
        Ok(disks) => disks,
        Err((reason, message)) => return shared.tell_claim(claim, reason, &message).await,
    };
    let keys: BTreeSet<&String> = own.into_iter().flat_map(BTreeMap::keys).collect();
    let keys = json!(keys).to_string();
    // Only what the server shows is believed; the next look confirms what was just written.
    let is_settled = needed.create.is_empty() && needed.delete.is_empty() && disks == Disks::Settled;
    if is_settled && (!is_tagged || annotations.get(APPLIED) != Some(&keys)) {
        let claims: Api<NodeClaim> = Api::all(shared.kube.clone());
        let patch = json!({"metadata": {"annotations": {APPLIED: keys, TAGGED: "true"}}});
        if let Err(error) = claims
            .patch(&mark.name, &PatchParams::default(), &Patch::Merge(&patch))
            .await
        {
            tracing::debug!(claim = mark.name, %error, "the tags that were written could not be noted");
        }
    }
}

/// Whether it is certain of every disk of a machine that it goes, or that it stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Disks {
    Settled,
    /// The next look may tell.
    Open,
}

/// Brings a machine the disks that its launch could not, and marks those that go. Only the class that it was made with knows
/// them: if that was changed, drift replaces the machine.
///
/// # Errors
/// With the reason and the sentence that users are told.
async fn look_after_disks(
    shared: &Shared,
    claim: &NodeClaim,
    vm: &VirtualMachine,
    class: Option<&CloudStackNodeClass>,
    tags: &BTreeMap<String, String>,
) -> Result<Disks, (&'static str, String)> {
    let untagged = |error: ApiError| {
        let message = format!("the data disks of machine {} could not be tagged: {error}", vm.name);
        ("TaggingFailed", message)
    };
    let unchanged = match class {
        Some(class) => match shared.is_unchanged(claim, class).await {
            Ok(is_unchanged) => Some(class).filter(|_| is_unchanged),
            Err(error) => {
                tracing::debug!(vm = vm.id, %error, "whether the class of a machine was changed is not known yet");
                return Ok(Disks::Open);
            }
        },
        None => None,
    };
    let Some(class) = unchanged else {
        let undecided = shared.has_undecided_disks(&vm.id, Priority::Discovery).await;
        return match undecided.map_err(untagged)? {
            true => Ok(Disks::Open),
            false => Ok(Disks::Settled),
        };
    };
    if !class.has_data_disks() {
        return Ok(Disks::Settled);
    }
    let furnished = furnish(shared, claim, class, vm).await.map_err(|error| {
        let message = format!("machine {} lacks data disks: {error}", vm.name);
        ("LaunchFailed", message)
    })?;
    let unmarked = shared.tag_disks(&vm.id, class, tags, Priority::Discovery).await;
    match (furnished, unmarked.map_err(untagged)?) {
        (Furnished::Fully, 0) => Ok(Disks::Settled),
        (Furnished::Fully | Furnished::NotYet, _) => Ok(Disks::Open),
    }
}

/// A launch that ended before its machine ran could not bring it all of its disks.
async fn furnish(
    shared: &Shared,
    claim: &NodeClaim,
    class: &CloudStackNodeClass,
    vm: &VirtualMachine,
) -> Result<Furnished, ApiError> {
    let resolution = shared.inventory.resolve(class).await?;
    shared.bring_disks(claim, class, &resolution, vm).await
}

async fn write(shared: &Shared, kind: &str, id: &str, change: &Change) -> Result<(), ApiError> {
    if !change.delete.is_empty() {
        let request = Request::new("deleteTags")
            .with("resourcetype", kind)
            .with("resourceids", id)
            .with_tags("tags", &change.delete);
        let job = shared.client.call(&request, Priority::Discovery).await?;
        if let Some(job) = job.text("jobid") {
            // A key that went meanwhile fails the job; what matters is what is there afterwards.
            end_of(shared, job, id).await;
        }
    }
    if !change.create.is_empty() {
        let job = shared.create_tags(kind, id, &change.create).await?;
        if let Some(job) = job
            && let Some(JobEnd::Failed(failure)) = end_of(shared, &job, id).await
            // A launch of ours may have been faster.
            && !failure.text.contains("already on")
        {
            return Err(ApiError::Refused(failure));
        }
    }
    Ok(())
}

/// How a job ended; `None` if it takes so long that the next look should see.
async fn end_of(shared: &Shared, job: &str, id: &str) -> Option<JobEnd> {
    tokio::select! {
        end = shared.jobs.wait(job, id) => Some(end),
        () = shared.clock.sleep(PATIENCE) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn missing_tags_are_created_changed_ones_replaced_and_dropped_ones_removed() {
        let own: Vec<Tag> = [("a", "1"), ("b", "old"), ("dropped", "x"), ("foreign", "y")]
            .iter()
            .map(|(key, value)| Tag {
                key: (*key).to_owned(),
                value: Some((*value).to_owned()),
            })
            .collect();
        let applied = ["b", "dropped"].map(str::to_owned).into();
        let change = change(&own, &map(&[("a", "1"), ("b", "new"), ("c", "3")]), &applied);
        assert_eq!(change.create, map(&[("b", "new"), ("c", "3")]));
        assert_eq!(change.delete, map(&[("b", "old"), ("dropped", "x")]));
    }
}
