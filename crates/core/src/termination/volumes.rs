//! Which volumes a node still holds that its drained pods will want elsewhere.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use karpenter_api::pods;

/// The attachments that keep a drained node from being terminated.
///
/// Deleting a machine under an attached volume makes the next node wait for a force-detach (six minutes in Kubernetes),
/// so the volumes of the pods that left come off first. Volumes of pods that stay (tolerating daemons, mirror pods, pods
/// stuck terminating) never come off, and inline volumes have no PersistentVolume to be attached elsewhere.
pub fn pending_attachments<'a>(
    attachments: impl IntoIterator<Item = &'a Arc<VolumeAttachment>>,
    pods_on_node: &[Arc<Pod>],
    claim: impl Fn(&str, &str) -> Option<Arc<PersistentVolumeClaim>>,
    now: Timestamp,
) -> Vec<Arc<VolumeAttachment>> {
    let staying = volumes_of_staying_pods(pods_on_node, claim, now);
    attachments
        .into_iter()
        .filter(|attachment| {
            let volume = attachment.spec.source.persistent_volume_name.as_ref();
            volume.is_some_and(|volume| !staying.contains(volume))
        })
        .cloned()
        .collect()
}

fn volumes_of_staying_pods(
    pods_on_node: &[Arc<Pod>],
    claim: impl Fn(&str, &str) -> Option<Arc<PersistentVolumeClaim>>,
    now: Timestamp,
) -> BTreeSet<String> {
    let mut volumes = BTreeSet::new();
    for pod in pods_on_node.iter().filter(|pod| !pods::is_drainable(pod, now)) {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        for name in claim_names(pod) {
            // A claim that is gone binds no volume; whatever is attached then belongs to nobody here.
            let Some(claim) = claim(namespace, &name) else { continue };
            volumes.extend(claim.spec.as_ref().and_then(|spec| spec.volume_name.clone()));
        }
    }
    volumes
}

/// The names of the PersistentVolumeClaims that a pod mounts, including those made for its ephemeral volumes.
fn claim_names(pod: &Pod) -> Vec<String> {
    let pod_name = pod.metadata.name.as_deref().unwrap_or_default();
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes
        .filter_map(|volume| match (&volume.persistent_volume_claim, &volume.ephemeral) {
            (Some(source), _) => Some(source.claim_name.clone()),
            (None, Some(_)) => Some(format!("{pod_name}-{}", volume.name)),
            (None, None) => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse<T: serde::de::DeserializeOwned>(yaml: &str) -> Arc<T> {
        Arc::new(serde_norway::from_str(yaml).unwrap())
    }

    /// A pod that mounts the claim `data` (bound to volume `pv`), and an attachment of `pv`: is it waited for?
    fn check(pod: &str, waited_for: bool) {
        let attachment =
            parse("{metadata: {name: a}, spec: {attacher: x, nodeName: n, source: {persistentVolumeName: pv}}}");
        let claim = parse("{metadata: {name: data}, spec: {volumeName: pv}}");
        let find = |_: &str, name: &str| (name == "data" || name == "db-data").then(|| Arc::clone(&claim));
        let now = "2026-01-01T00:10:00Z".parse().unwrap();
        let pending = pending_attachments(&[attachment], &[parse(pod)], find, now);
        assert_eq!(pending.len(), usize::from(waited_for), "{pod}");
    }

    const MOUNTED: &str = "volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]";

    #[test]
    fn the_volume_of_a_pod_that_leaves_is_waited_for() {
        check(&format!("{{spec: {{containers: [], {MOUNTED}}}}}"), true);
        check("{spec: {containers: []}}", true);
    }

    #[test]
    fn the_volume_of_a_pod_that_stays_is_not_waited_for() {
        check(
            &format!("{{spec: {{containers: [], tolerations: [{{operator: Exists}}], {MOUNTED}}}}}"),
            false,
        );
        let mirror = "ownerReferences: [{apiVersion: v1, kind: Node, name: n, uid: u}]";
        check(
            &format!("{{metadata: {{{mirror}}}, spec: {{containers: [], {MOUNTED}}}}}"),
            false,
        );
        check(
            "{metadata: {name: db}, spec: {containers: [], tolerations: [{operator: Exists}], \
             volumes: [{name: data, ephemeral: {}}]}}",
            false,
        );
        check(
            &format!(
                "{{metadata: {{deletionTimestamp: '2026-01-01T00:00:00Z'}}, spec: {{containers: [], {MOUNTED}}}}}"
            ),
            false,
        );
    }

    #[test]
    fn a_missing_claim_excuses_no_volume() {
        let volumes = "volumes: [{name: v, persistentVolumeClaim: {claimName: gone}}]";
        check(
            &format!("{{spec: {{containers: [], tolerations: [{{operator: Exists}}], {volumes}}}}}"),
            true,
        );
    }

    #[test]
    fn an_inline_volume_is_not_waited_for() {
        let inline = parse("{metadata: {name: a}, spec: {attacher: x, nodeName: n, source: {}}}");
        let pending = pending_attachments(&[inline], &[], |_, _| None, Timestamp::UNIX_EPOCH);
        assert!(pending.is_empty());
    }
}
