//! Keeps the status of ProviderConfigs and BizflyCloudNodeClasses: what they mean at the cloud, and whether that works.

mod class;
mod config;

use std::{sync::Arc, time::Duration};

use futures::{StreamExt, stream::select};
use kube::{
    Api,
    api::ListParams,
    runtime::{WatchStreamExt, watcher},
};
use tokio_util::sync::CancellationToken;

use crate::{node_class::BizflyCloudNodeClass, provider::Shared, provider_config::ProviderConfig};

/// How soon to look again when everything is in order, and when something is not.
const CALM: Duration = Duration::from_secs(5 * 60);
const WORRIED: Duration = Duration::from_secs(20);

/// Whether what was judged needs a human or time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verdict {
    InOrder,
    NotInOrder,
}

/// Judges everything whenever something changes, and regularly.
pub(crate) async fn keep(shared: Arc<Shared>, stop: CancellationToken) {
    let classes: Api<BizflyCloudNodeClass> = Api::all(shared.kube.clone());
    let configs: Api<ProviderConfig> = Api::all(shared.kube.clone());
    let watch_classes = watcher(classes, watcher::Config::default())
        .default_backoff()
        .map(|event| event.map(drop));
    let watch_configs = watcher(configs, watcher::Config::default())
        .default_backoff()
        .map(|event| event.map(drop));
    let mut changes = Box::pin(select(watch_classes, watch_configs));
    loop {
        let verdict = reconcile_all(&shared).await;
        let pause = match verdict {
            Verdict::InOrder => CALM,
            Verdict::NotInOrder => WORRIED,
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = shared.clock.sleep(pause) => {}
            change = changes.next() => {
                if let Some(Err(error)) = change {
                    tracing::warn!(%error, "NodeClasses or ProviderConfigs cannot be watched");
                }
            }
        }
    }
}

/// Judges every ProviderConfig, then every class.
pub(crate) async fn reconcile_all(shared: &Shared) -> Verdict {
    let mut worst = Verdict::InOrder;
    let configs: Api<ProviderConfig> = Api::all(shared.kube.clone());
    match configs.list(&ListParams::default()).await {
        Ok(listed) => {
            for config in listed {
                worst = worst.max(config::reconcile(shared, &configs, config).await);
            }
        }
        Err(error) => {
            tracing::warn!(%error, "ProviderConfigs cannot be listed");
            return Verdict::NotInOrder;
        }
    }
    let classes: Api<BizflyCloudNodeClass> = Api::all(shared.kube.clone());
    match classes.list(&ListParams::default()).await {
        Ok(listed) => {
            for class in listed {
                worst = worst.max(class::reconcile(shared, &classes, class).await);
            }
        }
        Err(error) => {
            tracing::warn!(%error, "BizflyCloudNodeClasses cannot be listed");
            return Verdict::NotInOrder;
        }
    }
    worst
}

/// The merge patch that makes a status what it should be; guarded, because lists are replaced as a whole.
fn status_patch<S: serde::Serialize>(resource_version: Option<&String>, old: &S, new: &S) -> Option<serde_json::Value> {
    let (old, new) = (serde_json::to_value(old).ok()?, serde_json::to_value(new).ok()?);
    if old == new {
        return None;
    }
    let mut status = new;
    // What vanished must be said: a merge patch leaves what it does not name.
    if let (Some(fields), Some(before)) = (status.as_object_mut(), old.as_object()) {
        for key in before.keys() {
            fields.entry(key.clone()).or_insert(serde_json::Value::Null);
        }
    }
    Some(serde_json::json!({"metadata": {"resourceVersion": resource_version}, "status": status}))
}

/// Deleted or changed meanwhile: the watch brings the news.
fn is_outdated(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 404 | 409))
}
