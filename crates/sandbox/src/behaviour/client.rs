//! What kube-rs makes of the API: the habits of its client and runtime that controllers build on.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Event as CoreEvent, Pod};
use kube::api::{Api, DeleteParams, DynamicObject, EvictParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind, PartialObjectMeta};
use kube::runtime::controller::{Action, Controller};
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::runtime::finalizer::{Event as Finalizing, finalizer};
use kube::runtime::{reflector, watcher};
use kube::{Resource, ResourceExt};
use serde_json::json;

use super::cluster::PATIENCE;
use super::{Cluster, Target, behaviours};

behaviours! {
    "1.10" => a_missing_object_is_none_and_a_missing_kind_an_error,
    "1.10" => the_finalizer_helper_adds_and_cleans_up,
    "1.10" => a_repeated_event_becomes_a_series,
    "1.10" => an_eviction_by_kube_rs_loses_its_delete_options,
    "1.10" => a_controller_sees_changes_of_what_it_owns,
    "1.10" => a_metadata_watcher_sees_metadata,
    "1.10" => a_streaming_list_fills_a_watcher,
    "2.12" => a_reflector_equals_a_list_after_many_writes,
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future)
        .await
        .expect("it happens in time")
}

fn config_map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}, "data": {"a": "1"}})).expect("a ConfigMap")
}

fn maps(cluster: &Cluster) -> Api<ConfigMap> {
    Api::namespaced(cluster.client(), &cluster.namespace)
}

async fn a_missing_object_is_none_and_a_missing_kind_an_error(cluster: Cluster) {
    let missing = maps(&cluster).get_opt("nobody").await.expect("an answer");
    assert!(missing.is_none());
    let kind = GroupVersionKind::gvk("nobody.example.com", "v1", "Thing");
    let things: Api<DynamicObject> =
        Api::namespaced_with(cluster.client(), &cluster.namespace, &ApiResource::from_gvk(&kind));
    assert!(things.get_opt("nobody").await.is_err());
}

async fn the_finalizer_helper_adds_and_cleans_up(cluster: Cluster) {
    let maps = maps(&cluster);
    let created = maps
        .create(&PostParams::default(), &config_map("a"))
        .await
        .expect("created");
    let step = |event: Finalizing<ConfigMap>| async move {
        match event {
            Finalizing::Apply(_) | Finalizing::Cleanup(_) => Ok::<_, std::convert::Infallible>(Action::await_change()),
        }
    };
    finalizer(&maps, "example.com/f", created.into(), step)
        .await
        .expect("added");
    assert_eq!(maps.get("a").await.expect("the map").finalizers(), ["example.com/f"]);
    let deleted = maps.delete("a", &DeleteParams::default()).await.expect("deleted");
    assert!(deleted.is_left(), "it lingers");
    let going = maps.get("a").await.expect("the map");
    finalizer(&maps, "example.com/f", going.into(), step)
        .await
        .expect("cleaned up");
    assert!(maps.get_opt("a").await.expect("an answer").is_none());
}

async fn a_repeated_event_becomes_a_series(cluster: Cluster) {
    let reporter = Reporter {
        controller: "example.com/test".into(),
        instance: Some("i".into()),
    };
    let recorder = Recorder::new(cluster.client(), reporter);
    let map = maps(&cluster)
        .create(&PostParams::default(), &config_map("a"))
        .await
        .expect("created");
    let event = Event {
        type_: EventType::Normal,
        reason: "Tested".into(),
        note: Some("again".into()),
        action: "Testing".into(),
        secondary: None,
    };
    let reference = map.object_ref(&());
    recorder.publish(&event, &reference).await.expect("published");
    recorder.publish(&event, &reference).await.expect("published again");
    let events: Api<CoreEvent> = Api::namespaced(cluster.client(), &cluster.namespace);
    let found = events.list(&ListParams::default()).await.expect("a list").items;
    let ours: Vec<&CoreEvent> = found
        .iter()
        .filter(|event| event.reason.as_deref() == Some("Tested"))
        .collect();
    assert_eq!(ours.len(), 1);
    assert_eq!(ours[0].series.as_ref().and_then(|series| series.count), Some(2));
}

async fn an_eviction_by_kube_rs_loses_its_delete_options(cluster: Cluster) {
    cluster.pod("p", Some(&cluster.nowhere())).await;
    let pods: Api<Pod> = Api::namespaced(cluster.client(), &cluster.namespace);
    let options = EvictParams {
        delete_options: Some(DeleteParams {
            grace_period_seconds: Some(5),
            ..DeleteParams::default()
        }),
        ..EvictParams::default()
    };
    let grace = || async {
        let pod = pods.get("p").await.expect("the pod");
        pod.metadata.deletion_grace_period_seconds
    };
    pods.evict("p", &options).await.expect("evicted");
    assert_eq!(grace().await, Some(30), "the options were not understood");
    let eviction = json!({"metadata": {"name": "p"}, "deleteOptions": {"gracePeriodSeconds": 5}});
    cluster
        .post(&cluster.path("pods/p/eviction"), &eviction)
        .await
        .expect_code(201);
    assert_eq!(grace().await, Some(5));
}

async fn a_controller_sees_changes_of_what_it_owns(cluster: Cluster) {
    let maps = maps(&cluster);
    let parent = maps
        .create(&PostParams::default(), &config_map("parent"))
        .await
        .expect("created");
    let (sent, mut seen) = tokio::sync::mpsc::unbounded_channel();
    let config = || watcher::Config::default().labels("behaviour=child");
    let only_parent = watcher::Config::default().fields("metadata.name=parent");
    let controller = Controller::new(maps.clone(), only_parent)
        .owns(maps.clone(), config())
        .run(
            |object: Arc<ConfigMap>, sent: Arc<tokio::sync::mpsc::UnboundedSender<String>>| async move {
                let _ = sent.send(object.name_any());
                Ok::<_, std::convert::Infallible>(Action::await_change())
            },
            |_, _, _| Action::await_change(),
            Arc::new(sent),
        )
        .for_each(|_| std::future::ready(()));
    let running = tokio::spawn(controller);
    assert_eq!(within(seen.recv()).await.as_deref(), Some("parent"));
    let mut child = config_map("child");
    child.metadata.labels = Some(BTreeMap::from([("behaviour".to_owned(), "child".to_owned())]));
    child.metadata.owner_references = parent.controller_owner_ref(&()).map(|owner| vec![owner]);
    maps.create(&PostParams::default(), &child).await.expect("created");
    assert_eq!(
        within(seen.recv()).await.as_deref(),
        Some("parent"),
        "the child's change reaches its owner"
    );
    running.abort();
}

async fn a_metadata_watcher_sees_metadata(cluster: Cluster) {
    maps(&cluster)
        .create(&PostParams::default(), &config_map("a"))
        .await
        .expect("created");
    let partial: Api<PartialObjectMeta<ConfigMap>> = Api::namespaced(cluster.client(), &cluster.namespace);
    let mut stream = watcher(partial, watcher::Config::default()).boxed();
    loop {
        let event = within(stream.try_next()).await.expect("no error").expect("no end");
        if let watcher::Event::InitApply(object) = event
            && object.name_any() == "a"
        {
            return;
        }
    }
}

async fn a_streaming_list_fills_a_watcher(cluster: Cluster) {
    maps(&cluster)
        .create(&PostParams::default(), &config_map("a"))
        .await
        .expect("created");
    let config = watcher::Config::default().streaming_lists();
    let mut stream = watcher(maps(&cluster), config).boxed();
    let (mut listed, mut seen) = (false, false);
    // kube-rs asks for version 0, and a real server's cache may be a moment behind: what the list lacks comes as a change.
    while !(listed && seen) {
        match within(stream.try_next()).await.expect("no error").expect("no end") {
            watcher::Event::InitApply(object) | watcher::Event::Apply(object) => seen |= object.name_any() == "a",
            watcher::Event::InitDone => {
                assert!(seen || cluster.target == Target::Real, "our own cache is never behind");
                listed = true;
            }
            watcher::Event::Init | watcher::Event::Delete(_) => {}
        }
    }
}

async fn a_reflector_equals_a_list_after_many_writes(cluster: Cluster) {
    let maps = maps(&cluster);
    let (reader, writer) = reflector::store();
    let stream = reflector(writer, watcher(maps.clone(), watcher::Config::default()));
    let (told, mut news) = tokio::sync::watch::channel(());
    let follower = tokio::spawn(async move {
        let mut stream = stream.boxed();
        while stream.next().await.is_some() {
            told.send_replace(());
        }
    });
    within(reader.wait_until_ready()).await.expect("a first list");
    let mut random: u64 = 42;
    let mut next = |bound: u64| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % bound
    };
    for step in 0..300 {
        let name = format!("m{}", next(20));
        match next(3) {
            0 => drop(maps.create(&PostParams::default(), &config_map(&name)).await),
            1 => {
                let patch = Patch::Merge(json!({"data": {"step": step.to_string()}}));
                drop(maps.patch(&name, &PatchParams::default(), &patch).await);
            }
            _ => drop(maps.delete(&name, &DeleteParams::default()).await),
        }
    }
    // A real cluster puts a map of its own into every namespace, some time after it was made.
    let versions = |maps: Vec<ConfigMap>| -> BTreeMap<String, Option<String>> {
        maps.into_iter()
            .filter(|map| map.name_any() != "kube-root-ca.crt")
            .map(|map| (map.name_any(), map.resource_version()))
            .collect()
    };
    let truth = versions(maps.list(&ListParams::default()).await.expect("a list").items);
    let seen = || versions(reader.state().iter().map(|map| (**map).clone()).collect());
    within(async {
        while seen() != truth {
            news.changed().await.expect("the follower lives");
        }
    })
    .await;
    follower.abort();
}
