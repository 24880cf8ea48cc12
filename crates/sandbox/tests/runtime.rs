//! kube-runtime on the sandbox: the traps that every controller must survive.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Event as CoreEvent, ObjectReference, Pod};
use karpenter_sandbox::faults::Fault;
use karpenter_sandbox::{Clock, DeleteOptions, Sandbox};
use kube::api::{Api, DeleteParams, EvictParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::PartialObjectMeta;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::runtime::finalizer::{Event as Finalizing, finalizer};
use kube::runtime::watcher::{self, Config, Event as Watched, InitialListStrategy};
use kube::runtime::{controller::Action, reflector, watcher::watcher as watch};
use kube::{Resource, ResourceExt};
use serde_json::json;

const PATIENCE: Duration = Duration::from_secs(10);

fn config_map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}, "data": {"a": "1"}})).unwrap()
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future)
        .await
        .expect("it happens in time")
}

/// Reads a watcher until it has seen an initial list; the names in it.
async fn initial_names<S>(stream: &mut S) -> Vec<String>
where
    S: futures::Stream<Item = Result<Watched<ConfigMap>, watcher::Error>> + Unpin,
{
    let mut names = Vec::new();
    loop {
        match within(stream.next()).await.expect("a watcher never ends") {
            Ok(Watched::Init) => names.clear(),
            Ok(Watched::InitApply(object)) => names.push(object.name_any()),
            Ok(Watched::InitDone) => return names,
            Ok(Watched::Apply(_) | Watched::Delete(_)) | Err(_) => {}
        }
    }
}

#[tokio::test]
async fn a_watcher_relists_when_its_version_expired() {
    let sandbox = Sandbox::start();
    let maps: Api<ConfigMap> = Api::default_namespaced(sandbox.client());
    maps.create(&PostParams::default(), &config_map("a")).await.unwrap();
    let mut stream = watch(maps.clone(), Config::default()).boxed();
    assert!(initial_names(&mut stream).await.contains(&"a".to_owned()));
    sandbox.settle().await;
    sandbox.faults().drop_watches();
    maps.create(&PostParams::default(), &config_map("b")).await.unwrap();
    sandbox.expire_resource_versions();
    assert!(initial_names(&mut stream).await.contains(&"b".to_owned()));
}

#[tokio::test]
async fn a_watcher_resumes_after_a_dropped_watch_without_relisting() {
    let sandbox = Sandbox::start();
    let maps: Api<ConfigMap> = Api::default_namespaced(sandbox.client());
    let mut stream = watch(maps.clone(), Config::default()).boxed();
    initial_names(&mut stream).await;
    let lists = sandbox.requests().count("list", "configmaps");
    for name in ["a", "b", "c"] {
        maps.create(&PostParams::default(), &config_map(name)).await.unwrap();
        loop {
            match within(stream.next()).await.unwrap() {
                Ok(Watched::Apply(object)) if object.name_any() == name => break,
                Ok(other) => panic!("unexpected {other:?}"),
                Err(_) => {}
            }
        }
        sandbox.faults().drop_watches();
    }
    assert_eq!(sandbox.requests().count("list", "configmaps"), lists);
}

#[tokio::test]
async fn a_streaming_list_is_understood() {
    let sandbox = Sandbox::start();
    let maps: Api<ConfigMap> = Api::default_namespaced(sandbox.client());
    maps.create(&PostParams::default(), &config_map("a")).await.unwrap();
    let config = Config {
        initial_list_strategy: InitialListStrategy::StreamingList,
        ..Config::default()
    };
    let mut stream = watch(maps, config).boxed();
    assert_eq!(initial_names(&mut stream).await, ["a", "kube-root-ca.crt"]);
    assert_eq!(sandbox.requests().count("list", "configmaps"), 0);
}

#[tokio::test]
async fn a_metadata_watcher_gets_metadata() {
    let sandbox = Sandbox::start();
    let maps: Api<ConfigMap> = Api::default_namespaced(sandbox.client());
    maps.create(&PostParams::default(), &config_map("a")).await.unwrap();
    let partial: Api<PartialObjectMeta<ConfigMap>> = Api::default_namespaced(sandbox.client());
    let mut stream = watch(partial, Config::default()).boxed();
    loop {
        if let Watched::InitApply(object) = within(stream.try_next()).await.unwrap().unwrap()
            && object.name_any() == "a"
        {
            break;
        }
    }
}

#[tokio::test]
async fn a_reflector_equals_a_list_after_random_writes_with_disconnects() {
    let sandbox = Sandbox::builder().seed(7).start();
    let maps: Api<ConfigMap> = Api::default_namespaced(sandbox.client());
    let (reader, writer) = reflector::store();
    let stream = reflector(writer, watch(maps.clone(), Config::default()));
    let (told, mut news) = tokio::sync::watch::channel(());
    let follower = tokio::spawn(async move {
        let mut stream = stream.boxed();
        while stream.next().await.is_some() {
            told.send_replace(());
        }
    });
    within(reader.wait_until_ready()).await.unwrap();
    let mut random: u64 = 42;
    let mut next = |bound: u64| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % bound
    };
    for step in 0..2000 {
        let name = format!("m{}", next(40));
        match next(3) {
            0 => drop(maps.create(&PostParams::default(), &config_map(&name)).await),
            1 => {
                let patch = Patch::Merge(json!({"data": {"step": step.to_string()}}));
                drop(maps.patch(&name, &PatchParams::default(), &patch).await);
            }
            _ => drop(maps.delete(&name, &DeleteParams::default()).await),
        }
        match step % 500 {
            250 => sandbox.faults().drop_watches(),
            400 => {
                sandbox.expire_resource_versions();
                sandbox.faults().drop_watches();
            }
            _ => {}
        }
    }
    let versions = |maps: Vec<ConfigMap>| -> BTreeMap<String, Option<String>> {
        maps.into_iter()
            .map(|map| (map.name_any(), map.resource_version()))
            .collect()
    };
    let truth = versions(maps.list(&ListParams::default()).await.unwrap().items);
    let seen = || versions(reader.state().iter().map(|map| (**map).clone()).collect());
    within(async {
        // The watcher backs off after an expired version; each thing it reads may be the last that was missing.
        while seen() != truth {
            news.changed().await.expect("the follower lives");
        }
    })
    .await;
    follower.abort();
}

#[tokio::test]
async fn the_finalizer_helper_adds_and_removes() {
    let sandbox = Sandbox::start();
    let maps: Api<ConfigMap> = Api::default_namespaced(sandbox.client());
    let created = maps.create(&PostParams::default(), &config_map("a")).await.unwrap();
    let step = |event: Finalizing<ConfigMap>| async move {
        match event {
            Finalizing::Apply(_) | Finalizing::Cleanup(_) => Ok::<_, std::convert::Infallible>(Action::await_change()),
        }
    };
    finalizer(&maps, "example.com/f", created.into(), step).await.unwrap();
    let held = maps.get("a").await.unwrap();
    assert_eq!(held.finalizers(), ["example.com/f"]);
    assert!(maps.delete("a", &DeleteParams::default()).await.unwrap().is_left());
    let going = maps.get("a").await.unwrap();
    finalizer(&maps, "example.com/f", going.into(), step).await.unwrap();
    assert!(maps.get_opt("a").await.unwrap().is_none());
}

#[tokio::test]
async fn a_repeated_event_becomes_a_series() {
    let sandbox = Sandbox::builder().clock(Clock::real()).start();
    let reporter = Reporter {
        controller: "example.com/test".into(),
        instance: Some("i".into()),
    };
    let recorder = Recorder::new(sandbox.client(), reporter);
    let map = sandbox.objects().create(&ConfigMap {
        metadata: kube::core::ObjectMeta {
            namespace: Some("default".into()),
            ..config_map("a").metadata
        },
        ..config_map("a")
    });
    let reference: ObjectReference = map.unwrap().object_ref(&());
    let event = Event {
        type_: EventType::Normal,
        reason: "Tested".into(),
        note: Some("again".into()),
        action: "Testing".into(),
        secondary: None,
    };
    recorder.publish(&event, &reference).await.unwrap();
    recorder.publish(&event, &reference).await.unwrap();
    let events = sandbox.objects().list::<CoreEvent>("default");
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].series.as_ref().and_then(|series| series.count), Some(2));
}

#[tokio::test]
async fn kube_rs_evict_loses_its_delete_options() {
    let sandbox = Sandbox::start();
    sandbox
        .apply("apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {nodeName: n, containers: [{name: c, image: i}]}")
        .unwrap();
    let pods: Api<Pod> = Api::default_namespaced(sandbox.client());
    let options = EvictParams {
        delete_options: Some(DeleteParams {
            grace_period_seconds: Some(5),
            ..DeleteParams::default()
        }),
        ..EvictParams::default()
    };
    pods.evict("p", &options).await.unwrap();
    assert_eq!(
        pods.get("p").await.unwrap().metadata.deletion_grace_period_seconds,
        Some(30)
    );
    let eviction = json!({"metadata": {"name": "p"}, "deleteOptions": {"gracePeriodSeconds": 5}});
    let _: serde_json::Value = pods
        .create_subresource("eviction", "p", &PostParams::default(), &eviction)
        .await
        .unwrap();
    assert_eq!(
        pods.get("p").await.unwrap().metadata.deletion_grace_period_seconds,
        Some(5)
    );
}

#[tokio::test]
async fn a_quiet_watch_survives_thousands_of_unrelated_writes() {
    let sandbox = Sandbox::start();
    let pods: Api<Pod> = Api::default_namespaced(sandbox.client());
    let version = pods
        .list(&ListParams::default())
        .await
        .unwrap()
        .metadata
        .resource_version
        .unwrap();
    let objects = sandbox.objects();
    let mut map = config_map("noise");
    map.metadata.namespace = Some("default".into());
    for _ in 0..6000 {
        objects.create(&map).unwrap();
        objects
            .delete::<ConfigMap>("default", "noise", &DeleteOptions::default())
            .unwrap();
    }
    let parameters = kube::api::WatchParams::default().timeout(1);
    let events: Vec<_> = pods
        .watch(&parameters, &version)
        .await
        .unwrap()
        .try_collect()
        .await
        .unwrap();
    let only_bookmarks = events
        .iter()
        .all(|event| matches!(event, kube::api::WatchEvent::Bookmark(_)));
    assert!(only_bookmarks && !events.is_empty(), "{events:?}");
}

#[tokio::test]
async fn random_faults_follow_from_the_seed() {
    let pattern = |seed: u64| async move {
        let sandbox = Sandbox::builder().seed(seed).start();
        sandbox.faults().inject(Fault::fail(500).verb("list").probability(0.5));
        let maps: Api<ConfigMap> = Api::default_namespaced(sandbox.client());
        let mut pattern = Vec::new();
        for _ in 0..32 {
            pattern.push(maps.list(&ListParams::default()).await.is_ok());
        }
        pattern
    };
    assert_eq!(pattern(3).await, pattern(3).await);
    assert_ne!(pattern(3).await, pattern(4).await);
}
