//! The status of a BizflyCloudNodeClass: everything it names, resolved.

use karpenter_api::{
    NodeClaim,
    conditions::{READY, StatusConditions},
    validation,
};
use karpenter_cloud::NodeClassKind;
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::json;

use super::{Verdict, config::credential_problem, is_outdated, status_patch};
use crate::{
    account::{Account, AccountError},
    client::ApiError,
    images::Version,
    node_class::{
        BizflyCloudNodeClass, BizflyCloudNodeClassStatus, FINALIZER,
        conditions::{
            BOOTSTRAP_READY, CREDENTIALS_READY, IMAGES_READY, INSTANCE_READY, INSTANCE_TYPES_READY, NETWORKS_READY,
            SECURITY_GROUPS_READY, VALIDATION_SUCCEEDED, ZONES_READY,
        },
        validation as rules,
    },
    problem::Problem,
    provider::Shared,
    provider_config::ProviderConfig,
    resolution::{self, JoinMode},
};

pub(super) async fn reconcile(
    shared: &Shared,
    classes: &Api<BizflyCloudNodeClass>,
    class: BizflyCloudNodeClass,
) -> Verdict {
    let name = class.metadata.name.clone().unwrap_or_default();
    if class.metadata.deletion_timestamp.is_some() {
        return release(shared, classes, &class, &name).await;
    }
    if !class.metadata.finalizers.iter().flatten().any(|own| own == FINALIZER) {
        let mut finalizers = class.metadata.finalizers.clone().unwrap_or_default();
        finalizers.push(FINALIZER.to_owned());
        let patch = json!({"metadata": {
            "resourceVersion": class.metadata.resource_version, "finalizers": finalizers,
        }});
        match classes
            .patch(&name, &PatchParams::default(), &Patch::Merge(&patch))
            .await
        {
            Ok(class) => return write(shared, classes, class, &name).await,
            Err(error) if is_outdated(&error) => return Verdict::NotInOrder,
            Err(error) => {
                tracing::warn!(NodeClass = name, %error, "the finalizer cannot be written");
                return Verdict::NotInOrder;
            }
        }
    }
    write(shared, classes, class, &name).await
}

async fn write(
    shared: &Shared,
    classes: &Api<BizflyCloudNodeClass>,
    mut class: BizflyCloudNodeClass,
    name: &str,
) -> Verdict {
    let before = class.status.clone().unwrap_or_default();
    let now = shared.clock.now();
    if let Err(error) = judge(shared, &mut class).await {
        // The cloud could not be asked: what was known stays known.
        tracing::warn!(NodeClass = name, %error, "the class cannot be judged now");
        let _ = class.initialize_conditions(now);
    }
    mirror(&mut class, now);
    tell(shared, &class).await;
    let verdict = if class.is_ready() {
        Verdict::InOrder
    } else {
        Verdict::NotInOrder
    };
    let mut after: BizflyCloudNodeClassStatus = class.status.clone().unwrap_or_default();
    after.last_updated = before.last_updated;
    if after != before {
        after.last_updated = Some(now);
    }
    let Some(patch) = status_patch(class.metadata.resource_version.as_ref(), &before, &after) else {
        return verdict;
    };
    match classes
        .patch_status(name, &PatchParams::default(), &Patch::Merge(&patch))
        .await
    {
        Ok(_) => verdict,
        Err(error) if is_outdated(&error) => Verdict::NotInOrder,
        Err(error) => {
            tracing::warn!(NodeClass = name, %error, "the status cannot be written");
            Verdict::NotInOrder
        }
    }
}

/// Every false condition is an event with its reason, and every warning one with its first word or `Warning`.
async fn tell(shared: &Shared, class: &BizflyCloudNodeClass) {
    let own = |type_: &str| type_ != READY && type_ != INSTANCE_READY;
    for condition in class
        .conditions()
        .iter()
        .filter(|own_| own_.is_false() && own(&own_.type_))
    {
        shared.events.warn(class, &condition.reason, &condition.message).await;
    }
    for warning in class.status.iter().flat_map(|status| &status.warnings) {
        let (reason, message) = match warning.split_once(": ") {
            Some((reason, message)) if !reason.contains(' ') => (reason, message),
            _ => ("Warning", warning.as_str()),
        };
        shared.events.warn(class, reason, message).await;
    }
}

/// Writes every condition. Parts that depend on a broken one are left as they were.
async fn judge(shared: &Shared, class: &mut BizflyCloudNodeClass) -> Result<(), String> {
    let now = shared.clock.now();
    let account = match shared.accounts.get(class.spec.provider_config()).await {
        Ok(account) => account,
        Err(AccountError::Problem(problem)) => {
            fail(class, CREDENTIALS_READY, &problem, now);
            return Ok(());
        }
        Err(AccountError::Cluster(error)) => return Err(error.to_string()),
    };
    let findings = rules::findings(&class.spec, &account.tagging.tag_prefix);
    if findings.is_empty() {
        let _ = class.set_true(VALIDATION_SUCCEEDED, now);
    } else {
        let message = validation::message(&findings);
        let _ = class.set_false(VALIDATION_SUCCEEDED, "ValidationFailed", &message, now);
        return Ok(());
    }
    match credentials(shared, class, &account).await? {
        Ok(()) => {
            let _ = class.set_true(CREDENTIALS_READY, now);
        }
        Err(problem) => {
            fail(class, CREDENTIALS_READY, &problem, now);
            return Ok(());
        }
    }
    let unavailable = |error: ApiError| error.to_string();
    let mode = JoinMode::of(&class.spec, &shared.settings);
    let inventory = account.inventory(mode.interest()).await.map_err(unavailable)?;
    let mut warnings = Vec::new();
    let cluster = match resolution::bke_cluster_id(&class.spec, &shared.settings) {
        Some(id) => match account.bke_cluster(&id).await {
            Ok(cluster) => Some(cluster),
            Err(error) if error.is_not_found() => {
                let message = format!("there is no BKE cluster {id} in this account");
                fail(class, BOOTSTRAP_READY, &Problem::new("ClusterNotFound", message), now);
                return Ok(());
            }
            Err(error) => return Err(error.to_string()),
        },
        None => None,
    };
    for pool in cluster.iter().flat_map(|cluster| &cluster.worker_pools) {
        if pool.enable_autoscaling {
            warnings.push(format!(
                "ClusterAutoscalerActive: BKE scales its pool {} too; two autoscalers answer the same pods",
                pool.name
            ));
        }
    }
    let bke_network = cluster
        .as_ref()
        .map(|cluster| cluster.private_network_id.as_str())
        .filter(|id| !id.is_empty());
    match resolution::networks(&class.spec, &inventory, bke_network) {
        Ok((vpcs, more)) => {
            warnings.extend(more);
            class.status.get_or_insert_default().vpc_networks = vpcs;
            let _ = class.set_true(NETWORKS_READY, now);
        }
        Err(problem) => fail(class, NETWORKS_READY, &problem, now),
    }
    let vpcs = class.status.clone().unwrap_or_default().vpc_networks;
    match resolution::zones(&class.spec, &account, &inventory, &vpcs) {
        Ok((zones, more)) => {
            warnings.extend(more);
            let status = class.status.get_or_insert_default();
            status.zones = zones;
            status.regions = vec![account.region.region.short().to_owned()];
            let _ = class.set_true(ZONES_READY, now);
        }
        Err(problem) => fail(class, ZONES_READY, &problem, now),
    }
    match resolution::firewalls(&class.spec, &account, &inventory) {
        Ok(groups) => {
            class.status.get_or_insert_default().security_groups = groups;
            let _ = class.set_true(SECURITY_GROUPS_READY, now);
        }
        Err(problem) => fail(class, SECURITY_GROUPS_READY, &problem, now),
    }
    let version = cluster_version(shared, class).await;
    match resolution::images(&class.spec, &account, &inventory, mode, version) {
        Ok(found) => {
            warnings.extend(found.warnings);
            let status = class.status.get_or_insert_default();
            status.images = found.images;
            status.unresolved_aliases = found.unresolved;
            let _ = class.set_true(IMAGES_READY, now);
        }
        Err(problem) => fail(class, IMAGES_READY, &problem, now),
    }
    bootstrap(shared, class, &account, now).await?;
    let facts = shared.facts(class, &account);
    let catalogue = account.catalogue().await.map_err(unavailable)?;
    let mut names: Vec<String> = catalogue
        .flavors
        .iter()
        .filter(|flavor| facts.allows(flavor))
        .map(|flavor| flavor.name.clone())
        .collect();
    names.sort();
    if names.is_empty() {
        let message = "no flavor of the cloud fits nodeCategories, cpuVendors and flavorSelectorTerms";
        fail(
            class,
            INSTANCE_TYPES_READY,
            &Problem::new("NoInstanceTypes", message),
            now,
        );
    } else {
        let _ = class.set_true(INSTANCE_TYPES_READY, now);
    }
    if class.spec.spot.as_ref().is_some_and(|spot| spot.taint) && mode == JoinMode::Bke {
        warnings
            .push("spec.spot.taint has no effect: BKE configures the kubelet; use taints of the NodePool".to_owned());
    }
    if class.spec.kubelet.is_some() && mode == JoinMode::Bke {
        warnings.push("spec.kubelet changes only what Karpenter expects: BKE configures the kubelet".to_owned());
    }
    let status = class.status.get_or_insert_default();
    status.instance_types = names;
    status.warnings = warnings;
    Ok(())
}

/// The ProviderConfig's verdict; where there is none, the credentials of the environment are tried.
async fn credentials(
    shared: &Shared,
    class: &BizflyCloudNodeClass,
    account: &Account,
) -> Result<Result<(), Problem>, String> {
    let configs: Api<ProviderConfig> = Api::all(shared.kube.clone());
    let config = configs
        .get_opt(class.spec.provider_config())
        .await
        .map_err(|error| error.to_string())?;
    if let Some(config) = config {
        return match config.condition(READY) {
            Some(ready) if ready.is_true() => Ok(Ok(())),
            Some(ready) if ready.is_false() => {
                let message = format!("ProviderConfig {}: {}", account.name, reason_of(&config));
                Ok(Err(Problem::new("ProviderConfigNotReady", message)))
            }
            Some(_) | None => Err(format!("ProviderConfig {} has no verdict yet", account.name)),
        };
    }
    match account.api.authenticate().await {
        Ok(_) => Ok(Ok(())),
        Err(error) if error.is_about_credentials() => Ok(Err(credential_problem(&error))),
        Err(error) => Err(error.to_string()),
    }
}

/// The first condition that is false, in its own words; Ready itself if no other is.
fn reason_of(config: &ProviderConfig) -> String {
    let own = config
        .conditions()
        .iter()
        .find(|condition| condition.is_false() && condition.type_ != READY);
    own.or_else(|| config.condition(READY))
        .map(|condition| format!("{}: {}", condition.reason, condition.message))
        .unwrap_or_else(|| "it is not ready".to_owned())
}

async fn bootstrap(
    shared: &Shared,
    class: &mut BizflyCloudNodeClass,
    account: &Account,
    now: jiff::Timestamp,
) -> Result<(), String> {
    let image = class.status.as_ref().and_then(|status| status.images.first().cloned());
    let join = resolution::join(&shared.kube, &class.spec, &shared.settings, image.as_ref())
        .await
        .map_err(|error| error.to_string())?;
    let template = account
        .image_config
        .as_ref()
        .and_then(|own| own.user_data_template.clone());
    let has_user_data = class.spec.user_data.is_some() || template.is_some();
    match join.and_then(|join| join.check(has_user_data)) {
        Ok(()) => {
            let _ = class.set_true(BOOTSTRAP_READY, now);
        }
        Err(problem) => fail(class, BOOTSTRAP_READY, &problem, now),
    }
    Ok(())
}

/// What the class or the environment asks for, else what the API server runs.
async fn cluster_version(shared: &Shared, class: &BizflyCloudNodeClass) -> Option<Version> {
    let of_class = class
        .spec
        .bootstrap
        .as_ref()
        .and_then(|own| own.bke.as_ref()?.kubernetes_version.clone());
    let asked = of_class.or_else(|| shared.settings.bke.kubernetes_version.clone());
    if let Some(version) = asked.as_deref().and_then(Version::parse) {
        return Some(version);
    }
    match shared.kube.apiserver_version().await {
        Ok(info) => Version::parse(&info.git_version),
        Err(error) => {
            tracing::warn!(%error, "the API server's version cannot be read");
            None
        }
    }
}

fn fail(class: &mut BizflyCloudNodeClass, condition: &str, problem: &Problem, now: jiff::Timestamp) {
    let _ = class.set_false(condition, problem.reason, &problem.message, now);
}

/// `InstanceReady` says what `Ready` says: dashboards of the earlier provider read it.
fn mirror(class: &mut BizflyCloudNodeClass, now: jiff::Timestamp) {
    let Some(ready) = class.condition(READY).cloned() else {
        return;
    };
    let _ = class.set_condition(INSTANCE_READY, ready.status, &ready.reason, &ready.message, now);
}

/// A class that is being deleted stays while NodeClaims refer to it.
async fn release(
    shared: &Shared,
    classes: &Api<BizflyCloudNodeClass>,
    class: &BizflyCloudNodeClass,
    name: &str,
) -> Verdict {
    let finalizers = class.metadata.finalizers.clone().unwrap_or_default();
    if !finalizers.iter().any(|own| own == FINALIZER) {
        return Verdict::InOrder;
    }
    let claims: Api<NodeClaim> = Api::all(shared.kube.clone());
    let users = match claims.list(&ListParams::default()).await {
        Ok(listed) => {
            let kind = NodeClassKind::of::<BizflyCloudNodeClass>();
            let uses = |claim: &&NodeClaim| {
                let reference = &claim.spec.node_class_ref;
                reference.name == name && kind.is_meant_by(&reference.group, &reference.kind)
            };
            listed.items.iter().filter(uses).count()
        }
        Err(error) => {
            tracing::warn!(NodeClass = name, %error, "NodeClaims cannot be listed");
            return Verdict::NotInOrder;
        }
    };
    if users > 0 {
        let message = format!("{users} NodeClaims still use the class");
        shared
            .events
            .warn(class, "WaitingOnNodeClaimTermination", &message)
            .await;
        return Verdict::NotInOrder;
    }
    let left: Vec<String> = finalizers.into_iter().filter(|own| own != FINALIZER).collect();
    let patch = json!({"metadata": {"resourceVersion": class.metadata.resource_version, "finalizers": left}});
    match classes
        .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
        .await
    {
        Ok(_) => Verdict::InOrder,
        Err(error) if is_outdated(&error) => Verdict::NotInOrder,
        Err(error) => {
            tracing::warn!(NodeClass = name, %error, "the finalizer cannot be removed");
            Verdict::NotInOrder
        }
    }
}
