//! JSON, merge, strategic and apply patches.

use serde_json::json;

use super::cluster::version;
use super::{Cluster, behaviours};

behaviours! {
    "1.10" => a_json_patch_may_test_for_absence,
    "2.6" => json_patches_that_do_not_apply_are_unprocessable,
    "2.6" => merge_patches_delete_with_null,
    "2.6" => strategic_patches_know_list_keys,
    "2.6" => apply_creates_changes_and_removes,
    "2.6" => apply_conflicts_until_forced,
    "2.6" => apply_checks_its_request,
    "2.6" => a_patch_can_not_rename,
    "2.6" => a_strategic_patch_of_one_container_keeps_the_other,
}

async fn a_json_patch_may_test_for_absence(cluster: Cluster) {
    cluster.config_map("a", &json!({})).await;
    let path = cluster.path("configmaps/a");
    let patch = json!([
        {"op": "test", "path": "/metadata/finalizers", "value": null},
        {"op": "add", "path": "/metadata/finalizers", "value": ["example.com/f"]},
    ]);
    cluster.patch(&path, "json", &patch).await.expect_code(200);
    let message = cluster.patch(&path, "json", &patch).await.expect_status(422, "Invalid");
    assert_eq!(
        message,
        "the server rejected our request due to an error in our request"
    );
    let removal = json!([
        {"op": "test", "path": "/metadata/finalizers/0", "value": "example.com/f"},
        {"op": "remove", "path": "/metadata/finalizers/0"},
    ]);
    let removed = cluster.patch(&path, "json", &removal).await.expect_code(200);
    assert!(removed["metadata"]["finalizers"].is_null());
}

async fn json_patches_that_do_not_apply_are_unprocessable(cluster: Cluster) {
    cluster.config_map("a", &json!({"k": "v"})).await;
    let path = cluster.path("configmaps/a");
    for operation in [
        json!({"op": "remove", "path": "/data/missing"}),
        json!({"op": "replace", "path": "/metadata/annotations/missing", "value": "x"}),
        json!({"op": "add", "path": "/metadata/annotations/x", "value": "y"}),
        json!({"op": "test", "path": "/data/k", "value": "w"}),
    ] {
        cluster
            .patch(&path, "json", &json!([operation]))
            .await
            .expect_status(422, "Invalid");
    }
    // Not what the standard says, but what kube-apiserver does with a map.
    let absent = json!([{"op": "replace", "path": "/data/missing", "value": "x"}]);
    let replaced = cluster.patch(&path, "json", &absent).await.expect_code(200);
    assert_eq!(replaced["data"]["missing"], "x");
    cluster
        .patch(&path, "json", &json!({}))
        .await
        .expect_status(400, "BadRequest");
}

async fn merge_patches_delete_with_null(cluster: Cluster) {
    cluster.config_map("a", &json!({"k": "v", "l": "w"})).await;
    let path = cluster.path("configmaps/a");
    let patched = cluster
        .patch(&path, "merge", &json!({"data": {"k": null}}))
        .await
        .expect_code(200);
    assert_eq!(patched["data"], json!({"l": "w"}));
    let same = cluster
        .patch(&path, "merge", &json!({"data": {"l": "w"}}))
        .await
        .expect_code(200);
    assert_eq!(version(&same), version(&patched));
}

async fn strategic_patches_know_list_keys(cluster: Cluster) {
    let node = format!("node-{}", cluster.unique);
    let body = json!({
        "metadata": {"name": node},
        "spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]},
        "status": {"conditions": [{"type": "Ready", "status": "False"}, {"type": "Extra", "status": "True"}]},
    });
    cluster.post("/api/v1/nodes", &body).await.expect_code(201);
    let path = format!("/api/v1/nodes/{node}");
    let taints = json!({"spec": {"taints": [{"key": "b", "effect": "NoSchedule"}]}});
    let patched = cluster.patch(&path, "strategic-merge", &taints).await.expect_code(200);
    let keys: Vec<&str> = patched["spec"]["taints"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|taint| taint["key"].as_str())
        .collect();
    assert!(
        keys.contains(&"b") && !keys.contains(&"a"),
        "taints are replaced: {keys:?}"
    );
    let conditions = json!({"status": {"conditions": [
        {"type": "Ready", "status": "Unknown"}, {"type": "Extra", "$patch": "delete"}, {"type": "New", "status": "True"}]}});
    let patched = cluster
        .patch(&format!("{path}/status"), "strategic-merge", &conditions)
        .await
        .expect_code(200);
    let conditions = patched["status"]["conditions"].as_array().expect("conditions");
    assert!(
        conditions
            .iter()
            .any(|condition| condition["type"] == "Ready" && condition["status"] == "Unknown")
    );
    assert!(conditions.iter().any(|condition| condition["type"] == "New"));
    assert!(!conditions.iter().any(|condition| condition["type"] == "Extra"));
    cluster.delete(&path).await.expect_code(200);
}

async fn apply_creates_changes_and_removes(cluster: Cluster) {
    let path = cluster.path("configmaps/a");
    let wanted =
        json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "a"}, "data": {"k": "v", "l": "w"}});
    let created = cluster.apply(&path, "one", "", &wanted).await.expect_code(201);
    let again = cluster.apply(&path, "one", "", &wanted).await.expect_code(200);
    assert_eq!(version(&again), version(&created));
    let other = json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "a"}, "data": {"o": "x"}});
    cluster.apply(&path, "two", "", &other).await.expect_code(200);
    let less = json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "a"}, "data": {"k": "v"}});
    let applied = cluster.apply(&path, "one", "", &less).await.expect_code(200);
    assert_eq!(applied["data"], json!({"k": "v", "o": "x"}));
}

async fn apply_conflicts_until_forced(cluster: Cluster) {
    let path = cluster.path("configmaps/a");
    let wanted =
        |value: &str| json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "a"}, "data": {"k": value}});
    cluster.apply(&path, "one", "", &wanted("v")).await.expect_code(201);
    cluster.apply(&path, "two", "", &wanted("v")).await.expect_code(200);
    let refused = cluster.apply(&path, "three", "", &wanted("w")).await;
    let message = refused.expect_status(409, "Conflict");
    assert!(message.starts_with("Apply failed with 2 conflicts: "), "{message}");
    let cause = &refused.json()["details"]["causes"][0];
    assert_eq!(
        (&cause["reason"], &cause["field"]),
        (&"FieldManagerConflict".into(), &".data.k".into())
    );
    let forced = cluster
        .apply(&path, "three", "&force=true", &wanted("w"))
        .await
        .expect_code(200);
    assert_eq!(forced["data"]["k"], "w");
}

async fn apply_checks_its_request(cluster: Cluster) {
    let path = cluster.path("configmaps/a");
    let wanted = json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "a"}});
    let content = [("Content-Type", "application/apply-patch+yaml")];
    let anonymous = cluster.send("PATCH", &path, &content, wanted.to_string().into()).await;
    let message = anonymous.expect_status(422, "Invalid");
    assert!(
        message.contains("fieldManager: Required value: is required for apply patch"),
        "{message}"
    );
    let managed = json!({"kind": "ConfigMap", "apiVersion": "v1",
        "metadata": {"name": "a", "managedFields": [{"manager": "x"}]}});
    cluster
        .apply(&path, "one", "", &managed)
        .await
        .expect_status(400, "BadRequest");
    let typeless = json!({"metadata": {"name": "a"}});
    cluster
        .apply(&path, "one", "", &typeless)
        .await
        .expect_status(400, "BadRequest");
    let unknown = json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "a"}, "foo": 1});
    let message = cluster.apply(&path, "one", "", &unknown).await.expect_status(500, "");
    assert!(message.contains(".foo: field not declared in schema"), "{message}");
    cluster.config_map("b", &json!({})).await;
    let path = cluster.path("configmaps/b?force=true");
    cluster
        .patch(&path, "merge", &json!({}))
        .await
        .expect_status(422, "Invalid");
}

async fn a_patch_can_not_rename(cluster: Cluster) {
    cluster.config_map("a", &json!({})).await;
    let renamed = json!({"metadata": {"name": "b"}});
    cluster
        .patch(&cluster.path("configmaps/a"), "merge", &renamed)
        .await
        .expect_status(400, "BadRequest");
}

async fn a_strategic_patch_of_one_container_keeps_the_other(cluster: Cluster) {
    let container = |name: &str, image: &str| json!({"name": name, "image": format!("example.org/image:{image}")});
    let path = format!("/apis/apps/v1/namespaces/{}/deployments", cluster.namespace);
    let deployment = json!({"metadata": {"name": "d"}, "spec": {"replicas": 0, "selector": {"matchLabels": {"app": "d"}},
        "template": {"metadata": {"labels": {"app": "d"}}, "spec": {"containers": [container("a", "1"), container("b", "1")]}}}});
    cluster.post(&path, &deployment).await.expect_code(201);
    let change = json!({"spec": {"template": {"spec": {"containers": [container("b", "2")]}}}});
    let own = format!("{path}/d");
    let patched = cluster.patch(&own, "strategic-merge", &change).await.expect_code(200);
    let images: Vec<&str> = patched["spec"]["template"]["spec"]["containers"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|container| container["image"].as_str())
        .collect();
    assert_eq!(images, ["example.org/image:1", "example.org/image:2"]);
    let removal = json!({"spec": {"template": {"spec": {"containers": [{"name": "a", "$patch": "delete"}]}}}});
    let patched = cluster.patch(&own, "strategic-merge", &removal).await.expect_code(200);
    let left = &patched["spec"]["template"]["spec"]["containers"];
    assert_eq!(
        (left.as_array().map(Vec::len), &left[0]["name"]),
        (Some(1), &"b".into())
    );
}
