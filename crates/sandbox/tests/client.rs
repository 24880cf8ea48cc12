//! The in-process client: what a controller does all day.

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use karpenter_sandbox::Sandbox;
use karpenter_sandbox::faults::Fault;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use serde_json::json;

fn config_map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}, "data": {"a": "1"}})).unwrap()
}

#[tokio::test]
async fn objects_are_created_read_patched_listed_and_deleted() {
    let sandbox = Sandbox::start();
    let maps: Api<ConfigMap> = Api::default_namespaced(sandbox.client());
    let created = maps.create(&PostParams::default(), &config_map("a")).await.unwrap();
    assert!(created.metadata.uid.is_some());
    let patch = Patch::Merge(json!({"data": {"b": "2"}}));
    let patched = maps.patch("a", &PatchParams::default(), &patch).await.unwrap();
    assert_eq!(patched.data.unwrap()["b"], "2");
    let named = ListParams::default().fields("metadata.name=a");
    assert_eq!(maps.list(&named).await.unwrap().items.len(), 1);
    assert!(maps.delete("a", &DeleteParams::default()).await.unwrap().is_right());
    assert!(maps.get_opt("a").await.unwrap().is_none());
    assert_eq!(sandbox.requests().count("create", "configmaps"), 1);
}

#[tokio::test]
async fn a_watch_sees_what_happens_after_its_version() {
    let sandbox = Sandbox::builder().api_server_only().start();
    let maps: Api<ConfigMap> = Api::default_namespaced(sandbox.client());
    let version = maps
        .list(&ListParams::default())
        .await
        .unwrap()
        .metadata
        .resource_version
        .unwrap();
    let mut events = maps.watch(&WatchParams::default(), &version).await.unwrap().boxed();
    maps.create(&PostParams::default(), &config_map("a")).await.unwrap();
    assert!(
        matches!(events.try_next().await.unwrap(), Some(WatchEvent::Added(map)) if map.metadata.name.as_deref() == Some("a"))
    );
    drop(events);
    assert_eq!(sandbox.objects().server().store().watch_count(), 0);
}

#[tokio::test]
async fn an_injected_failure_reaches_the_client_once() {
    let sandbox = Sandbox::start();
    let pods: Api<Pod> = Api::default_namespaced(sandbox.client());
    sandbox
        .faults()
        .inject(Fault::fail(503).verb("list").resource("pods").times(1));
    assert!(pods.list(&ListParams::default()).await.is_err());
    assert!(pods.list(&ListParams::default()).await.is_ok());
}

#[tokio::test]
async fn an_agent_dies_right_after_its_second_write() {
    let sandbox = Sandbox::start();
    let maps: Api<ConfigMap> = Api::default_namespaced(sandbox.client_as("doomed"));
    sandbox.faults().after_writes("doomed", 2, {
        let sandbox = sandbox.clone();
        move || sandbox.faults().cut_off("doomed")
    });
    maps.create(&PostParams::default(), &config_map("a")).await.unwrap();
    maps.create(&PostParams::default(), &config_map("b")).await.unwrap_err();
    maps.create(&PostParams::default(), &config_map("c")).await.unwrap_err();
    let stored = sandbox.objects().list::<ConfigMap>("default");
    let names: Vec<_> = stored.iter().filter_map(|map| map.metadata.name.as_deref()).collect();
    assert_eq!(names, ["a", "b", "kube-root-ca.crt"]);
}

#[tokio::test]
async fn an_unknown_group_is_an_error_and_an_unknown_name_is_not() {
    let sandbox = Sandbox::start();
    let namespaces: Api<Namespace> = Api::all(sandbox.client());
    assert!(namespaces.get_opt("nope").await.unwrap().is_none());
    let kind = kube::core::GroupVersionKind::gvk("nope.example", "v1", "Nope");
    let resource = kube::core::ApiResource::from_gvk(&kind);
    let nopes: Api<kube::core::DynamicObject> = Api::all_with(sandbox.client(), &resource);
    assert!(nopes.get_opt("x").await.is_err());
}

#[tokio::test]
async fn discovery_finds_custom_kinds() {
    let sandbox = Sandbox::start();
    for crd in karpenter_api::crd::all() {
        sandbox.apply(&serde_json::to_string(crd.as_value()).unwrap()).unwrap();
    }
    let client = sandbox.client();
    let kind = kube::core::GroupVersionKind::gvk("karpenter.sh", "v1", "NodePool");
    let (resource, _) = kube::discovery::pinned_kind(&client, &kind).await.unwrap();
    assert_eq!(resource.plural, "nodepools");
    let discovery = kube::Discovery::new(client.clone()).run().await.unwrap();
    assert!(discovery.has_group("karpenter.sh") && discovery.has_group("apps"));
    let aggregated = kube::Discovery::new(client).run_aggregated().await.unwrap();
    assert!(aggregated.resolve_gvk(&kind).is_some());
}

#[tokio::test]
async fn deleting_a_held_pod_again_changes_nothing() {
    let sandbox = Sandbox::builder().api_server_only().start();
    sandbox
        .apply("{apiVersion: v1, kind: Pod, metadata: {name: p, finalizers: [a.b/c]}, spec: {nodeName: n, containers: [{name: c, image: i}]}}")
        .unwrap();
    let pods: Api<Pod> = Api::default_namespaced(sandbox.client());
    let at_once = DeleteParams::default().grace_period(0);
    let first = pods.delete("p", &at_once).await.unwrap().left().unwrap();
    for parameters in [DeleteParams::default(), at_once] {
        let again = pods.delete("p", &parameters).await.unwrap().left().unwrap();
        assert_eq!(again.metadata.resource_version, first.metadata.resource_version);
        assert_eq!(again.metadata.deletion_grace_period_seconds, Some(0));
    }
}

#[tokio::test]
async fn a_service_keeps_its_address() {
    let sandbox = Sandbox::start();
    let service = "{apiVersion: v1, kind: Service, metadata: {name: s}, spec: {ports: [{port: 80}]}}";
    sandbox.apply(service).unwrap();
    let services: Api<k8s_openapi::api::core::v1::Service> = Api::default_namespaced(sandbox.client());
    let created = services.get("s").await.unwrap();
    let address = created.spec.clone().unwrap().cluster_ip;
    assert!(address.is_some());
    let mut bare = created;
    bare.spec.as_mut().unwrap().cluster_ip = None;
    let replaced = services.replace("s", &PostParams::default(), &bare).await.unwrap();
    assert_eq!(replaced.spec.unwrap().cluster_ip, address);
}

#[tokio::test]
async fn an_event_is_gone_after_an_hour() {
    let sandbox = Sandbox::start();
    sandbox
        .apply("{apiVersion: v1, kind: Event, metadata: {name: e}, involvedObject: {kind: Pod, name: p}}")
        .unwrap();
    let exists = || {
        sandbox
            .objects()
            .get::<k8s_openapi::api::core::v1::Event>("default", "e")
            .is_some()
    };
    sandbox.run_for(std::time::Duration::from_secs(3599)).await;
    assert!(exists());
    sandbox.run_for(std::time::Duration::from_secs(2)).await;
    assert!(!exists());
}
