//! Paths, verbs, content types, discovery and the wording of refusals.

use serde_json::json;

use super::{Answer, Cluster, Target, behaviours};

behaviours! {
    "1.5" => discovery_answers_in_the_form_that_is_asked_for,
    "1.5" => drain_finds_the_eviction_subresource,
    "1.3" => protobuf_is_skipped_when_json_is_accepted_too,
    "1.2" => an_unknown_group_is_not_a_status_and_an_unknown_resource_is,
    "1.2" => wrong_verbs_and_scopes_are_refused,
    "1.1" => query_strings_of_kube_rs_parse,
    "1.4" => names_and_namespaces_of_body_and_path_must_agree,
    "1.4" => the_kind_may_be_absent_in_built_in_objects,
    "2.7" => unknown_fields_warn_or_fail,
    "2.7" => repeated_fields_warn_or_fail,
    "1.4" => bodies_that_are_no_objects_are_bad_requests,
    "1.8" => tables_have_rows_and_columns,
    "1.8" => metadata_alone_can_be_read,
    "1.6" => openapi_shows_that_fields_are_validated,
    "1.7" => the_version_and_health_can_be_asked,
    "1.4" => options_with_unknown_values_are_invalid,
    "1.3" => yaml_bodies_are_read,
    "1.1" => bodies_beyond_the_limit_are_refused,
    "1.3" => protobuf_is_answered_or_refused_clearly,
    "1.4" => every_kind_of_refusal_is_a_status,
    "1.4" => a_token_that_nobody_issued_is_unauthorized,
}

async fn discovery_answers_in_the_form_that_is_asked_for(cluster: Cluster) {
    let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";
    let aggregated = cluster.get_as("/api", accept).await;
    assert_eq!(aggregated.expect_code(200)["kind"], "APIGroupDiscoveryList");
    assert!(aggregated.header("content-type").contains("as=APIGroupDiscoveryList"));
    assert_eq!(cluster.get("/api").await.expect_code(200)["kind"], "APIVersions");
    let groups = cluster.get("/apis").await.expect_code(200);
    assert!(
        groups["groups"]
            .as_array()
            .expect("groups")
            .iter()
            .any(|group| group["name"] == "apps")
    );
    assert_eq!(
        cluster.get("/apis/apps").await.expect_code(200)["preferredVersion"]["version"],
        "v1"
    );
    assert_eq!(
        cluster.get("/apis/apps/v1").await.expect_code(200)["groupVersion"],
        "apps/v1"
    );
}

async fn drain_finds_the_eviction_subresource(cluster: Cluster) {
    let list = cluster.get("/api/v1").await.expect_code(200);
    let resources = list["resources"].as_array().expect("resources");
    let eviction = resources
        .iter()
        .find(|resource| resource["name"] == "pods/eviction")
        .expect("pods/eviction");
    assert_eq!(
        (&eviction["kind"], &eviction["group"]),
        (&"Eviction".into(), &"policy".into())
    );
}

async fn protobuf_is_skipped_when_json_is_accepted_too(cluster: Cluster) {
    let both = "application/vnd.kubernetes.protobuf;q=0,application/json";
    let path = cluster.path("configmaps");
    let answer = cluster.get_as(&path, both).await;
    answer.expect_code(200);
    let nonsense = cluster.get_as(&path, "application/nonsense").await;
    nonsense.expect_status(406, "NotAcceptable");
}

async fn an_unknown_group_is_not_a_status_and_an_unknown_resource_is(cluster: Cluster) {
    let unknown = cluster.get("/apis/nobody.example/v1/things").await;
    assert_eq!(unknown.code, 404);
    assert_eq!(unknown.text.trim(), "404 page not found");
    let message = cluster.get("/api/v1/nodez").await.expect_status(404, "NotFound");
    assert_eq!(message, "the server could not find the requested resource");
    let missing = cluster.get(&cluster.path("pods/x")).await;
    assert_eq!(missing.expect_status(404, "NotFound"), "pods \"x\" not found");
    assert_eq!(missing.json()["details"]["kind"], "pods");
}

async fn wrong_verbs_and_scopes_are_refused(cluster: Cluster) {
    let body = json!({"metadata": {"name": "x"}});
    cluster
        .post("/api/v1/pods", &body)
        .await
        .expect_status(405, "MethodNotAllowed");
    cluster.get("/api/v1/pods/x").await.expect_status(404, "NotFound");
    let empty = cluster
        .get("/api/v1/namespaces/missing-namespace/pods")
        .await
        .expect_code(200);
    assert_eq!(empty["items"], json!([]));
    let refused = cluster
        .post("/api/v1/namespaces/missing-namespace/configmaps", &body)
        .await;
    assert_eq!(
        refused.expect_status(404, "NotFound"),
        "namespaces \"missing-namespace\" not found"
    );
    cluster
        .get(&cluster.path("pods/x/eviction"))
        .await
        .expect_status(405, "MethodNotAllowed");
    cluster
        .delete("/api/v1/namespaces")
        .await
        .expect_status(405, "MethodNotAllowed");
}

async fn query_strings_of_kube_rs_parse(cluster: Cluster) {
    cluster.config_map("a", &json!({})).await;
    cluster.config_map("b", &json!({})).await;
    let page = cluster.get(&cluster.path("configmaps?&limit=1")).await.expect_code(200);
    assert_eq!(page["items"].as_array().map(Vec::len), Some(1));
    cluster.get(&cluster.path("configmaps?")).await.expect_code(200);
    cluster.get(&cluster.path("configmaps?foo=bar")).await.expect_code(200);
    let all = cluster
        .get(&cluster.path("configmaps?limit=-1&watch=false"))
        .await
        .expect_code(200);
    assert!(all["items"].as_array().expect("items").len() >= 2);
    let bad = cluster
        .get(&cluster.path("configmaps?limit=abc"))
        .await
        .expect_status(400, "BadRequest");
    assert!(
        bad.contains("strconv.ParseInt: parsing \"abc\": invalid syntax"),
        "{bad}"
    );
}

async fn names_and_namespaces_of_body_and_path_must_agree(cluster: Cluster) {
    cluster.config_map("a", &json!({})).await;
    let path = cluster.path("configmaps/a");
    let message = cluster
        .put(&path, &json!({"metadata": {"name": "b"}}))
        .await
        .expect_status(400, "BadRequest");
    assert_eq!(
        message,
        "the name of the object (b) does not match the name on the URL (a)"
    );
    let message = cluster
        .put(&path, &json!({"metadata": {}}))
        .await
        .expect_status(400, "BadRequest");
    assert!(message.contains("name must be provided"), "{message}");
    let elsewhere = json!({"metadata": {"name": "x", "namespace": "default"}});
    let message = cluster
        .post(&cluster.path("configmaps"), &elsewhere)
        .await
        .expect_status(400, "BadRequest");
    assert_eq!(
        message,
        "the namespace of the provided object does not match the namespace sent on the request"
    );
}

async fn the_kind_may_be_absent_in_built_in_objects(cluster: Cluster) {
    let created = cluster.config_map("a", &json!({"k": "v"})).await;
    assert_eq!(
        (&created["kind"], &created["apiVersion"]),
        (&"ConfigMap".into(), &"v1".into())
    );
    let wrong = json!({"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "b"}});
    cluster
        .post(&cluster.path("configmaps"), &wrong)
        .await
        .expect_status(400, "BadRequest");
}

async fn unknown_fields_warn_or_fail(cluster: Cluster) {
    let body = json!({"metadata": {"name": "a"}, "datum": {}});
    let warned = cluster.post(&cluster.path("configmaps"), &body).await;
    assert!(warned.expect_code(201).get("datum").is_none());
    assert_eq!(warned.header("warning"), "299 - \"unknown field \\\"datum\\\"\"");
    let strict = cluster.path("configmaps?fieldValidation=Strict");
    let body = json!({"metadata": {"name": "b"}, "datum": {}});
    let message = cluster.post(&strict, &body).await.expect_status(400, "BadRequest");
    assert!(
        message.contains("strict decoding error: unknown field \"datum\""),
        "{message}"
    );
    let strict = cluster.path("configmaps/a?fieldValidation=Strict");
    let patched = cluster.patch(&strict, "merge", &json!({"datum": {}})).await;
    patched.expect_status(422, "Invalid");
    assert_eq!(patched.json()["details"]["causes"][0]["field"], "patch");
}

async fn repeated_fields_warn_or_fail(cluster: Cluster) {
    let body = r#"{"metadata": {"name": "a"}, "data": {"k": "v", "k": "w"}}"#;
    let content = [("Content-Type", "application/json")];
    let path = cluster.path("configmaps");
    let strict = cluster
        .send("POST", &format!("{path}?fieldValidation=Strict"), &content, body.into())
        .await;
    let message = strict.expect_status(400, "BadRequest");
    assert!(message.contains("duplicate field \"data.k\""), "{message}");
    let warned = cluster.send("POST", &path, &content, body.into()).await;
    assert_eq!(warned.expect_code(201)["data"]["k"], "w");
    assert!(
        warned.header("warning").contains("duplicate field"),
        "{}",
        warned.header("warning")
    );
}

async fn bodies_that_are_no_objects_are_bad_requests(cluster: Cluster) {
    let path = cluster.path("configmaps");
    for body in [
        "",
        "{",
        "[]",
        "7",
        "null",
        "\u{0}",
        "{\"metadata\": 7}",
        "{\"metadata\":{\"name\":{}}}",
    ] {
        let answer = cluster
            .send("POST", &path, &[("Content-Type", "application/json")], body.into())
            .await;
        assert!((400..=422).contains(&answer.code), "{body:?}: {}", answer.text);
    }
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": 7}});
    let message = cluster
        .post(&cluster.path("pods"), &pod)
        .await
        .expect_status(400, "BadRequest");
    assert!(
        message.starts_with("Pod in version \"v1\" cannot be handled as a Pod: "),
        "{message}"
    );
    let answer = cluster
        .send("POST", &path, &[("Content-Type", "text/html")], b"x".into())
        .await;
    answer.expect_status(415, "UnsupportedMediaType");
    let path = cluster.path("configmaps/a");
    let answer = cluster
        .send("PATCH", &path, &[("Content-Type", "text/html")], b"x".into())
        .await;
    answer.expect_status(415, "UnsupportedMediaType");
}

async fn tables_have_rows_and_columns(cluster: Cluster) {
    cluster.pod("p", None).await;
    let accept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
    let table = cluster.get_as(&cluster.path("pods"), accept).await.expect_code(200);
    assert_eq!(table["kind"], "Table");
    let columns: Vec<&str> = table["columnDefinitions"]
        .as_array()
        .expect("columns")
        .iter()
        .filter_map(|column| column["name"].as_str())
        .collect();
    assert_eq!(columns[..5], ["Name", "Ready", "Status", "Restarts", "Age"]);
    let row = &table["rows"][0];
    assert_eq!(row["cells"][0], "p");
    assert_eq!(row["cells"][1], "0/1");
    assert_eq!(row["cells"][2], "Pending");
    assert_eq!(row["object"]["kind"], "PartialObjectMetadata");
    let whole = cluster
        .get_as(&cluster.path("pods?includeObject=Object"), accept)
        .await
        .expect_code(200);
    assert_eq!(whole["rows"][0]["object"]["kind"], "Pod");
    let missing = cluster.get_as(&cluster.path("pods/x"), accept).await;
    missing.expect_status(404, "NotFound");
}

async fn metadata_alone_can_be_read(cluster: Cluster) {
    cluster.config_map("a", &json!({"k": "v"})).await;
    let accept = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
    let one = cluster
        .get_as(&cluster.path("configmaps/a"), accept)
        .await
        .expect_code(200);
    assert_eq!(one["kind"], "PartialObjectMetadata");
    assert!(one.get("data").is_none());
    let accept = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
    let list = cluster
        .get_as(&cluster.path("configmaps"), accept)
        .await
        .expect_code(200);
    assert_eq!(list["kind"], "PartialObjectMetadataList");
}

async fn openapi_shows_that_fields_are_validated(cluster: Cluster) {
    let url = |answer: &Answer| {
        let url = &answer.json()["paths"]["apis/apps/v1"]["serverRelativeURL"];
        url.as_str().map(str::to_owned)
    };
    // A real server puts the index together after it has started to serve.
    let index = cluster
        .wait("/openapi/v3", "apps/v1", |answer| url(answer).is_some())
        .await;
    let url = url(&index).expect("apps/v1 is listed");
    let document = cluster.get(&url).await.expect_code(200);
    let patch = &document["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"]["patch"];
    let parameters = patch["parameters"].as_array().expect("parameters");
    assert!(
        parameters
            .iter()
            .any(|parameter| parameter["name"] == "fieldValidation")
    );
}

async fn the_version_and_health_can_be_asked(cluster: Cluster) {
    let version = cluster.get("/version").await.expect_code(200);
    assert!(
        version["gitVersion"]
            .as_str()
            .is_some_and(|version| version.starts_with("v1."))
    );
    // A busy server may miss one of its own checks for a moment.
    for path in ["/healthz", "/livez", "/readyz"] {
        cluster
            .wait(path, "ok", |answer| (answer.code, answer.text.as_str()) == (200, "ok"))
            .await;
    }
}

async fn options_with_unknown_values_are_invalid(cluster: Cluster) {
    let body = json!({"metadata": {"name": "a"}});
    let answer = cluster.post(&cluster.path("configmaps?fieldValidation=X"), &body).await;
    let message = answer.expect_status(422, "Invalid");
    assert!(message.contains("Unsupported value: \"X\""), "{message}");
    cluster
        .post(&cluster.path("configmaps?dryRun=Some"), &body)
        .await
        .expect_status(422, "Invalid");
    cluster.config_map("a", &json!({})).await;
    let options = json!({"propagationPolicy": "Sideways"});
    cluster
        .delete_with(&cluster.path("configmaps/a"), &options)
        .await
        .expect_status(422, "Invalid");
}

async fn yaml_bodies_are_read(cluster: Cluster) {
    let yaml = "metadata:\n  name: a\ndata:\n  k: v\n";
    let content = [("Content-Type", "application/yaml")];
    let created = cluster
        .send("POST", &cluster.path("configmaps"), &content, yaml.into())
        .await;
    assert_eq!(created.expect_code(201)["data"]["k"], "v");
}

async fn bodies_beyond_the_limit_are_refused(cluster: Cluster) {
    let body = json!({"metadata": {"name": "a"}, "data": {"k": "x".repeat(3 * 1024 * 1024)}});
    let answer = cluster.post(&cluster.path("configmaps"), &body).await;
    answer.expect_status(413, "RequestEntityTooLarge");
}

/// A known deviation: the sandbox has no protobuf, and says so.
async fn protobuf_is_answered_or_refused_clearly(cluster: Cluster) {
    let protobuf = "application/vnd.kubernetes.protobuf";
    let path = cluster.path("configmaps");
    let alone = cluster.get_as(&path, protobuf).await;
    let either = cluster.get_as(&path, &format!("{protobuf},application/json")).await;
    either.expect_code(200);
    let sent = cluster
        .send("POST", &path, &[("Content-Type", protobuf)], b"k8s\0nonsense".to_vec())
        .await;
    match cluster.target {
        Target::Real => {
            assert_eq!((alone.code, alone.header("content-type")), (200, protobuf));
            assert_eq!(sent.code, 400, "{}", sent.text);
        }
        Target::Sandbox => {
            alone.expect_status(406, "NotAcceptable");
            assert_eq!(either.json()["kind"], "ConfigMapList");
            let message = sent.expect_status(415, "UnsupportedMediaType");
            assert!(message.contains("kubectl create -f -"), "{message}");
        }
    }
}

async fn a_token_that_nobody_issued_is_unauthorized(cluster: Cluster) {
    for token in ["Bearer nobody-issued-this", "Bearer 6b1f.not.a.signature"] {
        let headers = [("Authorization", token)];
        let answer = cluster.send_as_stranger("GET", &cluster.path("pods"), &headers).await;
        assert_eq!(answer.expect_status(401, "Unauthorized"), "Unauthorized");
    }
}

async fn every_kind_of_refusal_is_a_status(cluster: Cluster) {
    cluster.config_map("a", &json!({})).await;
    let maps = cluster.path("configmaps");
    let json_type = [("Content-Type", "application/json")];
    let bad = cluster.send("POST", &maps, &json_type, b"{".to_vec()).await;
    bad.expect_status(400, "BadRequest");
    cluster.get(&format!("{maps}/b")).await.expect_status(404, "NotFound");
    cluster
        .send("POST", "/api/v1/configmaps", &json_type, b"{}".to_vec())
        .await
        .expect_status(405, "MethodNotAllowed");
    cluster
        .get_as(&maps, "text/html")
        .await
        .expect_status(406, "NotAcceptable");
    let again = json!({"metadata": {"name": "a"}});
    cluster.post(&maps, &again).await.expect_status(409, "AlreadyExists");
    let stale = json!({"metadata": {"name": "a", "resourceVersion": "1"}});
    cluster
        .put(&format!("{maps}/a"), &stale)
        .await
        .expect_status(409, "Conflict");
    cluster
        .send("POST", &maps, &[("Content-Type", "text/html")], b"x".to_vec())
        .await
        .expect_status(415, "UnsupportedMediaType");
    let unnamed = json!({"metadata": {"name": "-"}});
    cluster.post(&maps, &unnamed).await.expect_status(422, "Invalid");
    for answer in [
        cluster.get("/api/v1/nodes/none").await,
        cluster.post(&maps, &unnamed).await,
    ] {
        let status = answer.json();
        assert_eq!(
            (&status["apiVersion"], &status["status"], &status["code"]),
            (&json!("v1"), &json!("Failure"), &json!(answer.code))
        );
        assert!(status["metadata"].is_object(), "{status}");
    }
}
