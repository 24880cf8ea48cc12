//! Reads the annotations of `karpenter.sh/v1alpha5` that protect pods and nodes as the one that took their place, where the
//! provider still carries out objects of that time.
//!
//! Done once, as objects arrive, so that everything that decides knows one name only.

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use karpenter_api::labels::annotations::{DO_NOT_CONSOLIDATE, DO_NOT_DISRUPT, DO_NOT_EVICT};
use karpenter_cloud::AnnotationNames;

pub(super) fn read_pod(names: AnnotationNames, pod: &mut Pod) {
    read(names, &mut pod.metadata, DO_NOT_EVICT);
}

pub(super) fn read_node(names: AnnotationNames, node: &mut Node) {
    read(names, &mut node.metadata, DO_NOT_CONSOLIDATE);
}

/// Only `"true"` ever protected under the old names; who sets the new one too means the new one.
fn read(names: AnnotationNames, metadata: &mut ObjectMeta, old: &str) {
    match names {
        AnnotationNames::Current => return,
        AnnotationNames::AlsoV1alpha5 => {}
    }
    let Some(annotations) = &mut metadata.annotations else {
        return;
    };
    if annotations.get(old).is_some_and(|value| value == "true") {
        annotations
            .entry(DO_NOT_DISRUPT.to_owned())
            .or_insert_with(|| "true".to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::{lean_pod::LeanPod, trim};

    /// What is kept of a pod with these annotations.
    fn kept(names: AnnotationNames, annotations: &str) -> Option<String> {
        let text = format!(r#"{{"metadata": {{"name": "a", "annotations": {annotations}}}}}"#);
        let LeanPod(mut pod) = serde_json::from_str(&text).unwrap();
        read_pod(names, &mut pod);
        trim::pod(pod).metadata.annotations?.get(DO_NOT_DISRUPT).cloned()
    }

    #[test]
    fn a_pod_is_protected_by_the_old_name_only_where_it_counts() {
        let old = r#"{"karpenter.sh/do-not-evict": "true"}"#;
        assert_eq!(kept(AnnotationNames::Current, old), None);
        assert_eq!(kept(AnnotationNames::AlsoV1alpha5, old).as_deref(), Some("true"));
        let off = r#"{"karpenter.sh/do-not-evict": "false"}"#;
        assert_eq!(kept(AnnotationNames::AlsoV1alpha5, off), None);
    }

    #[test]
    fn the_new_name_wins_over_the_old_one() {
        let both = r#"{"karpenter.sh/do-not-evict": "true", "karpenter.sh/do-not-disrupt": "30m"}"#;
        assert_eq!(kept(AnnotationNames::AlsoV1alpha5, both).as_deref(), Some("30m"));
    }

    #[test]
    fn a_node_is_protected_by_its_old_name_and_not_by_that_of_pods() {
        let protected = |old: &str| {
            let mut node = Node::default();
            node.metadata.annotations = Some([(old.to_owned(), "true".to_owned())].into());
            read_node(AnnotationNames::AlsoV1alpha5, &mut node);
            node.metadata.annotations.unwrap().contains_key(DO_NOT_DISRUPT)
        };
        assert!(protected(DO_NOT_CONSOLIDATE));
        assert!(!protected(DO_NOT_EVICT));
    }
}
