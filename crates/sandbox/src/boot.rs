//! What a cluster contains before anybody uses it.

use serde_json::{Value, json};

use crate::server::{Server, WriteOptions};

/// Creates the namespaces, priority classes and the service that every cluster has.
pub(crate) fn furnish(server: &Server) {
    for name in ["default", "kube-system", "kube-public", "kube-node-lease"] {
        create(server, "", "namespaces", "", json!({"metadata": {"name": name}}));
    }
    for (name, value) in [
        ("system-cluster-critical", 2_000_000_000_i64),
        ("system-node-critical", 2_000_001_000),
    ] {
        let class = json!({
            "metadata": {"name": name}, "value": value,
            "description": "Used for system critical pods.",
        });
        create(server, "scheduling.k8s.io", "priorityclasses", "", class);
    }
    let service = json!({
        "metadata": {"name": "kubernetes", "labels": {"component": "apiserver", "provider": "kubernetes"}},
        "spec": {"clusterIP": "10.96.0.1", "ports": [{"name": "https", "port": 443, "targetPort": 6443}]},
    });
    create(server, "", "services", "default", service);
}

fn create(server: &Server, group: &str, plural: &str, namespace: &str, body: Value) {
    let resource = server.resource(group, plural).expect("a built-in resource");
    server
        .create(&resource, namespace, body, &WriteOptions::default())
        .unwrap_or_else(|error| panic!("an empty cluster accepts its {plural}: {error}"));
}
