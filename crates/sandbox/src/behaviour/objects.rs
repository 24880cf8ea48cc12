//! Creating and replacing objects: versions, generations, defaults.

use std::time::Duration;

use serde_json::{Value, json};

use super::cluster::{PATIENCE, version};
use super::{Cluster, behaviours};

behaviours! {
    "2.1" => an_identical_put_takes_no_version_and_makes_no_event,
    "2.3" => some_kinds_insist_on_a_resource_version,
    "2.3" => a_stale_put_is_a_conflict,
    "2.2" => generated_names_fit_into_a_label,
    "2.2" => clients_can_not_choose_what_the_server_sets,
    "2.7" => a_dry_run_leaves_no_trace,
    "2.4" => a_pods_generation_counts_its_spec,
    "2.5" => status_and_spec_are_written_apart,
    "2.1" => quantities_are_stored_in_canonical_form,
    "2.1" => micro_times_need_six_digits,
    "2.2" => bad_names_and_labels_are_invalid,
    "4.2" => pods_get_the_defaults_that_others_rely_on,
    "4.2" => a_pods_spec_is_mostly_fixed,
    "4.2" => binding_assigns_a_node_once,
    "4.2" => binding_copies_the_nodes_zone_and_no_other_label,
    "4.4" => a_new_node_is_tainted,
    "4.5" => events_of_both_groups_are_one,
    "4.6" => secrets_fold_their_string_data,
    "4.6" => workload_selectors_must_match_and_stay,
    "4.6" => a_budget_has_one_limit,
    "4.6" => immutable_maps_stay,
    "2.5" => a_nodes_status_takes_labels,
}

async fn an_identical_put_takes_no_version_and_makes_no_event(cluster: Cluster) {
    let created = cluster.config_map("a", &json!({"k": "v"})).await;
    let path = cluster.path("configmaps/a");
    let mut watch = cluster
        .watch(
            &cluster.path("configmaps"),
            &format!("resourceVersion={}", version(&created)),
        )
        .await;
    let same = cluster.put(&path, &created).await.expect_code(200);
    assert_eq!(version(&same), version(&created));
    let mut changed = created.clone();
    changed["data"]["k"] = "w".into();
    let changed = cluster.put(&path, &changed).await.expect_code(200);
    assert!(version(&changed) > version(&created));
    let (kind, object) = watch.about("a").await;
    assert_eq!((kind.as_str(), &object["data"]["k"]), ("MODIFIED", &"w".into()));
}

async fn some_kinds_insist_on_a_resource_version(cluster: Cluster) {
    cluster.config_map("a", &json!({})).await;
    let body = json!({"metadata": {"name": "a", "resourceVersion": "0"}, "data": {"k": "v"}});
    cluster.put(&cluster.path("configmaps/a"), &body).await.expect_code(200);
    let leases = format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", cluster.namespace);
    let lease = json!({"metadata": {"name": "l"}, "spec": {"leaseDurationSeconds": 5}});
    cluster.post(&leases, &lease).await.expect_code(201);
    let message = cluster
        .put(&format!("{leases}/l"), &lease)
        .await
        .expect_status(422, "Invalid");
    assert!(
        message.contains("metadata.resourceVersion: Invalid value: 0: must be specified for an update"),
        "{message}"
    );
    let upserted = json!({"metadata": {"name": "new"}, "spec": {"leaseDurationSeconds": 5}});
    cluster.put(&format!("{leases}/new"), &upserted).await.expect_code(201);
    let budgets = format!("/apis/policy/v1/namespaces/{}/poddisruptionbudgets", cluster.namespace);
    let budget = json!({"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {}}});
    cluster.post(&budgets, &budget).await.expect_code(201);
    cluster
        .put(&format!("{budgets}/b"), &budget)
        .await
        .expect_status(422, "Invalid");
}

async fn a_stale_put_is_a_conflict(cluster: Cluster) {
    let first = cluster.config_map("a", &json!({})).await;
    let path = cluster.path("configmaps/a");
    cluster
        .patch(&path, "merge", &json!({"data": {"k": "v"}}))
        .await
        .expect_code(200);
    let message = cluster.put(&path, &first).await.expect_status(409, "Conflict");
    assert!(
        message.starts_with("Operation cannot be fulfilled on configmaps \"a\": "),
        "{message}"
    );
    let stale = json!({"metadata": {"resourceVersion": first["metadata"]["resourceVersion"]}, "data": {"k": "w"}});
    cluster
        .patch(&path, "merge", &stale)
        .await
        .expect_status(409, "Conflict");
    let other_uid = json!({"metadata": {"uid": "other"}});
    cluster
        .patch(&path, "merge", &other_uid)
        .await
        .expect_status(422, "Invalid");
    let other_uid = json!({"metadata": {"name": "a", "uid": "other"}});
    cluster.put(&path, &other_uid).await.expect_status(409, "Conflict");
}

async fn generated_names_fit_into_a_label(cluster: Cluster) {
    let body = json!({"metadata": {"generateName": "x".repeat(70)}});
    let created = cluster.post(&cluster.path("configmaps"), &body).await.expect_code(201);
    assert_eq!(created["metadata"]["name"].as_str().map(str::len), Some(63));
    let nameless = cluster
        .post(&cluster.path("configmaps"), &json!({"metadata": {}}))
        .await;
    let message = nameless.expect_status(422, "Invalid");
    assert!(
        message.contains("metadata.name: Required value: name or generateName is required"),
        "{message}"
    );
}

async fn clients_can_not_choose_what_the_server_sets(cluster: Cluster) {
    let body = json!({"metadata": {"name": "a", "uid": "mine", "creationTimestamp": "2001-01-01T00:00:00Z"}});
    let created = cluster.post(&cluster.path("configmaps"), &body).await.expect_code(201);
    assert_ne!(created["metadata"]["uid"], "mine");
    assert_ne!(created["metadata"]["creationTimestamp"], "2001-01-01T00:00:00Z");
    let body = json!({"metadata": {"name": "b", "resourceVersion": "1"}});
    let answer = cluster.post(&cluster.path("configmaps"), &body).await;
    assert_eq!(
        answer.expect_status(500, ""),
        "resourceVersion should not be set on objects to be created"
    );
}

async fn a_dry_run_leaves_no_trace(cluster: Cluster) {
    let body = json!({"metadata": {"name": "a"}});
    let tried = cluster
        .post(&cluster.path("configmaps?dryRun=All"), &body)
        .await
        .expect_code(201);
    assert!(tried["metadata"]["resourceVersion"].is_null());
    cluster
        .get(&cluster.path("configmaps/a"))
        .await
        .expect_status(404, "NotFound");
    cluster.config_map("a", &json!({"k": "v"})).await;
    cluster
        .post(&cluster.path("configmaps?dryRun=All"), &body)
        .await
        .expect_status(409, "AlreadyExists");
    let patch = json!({"data": {"k": "w"}});
    let tried = cluster
        .patch(&cluster.path("configmaps/a?dryRun=All"), "merge", &patch)
        .await
        .expect_code(200);
    assert_eq!(tried["data"]["k"], "w");
    cluster
        .delete(&cluster.path("configmaps/a?dryRun=All"))
        .await
        .expect_code(200);
    assert_eq!(
        cluster.get(&cluster.path("configmaps/a")).await.expect_code(200)["data"]["k"],
        "v"
    );
}

async fn a_pods_generation_counts_its_spec(cluster: Cluster) {
    let pod = cluster.pod("p", None).await;
    assert_eq!(pod["metadata"]["generation"], 1);
    let path = cluster.path("pods/p");
    let labelled = cluster
        .patch(&path, "merge", &json!({"metadata": {"labels": {"a": "b"}}}))
        .await
        .expect_code(200);
    assert_eq!(labelled["metadata"]["generation"], 1);
    cluster.bind("p", &cluster.nowhere()).await;
    let image = json!({"spec": {"containers": [{"name": "c", "image": "example.org/image:2"}]}});
    let changed = cluster.patch(&path, "strategic-merge", &image).await.expect_code(200);
    assert_eq!(changed["metadata"]["generation"], 2);
}

async fn status_and_spec_are_written_apart(cluster: Cluster) {
    cluster.pod("p", None).await;
    let path = cluster.path("pods/p");
    let before = cluster.get(&path).await.expect_code(200);
    let status = json!({"status": {"message": "hello"}});
    let ignored = cluster.patch(&path, "merge", &status).await.expect_code(200);
    assert_eq!(version(&ignored), version(&before));
    let both = json!({"metadata": {"labels": {"a": "b"}}, "status": {"message": "hello"}});
    let written = cluster
        .patch(&cluster.path("pods/p/status"), "merge", &both)
        .await
        .expect_code(200);
    assert_eq!(written["status"]["message"], "hello");
    assert_eq!(
        written["metadata"]["labels"]["a"], "b",
        "pods take labels through their status"
    );
    cluster
        .patch(&cluster.path("pods/x/status"), "merge", &status)
        .await
        .expect_status(404, "NotFound");
}

async fn quantities_are_stored_in_canonical_form(cluster: Cluster) {
    let mut pod = json!({"metadata": {"name": "p"}, "spec": {"schedulerName": "nobody", "containers": [
        {"name": "c", "image": "example.org/image:1", "resources": {
            "requests": {"cpu": 0.5, "memory": "1024Mi"}, "limits": {"cpu": "4000m", "example.com/gpu": 1}}}]}});
    pod["spec"]["containers"][0]["resources"]["requests"]["example.com/gpu"] = "1".into();
    let created = cluster.post(&cluster.path("pods"), &pod).await.expect_code(201);
    let resources = &created["spec"]["containers"][0]["resources"];
    assert_eq!(
        resources["requests"],
        json!({"cpu": "500m", "memory": "1Gi", "example.com/gpu": "1"})
    );
    assert_eq!(resources["limits"], json!({"cpu": "4", "example.com/gpu": "1"}));
}

async fn micro_times_need_six_digits(cluster: Cluster) {
    let leases = format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", cluster.namespace);
    let lease = |time: &str| json!({"metadata": {"name": "l"}, "spec": {"renewTime": time}});
    cluster
        .post(&leases, &lease("2026-01-01T00:00:00Z"))
        .await
        .expect_status(400, "BadRequest");
    cluster
        .post(&leases, &lease("2026-01-01T00:00:00.000000Z"))
        .await
        .expect_code(201);
}

async fn bad_names_and_labels_are_invalid(cluster: Cluster) {
    let path = cluster.path("configmaps");
    let message = cluster
        .post(&path, &json!({"metadata": {"name": "A_b"}}))
        .await
        .expect_status(422, "Invalid");
    assert!(
        message.contains("metadata.name: Invalid value: \"A_b\": a lowercase RFC 1123 subdomain"),
        "{message}"
    );
    for metadata in [
        json!({"name": "a", "labels": {"a b": "c"}}),
        json!({"name": "a", "labels": {"a": "b c"}}),
        json!({"name": "a", "finalizers": ["unqualified"]}),
        json!({"name": "a", "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "", "uid": "u"}]}),
    ] {
        cluster
            .post(&path, &json!({"metadata": metadata}))
            .await
            .expect_status(422, "Invalid");
    }
    let dotted = json!({"metadata": {"name": "a.b"}});
    cluster
        .post("/api/v1/namespaces", &dotted)
        .await
        .expect_status(422, "Invalid");
}

async fn pods_get_the_defaults_that_others_rely_on(cluster: Cluster) {
    let pod = cluster.pod("p", None).await;
    let spec = &pod["spec"];
    assert_eq!(spec["restartPolicy"], "Always");
    assert_eq!(spec["terminationGracePeriodSeconds"], 30);
    assert_eq!(spec["serviceAccountName"], "default");
    assert_eq!(spec["priority"], 0);
    assert_eq!(spec["preemptionPolicy"], "PreemptLowerPriority");
    assert_eq!(spec["containers"][0]["imagePullPolicy"], "IfNotPresent");
    let tolerations: Vec<&Value> = spec["tolerations"].as_array().expect("tolerations").iter().collect();
    assert_eq!(tolerations.len(), 2);
    assert!(
        tolerations
            .iter()
            .all(|toleration| toleration["tolerationSeconds"] == 300)
    );
    assert_eq!(pod["status"]["phase"], "Pending");
    assert_eq!(pod["status"]["qosClass"], "BestEffort");
    let mut classy = json!({"metadata": {"name": "q"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    classy["spec"]["priorityClassName"] = "nobody-defined-this".into();
    let message = cluster
        .post(&cluster.path("pods"), &classy)
        .await
        .expect_status(403, "Forbidden");
    assert!(
        message.contains("no PriorityClass with name nobody-defined-this was found"),
        "{message}"
    );
    let empty = json!({"metadata": {"name": "r"}, "spec": {"containers": []}});
    let message = cluster
        .post(&cluster.path("pods"), &empty)
        .await
        .expect_status(422, "Invalid");
    assert!(message.contains("spec.containers: Required value"), "{message}");
}

async fn a_pods_spec_is_mostly_fixed(cluster: Cluster) {
    cluster.pod("p", None).await;
    let path = cluster.path("pods/p");
    for change in [
        json!({"nodeName": "n"}),
        json!({"hostNetwork": true}),
        json!({"nodeSelector": {"a": "b"}}),
    ] {
        let message = cluster
            .patch(&path, "merge", &json!({"spec": change}))
            .await
            .expect_status(422, "Invalid");
        assert!(
            message.contains("spec: Forbidden: pod updates may not change fields other than"),
            "{message}"
        );
    }
    let pod = cluster.get(&path).await.expect_code(200);
    let mut tolerations = pod["spec"]["tolerations"].as_array().cloned().unwrap_or_default();
    tolerations.push(json!({"key": "x", "operator": "Exists"}));
    let change = json!({"spec": {"tolerations": tolerations, "activeDeadlineSeconds": 100}});
    cluster.patch(&path, "merge", &change).await.expect_code(200);
    let longer = json!({"spec": {"activeDeadlineSeconds": 200}});
    cluster
        .patch(&path, "merge", &longer)
        .await
        .expect_status(422, "Invalid");
}

async fn binding_assigns_a_node_once(cluster: Cluster) {
    let node = cluster.zoned_node().await;
    cluster.pod("p", None).await;
    let pod = cluster.bind("p", &node).await;
    assert_eq!(pod["spec"]["nodeName"], node.as_str());
    let conditions = pod["status"]["conditions"].as_array().expect("conditions");
    assert!(
        conditions
            .iter()
            .any(|condition| condition["type"] == "PodScheduled" && condition["status"] == "True")
    );
    let again = cluster
        .post(&cluster.path("pods/p/binding"), &binding("p", &node))
        .await;
    assert!(
        again
            .expect_status(409, "Conflict")
            .contains("is already assigned to node")
    );
    cluster.delete(&format!("/api/v1/nodes/{node}")).await.expect_code(200);
}

/// The server reads the zone in its own cache of nodes, which learns of a new node a moment later: whatever is bound
/// before that goes without, so one pod after the other is bound until one has the label.
async fn binding_copies_the_nodes_zone_and_no_other_label(cluster: Cluster) {
    let node = cluster.zoned_node().await;
    let deadline = tokio::time::Instant::now() + PATIENCE;
    let mut labels = Value::Null;
    for attempt in 0.. {
        let name = format!("p{attempt}");
        cluster.pod(&name, None).await;
        labels = cluster.bind(&name, &node).await["metadata"]["labels"].clone();
        if !labels["topology.kubernetes.io/zone"].is_null() || tokio::time::Instant::now() > deadline {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(labels["topology.kubernetes.io/zone"], "z1");
    assert!(labels["other"].is_null());
    cluster.delete(&format!("/api/v1/nodes/{node}")).await.expect_code(200);
}

fn binding(pod: &str, node: &str) -> Value {
    json!({"metadata": {"name": pod}, "target": {"kind": "Node", "name": node}})
}

impl Cluster {
    async fn zoned_node(&self) -> String {
        let node = format!("node-{}", self.unique);
        let labels = json!({"topology.kubernetes.io/zone": "z1", "other": "label"});
        let body = json!({"metadata": {"name": node, "labels": labels}});
        self.post("/api/v1/nodes", &body).await.expect_code(201);
        node
    }

    async fn bind(&self, pod: &str, node: &str) -> Value {
        let path = self.path(&format!("pods/{pod}"));
        let bound = self.post(&format!("{path}/binding"), &binding(pod, node)).await;
        assert_eq!(bound.expect_code(201)["status"], "Success");
        self.get(&path).await.expect_code(200)
    }
}

async fn a_new_node_is_tainted(cluster: Cluster) {
    let node = format!("node-{}", cluster.unique);
    let body = json!({
        "metadata": {"name": node}, "spec": {"providerID": "test://1"},
        "status": {"capacity": {"cpu": "4"}, "conditions": [{"type": "Ready", "status": "False"}]},
    });
    let created = cluster.post("/api/v1/nodes", &body).await.expect_code(201);
    let taint = &created["spec"]["taints"][0];
    assert_eq!(
        (&taint["key"], &taint["effect"]),
        (&"node.kubernetes.io/not-ready".into(), &"NoSchedule".into())
    );
    assert_eq!(created["status"]["allocatable"]["cpu"], "4");
    assert!(created["metadata"]["generation"].is_null());
    let path = format!("/api/v1/nodes/{node}");
    let other = json!({"spec": {"providerID": "test://2"}});
    cluster
        .patch(&path, "merge", &other)
        .await
        .expect_status(422, "Invalid");
    let twice = json!({"spec": {"taints": [
        {"key": "a", "effect": "NoSchedule"}, {"key": "a", "effect": "NoSchedule", "value": "b"}]}});
    let message = cluster
        .patch(&path, "merge", &twice)
        .await
        .expect_status(422, "Invalid");
    assert!(message.contains("metadata.taints[1]: Duplicate value"), "{message}");
    cluster.delete(&path).await.expect_code(200);
}

async fn events_of_both_groups_are_one(cluster: Cluster) {
    let new = format!("/apis/events.k8s.io/v1/namespaces/{}/events", cluster.namespace);
    let event = json!({
        "metadata": {"name": "e"}, "eventTime": "2026-01-01T00:00:00.000000Z", "type": "Normal", "reason": "Tested",
        "action": "Testing", "reportingController": "example.com/test", "reportingInstance": "i", "note": "hello",
        "regarding": {"kind": "Pod", "name": "p", "namespace": cluster.namespace},
    });
    let created = cluster.post(&new, &event).await.expect_code(201);
    assert_eq!(created["regarding"]["name"], "p");
    let core = cluster.get(&cluster.path("events/e")).await.expect_code(200);
    assert_eq!(
        (&core["message"], &core["involvedObject"]["name"]),
        (&"hello".into(), &"p".into())
    );
    assert_eq!(core["reportingComponent"], "example.com/test");
    let series = json!({"series": {"count": 2, "lastObservedTime": "2026-01-01T00:01:00.000000Z"}});
    let patched = cluster
        .patch(&format!("{new}/e"), "merge", &series)
        .await
        .expect_code(200);
    assert_eq!(patched["series"]["count"], 2);
    let other = json!({"note": "other"});
    cluster
        .patch(&format!("{new}/e"), "merge", &other)
        .await
        .expect_status(422, "Invalid");
    let found = cluster
        .get(&cluster.path("events?fieldSelector=involvedObject.name=p,reason=Tested"))
        .await;
    assert_eq!(found.expect_code(200)["items"].as_array().map(Vec::len), Some(1));
    let bare = json!({"metadata": {"name": "f"}, "regarding": {"namespace": cluster.namespace}});
    cluster.post(&new, &bare).await.expect_status(422, "Invalid");
}

async fn secrets_fold_their_string_data(cluster: Cluster) {
    let body = json!({"metadata": {"name": "s"}, "stringData": {"k": "v"}, "data": {"l": "dg=="}});
    let created = cluster.post(&cluster.path("secrets"), &body).await.expect_code(201);
    assert_eq!(created["type"], "Opaque");
    assert_eq!(created["data"], json!({"k": "dg==", "l": "dg=="}));
    assert!(created.get("stringData").is_none());
}

async fn workload_selectors_must_match_and_stay(cluster: Cluster) {
    let path = format!("/apis/apps/v1/namespaces/{}/deployments", cluster.namespace);
    let deployment = |label: &str| {
        json!({
            "metadata": {"name": "d"},
            "spec": {"replicas": 0, "selector": {"matchLabels": {"app": "x"}}, "template": {
                "metadata": {"labels": {"app": label}},
                "spec": {"containers": [{"name": "c", "image": "example.org/image:1"}]}}},
        })
    };
    let message = cluster
        .post(&path, &deployment("y"))
        .await
        .expect_status(422, "Invalid");
    assert!(
        message.contains("`selector` does not match template `labels`"),
        "{message}"
    );
    let created = cluster.post(&path, &deployment("x")).await.expect_code(201);
    assert_eq!(created["spec"]["strategy"]["rollingUpdate"]["maxSurge"], "25%");
    assert_eq!(created["spec"]["progressDeadlineSeconds"], 600);
    let change = json!({"spec": {"selector": {"matchLabels": {"app": "z"}}, "template": {"metadata": {"labels": {"app": "z"}}}}});
    let message = cluster
        .patch(&format!("{path}/d"), "merge", &change)
        .await
        .expect_status(422, "Invalid");
    assert!(message.contains("field is immutable"), "{message}");
}

async fn a_budget_has_one_limit(cluster: Cluster) {
    let path = format!("/apis/policy/v1/namespaces/{}/poddisruptionbudgets", cluster.namespace);
    let both = json!({"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "maxUnavailable": 1, "selector": {}}});
    cluster.post(&path, &both).await.expect_status(422, "Invalid");
    let much = json!({"metadata": {"name": "b"}, "spec": {"minAvailable": "101%", "selector": {}}});
    cluster.post(&path, &much).await.expect_status(422, "Invalid");
    let right = json!({"metadata": {"name": "b"}, "spec": {"minAvailable": "50%", "selector": {}}});
    let created = cluster.post(&path, &right).await.expect_code(201);
    assert_eq!(created["status"]["disruptionsAllowed"], 0);
    assert_eq!(created["metadata"]["generation"], 1);
}

async fn immutable_maps_stay(cluster: Cluster) {
    let body = json!({"metadata": {"name": "a"}, "immutable": true, "data": {"k": "v"}});
    cluster.post(&cluster.path("configmaps"), &body).await.expect_code(201);
    let change = json!({"data": {"k": "w"}});
    let message = cluster
        .patch(&cluster.path("configmaps/a"), "merge", &change)
        .await
        .expect_status(422, "Invalid");
    assert!(
        message.contains("data: Forbidden: field is immutable when `immutable` is set"),
        "{message}"
    );
}

async fn a_nodes_status_takes_labels(cluster: Cluster) {
    let node = format!("node-{}", cluster.unique);
    cluster
        .post("/api/v1/nodes", &json!({"metadata": {"name": node}}))
        .await
        .expect_code(201);
    let path = format!("/api/v1/nodes/{node}");
    let both = json!({"metadata": {"labels": {"a": "b"}}, "status": {"capacity": {"cpu": "4"}}});
    let written = cluster
        .patch(&format!("{path}/status"), "merge", &both)
        .await
        .expect_code(200);
    assert_eq!(
        (
            &written["metadata"]["labels"]["a"],
            &written["status"]["capacity"]["cpu"]
        ),
        (&"b".into(), &"4".into())
    );
    cluster.delete(&path).await.expect_code(200);
}
