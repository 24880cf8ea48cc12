//! Gives every KWOKNodeClass a verdict: ready, unless somebody said otherwise.
//!
//! The CRD's default does the same for new objects; this covers classes that were stored before it had one. A condition that
//! is there is left alone, so that tests and demos can take a class out of service by writing `Ready=False`.

use futures::StreamExt;
use karpenter_api::conditions::{READY, StatusConditions};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
    runtime::{WatchStreamExt, watcher},
};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::node_class::{KwokNodeClass, ready};

/// Watches KWOKNodeClasses until `stop`.
pub(crate) async fn keep_ready(client: Client, stop: CancellationToken) {
    let classes: Api<KwokNodeClass> = Api::all(client);
    let changes = watcher(classes.clone(), watcher::Config::default())
        .default_backoff()
        .applied_objects();
    let mut changes = Box::pin(changes.take_until(stop.cancelled_owned()));
    while let Some(change) = changes.next().await {
        let result = match change {
            Ok(class) => make_ready(&classes, &class).await,
            Err(error) => {
                tracing::warn!(%error, "KWOKNodeClasses cannot be watched");
                continue;
            }
        };
        if let Err(error) = result {
            // The watch's next relist tries again.
            tracing::warn!(%error, "the status of a KWOKNodeClass cannot be written");
        }
    }
}

/// Whether a class still needs a verdict.
fn lacks_verdict(class: &KwokNodeClass) -> bool {
    class.metadata.deletion_timestamp.is_none() && !class.conditions().iter().any(|condition| condition.type_ == READY)
}

async fn make_ready(classes: &Api<KwokNodeClass>, class: &KwokNodeClass) -> Result<(), kube::Error> {
    if !lacks_verdict(class) {
        return Ok(());
    }
    let name = class.metadata.name.clone().unwrap_or_default();
    let mut conditions = serde_json::to_value(class.conditions()).map_err(kube::Error::SerdeError)?;
    if let Some(list) = conditions.as_array_mut() {
        list.push(ready());
    }
    // The list is replaced as a whole, hence the guard against writing over a newer one.
    let patch = json!({
        "metadata": {"resourceVersion": class.metadata.resource_version},
        "status": {"conditions": conditions},
    });
    match classes
        .patch_status(&name, &PatchParams::default(), &Patch::Merge(&patch))
        .await
    {
        // Deleted or changed meanwhile: the watch brings the news.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        result => result.map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(status: serde_json::Value) -> KwokNodeClass {
        serde_json::from_value(json!({
            "apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": "KWOKNodeClass",
            "metadata": {"name": "default"}, "spec": {}, "status": status,
        }))
        .expect("a class")
    }

    #[test]
    fn a_class_that_has_a_verdict_keeps_it() {
        let mut refused = ready();
        refused["status"] = json!("False");
        assert!(!lacks_verdict(&class(json!({"conditions": [refused]}))));
        assert!(lacks_verdict(&class(json!({"conditions": []}))));
        assert!(lacks_verdict(&class(json!({}))));
    }
}
