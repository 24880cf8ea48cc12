//! Deleting: finalizers, grace, preconditions, propagation.

use serde_json::json;

use super::cluster::version;
use super::{Cluster, behaviours};

behaviours! {
    "2.8" => finalizers_keep_an_object_until_the_last_is_gone,
    "2.8" => a_terminating_name_can_not_be_reused,
    "2.8" => background_releases_a_foreground_deletion,
    "2.8" => a_bound_pod_gets_its_grace_which_may_only_shrink,
    "2.8" => an_unbound_pod_goes_at_once_in_two_events,
    "2.8" => preconditions_must_hold,
    "2.9" => deleting_a_collection_answers_with_what_was_there,
    "2.8" => a_job_keeps_its_pods_by_default,
    "1.4" => a_deleted_object_answers_with_success,
    "2.8" => a_namespace_that_goes_takes_no_more_objects,
    "2.8" => a_finished_pod_goes_at_once,
    "2.8" => a_finalizer_that_goes_during_the_grace_leaves_the_pod,
}

async fn finalizers_keep_an_object_until_the_last_is_gone(cluster: Cluster) {
    let body = json!({"metadata": {"name": "a", "finalizers": ["example.com/one", "example.com/two"]}});
    let created = cluster.post(&cluster.path("configmaps"), &body).await.expect_code(201);
    let query = format!("resourceVersion={}&fieldSelector=metadata.name=a", version(&created));
    let mut watch = cluster.watch(&cluster.path("configmaps"), &query).await;
    let path = cluster.path("configmaps/a");
    let deleted = cluster.delete(&path).await.expect_code(200);
    assert!(deleted["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(deleted["metadata"]["deletionGracePeriodSeconds"], 0);
    let more = json!({"metadata": {"finalizers": ["example.com/one", "example.com/two", "n.n/n"]}});
    let message = cluster.patch(&path, "merge", &more).await.expect_status(422, "Invalid");
    assert!(
        message.contains("no new finalizers can be added if the object is being deleted"),
        "{message}"
    );
    let one = json!({"metadata": {"finalizers": ["example.com/two"]}});
    let last = cluster.patch(&path, "merge", &one).await.expect_code(200);
    let gone = cluster
        .patch(&path, "merge", &json!({"metadata": {"finalizers": null}}))
        .await
        .expect_code(200);
    assert_eq!(
        version(&gone),
        version(&last),
        "the answer shows the last stored version"
    );
    cluster.get(&path).await.expect_status(404, "NotFound");
    assert_eq!(watch.about("a").await.0, "MODIFIED");
    assert_eq!(watch.about("a").await.0, "MODIFIED");
    let (kind, object) = watch.about("a").await;
    assert_eq!(kind, "DELETED");
    assert!(version(&object) > version(&last));
    assert_eq!(object["metadata"]["finalizers"], json!(["example.com/two"]));
}

async fn a_terminating_name_can_not_be_reused(cluster: Cluster) {
    let body = json!({"metadata": {"name": "a", "finalizers": ["example.com/one"]}});
    cluster.post(&cluster.path("configmaps"), &body).await.expect_code(201);
    cluster.delete(&cluster.path("configmaps/a")).await.expect_code(200);
    let message = cluster
        .post(&cluster.path("configmaps"), &body)
        .await
        .expect_status(409, "AlreadyExists");
    assert_eq!(message, "object is being deleted: configmaps \"a\" already exists");
    let release = json!({"metadata": {"finalizers": null}});
    cluster
        .patch(&cluster.path("configmaps/a"), "merge", &release)
        .await
        .expect_code(200);
}

async fn background_releases_a_foreground_deletion(cluster: Cluster) {
    let body = json!({"metadata": {"name": "a", "finalizers": ["example.com/hold"]}});
    cluster.post(&cluster.path("configmaps"), &body).await.expect_code(201);
    let path = cluster.path("configmaps/a");
    let kept = cluster
        .delete_with(&path, &json!({"propagationPolicy": "Foreground"}))
        .await
        .expect_code(200);
    let finalizers = kept["metadata"]["finalizers"].as_array().expect("finalizers").clone();
    assert!(finalizers.contains(&json!("foregroundDeletion")));
    let kept = cluster
        .delete_with(&path, &json!({"propagationPolicy": "Background"}))
        .await
        .expect_code(200);
    assert_eq!(kept["metadata"]["finalizers"], json!(["example.com/hold"]));
    cluster
        .patch(&path, "merge", &json!({"metadata": {"finalizers": null}}))
        .await
        .expect_code(200);
    cluster.wait_for_code(&path, 404).await;
}

async fn a_bound_pod_gets_its_grace_which_may_only_shrink(cluster: Cluster) {
    cluster.pod("p", Some(&cluster.nowhere())).await;
    let path = cluster.path("pods/p");
    let deleted = cluster.delete(&path).await.expect_code(200);
    assert_eq!(deleted["metadata"]["deletionGracePeriodSeconds"], 30);
    let shorter = cluster
        .delete_with(&path, &json!({"gracePeriodSeconds": 5}))
        .await
        .expect_code(200);
    assert_eq!(shorter["metadata"]["deletionGracePeriodSeconds"], 5);
    let longer = cluster
        .delete_with(&path, &json!({"gracePeriodSeconds": 500}))
        .await
        .expect_code(200);
    assert_eq!(longer["metadata"]["deletionGracePeriodSeconds"], 5);
    assert_eq!(version(&longer), version(&shorter));
    let options = json!({"gracePeriodSeconds": 0});
    cluster.delete_with(&path, &options).await.expect_code(200);
    cluster.get(&path).await.expect_status(404, "NotFound");
}

async fn an_unbound_pod_goes_at_once_in_two_events(cluster: Cluster) {
    let created = cluster.pod("p", None).await;
    let mut watch = cluster
        .watch(&cluster.path("pods"), &format!("resourceVersion={}", version(&created)))
        .await;
    let deleted = cluster.delete(&cluster.path("pods/p")).await.expect_code(200);
    assert_eq!(deleted["kind"], "Pod");
    let (first, marked) = watch.about("p").await;
    assert_eq!(first, "MODIFIED");
    assert!(marked["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(watch.about("p").await.0, "DELETED");
}

async fn preconditions_must_hold(cluster: Cluster) {
    let created = cluster.config_map("a", &json!({})).await;
    let path = cluster.path("configmaps/a");
    for preconditions in [json!({"uid": "other"}), json!({"resourceVersion": "1"})] {
        let refused = cluster
            .delete_with(&path, &json!({"preconditions": preconditions}))
            .await;
        let message = refused.expect_status(409, "Conflict");
        assert!(message.contains("in the precondition"), "{message}");
        assert_eq!(refused.json()["details"]["kind"], "ConfigMap");
    }
    let right = json!({"preconditions": {"uid": created["metadata"]["uid"]}});
    cluster.delete_with(&path, &right).await.expect_code(200);
}

async fn deleting_a_collection_answers_with_what_was_there(cluster: Cluster) {
    for (name, label) in [("a", "x"), ("b", "x"), ("c", "y")] {
        let body = json!({"metadata": {"name": name, "labels": {"l": label}}});
        cluster.post(&cluster.path("configmaps"), &body).await.expect_code(201);
    }
    let deleted = cluster
        .delete(&cluster.path("configmaps?labelSelector=l=x"))
        .await
        .expect_code(200);
    assert_eq!(deleted["items"].as_array().map(Vec::len), Some(2));
    assert!(deleted["items"][0]["metadata"]["deletionTimestamp"].is_null());
    cluster.get(&cluster.path("configmaps/c")).await.expect_code(200);
    cluster
        .get(&cluster.path("configmaps/a"))
        .await
        .expect_status(404, "NotFound");
    let none = cluster
        .delete(&cluster.path("configmaps?labelSelector=l=nobody"))
        .await
        .expect_code(200);
    assert_eq!(none["items"], json!([]));
}

async fn a_job_keeps_its_pods_by_default(cluster: Cluster) {
    let path = format!("/apis/batch/v1/namespaces/{}/jobs", cluster.namespace);
    let job = json!({"metadata": {"name": "j"}, "spec": {"suspend": true, "template": {"spec": {
        "restartPolicy": "Never", "containers": [{"name": "c", "image": "example.org/image:1"}]}}}});
    let created = cluster.post(&path, &job).await.expect_code(201);
    assert_eq!(created["spec"]["backoffLimit"], 6);
    assert_eq!(created["spec"]["template"]["metadata"]["labels"]["job-name"], "j");
    let deleted = cluster.delete(&format!("{path}/j")).await;
    assert!(
        deleted
            .header("warning")
            .contains("child pods are preserved by default")
    );
}

async fn a_deleted_object_answers_with_success(cluster: Cluster) {
    let created = cluster.config_map("a", &json!({})).await;
    let status = cluster.delete(&cluster.path("configmaps/a")).await.expect_code(200);
    assert_eq!(
        (&status["kind"], &status["status"]),
        (&"Status".into(), &"Success".into())
    );
    assert_eq!(status["details"]["kind"], "configmaps");
    assert_eq!(status["details"]["uid"], created["metadata"]["uid"]);
    assert!(status["code"].is_null());
}

async fn a_namespace_that_goes_takes_no_more_objects(cluster: Cluster) {
    let name = format!("going-{}", cluster.unique);
    cluster
        .post("/api/v1/namespaces", &json!({"metadata": {"name": name}}))
        .await
        .expect_code(201);
    let path = format!("/api/v1/namespaces/{name}");
    let held = json!({"metadata": {"name": "a", "finalizers": ["example.com/hold"]}});
    cluster
        .post(&format!("{path}/configmaps"), &held)
        .await
        .expect_code(201);
    let deleted = cluster.delete(&path).await.expect_code(200);
    assert_eq!(deleted["status"]["phase"], "Terminating");
    let refused = cluster
        .post(&format!("{path}/configmaps"), &json!({"metadata": {"name": "b"}}))
        .await;
    let message = refused.expect_status(403, "Forbidden");
    assert!(message.contains("because it is being terminated"), "{message}");
    assert_eq!(refused.json()["details"]["causes"][0]["reason"], "NamespaceTerminating");
    let release = json!({"metadata": {"finalizers": null}});
    cluster
        .patch(&format!("{path}/configmaps/a"), "merge", &release)
        .await
        .expect_code(200);
    let default = cluster.delete("/api/v1/namespaces/default").await;
    default.expect_status(403, "Forbidden");
}

async fn a_finished_pod_goes_at_once(cluster: Cluster) {
    cluster.pod("p", Some(&cluster.nowhere())).await;
    let path = cluster.path("pods/p");
    cluster
        .patch(
            &format!("{path}/status"),
            "merge",
            &json!({"status": {"phase": "Succeeded"}}),
        )
        .await
        .expect_code(200);
    cluster.delete(&path).await.expect_code(200);
    cluster.get(&path).await.expect_status(404, "NotFound");
}

async fn a_finalizer_that_goes_during_the_grace_leaves_the_pod(cluster: Cluster) {
    cluster.pod("p", Some(&cluster.nowhere())).await;
    let path = cluster.path("pods/p");
    let finalizers = |list: serde_json::Value| json!({"metadata": {"finalizers": list}});
    cluster
        .patch(&path, "merge", &finalizers(json!(["example.com/hold"])))
        .await
        .expect_code(200);
    cluster.delete(&path).await.expect_code(200);
    cluster
        .patch(&path, "merge", &finalizers(json!(null)))
        .await
        .expect_code(200);
    let pod = cluster.get(&path).await.expect_code(200);
    assert_eq!(pod["metadata"]["deletionGracePeriodSeconds"], 30);
    cluster
        .delete_with(&path, &json!({"gracePeriodSeconds": 0}))
        .await
        .expect_code(200);
    cluster.get(&path).await.expect_status(404, "NotFound");
}
