//! Machines, volumes and groups that nobody owns any more (cloudstack.md §9.2).

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::core::v1::Node;
use karpenter_cloud::{
    ClaimMark, CloudError,
    clock::later,
    error::CloudContext,
    garbage_collection::{GarbageCollector, KnownClaims, OrphanReason, Sighting, Verdict},
    ownership::Owner,
};

use kube::Api;

use crate::{
    client::{
        Class, Priority, Request,
        model::{VirtualMachine, Volume},
    },
    disks::{self, Origin},
    machine::{Marks, View},
    node_class::CloudStackNodeClass,
    provider::Shared,
    provider_id,
};

/// A young process may not have seen every claim yet.
const YOUNG: Duration = Duration::from_secs(120);
/// A data disk is on no machine for a moment when it is moved; only one that stays so is a leftover.
const LOOSE: Duration = Duration::from_secs(600);

/// One round; answers how many machines were told to go.
pub(crate) async fn round(shared: &Shared, collector: &mut GarbageCollector) -> Result<usize, CloudError> {
    // Machines first: a claim that appears in between then counts as an owner.
    let vms = shared.fleet.list(Priority::Discovery).await?;
    shared.note_networks(&vms);
    let claims = super::claims(&shared.kube).await?;
    let now = shared.clock.now();
    let is_young = later(shared.started_at, YOUNG) > now;
    if claims.is_empty() && !vms.is_empty() && is_young {
        tracing::info!(
            machines = vms.len(),
            "there are machines but no NodeClaims; waiting before anything is deleted"
        );
        return Ok(0);
    }
    // Compared by machine, so that a change of the ID's form orphans nothing.
    let mut by_id = claims.clone();
    for claim in &mut by_id {
        if let Some(status) = claim.status.as_mut()
            && let Some(own) = &status.provider_id
            && let Ok(id) = provider_id::machine_id(own)
        {
            status.provider_id = Some(id);
        }
    }
    let known = KnownClaims::of(&by_id);
    let mut gone = 0;
    let sightings: Vec<Sighting> = vms.iter().map(|vm| sighting(shared, vm)).collect();
    match collector.round(&sightings, &known, now) {
        Verdict::Suspended { orphans, machines } => {
            tracing::error!(
                orphans,
                machines,
                "too many machines without a NodeClaim to be true; nothing is deleted"
            );
        }
        Verdict::Collect(orphans) => {
            for orphan in orphans {
                let read = shared.fleet.read_now(&orphan.id, Priority::Termination).await?;
                let read = read.map(|vm| sighting(shared, &vm));
                if !collector.confirm(&orphan, read.as_ref(), &known) {
                    continue;
                }
                let kind = match orphan.why {
                    OrphanReason::ClaimGone => "vm",
                    OrphanReason::Duplicate => "duplicate",
                };
                tracing::info!(
                    vm = orphan.id,
                    claim = orphan.claim.name,
                    kind,
                    "a machine without an owner is destroyed"
                );
                shared.destroy(&orphan.id, None, None, None).await?;
                shared.client.metrics().orphans.with_label_values(&[kind]).inc();
                // The rest of the round must not wait for it; without its machine the cloud controller removes it as well.
                if let Err(error) = remove_node(shared, &orphan.id).await {
                    tracing::warn!(vm = orphan.id, %error, "the node of a destroyed machine could not be removed");
                }
                gone += 1;
            }
        }
    }
    gone += failed_and_twins(shared, &vms, &by_id).await?;
    see_off(shared, &vms, &by_id).await;
    volumes(shared, &vms).await?;
    groups(shared).await?;
    Ok(gone)
}

/// Machines that were told to go and that no claim asks about: a destroy that failed is repeated.
async fn see_off(shared: &Shared, vms: &[VirtualMachine], claims: &[karpenter_api::NodeClaim]) {
    for vm in vms.iter().filter(|vm| shared.is_being_destroyed(&vm.id)) {
        let marks = Marks::of(vm, &shared.settings);
        let is_asked_about = claims.iter().any(|claim| match claim.provider_id() {
            Some(own) => own == vm.id.to_lowercase(),
            None => claim.metadata.uid.as_ref() == marks.claim().map(|own| &own.uid),
        });
        if is_asked_about {
            continue;
        }
        if let Err(error) = shared.destroy(&vm.id, None, None, None).await {
            tracing::warn!(vm = vm.id, %error, "a machine without an owner could not be destroyed yet");
        }
    }
}

/// The Node of a machine that goes without its claim; nobody else would tell it to go.
async fn remove_node(shared: &Shared, machine: &str) -> Result<(), CloudError> {
    let nodes: Api<Node> = Api::all(shared.kube.clone());
    let listed = nodes.list(&Default::default()).await.cloud_context("listing nodes")?;
    let is_of_machine = |node: &&Node| {
        let own = node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref());
        own.and_then(|own| provider_id::machine_id(own).ok())
            .is_some_and(|id| id.eq_ignore_ascii_case(machine))
    };
    for node in listed.items.iter().filter(is_of_machine) {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        match nodes.delete(name, &Default::default()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            deleted => deleted.map(drop).cloud_context(format!("deleting node {name}"))?,
        }
    }
    Ok(())
}

/// Managed affinity groups that are empty, once no class manages any.
async fn groups(shared: &Shared) -> Result<(), CloudError> {
    let classes: Api<CloudStackNodeClass> = Api::all(shared.kube.clone());
    let classes = classes
        .list(&Default::default())
        .await
        .cloud_context("listing CloudStackNodeClasses")?;
    if classes.items.iter().any(CloudStackNodeClass::manages_affinity_groups) {
        return Ok(());
    }
    shared.remove_empty_groups().await
}

fn sighting(shared: &Shared, vm: &VirtualMachine) -> Sighting {
    let marks = Marks::of(vm, &shared.settings);
    let view = View::of(vm, shared.clock.now());
    Sighting {
        id: vm.id.clone(),
        provider_id: vm.id.to_lowercase(),
        owner: marks.owner,
        created_at: vm.created_at(),
        terminating: matches!(view, View::Gone | View::Failed) || shared.is_being_destroyed(&vm.id),
    }
}

/// Records of failed launches, and all but one of several machines that a launching claim has.
async fn failed_and_twins(
    shared: &Shared,
    vms: &[VirtualMachine],
    claims: &[karpenter_api::NodeClaim],
) -> Result<usize, CloudError> {
    let now = shared.clock.now();
    let mut gone = 0;
    let mut by_uid: BTreeMap<String, Vec<&VirtualMachine>> = BTreeMap::new();
    for vm in vms {
        let Owner::Ours(mark) = Marks::of(vm, &shared.settings).owner else {
            continue;
        };
        match View::of(vm, now) {
            View::Failed => {
                // A launch that is under way cleans up after itself.
                if !shared.creating.lock().contains_key(&mark.uid) {
                    discard_failed(shared, vm, &mark, claims).await?;
                    gone += 1;
                }
            }
            View::Launching | View::Running => by_uid.entry(mark.uid).or_default().push(vm),
            View::Stopping | View::Stopped | View::Gone => {}
        }
    }
    for (uid, mut twins) in by_uid {
        let mut claims = claims.iter();
        let Some(claim) = claims.find(|claim| claim.metadata.uid.as_deref() == Some(&uid)) else {
            continue;
        };
        // A claim that knows its machine is judged by the collector above.
        if twins.len() < 2 || claim.provider_id().is_some() || shared.creating.lock().contains_key(&uid) {
            continue;
        }
        let recorded = shared.recorded_machine(claim, Priority::Discovery).await?;
        let mark = ClaimMark::of(claim);
        let class = shared.class_by_name(&claim.spec.node_class_ref.name).await?;
        // The one that is written on the claim stays, else the oldest.
        let is_other = |own: &VirtualMachine| recorded.as_ref().is_none_or(|kept| kept.id != own.id);
        twins.sort_by(|a, b| (is_other(a), a.created_at(), &a.id).cmp(&(is_other(b), b.created_at(), &b.id)));
        for twin in &twins[1..] {
            tracing::info!(vm = twin.id, uid, "a second machine of a claim is destroyed");
            shared.destroy(&twin.id, Some(&mark), class.as_ref(), None).await?;
            shared.client.metrics().orphans.with_label_values(&["duplicate"]).inc();
            gone += 1;
        }
    }
    Ok(gone)
}

/// The record of a machine that never started goes with its disks, as far as is known what they were made for.
async fn discard_failed(
    shared: &Shared,
    vm: &VirtualMachine,
    mark: &ClaimMark,
    claims: &[karpenter_api::NodeClaim],
) -> Result<(), CloudError> {
    let mut claims = claims.iter();
    let Some(claim) = claims.find(|claim| claim.metadata.uid.as_ref() == Some(&mark.uid)) else {
        shared.discard(&vm.id, Origin::Unknown).await;
        return Ok(());
    };
    let class = shared.class_by_name(&claim.spec.node_class_ref.name).await?;
    let class = class.as_ref();
    let origin = match claim.provider_id() {
        Some(own) if own == vm.id.to_lowercase() => Origin::Claim { claim, class },
        Some(_) | None => Origin::unfinished(mark, class),
    };
    shared.discard(&vm.id, origin).await;
    Ok(())
}

/// Data disks of ours whose machine is gone.
async fn volumes(shared: &Shared, vms: &[VirtualMachine]) -> Result<(), CloudError> {
    let tagged = match shared.fleet.tagged_volumes().await {
        Ok(tagged) => tagged,
        Err(error) if matches!(error.class(), Some(Class::Forbidden | Class::Unsupported)) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let mut ours = tagged;
    // A disk that was made by itself may not be tagged yet, also on a server that was upgraded since.
    let named = shared.named_disks().await?;
    let further = named
        .into_iter()
        .filter(|own| ours.iter().all(|known| known.id != own.id));
    let further: Vec<Volume> = further.collect();
    ours.extend(further);
    let now = shared.clock.now();
    let loose: Vec<Volume> = ours
        .iter()
        .filter(|own| is_loose(shared, own, &ours, vms))
        .cloned()
        .collect();
    let overdue: Vec<&Volume> = {
        let mut since = shared.loose_disks.lock();
        // A disk that was attached again meanwhile starts anew.
        since.retain(|id, _| loose.iter().any(|own| own.id == *id));
        let is_overdue = |own: &&Volume| later(*since.entry(own.id.clone()).or_insert(now), LOOSE) <= now;
        loose.iter().filter(is_overdue).collect()
    };
    for volume in overdue {
        let request = Request::new("deleteVolume").with("id", volume.id.clone());
        match shared.client.call(&request, Priority::Discovery).await {
            Ok(_) => {
                tracing::info!(volume = volume.id, "a data disk without a machine was deleted");
                shared.client.metrics().orphans.with_label_values(&["volume"]).inc();
            }
            Err(error) => {
                tracing::warn!(volume = volume.id, %error, "a data disk without a machine could not be deleted");
            }
        }
    }
    Ok(())
}

/// A data disk that we made, that is on no machine, and whose claim has none, or has another one of its name.
fn is_loose(shared: &Shared, volume: &Volume, all: &[Volume], vms: &[VirtualMachine]) -> bool {
    if volume.virtualmachineid.is_some() || volume.kind != "DATADISK" {
        return false;
    }
    let Some(uid) = disks::goes_with(&shared.settings, volume) else {
        return false;
    };
    let is_twin = |own: &Volume| own.name == volume.name && own.virtualmachineid.is_some();
    all.iter().any(is_twin)
        || !vms.iter().any(|vm| {
            let marks = Marks::of(vm, &shared.settings);
            marks.claim().is_some_and(|own| own.uid == uid)
        })
}
