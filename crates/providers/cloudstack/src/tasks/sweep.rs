//! A look at every machine: stopped ones, failed ones, interrupted ones, and tags that are missing (cloudstack.md §9.3–9.5).

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;
use karpenter_api::{NodeClaim, labels::CAPACITY_TYPE};
use karpenter_cloud::{ClaimMark, CloudError, clock::later, error::CloudContext};
use kube::{
    Api,
    api::{DeleteParams, Preconditions},
};

use crate::{
    client::{Priority, Request, model::VirtualMachine},
    disks::Origin,
    machine::{INTERRUPTION_TAG, Known, View},
    node_class::{CloudStackNodeClass, StoppedInstancePolicy},
    provider::Shared,
    provider_id,
};

/// What earlier looks saw.
#[derive(Debug, Default)]
pub struct Memory {
    stopped_since: BTreeMap<String, Timestamp>,
    restarts: BTreeMap<String, Vec<Timestamp>>,
    /// Machines whose new name was told.
    renamed: BTreeSet<String>,
}

const RESTARTS: usize = 3;
const RESTARTS_WITHIN: Duration = Duration::from_secs(3600);

pub(crate) async fn round(shared: &Shared, memory: &mut Memory) -> Result<(), CloudError> {
    let vms = shared.fleet.list(Priority::Discovery).await?;
    shared.note_networks(&vms);
    let tokens = shared.tokens_of_claims().await;
    let claims = super::claims(&shared.kube).await?;
    let collected = match tokens {
        Ok(tokens) => shared.collect_tokens(tokens, &claims).await,
        Err(error) => Err(error),
    };
    // They expire by themselves; machines must be looked at all the same.
    if let Err(error) = collected {
        tracing::warn!(%error, "bootstrap tokens that are not needed any more could not be deleted");
    }
    let mut classes: BTreeMap<String, Option<CloudStackNodeClass>> = BTreeMap::new();
    let now = shared.clock.now();
    let ids: Vec<&str> = vms.iter().map(|vm| vm.id.as_str()).collect();
    memory.stopped_since.retain(|id, _| ids.contains(&id.as_str()));
    memory.restarts.retain(|id, _| ids.contains(&id.as_str()));
    memory.renamed.retain(|id| ids.contains(&id.as_str()));
    for claim in claims
        .iter()
        .filter(|claim| claim.metadata.deletion_timestamp.is_none())
    {
        let Some(id) = claim.provider_id().and_then(|own| provider_id::machine_id(own).ok()) else {
            continue;
        };
        let Some(vm) = vms.iter().find(|vm| vm.id.eq_ignore_ascii_case(&id)) else {
            continue;
        };
        let name = claim.spec.node_class_ref.name.clone();
        if !classes.contains_key(&name) {
            classes.insert(name.clone(), shared.class_by_name(&name).await?);
        }
        let class = classes.get(&name).and_then(Option::as_ref);
        let policy = class
            .and_then(|class| class.spec.stopped_instance_policy)
            .unwrap_or_default();
        if vm.tag(INTERRUPTION_TAG).is_some() {
            replace(
                shared,
                claim,
                "InterruptionPending",
                "an operator marked the machine as going away",
            )
            .await?;
            continue;
        }
        match View::of(vm, now) {
            View::Failed => {
                let message = format!("machine {} did not start", vm.name);
                if let Some(class) = class {
                    mark(shared, class, vm, "a machine of it did not start").await;
                }
                replace(shared, claim, "LaunchFailed", &message).await?;
                shared.discard(&vm.id, Origin::Claim { claim, class }).await;
            }
            View::Stopped | View::Stopping => stopped(shared, memory, claim, vm, class, policy).await?,
            View::Launching | View::Running | View::Gone => {
                memory.stopped_since.remove(&vm.id);
                tell_renamed(shared, memory, claim, vm).await;
                super::tagging::repair(shared, claim, vm, class).await;
            }
        }
    }
    Ok(())
}

async fn stopped(
    shared: &Shared,
    memory: &mut Memory,
    claim: &NodeClaim,
    vm: &VirtualMachine,
    class: Option<&CloudStackNodeClass>,
    policy: StoppedInstancePolicy,
) -> Result<(), CloudError> {
    let now = shared.clock.now();
    let since = *memory.stopped_since.entry(vm.id.clone()).or_insert(now);
    let capacity_type = claim.metadata.labels.as_ref().and_then(|own| own.get(CAPACITY_TYPE));
    let is_spot = capacity_type.is_some_and(|kind| kind == "spot");
    if !is_spot && later(since, shared.settings.stopped_grace) > now {
        return Ok(());
    }
    let message = format!("machine {} is {}", vm.name, vm.state);
    if is_spot && let Some(class) = class {
        mark(shared, class, vm, "a spot machine of it was reclaimed").await;
    }
    match policy {
        StoppedInstancePolicy::Ignore if !is_spot => Ok(()),
        StoppedInstancePolicy::Restart if !is_spot => {
            let restarts = memory.restarts.entry(vm.id.clone()).or_default();
            restarts.retain(|at| later(*at, RESTARTS_WITHIN) > now);
            if restarts.len() >= RESTARTS {
                return replace(
                    shared,
                    claim,
                    "InstanceStopped",
                    &format!("{message} again after {RESTARTS} restarts"),
                )
                .await;
            }
            restarts.push(now);
            memory.stopped_since.remove(&vm.id);
            let request = Request::new("startVirtualMachine").with("id", vm.id.clone());
            shared.client.call(&request, Priority::Launch).await?;
            tracing::info!(vm = vm.id, "a stopped machine is started again");
            Ok(())
        }
        _ => replace(shared, claim, "InstanceStopped", &message).await,
    }
}

/// What the machine was made of is not asked for again for a while.
async fn mark(shared: &Shared, class: &CloudStackNodeClass, vm: &VirtualMachine, why: &str) {
    let Some((resolution, entries)) = shared.known(class).await else {
        return;
    };
    let known = Known {
        resolution: &resolution,
        entries: &entries,
    };
    if let Some(entry) = known.entry(vm) {
        shared
            .unavailable
            .mark_offering(class, &entry.offering, entry.shape, &vm.zoneid, why);
    }
}

/// The Node has the name that the machine had when it booted; a new one confuses a cloud-controller-manager.
async fn tell_renamed(shared: &Shared, memory: &mut Memory, claim: &NodeClaim, vm: &VirtualMachine) {
    let given = shared.fleet.name(&ClaimMark::of(claim), 1);
    let has_given = vm.name.to_lowercase().starts_with(&given.to_lowercase());
    if !has_given && memory.renamed.insert(vm.id.clone()) {
        let message = format!("machine {given} was renamed to {}; give it its name back", vm.name);
        shared.tell_claim(claim, "InstanceRenamed", &message).await;
    }
}

/// Core drains, terminates and replaces what is deleted.
async fn replace(shared: &Shared, claim: &NodeClaim, reason: &'static str, message: &str) -> Result<(), CloudError> {
    shared.tell_claim(claim, reason, message).await;
    let claims: Api<NodeClaim> = Api::all(shared.kube.clone());
    let name = claim.metadata.name.as_deref().unwrap_or_default();
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            uid: claim.metadata.uid.clone(),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    match claims.delete(name, &params).await {
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        deleted => deleted.map(drop).cloud_context(format!("deleting NodeClaim {name}")),
    }
}
