//! Carries out Provisioners: keeps a NodePool and a NodeClass for each, and says on the old object what became of it (§4.5).
//!
//! This is the one place where the provider writes objects that are not its own.

use std::{sync::Arc, time::Duration};

use futures::StreamExt;
use karpenter_api::{NodePool, conditions::StatusConditions, validation};
use karpenter_cloud::{CloudError, error::CloudContext};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, Patch, PatchParams},
    runtime::{WatchStreamExt, watcher},
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::{
    convert::{Conversion, convert},
    node_class::BizflyCloudNodeClass,
    problem::Problem,
    provider::Shared,
    provider_config::ProviderConfig,
    provisioner::{CONVERTED, Provisioner, ProvisionerStatus},
};

/// On everything that a Provisioner became.
pub const PROVISIONER_LABEL: &str = "compat.karpenter.bizflycloud.com/provisioner";
const FIELD_MANAGER: &str = "karpenter-bizflycloud-provisioner";
const PAUSE: Duration = Duration::from_secs(60);

/// Converts whenever a Provisioner or ProviderConfig changes, and regularly for the mirrored status.
pub(crate) async fn keep(shared: Arc<Shared>, stop: CancellationToken) {
    let (kube, clock) = (shared.kube.clone(), shared.clock.clone());
    let provisioners: Api<Provisioner> = Api::all(kube.clone());
    let configs: Api<ProviderConfig> = Api::all(kube.clone());
    let pools: Api<NodePool> = Api::all(kube.clone());
    let changes = futures::stream::select_all([
        watcher(provisioners, watcher::Config::default())
            .default_backoff()
            .map(|event| event.map(drop))
            .boxed(),
        watcher(configs, watcher::Config::default())
            .default_backoff()
            .map(|event| event.map(drop))
            .boxed(),
        watcher(pools, watcher::Config::default())
            .default_backoff()
            .map(|event| event.map(drop))
            .boxed(),
    ]);
    let mut changes = Box::pin(changes);
    loop {
        if let Err(error) = reconcile_all(&shared).await {
            tracing::warn!(%error, "Provisioners cannot be carried out now");
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = clock.sleep(PAUSE) => {}
            change = changes.next() => {
                if let Some(Err(error)) = change {
                    tracing::warn!(%error, "Provisioners cannot be watched");
                }
            }
        }
    }
}

pub(crate) async fn reconcile_all(shared: &Shared) -> Result<(), CloudError> {
    let kube = &shared.kube;
    let provisioners: Api<Provisioner> = Api::all(kube.clone());
    let listed = provisioners
        .list(&ListParams::default())
        .await
        .cloud_context("listing Provisioners")?;
    for provisioner in listed {
        if provisioner.metadata.deletion_timestamp.is_some() {
            continue;
        }
        let name = provisioner.name_any();
        if let Err(error) = reconcile(shared, &provisioners, provisioner).await {
            tracing::warn!(Provisioner = name, %error, "cannot be carried out now");
        }
    }
    Ok(())
}

async fn reconcile(
    shared: &Shared,
    provisioners: &Api<Provisioner>,
    mut provisioner: Provisioner,
) -> Result<(), CloudError> {
    let now = shared.clock.now();
    let before = provisioner.status.clone().unwrap_or_default();
    let verdict = carry_out(&shared.kube, &provisioner).await?;
    match &verdict {
        Ok((_, pool)) => {
            let message = format!("NodePool {} does what this Provisioner says", pool.name_any());
            shared.events.tell(&provisioner, "Converted", &message).await;
        }
        Err(problem) => {
            let message = format!("{}: {}", problem.reason, problem.message);
            shared.events.warn(&provisioner, "ConversionFailed", &message).await;
        }
    }
    let status = provisioner.status.get_or_insert_default();
    match verdict {
        Ok((conversion, pool)) => {
            status.notes = conversion.notes;
            status.resources = pool.status.and_then(|status| status.resources);
            let _ = provisioner.set_true(CONVERTED, now);
        }
        Err(problem) => {
            let _ = provisioner.set_false(CONVERTED, problem.reason, &problem.message, now);
        }
    }
    write_status(provisioners, &provisioner, &before).await
}

/// Writes the objects; the last good ones stay where the Provisioner can't be converted.
async fn carry_out(
    kube: &Client,
    provisioner: &Provisioner,
) -> Result<Result<(Conversion, NodePool), Problem>, CloudError> {
    let configs: Api<ProviderConfig> = Api::all(kube.clone());
    let config = match config_of(provisioner) {
        Some(name) => configs
            .get_opt(name)
            .await
            .cloud_context(format!("reading ProviderConfig {name}"))?,
        None => None,
    };
    let listed = config
        .as_ref()
        .and_then(|config| config.status.as_ref())
        .map(|status| status.instance_types.clone())
        .filter(|types| !types.is_empty());
    let conversion = match convert(provisioner, config.as_ref(), listed.as_deref()) {
        Ok(conversion) => conversion,
        Err(findings) => return Ok(Err(Problem::new("ConversionFailed", validation::message(&findings)))),
    };
    let name = provisioner.name_any();
    let pools: Api<NodePool> = Api::all(kube.clone());
    let classes: Api<BizflyCloudNodeClass> = Api::all(kube.clone());
    if let Some(existing) = pools
        .get_opt(&name)
        .await
        .cloud_context(format!("reading NodePool {name}"))?
    {
        if !is_ours(&existing, &name) {
            let message =
                format!("a NodePool {name} exists that was not made from this Provisioner; rename one of them");
            return Ok(Err(Problem::new("NameConflict", message)));
        }
        let (old, new) = (
            &existing.spec.template.spec.node_class_ref,
            &conversion.node_pool["spec"]["template"]["spec"]["nodeClassRef"],
        );
        if new["group"] != old.group.as_str() || new["kind"] != old.kind.as_str() {
            let message = "the kind of a NodePool's class can't be changed; make a new Provisioner".to_owned();
            return Ok(Err(Problem::new("ClassKindImmutable", message)));
        }
    }
    if let Some(class) = &conversion.node_class {
        let class_name = class["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let existing = classes
            .get_opt(&class_name)
            .await
            .cloud_context(format!("reading BizflyCloudNodeClass {class_name}"))?;
        let shared = existing
            .as_ref()
            .is_some_and(|existing| existing.labels().contains_key(PROVISIONER_LABEL));
        if existing.is_some() && !shared {
            let message = format!("a BizflyCloudNodeClass {class_name} exists that was not made from a Provisioner");
            return Ok(Err(Problem::new("NameConflict", message)));
        }
        // A class that another Provisioner's conversion made from the same ProviderConfig is shared.
        let ours = existing.as_ref().is_none_or(|existing| is_ours(existing, &name));
        if ours {
            let written = apply(&classes, &class_name, owned(class, provisioner)).await?;
            if let Err(problem) = written {
                return Ok(Err(problem));
            }
        }
    }
    let written = apply(&pools, &name, owned(&conversion.node_pool, provisioner)).await?;
    Ok(written.map(|pool| (conversion, pool)))
}

/// The ProviderConfig that a Provisioner names, if it names one and nothing else.
pub(crate) fn config_of(provisioner: &Provisioner) -> Option<&str> {
    let reference = provisioner.spec.provider_ref.as_ref()?;
    let kind = reference.kind.as_deref().unwrap_or("ProviderConfig");
    (kind == "ProviderConfig").then_some(reference.name.as_str())
}

/// Writes an object. What the API server or a webhook will not have is a matter of the Provisioner, and is told there.
async fn apply<K>(api: &Api<K>, name: &str, object: Value) -> Result<Result<K, Problem>, CloudError>
where
    K: Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let kind = object["kind"].as_str().unwrap_or_default();
    let params = PatchParams::apply(FIELD_MANAGER).force();
    match api.patch(name, &params, &Patch::Apply(&object)).await {
        Ok(written) => Ok(Ok(written)),
        Err(kube::Error::Api(status)) if [400, 403, 422].contains(&status.code) => {
            let message = format!("{kind} {name} was refused: {}", status.message);
            Ok(Err(Problem::new("ConversionFailed", message)))
        }
        Err(error) => Err(error).cloud_context(format!("writing {kind} {name}")),
    }
}

fn owned(object: &Value, provisioner: &Provisioner) -> Value {
    let mut object = object.clone();
    let name = provisioner.name_any();
    object["metadata"]["labels"][PROVISIONER_LABEL] = json!(name);
    object["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "karpenter.sh/v1alpha5", "kind": "Provisioner", "name": name,
        "uid": provisioner.metadata.uid, "controller": true, "blockOwnerDeletion": true,
    }]);
    object
}

fn is_ours<K: ResourceExt>(object: &K, provisioner: &str) -> bool {
    object
        .labels()
        .get(PROVISIONER_LABEL)
        .is_some_and(|own| own == provisioner)
}

async fn write_status(
    provisioners: &Api<Provisioner>,
    provisioner: &Provisioner,
    before: &ProvisionerStatus,
) -> Result<(), CloudError> {
    let after = provisioner.status.clone().unwrap_or_default();
    if after == *before {
        return Ok(());
    }
    let patch = json!({
        "metadata": {"resourceVersion": provisioner.metadata.resource_version},
        "status": after,
    });
    let name = provisioner.name_any();
    match provisioners
        .patch_status(&name, &PatchParams::default(), &Patch::Merge(&patch))
        .await
    {
        // Deleted or changed meanwhile: the watch brings the news.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        result => result
            .map(drop)
            .cloud_context(format!("writing the status of Provisioner {name}")),
    }
}
