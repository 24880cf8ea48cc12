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
