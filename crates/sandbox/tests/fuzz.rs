//! Whatever is sent, the API server answers: never a panic, never a dropped connection.

use http::Request;
use http_body_util::BodyExt;
use karpenter_sandbox::Sandbox;
use kube::client::Body;
use proptest::prelude::*;
use serde_json::{Value, json};

/// JSON of any shape, with keys that objects really have.
fn tree() -> impl Strategy<Value = Value> {
    let key = prop::sample::select(vec![
        "metadata",
        "spec",
        "status",
        "name",
        "namespace",
        "labels",
        "finalizers",
        "containers",
        "resources",
        "requests",
        "cpu",
        "conditions",
        "type",
        "kind",
        "apiVersion",
        "data",
        "taints",
        "key",
        "op",
        "path",
        "value",
        "$patch",
        "$retainKeys",
        "$setElementOrder/containers",
        "template",
        "selector",
        "matchLabels",
        "replicas",
        "versions",
        "schema",
        "openAPIV3Schema",
        "properties",
        "names",
        "plural",
        "group",
        "scope",
        "ownerReferences",
        "uid",
        "generateName",
        "resourceVersion",
        "deleteOptions",
        "target",
        "spec.replicas",
        "x-kubernetes-validations",
        "rule",
    ]);
    let text = prop::sample::select(vec![
        "",
        "a",
        "Pod",
        "v1",
        "1Gi",
        "-1",
        "0.5",
        "replace",
        "delete",
        "/metadata",
        "a/b",
        "\u{0}",
        "ü",
        "true",
        "100%",
        "2026-01-01T00:00:00Z",
        "self.x",
        "object",
        "array",
        "string",
        "Cluster",
        "x.example.com",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        text.prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 40, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((key.clone(), inner), 0..5)
                .prop_map(|pairs| Value::Object(pairs.into_iter().map(|(k, v)| (k.to_owned(), v)).collect())),
        ]
    })
}

fn request() -> impl Strategy<Value = (String, String, String, Vec<u8>)> {
    let method = prop::sample::select(vec!["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]);
    let path = prop::sample::select(vec![
        "/api/v1/namespaces/default/pods",
        "/api/v1/namespaces/default/pods/p",
        "/api/v1/namespaces/default/pods/p/status",
        "/api/v1/namespaces/default/pods/p/binding",
        "/api/v1/namespaces/default/pods/p/eviction",
        "/api/v1/nodes",
        "/api/v1/nodes/n",
        "/api/v1/namespaces",
        "/api/v1/namespaces/default/configmaps/a",
        "/api/v1/namespaces/x/finalize",
        "/apis/apps/v1/namespaces/default/deployments",
        "/apis/apps/v1/namespaces/default/deployments/d/scale",
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        "/apis/events.k8s.io/v1/namespaces/default/events",
        "/apis/policy/v1/namespaces/default/poddisruptionbudgets",
        "/apis/batch/v1/namespaces/default/jobs",
        "/api/v1/namespaces/default/secrets",
        "/api/v1/namespaces/default/services",
        "/",
        "/api",
        "/apis/x/y/z",
        "//",
        "/openapi/v3/api/v1",
        "/api/v1/persistentvolumes",
        "/apis/coordination.k8s.io/v1/namespaces/default/leases",
    ]);
    let query = prop::sample::select(vec![
        "",
        "?limit=1",
        "?limit=x",
        "?continue=abc",
        "?resourceVersion=0",
        "?labelSelector=a,(",
        "?fieldSelector=%00",
        "?dryRun=All",
        "?fieldManager=m&force=true",
        "?fieldManager=m",
        "?fieldValidation=Strict",
        "?pretty=true",
        "?gracePeriodSeconds=-7",
        "?propagationPolicy=Orphan",
        "?%",
    ]);
    let content = prop::sample::select(vec![
        "",
        "application/json",
        "application/yaml",
        "application/json-patch+json",
        "application/merge-patch+json",
        "application/strategic-merge-patch+json",
        "application/apply-patch+yaml",
        "text/plain",
    ]);
    let body = prop_oneof![
        8 => tree().prop_map(|tree| tree.to_string().into_bytes()),
        1 => prop::collection::vec(any::<u8>(), 0..64),
    ];
    (method, path, query, content, body).prop_map(|(method, path, query, content, body)| {
        (method.into(), format!("{path}{query}"), content.into(), body)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn any_request_gets_an_answer((method, uri, content, body) in request()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let sandbox = Sandbox::start();
            sandbox
                .apply("apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, image: i}]}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n---\napiVersion: v1\nkind: Node\nmetadata: {name: n}")
                .unwrap();
            let Ok(request) = Request::builder().method(method.as_str()).uri(uri.as_str())
                .header("Content-Type", content.as_str()).body(Body::from(body.clone())) else { return };
            let response = sandbox.client().send(request).await.expect("an answer");
            let code = response.status().as_u16();
            let bytes = response.into_body().collect().await.expect("a whole answer").to_bytes();
            assert!(code < 600);
            if code >= 400 && !bytes.starts_with(b"404 page not found") {
                let status: Value = serde_json::from_slice(&bytes).expect("errors are Status objects");
                assert_eq!(status["kind"], json!("Status"));
                assert_eq!(status["code"], json!(code));
            }
        });
    }
}
