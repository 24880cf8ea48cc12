//! Resolves every CloudStackNodeClass and says on its status what was found and what stands in the way (cloudstack.md §9.1).

use std::{collections::HashMap, time::Duration};

use futures::StreamExt;
use jiff::Timestamp;
use karpenter_api::{
    NodeClaim,
    conditions::{ConditionStatus, READY, StatusConditions},
};
use karpenter_cloud::{CloudError, clock::later, error::CloudContext};
use kube::{
    Api, ResourceExt,
    api::{ListParams, Patch, PatchParams},
    runtime::{WatchStreamExt, watcher},
};
use serde_json::json;

use crate::{
    bootstrap,
    catalogue::Entry,
    client::{ApiError, Class},
    node_class::{
        CloudStackNodeClass, FINALIZER, HASH_ANNOTATION, HASH_VERSION_ANNOTATION,
        hash::HASH_VERSION,
        status::{
            BOOTSTRAP_READY, CONDITIONS, CREDENTIALS_READY, MOST_LISTED, NamedStatus, NetworkStatus, OfferingStatus,
            STORAGE_READY, TemplateRequirement, TemplateStatus, ZoneStatus,
        },
    },
    provider::Shared,
    resolve::{Problem, Resolution, ResolvedTemplate},
};

/// An outage makes conditions unknown only after this long; until then what was known last holds.
const OUTAGE: Duration = Duration::from_secs(300);
const READY_AGAIN: Duration = Duration::from_secs(300);
const NOT_READY_AGAIN: Duration = Duration::from_secs(60);

pub(crate) async fn run(shared: &Shared) {
    let classes: Api<CloudStackNodeClass> = Api::all(shared.kube.clone());
    let mut changes = Box::pin(
        watcher(classes.clone(), watcher::Config::default())
            .default_backoff()
            .touched_objects(),
    );
    let mut seen: HashMap<String, (Option<i64>, bool)> = HashMap::new();
    let mut next = shared.clock.sleep(Duration::ZERO);
    loop {
        tokio::select! {
            change = changes.next() => {
                let class = match change {
                    Some(Ok(class)) => class,
                    Some(Err(error)) => {
                        tracing::debug!(%error, "the watch of CloudStackNodeClasses was interrupted");
                        continue;
                    }
                    None => return,
                };
                // Our own writes of the status come back too.
                let known = (class.metadata.generation, class.metadata.deletion_timestamp.is_some());
                if seen.insert(class.name_any(), known) == Some(known) {
                    continue;
                }
                report(reconcile(shared, class).await.map(drop));
            }
            () = &mut next => {
                let all_ready = reconcile_all(shared, &classes).await;
                next = shared.clock.sleep(if all_ready { READY_AGAIN } else { NOT_READY_AGAIN });
            }
        }
    }
}

fn report(result: Result<(), CloudError>) {
    if let Err(error) = result {
        tracing::warn!(%error, "a CloudStackNodeClass could not be reconciled");
    }
}

async fn reconcile_all(shared: &Shared, classes: &Api<CloudStackNodeClass>) -> bool {
    let listed = match classes.list(&ListParams::default()).await {
        Ok(listed) => listed,
        Err(error) => {
            tracing::warn!(%error, "CloudStackNodeClasses could not be listed");
            return false;
        }
    };
    let mut all_ready = true;
    for class in listed.items {
        match reconcile(shared, class).await {
            Ok(is_ready) => all_ready &= is_ready,
            Err(error) => {
                all_ready = false;
                report(Err(error));
            }
        }
    }
    all_ready
}

pub(crate) async fn reconcile_named(shared: &Shared, name: &str) -> Result<(), CloudError> {
    match shared.class_by_name(name).await? {
        Some(class) => reconcile(shared, class).await.map(drop),
        None => Ok(()),
    }
}

/// Whether the class is ready now.
async fn reconcile(shared: &Shared, class: CloudStackNodeClass) -> Result<bool, CloudError> {
    if class.metadata.deletion_timestamp.is_some() {
        finalize(shared, &class).await?;
        return Ok(true);
    }
    let classes: Api<CloudStackNodeClass> = Api::all(shared.kube.clone());
    let name = class.name_any();
    let secrets = shared.secrets(&class).await;
    // Without the user data of its Secret the hash would be another one, and every node would seem to drift.
    let secrets_read = secrets.as_ref().ok();
    let hash = secrets_read.map(|own| class.static_hash(own.user_data.as_deref()));
    let mut class = mark(&classes, class, hash.as_deref()).await?;
    let before = class.status.clone();
    let now = shared.clock.now();
    match shared.inventory.resolve(&class).await {
        Ok(mut resolution) => {
            shared.outages.lock().remove(&name);
            let length = check_bootstrap(&class, secrets.as_ref().map_err(Clone::clone)).unwrap_or_else(|problem| {
                resolution.problems.entry(BOOTSTRAP_READY).or_insert(problem);
                0
            });
            if let Some(problem) = shared.placement_problem(&class).await {
                resolution.problems.entry(CREDENTIALS_READY).or_insert(problem);
            }
            if let Some(refused) = shared.refused_keys.lock().as_ref() {
                let message = format!(
                    "the new keys are not used, the old ones stay; correct them: {}",
                    refused.why
                );
                let problem = Problem {
                    reason: "Unauthorized",
                    message,
                };
                resolution.problems.entry(CREDENTIALS_READY).or_insert(problem);
            }
            // Prices and names are for the eye; a class is as good without them.
            let entries = shared.entries(&class, &resolution).await;
            let entries = entries
                .inspect_err(|error| tracing::debug!(node_class = name, %error, "prices are unknown"))
                .unwrap_or_default();
            fill(&mut class, &resolution, &entries);
            set_conditions(&mut class, &resolution.problems, now);
            if length > bootstrap::USUAL_LIMIT && class.is_true(BOOTSTRAP_READY) {
                let message = format!(
                    "user data has {length} characters in Base64; launches fail if the server keeps its default limit of {}",
                    bootstrap::USUAL_LIMIT
                );
                let _ = class.set_condition(BOOTSTRAP_READY, ConditionStatus::True, "UserDataLong", &message, now);
            }
            if let Some(advice) = class.device_advice().filter(|_| class.is_true(STORAGE_READY)) {
                let _ = class.set_condition(STORAGE_READY, ConditionStatus::True, "DeviceOfCDROM", advice, now);
            }
        }
        Err(error) => refuse(shared, &mut class, &error, now),
    }
    let is_ready = class.is_ready();
    if class.status != before {
        let patch = json!({"metadata": {"resourceVersion": class.metadata.resource_version}, "status": class.status});
        match classes
            .patch_status(&name, &PatchParams::default(), &Patch::Merge(&patch))
            .await
        {
            // Changed or deleted meanwhile: the watch brings the news.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
            written => written
                .map(drop)
                .cloud_context(format!("writing the status of CloudStackNodeClass {name}"))?,
        }
    }
    if let Some(hash) = &hash {
        migrate_hashes(shared, &name, hash).await?;
    }
    Ok(is_ready)
}

/// Finalizer and hash are written before anything is made with the class. A hash that is not known leaves the old one.
async fn mark(
    classes: &Api<CloudStackNodeClass>,
    class: CloudStackNodeClass,
    hash: Option<&str>,
) -> Result<CloudStackNodeClass, CloudError> {
    let annotations = class.annotations();
    let has = |key: &str, value: &str| annotations.get(key).is_some_and(|own| own == value);
    let is_marked = hash.is_none_or(|hash| has(HASH_ANNOTATION, hash) && has(HASH_VERSION_ANNOTATION, HASH_VERSION));
    let has_finalizer = class.finalizers().iter().any(|own| own == FINALIZER);
    if is_marked && has_finalizer {
        return Ok(class);
    }
    let mut finalizers = class.finalizers().to_vec();
    if !has_finalizer {
        finalizers.push(FINALIZER.to_owned());
    }
    let mut patch = json!({"metadata": {
        "resourceVersion": class.metadata.resource_version,
        "finalizers": finalizers,
    }});
    if let Some(hash) = hash {
        patch["metadata"]["annotations"] = json!({HASH_ANNOTATION: hash, HASH_VERSION_ANNOTATION: HASH_VERSION});
    }
    let name = class.name_any();
    classes
        .patch(&name, &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .cloud_context(format!("marking CloudStackNodeClass {name}"))
}

/// Claims whose hash another version of Karpenter wrote get ours, so that an upgrade replaces nothing; those that had
/// drifted already stay as they are.
async fn migrate_hashes(shared: &Shared, class: &str, hash: &str) -> Result<(), CloudError> {
    let api: Api<NodeClaim> = Api::all(shared.kube.clone());
    for claim in super::claims(&shared.kube).await? {
        let reference = &claim.spec.node_class_ref;
        let version = claim.annotations().get(HASH_VERSION_ANNOTATION);
        let is_old = version.is_some_and(|own| own != HASH_VERSION);
        if reference.kind != "CloudStackNodeClass" || reference.name != class || !is_old || claim.is_true("Drifted") {
            continue;
        }
        let patch =
            json!({"metadata": {"annotations": {HASH_ANNOTATION: hash, HASH_VERSION_ANNOTATION: HASH_VERSION}}});
        let name = claim.name_any();
        match api.patch(&name, &PatchParams::default(), &Patch::Merge(&patch)).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            written => written
                .map(drop)
                .cloud_context(format!("writing the hash of NodeClaim {name}"))?,
        }
    }
    Ok(())
}

/// User data must be renderable before anything is launched with it.
///
/// Answers its length on the wire.
fn check_bootstrap(
    class: &CloudStackNodeClass,
    secrets: Result<&bootstrap::Secrets, Problem>,
) -> Result<usize, Problem> {
    let mut secrets = secrets?.clone();
    // A token is made with each machine; any one shows whether the rest can be rendered.
    if class.spec.bootstrap.as_ref().is_some_and(|own| own.manages_tokens()) {
        secrets.token = Some("abcdef.0123456789abcdef".to_owned());
    }
    let claim: NodeClaim = serde_json::from_value(json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": {"name": "n"},
        "spec": {"requirements": [], "nodeClassRef": {"group": "g", "kind": "k", "name": "n"}},
    }))
    .expect("a NodeClaim");
    let none = Default::default();
    let rendered = bootstrap::user_data(&bootstrap::Boot {
        class,
        claim: &claim,
        cluster_name: "c",
        vm_name: "n",
        zone: "z",
        instance_type: "t",
        offering_id: "o",
        template_id: "i",
        provider_id_prefix: "p",
        max_pods: 110,
        labels: &none,
        secrets: &secrets,
    });
    let problem = |reason: &'static str, message: String| Err(Problem { reason, message });
    match rendered {
        Ok(encoded) => Ok(encoded.map_or(0, |encoded| encoded.len())),
        Err(error @ bootstrap::BootstrapError::TooLong { .. }) => problem("UserDataTooLong", error.to_string()),
        Err(error @ bootstrap::BootstrapError::Missing(_)) => problem("SecretNotFound", error.to_string()),
        Err(error) => problem("InvalidTemplate", error.to_string()),
    }
}

fn set_conditions(
    class: &mut CloudStackNodeClass,
    problems: &std::collections::BTreeMap<&'static str, Problem>,
    now: Timestamp,
) {
    for condition in CONDITIONS {
        let _ = match problems.get(condition) {
            None => class.set_true(condition, now),
            Some(problem) => class.set_false(condition, problem.reason, &problem.message, now),
        };
    }
    explain(class, now);
}

/// `Ready` says in words what its dependents say.
fn explain(class: &mut CloudStackNodeClass, now: Timestamp) {
    let Some(ready) = class.condition(READY).filter(|own| !own.is_true()).cloned() else {
        return;
    };
    let failing: Vec<String> = CONDITIONS
        .iter()
        .filter_map(|name| class.condition(name))
        .filter(|own| own.status == ready.status && !own.message.is_empty())
        .map(|own| format!("{}: {}", own.type_, own.message))
        .collect();
    if !failing.is_empty() {
        let _ = class.set_condition(READY, ready.status, &ready.reason, &failing.join("; "), now);
    }
}

/// CloudStack could not be asked, or refuses us.
fn refuse(shared: &Shared, class: &mut CloudStackNodeClass, error: &ApiError, now: Timestamp) {
    let told = match error {
        ApiError::Refused(failure) => failure.short_text(),
        other => other.to_string(),
    };
    match error.class() {
        Some(Class::Auth) => {
            let message =
                format!("CloudStack refuses the API key; check the key, the secret and this machine's clock: {told}");
            let _ = class.set_false(CREDENTIALS_READY, "Unauthorized", &message, now);
        }
        Some(Class::Forbidden) => {
            let message = format!("the role of the API key lacks a permission: {told}");
            let _ = class.set_false(CREDENTIALS_READY, "Forbidden", &message, now);
        }
        _ => {
            let since = *shared.outages.lock().entry(class.name_any()).or_insert(now);
            if later(since, OUTAGE) > now && class.condition(READY).is_some() {
                return;
            }
            let message = format!("CloudStack cannot be asked: {told}");
            for condition in CONDITIONS {
                let _ = class.set_condition(
                    condition,
                    ConditionStatus::Unknown,
                    "CloudStackUnavailable",
                    &message,
                    now,
                );
            }
        }
    }
    explain(class, now);
}

fn fill(class: &mut CloudStackNodeClass, resolution: &Resolution, entries: &[Entry]) {
    let key_pairs = class.ssh_key_pairs().into_iter().map(str::to_owned).collect();
    let status = class.status.get_or_insert_default();
    status.zones = resolution
        .zones
        .iter()
        .map(|own| ZoneStatus {
            id: own.zone.id.clone(),
            name: own.zone.name.clone(),
            network_type: own.zone.networktype.clone(),
            security_groups_enabled: own.zone.securitygroupsenabled,
        })
        .collect();
    let network = |zone: &crate::resolve::ResolvedZone, own: &crate::client::model::Network| NetworkStatus {
        id: own.id.clone(),
        name: own.name.clone(),
        zone: zone.zone.name.clone(),
        zone_id: zone.zone.id.clone(),
        kind: own.kind.clone(),
        vpc_id: own.vpcid.clone(),
        can_use_for_deploy: own.canusefordeploy,
        services: own.services().map(str::to_owned).collect(),
    };
    let zones = || resolution.zones.iter();
    status.networks = zones()
        .flat_map(|zone| zone.networks.iter().map(|own| network(zone, own)).collect::<Vec<_>>())
        .take(MOST_LISTED)
        .collect();
    status.additional_networks = zones()
        .flat_map(|zone| zone.additional.iter().map(|own| network(zone, own)).collect::<Vec<_>>())
        .take(MOST_LISTED)
        .collect();
    status.templates = zones()
        .flat_map(|zone| {
            let shown = zone.templates.iter().map(|own| TemplateStatus {
                id: own.template.id.clone(),
                name: own.template.name.clone(),
                os_type: own.template.ostypename.clone().unwrap_or_default(),
                zone: zone.zone.name.clone(),
                zone_id: zone.zone.id.clone(),
                arch: own.arch.clone(),
                created: own.template.created.clone(),
                size: own.template.size,
                requirements: requirements(own),
            });
            shown.collect::<Vec<_>>()
        })
        .take(MOST_LISTED)
        .collect();
    status.service_offerings = resolution
        .offerings
        .iter()
        .map(|own| {
            let types = entries
                .iter()
                .filter(|entry| entry.offering.offering.id == own.offering.id);
            let known = types.clone().next();
            let price = types
                .flat_map(|entry| &entry.instance_type.offerings)
                .map(|offering| offering.price)
                .min_by(f64::total_cmp);
            let is_custom = own.offering.cpunumber.is_none() || own.offering.memory.is_none();
            (own, known, price, is_custom)
        })
        .map(|(own, known, price, is_custom)| OfferingStatus {
            instance_type: known
                .filter(|_| !is_custom)
                .map(|entry| entry.instance_type.name.clone()),
            gpu_count: own.offering.gpucount.filter(|count| *count > 0),
            gpu_name: own.offering.gpucardname.clone(),
            zones: zones()
                .filter(|zone| own.is_in(&zone.zone.id))
                .map(|zone| zone.zone.name.clone())
                .collect(),
            price: price.map(|price| format!("{price:.5}")),
            id: own.offering.id.clone(),
            name: own.offering.name.clone(),
            cpu_number: own.offering.cpunumber,
            cpu_speed: own.offering.cpuspeed,
            memory: own.offering.memory,
            network_rate: own.offering.networkrate,
            customized: is_custom,
            capacity_type: own.capacity_type.label().to_owned(),
        })
        .take(MOST_LISTED)
        .collect();
    let count = |number: usize| i64::try_from(number).ok();
    status.template_count = count(zones().map(|zone| zone.templates.len()).sum());
    status.offering_count = count(resolution.offerings.len());
    let named = |id: &str, name: &str| NamedStatus {
        id: id.to_owned(),
        name: name.to_owned(),
    };
    status.security_groups = resolution
        .security_groups
        .iter()
        .map(|own| named(&own.id, &own.name))
        .collect();
    status.affinity_groups = resolution
        .affinity_groups
        .iter()
        .map(|own| named(&own.id, &own.name))
        .collect();
    let disks = resolution.root_disk_offering.iter().chain(&resolution.disk_offerings);
    status.disk_offerings = disks.map(|own| named(&own.id, &own.name)).collect();
    status.project = resolution.project.as_ref().map(|own| named(&own.id, &own.name));
    status.ssh_key_pairs = match resolution.problems.contains_key(BOOTSTRAP_READY) {
        true => Vec::new(),
        false => key_pairs,
    };
}

fn requirements(template: &ResolvedTemplate) -> Vec<TemplateRequirement> {
    let all = template.requirements.iter().map(|own| TemplateRequirement {
        key: own.key().to_owned(),
        values: own.values().to_vec(),
    });
    let mut all: Vec<TemplateRequirement> = all.collect();
    all.sort_by(|a, b| a.key.cmp(&b.key));
    all
}

/// Holds a class back while claims use it, then cleans up what was made for it.
async fn finalize(shared: &Shared, class: &CloudStackNodeClass) -> Result<(), CloudError> {
    if !class.finalizers().iter().any(|own| own == FINALIZER) {
        return Ok(());
    }
    let name = class.name_any();
    let claims = super::claims(&shared.kube).await?;
    let users = claims.iter().filter(|claim| {
        let reference = &claim.spec.node_class_ref;
        reference.kind == "CloudStackNodeClass" && reference.name == name
    });
    let users = users.count();
    if users > 0 {
        let about = kube::Resource::object_ref(class, &());
        let message = format!("{users} NodeClaims still use the class; it goes with the last of them");
        shared.tell(about, "WaitingOnNodeClaimTermination", &message).await;
        return Ok(());
    }
    if class.manages_affinity_groups() {
        shared.remove_empty_groups().await?;
    }
    let classes: Api<CloudStackNodeClass> = Api::all(shared.kube.clone());
    let finalizers: Vec<&String> = class.finalizers().iter().filter(|own| *own != FINALIZER).collect();
    let patch = json!({"metadata": {"resourceVersion": class.metadata.resource_version, "finalizers": finalizers}});
    match classes
        .patch(&name, &PatchParams::default(), &Patch::Merge(&patch))
        .await
    {
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        written => written
            .map(drop)
            .cloud_context(format!("releasing CloudStackNodeClass {name}")),
    }
}
