use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1::{StorageClass, VolumeAttachment};
use serde_json::json;

use super::*;
use crate::Propagation;

fn deployment(replicas: i32, extra: &str) -> String {
    format!(
        "{{metadata: {{name: web}}, spec: {{replicas: {replicas}, selector: {{matchLabels: {{app: web}}}}, {extra} \
         template: {{metadata: {{labels: {{app: web}}}}, spec: {{containers: [{{name: c, image: v1}}]}}}}}}}}"
    )
}

#[tokio::test]
async fn a_deployment_makes_a_replica_set_and_its_pods_run() {
    let sandbox = cluster_of(&["n1", "n2"]).await;
    create::<Deployment>(&sandbox, &deployment(4, ""));
    sandbox.settle().await;
    assert_eq!(spread(&sandbox), [("n1".to_owned(), 2), ("n2".to_owned(), 2)].into());
    let status = sandbox
        .objects()
        .get::<Deployment>("default", "web")
        .and_then(|d| d.status)
        .expect("status");
    assert_eq!(
        (status.replicas, status.ready_replicas, status.available_replicas),
        (Some(4), Some(4), Some(4))
    );
    let reasons: Vec<_> = status
        .conditions
        .iter()
        .flatten()
        .filter_map(|c| c.reason.clone())
        .collect();
    assert_eq!(reasons, ["MinimumReplicasAvailable", "NewReplicaSetAvailable"]);
    assert_eq!(events(&sandbox, "ScalingReplicaSet").len(), 1);
}

#[tokio::test]
async fn a_rollout_never_has_fewer_available_than_allowed() {
    let sandbox = Sandbox::builder()
        .timing(Timing {
            pod_start: seconds(5),
            ..Timing::instant()
        })
        .start();
    sandbox.kubelets().boot(Machine::new("n1"));
    create::<Deployment>(&sandbox, &deployment(3, ""));
    sandbox.run_for(seconds(10)).await;
    let patch = json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "v2"}]}}}});
    sandbox
        .objects()
        .patch::<Deployment>("default", "web", &patch)
        .expect("patched");
    let mut most = 0;
    for _ in 0..60 {
        sandbox.run_for(seconds(1)).await;
        let all = pods(&sandbox.objects());
        let available = all
            .iter()
            .filter(|p| is_ready(p) && p.metadata.deletion_timestamp.is_none())
            .count();
        assert!(available >= 3, "{available} available");
        most = most.max(all.iter().filter(|p| p.metadata.deletion_timestamp.is_none()).count());
    }
    assert_eq!(most, 4, "one more than wanted while rolling");
    let images: Vec<String> = pods(&sandbox.objects())
        .iter()
        .filter_map(|p| p.spec.as_ref()?.containers.first()?.image.clone())
        .collect();
    assert_eq!(images, ["v2", "v2", "v2"]);
    let sets: Vec<ReplicaSet> = sandbox.objects().list("default");
    assert_eq!(sets.len(), 2);
}

#[tokio::test]
async fn a_pod_that_starts_terminating_is_replaced_at_once() {
    let sandbox = Sandbox::builder()
        .timing(Timing {
            pod_exit: seconds(20),
            ..Timing::instant()
        })
        .start();
    sandbox.kubelets().boot(Machine::new("n1"));
    create::<Deployment>(&sandbox, &deployment(1, ""));
    sandbox.settle().await;
    let name = pods(&sandbox.objects())[0].metadata.name.clone().expect("named");
    delete::<Pod>(&sandbox, "default", &name);
    sandbox.settle().await;
    assert_eq!(pods(&sandbox.objects()).len(), 2);
    assert_eq!(spread(&sandbox), [("n1".to_owned(), 1)].into());
}

#[tokio::test]
async fn scaling_down_prefers_pods_that_are_cheap_to_lose() {
    let sandbox = cluster_of(&["n1"]).await;
    create::<Deployment>(&sandbox, &deployment(3, ""));
    sandbox.settle().await;
    let names: Vec<String> = pods(&sandbox.objects())
        .iter()
        .filter_map(|p| p.metadata.name.clone())
        .collect();
    let cost = json!({"metadata": {"annotations": {"controller.kubernetes.io/pod-deletion-cost": "-5"}}});
    sandbox
        .objects()
        .patch::<Pod>("default", &names[1], &cost)
        .expect("annotated");
    sandbox
        .objects()
        .patch::<Deployment>("default", "web", &json!({"spec": {"replicas": 2}}))
        .expect("scaled");
    sandbox.run_for(seconds(5)).await;
    let left: Vec<String> = pods(&sandbox.objects())
        .iter()
        .filter_map(|p| p.metadata.name.clone())
        .collect();
    assert_eq!(left, [names[0].clone(), names[2].clone()]);
}

#[tokio::test]
async fn a_foreground_delete_goes_from_pods_to_replica_set_to_deployment() {
    let sandbox = cluster_of(&["n1"]).await;
    create::<Deployment>(&sandbox, &deployment(1, ""));
    sandbox.settle().await;
    let options = DeleteOptions {
        propagation: Some(Propagation::Foreground),
        ..DeleteOptions::default()
    };
    sandbox
        .objects()
        .delete::<Deployment>("default", "web", &options)
        .expect("deleted");
    sandbox.run_for(seconds(2)).await;
    assert!(sandbox.objects().get::<Deployment>("default", "web").is_none());
    assert!(sandbox.objects().list::<ReplicaSet>("default").is_empty());
    assert!(pods(&sandbox.objects()).is_empty());
}

#[tokio::test]
async fn a_background_delete_collects_dependents_and_an_orphaning_one_keeps_them() {
    let sandbox = cluster_of(&["n1"]).await;
    create::<Deployment>(&sandbox, &deployment(1, ""));
    sandbox.settle().await;
    let options = DeleteOptions {
        propagation: Some(Propagation::Orphan),
        ..DeleteOptions::default()
    };
    sandbox
        .objects()
        .delete::<Deployment>("default", "web", &options)
        .expect("deleted");
    sandbox.settle().await;
    let sets: Vec<ReplicaSet> = sandbox.objects().list("default");
    assert_eq!(sets.len(), 1);
    assert!(sets[0].metadata.owner_references.is_none());
    delete::<ReplicaSet>(&sandbox, "default", sets[0].metadata.name.as_deref().expect("named"));
    sandbox.run_for(seconds(2)).await;
    assert!(pods(&sandbox.objects()).is_empty());
}

#[tokio::test]
async fn an_object_created_with_a_dangling_owner_disappears() {
    let sandbox = cluster();
    create::<ConfigMap>(
        &sandbox,
        "{metadata: {name: a, ownerReferences: [{apiVersion: v1, kind: ConfigMap, name: gone, uid: 1-2-3}]}}",
    );
    sandbox.settle().await;
    assert!(sandbox.objects().get::<ConfigMap>("default", "a").is_none());
}

#[tokio::test]
async fn a_daemon_set_runs_on_every_ready_node_it_tolerates() {
    let sandbox = cluster();
    create::<DaemonSet>(
        &sandbox,
        "{metadata: {name: d}, spec: {selector: {matchLabels: {app: d}}, template: {metadata: {labels: {app: d}}, \
          spec: {containers: [{name: c, image: i}]}}}}",
    );
    sandbox.kubelets().boot(Machine::new("n1").ready_after(seconds(10)));
    sandbox
        .kubelets()
        .boot(Machine::new("n2").taint("dedicated", "x", "NoSchedule"));
    sandbox.settle().await;
    assert_eq!(pods(&sandbox.objects()).len(), 0, "n1 is not ready, n2 is tainted");
    sandbox.run_for(seconds(10)).await;
    assert_eq!(spread(&sandbox), [("n1".to_owned(), 1)].into());
    let status = sandbox
        .objects()
        .get::<DaemonSet>("default", "d")
        .and_then(|d| d.status)
        .expect("status");
    assert_eq!((status.desired_number_scheduled, status.number_ready), (1, 1));
    sandbox.kubelets().stop("n1");
    delete::<Node>(&sandbox, "", "n1");
    sandbox.run_for(seconds(60)).await;
    assert!(pods(&sandbox.objects()).is_empty());
}

#[tokio::test]
async fn stateful_pods_start_in_order_keep_their_names_and_claims() {
    let sandbox = Sandbox::builder()
        .timing(Timing {
            pod_start: seconds(5),
            pod_exit: seconds(5),
            ..Timing::instant()
        })
        .start();
    sandbox
        .kubelets()
        .boot(Machine::new("n1").label("topology.kubernetes.io/zone", "a"));
    create::<StorageClass>(
        &sandbox,
        "{metadata: {name: fast}, provisioner: csi.example.com, volumeBindingMode: WaitForFirstConsumer}",
    );
    create::<StatefulSet>(
        &sandbox,
        "{metadata: {name: s}, spec: {replicas: 2, serviceName: s, selector: {matchLabels: {app: s}}, \
          template: {metadata: {labels: {app: s}}, spec: {containers: [{name: c, image: i}]}}, \
          volumeClaimTemplates: [{metadata: {name: data}, spec: {storageClassName: fast, accessModes: [ReadWriteOnce], \
          resources: {requests: {storage: 1Gi}}}}]}}",
    );
    sandbox.settle().await;
    assert!(pod(&sandbox, "s-0").is_some() && pod(&sandbox, "s-1").is_none());
    sandbox.run_for(seconds(20)).await;
    assert!(is_ready(&pod(&sandbox, "s-1").expect("the second follows")));
    let uid = pod(&sandbox, "s-0").expect("there").metadata.uid;
    delete::<Pod>(&sandbox, "default", "s-0");
    sandbox.run_for(seconds(3)).await;
    assert_eq!(pod(&sandbox, "s-0").expect("still ending").metadata.uid, uid);
    sandbox.run_for(seconds(20)).await;
    let again = pod(&sandbox, "s-0").expect("recreated");
    assert_ne!(again.metadata.uid, uid);
    assert!(is_ready(&again));
    assert_eq!(sandbox.objects().list::<PersistentVolumeClaim>("default").len(), 2);
}

#[tokio::test]
async fn a_job_runs_to_completion() {
    let sandbox = cluster_of(&["n1"]).await;
    create::<Job>(
        &sandbox,
        "{metadata: {name: j}, spec: {completions: 3, parallelism: 2, template: {spec: {restartPolicy: Never, \
          containers: [{name: c, image: i}]}}}}",
    );
    sandbox.run_for(seconds(30)).await;
    let status = sandbox
        .objects()
        .get::<Job>("default", "j")
        .and_then(|j| j.status)
        .expect("status");
    assert_eq!((status.succeeded, status.active), (Some(3), None));
    let kinds: Vec<String> = status.conditions.iter().flatten().map(|c| c.type_.clone()).collect();
    assert_eq!(kinds, ["SuccessCriteriaMet", "Complete"]);
}

#[tokio::test]
async fn a_job_gives_up_at_its_backoff_limit() {
    let sandbox = cluster_of(&["n1"]).await;
    create::<Job>(
        &sandbox,
        "{metadata: {name: j}, spec: {backoffLimit: 1, template: {metadata: {annotations: {sandbox.karpenter.sh/exit-code: '1'}}, \
          spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}}",
    );
    sandbox.run_for(seconds(60)).await;
    let status = sandbox
        .objects()
        .get::<Job>("default", "j")
        .and_then(|j| j.status)
        .expect("status");
    assert_eq!(status.failed, Some(2));
    assert!(
        status
            .conditions
            .iter()
            .flatten()
            .any(|c| c.type_ == "Failed" && c.status == "True")
    );
}

async fn budget_of(spec: &str, replicas: i32) -> (i32, i32, i32) {
    let sandbox = cluster_of(&["n1"]).await;
    create::<Deployment>(&sandbox, &deployment(replicas, ""));
    let budget = format!("{{metadata: {{name: b}}, spec: {{selector: {{matchLabels: {{app: web}}}}, {spec}}}}}");
    create::<PodDisruptionBudget>(&sandbox, &budget);
    sandbox.settle().await;
    let status = sandbox
        .objects()
        .get::<PodDisruptionBudget>("default", "b")
        .and_then(|b| b.status)
        .expect("status");
    (status.expected_pods, status.desired_healthy, status.disruptions_allowed)
}

#[tokio::test]
async fn budgets_round_percentages_up() {
    assert_eq!(budget_of("minAvailable: 50%", 3).await, (3, 2, 1));
    assert_eq!(budget_of("maxUnavailable: 50%", 3).await, (3, 1, 2));
    assert_eq!(budget_of("minAvailable: 100%", 3).await, (3, 3, 0));
    assert_eq!(budget_of("maxUnavailable: 1", 2).await, (2, 1, 1));
    assert_eq!(budget_of("minAvailable: 1", 2).await, (2, 1, 1));
    assert_eq!(budget_of("minAvailable: 1", 0).await, (0, 1, 0));
}

#[tokio::test]
async fn a_namespace_is_emptied_and_waits_for_finalizers() {
    let sandbox = cluster();
    create::<Namespace>(&sandbox, "{metadata: {name: gone}}");
    create::<ConfigMap>(&sandbox, "{metadata: {name: free, namespace: gone}}");
    create::<ConfigMap>(
        &sandbox,
        "{metadata: {name: held, namespace: gone, finalizers: [example.com/held]}}",
    );
    delete::<Namespace>(&sandbox, "", "gone");
    sandbox.run_for(seconds(10)).await;
    let namespace: Namespace = sandbox.objects().get("", "gone").expect("held back");
    let conditions = namespace.status.and_then(|s| s.conditions).unwrap_or_default();
    assert!(
        conditions
            .iter()
            .any(|c| c.type_ == "NamespaceFinalizersRemaining" && c.status == "True")
    );
    assert!(sandbox.objects().get::<ConfigMap>("gone", "free").is_none());
    sandbox
        .objects()
        .patch::<ConfigMap>("gone", "held", &json!({"metadata": {"finalizers": null}}))
        .expect("released");
    sandbox.run_for(seconds(10)).await;
    assert!(sandbox.objects().get::<Namespace>("", "gone").is_none());
}

#[tokio::test]
async fn a_delayed_claim_is_provisioned_where_its_pod_goes_and_pins_its_replacement() {
    let sandbox = Sandbox::builder()
        .timing(Timing {
            provision_delay: seconds(5),
            attach_delay: seconds(2),
            ..Timing::instant()
        })
        .start();
    for (name, zone) in [("n1", "a"), ("n2", "b")] {
        sandbox
            .kubelets()
            .boot(Machine::new(name).label("topology.kubernetes.io/zone", zone));
    }
    create::<StorageClass>(
        &sandbox,
        "{metadata: {name: fast}, provisioner: csi.example.com, volumeBindingMode: WaitForFirstConsumer}",
    );
    create::<PersistentVolumeClaim>(
        &sandbox,
        "{metadata: {name: data}, spec: {storageClassName: fast, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}",
    );
    let with_volume = "volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]";
    create::<Pod>(&sandbox, &pod_yaml("p", with_volume));
    sandbox.settle().await;
    let waiting = pod(&sandbox, "p").expect("there");
    let nominated = waiting
        .status
        .and_then(|s| s.nominated_node_name)
        .expect("nominated before it is bound");
    assert!(waiting.spec.and_then(|s| s.node_name).is_none());
    let claim: PersistentVolumeClaim = sandbox.objects().get("default", "data").expect("there");
    let selected = claim.metadata.annotations.unwrap_or_default();
    assert_eq!(selected.get("volume.kubernetes.io/selected-node"), Some(&nominated));
    sandbox.run_for(seconds(5)).await;
    assert_eq!(node_of(&sandbox, "p"), Some(nominated.clone()));
    assert_eq!(phase_of(&sandbox, "p"), "Pending", "the volume is not attached yet");
    sandbox.run_for(seconds(2)).await;
    assert_eq!(phase_of(&sandbox, "p"), "Running");
    assert_eq!(sandbox.objects().list::<VolumeAttachment>("").len(), 1);
    delete::<Pod>(&sandbox, "default", "p");
    sandbox.run_for(seconds(5)).await;
    assert!(
        sandbox.objects().list::<VolumeAttachment>("").is_empty(),
        "detached once unused"
    );
    for _ in 0..3 {
        create::<Pod>(&sandbox, &pod_yaml("q", with_volume));
        sandbox.run_for(seconds(5)).await;
        assert_eq!(node_of(&sandbox, "q"), Some(nominated.clone()));
        delete::<Pod>(&sandbox, "default", "q");
        sandbox.run_for(seconds(5)).await;
    }
    delete::<PersistentVolumeClaim>(&sandbox, "default", "data");
    sandbox.settle().await;
    assert!(
        sandbox.objects().list::<PersistentVolume>("").is_empty(),
        "reclaimed with its claim"
    );
}

#[tokio::test]
async fn an_immediate_claim_is_bound_without_a_pod() {
    let sandbox = cluster_of(&["n1"]).await;
    create::<StorageClass>(
        &sandbox,
        "{metadata: {name: now}, provisioner: csi.example.com, volumeBindingMode: Immediate}",
    );
    create::<PersistentVolumeClaim>(
        &sandbox,
        "{metadata: {name: data}, spec: {storageClassName: now, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}",
    );
    sandbox.settle().await;
    let claim: PersistentVolumeClaim = sandbox.objects().get("default", "data").expect("there");
    assert_eq!(claim.status.and_then(|s| s.phase).as_deref(), Some("Bound"));
}

#[tokio::test]
async fn a_replica_set_adopts_what_looks_like_its_own_and_releases_what_no_longer_does() {
    let sandbox = cluster_of(&["n1"]).await;
    create::<Pod>(
        &sandbox,
        "{metadata: {name: stray, labels: {app: web}}, spec: {containers: [{name: c, image: i}]}}",
    );
    create::<ReplicaSet>(
        &sandbox,
        "{metadata: {name: web}, spec: {replicas: 2, selector: {matchLabels: {app: web}}, \
          template: {metadata: {labels: {app: web}}, spec: {containers: [{name: c, image: i}]}}}}",
    );
    sandbox.settle().await;
    assert_eq!(pods(&sandbox.objects()).len(), 2, "the stray counts");
    let stray = pod(&sandbox, "stray").expect("there");
    assert_eq!(stray.metadata.owner_references.map_or(0, |o| o.len()), 1);
    let relabel = json!({"metadata": {"labels": {"app": "debug"}}});
    sandbox
        .objects()
        .patch::<Pod>("default", "stray", &relabel)
        .expect("relabelled");
    sandbox.settle().await;
    assert_eq!(pods(&sandbox.objects()).len(), 3, "it is replaced");
    let stray = pod(&sandbox, "stray").expect("there");
    assert!(stray.metadata.owner_references.unwrap_or_default().is_empty());
}

#[tokio::test]
async fn events_are_forgotten_after_an_hour() {
    let sandbox = cluster_of(&["n1"]).await;
    create::<Pod>(&sandbox, &pod_yaml("p", ""));
    sandbox.run_for(seconds(3500)).await;
    assert_eq!(events(&sandbox, "Scheduled").len(), 1);
    sandbox.run_for(seconds(200)).await;
    assert!(events(&sandbox, "Scheduled").is_empty());
}
