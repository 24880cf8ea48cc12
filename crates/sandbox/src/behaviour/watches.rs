//! Watching: replay, resume, selectors, bookmarks, streaming lists.

use serde_json::{Value, json};

use super::cluster::version;
use super::{Cluster, behaviours};

behaviours! {
    "2.12" => a_watch_without_version_replays_and_goes_on,
    "2.12" => a_watch_sees_exactly_what_came_later,
    "2.12" => leaving_a_selector_is_a_deletion,
    "2.12" => a_streaming_list_ends_with_a_bookmark,
    "2.12" => watch_options_are_checked,
    "2.12" => a_watch_ends_at_its_timeout,
    "2.12" => one_object_is_watched_by_its_name,
    "1.8" => a_watch_can_be_a_table,
    "1.8" => a_watch_can_show_metadata_alone,
    "2.12" => a_version_that_is_too_old_is_an_error_in_the_stream,
    "2.12" => a_quiet_watch_resumes_from_its_bookmark,
}

async fn a_watch_without_version_replays_and_goes_on(cluster: Cluster) {
    cluster.config_map("a", &json!({})).await;
    let mut watch = cluster
        .watch(
            &cluster.path("configmaps"),
            "fieldSelector=metadata.name!=kube-root-ca.crt",
        )
        .await;
    assert_eq!(watch.about("a").await.0, "ADDED");
    cluster.config_map("b", &json!({})).await;
    assert_eq!(watch.about("b").await.0, "ADDED");
    cluster.delete(&cluster.path("configmaps/a")).await.expect_code(200);
    let (kind, object) = watch.about("a").await;
    assert_eq!(kind, "DELETED");
    assert_eq!(
        (&object["kind"], &object["apiVersion"]),
        (&"ConfigMap".into(), &"v1".into())
    );
}

async fn a_watch_sees_exactly_what_came_later(cluster: Cluster) {
    let first = cluster.config_map("a", &json!({})).await;
    let path = cluster.path("configmaps/a");
    let mut versions = Vec::new();
    for number in 0..3 {
        let change = json!({"data": {"n": number.to_string()}});
        versions.push(version(&cluster.patch(&path, "merge", &change).await.expect_code(200)));
    }
    let query = format!("resourceVersion={}&fieldSelector=metadata.name=a", version(&first));
    let mut watch = cluster.watch(&cluster.path("configmaps"), &query).await;
    for expected in versions {
        let (kind, object) = watch.about("a").await;
        assert_eq!((kind.as_str(), version(&object)), ("MODIFIED", expected));
    }
}

async fn leaving_a_selector_is_a_deletion(cluster: Cluster) {
    let body = json!({"metadata": {"name": "a", "labels": {"in": "no"}}});
    let created = cluster.post(&cluster.path("configmaps"), &body).await.expect_code(201);
    let query = format!("resourceVersion={}&labelSelector=in=yes", version(&created));
    let mut watch = cluster.watch(&cluster.path("configmaps"), &query).await;
    let path = cluster.path("configmaps/a");
    let label = |value: &str| json!({"metadata": {"labels": {"in": value}}});
    cluster
        .patch(&path, "merge", &json!({"data": {"unseen": "x"}}))
        .await
        .expect_code(200);
    cluster.patch(&path, "merge", &label("yes")).await.expect_code(200);
    let (kind, entered) = watch.about("a").await;
    assert_eq!(kind, "ADDED");
    let outside = cluster.patch(&path, "merge", &label("no")).await.expect_code(200);
    let (kind, left) = watch.about("a").await;
    assert_eq!(kind, "DELETED");
    assert_eq!(
        left["metadata"]["labels"]["in"], "yes",
        "the content is that from before"
    );
    assert_eq!(version(&left), version(&outside), "the version is that of the change");
    assert!(version(&left) > version(&entered));
}

async fn a_streaming_list_ends_with_a_bookmark(cluster: Cluster) {
    cluster.config_map("a", &json!({})).await;
    cluster.config_map("b", &json!({})).await;
    let query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut watch = cluster.watch(&cluster.path("configmaps"), query).await;
    let mut added = Vec::new();
    loop {
        let event = watch.next().await.expect("the watch goes on");
        match event["type"].as_str() {
            Some("ADDED") => added.push(
                event["object"]["metadata"]["name"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned(),
            ),
            Some("BOOKMARK") => {
                let metadata = &event["object"]["metadata"];
                assert_eq!(metadata["annotations"]["k8s.io/initial-events-end"], "true");
                assert_eq!(event["object"]["kind"], "ConfigMap");
                assert!(metadata["resourceVersion"].is_string());
                break;
            }
            other => panic!("{other:?} before the end of the initial events"),
        }
    }
    assert!(
        added.contains(&"a".to_owned()) && added.contains(&"b".to_owned()),
        "{added:?}"
    );
    cluster.config_map("c", &json!({})).await;
    assert_eq!(watch.about("c").await.0, "ADDED");
}

async fn watch_options_are_checked(cluster: Cluster) {
    let path = cluster.path("configmaps?watch=true");
    cluster
        .get(&format!("{path}&sendInitialEvents=true"))
        .await
        .expect_status(422, "Invalid");
    let matched = format!("{path}&resourceVersionMatch=NotOlderThan&resourceVersion=1");
    cluster.get(&matched).await.expect_status(422, "Invalid");
}

async fn a_watch_ends_at_its_timeout(cluster: Cluster) {
    let mut watch = cluster.watch(&cluster.path("configmaps"), "timeoutSeconds=1").await;
    while watch.next().await.is_some() {}
}

async fn one_object_is_watched_by_its_name(cluster: Cluster) {
    let mut watch = cluster
        .watch(&cluster.path("configmaps"), "fieldSelector=metadata.name=b")
        .await;
    cluster.config_map("a", &json!({})).await;
    cluster.config_map("b", &json!({})).await;
    let event = watch.next().await.expect("an event");
    assert_eq!(event["object"]["metadata"]["name"], "b");
}

async fn typed_event(cluster: &Cluster, accept: &str) -> Value {
    cluster.config_map("a", &json!({"k": "v"})).await;
    let mut watch = cluster
        .watch_as(&cluster.path("configmaps"), "fieldSelector=metadata.name=a", accept)
        .await;
    watch.next().await.expect("an event")
}

async fn a_watch_can_be_a_table(cluster: Cluster) {
    let event = typed_event(&cluster, "application/json;as=Table;v=v1;g=meta.k8s.io").await;
    assert_eq!(event["object"]["kind"], "Table");
    assert_eq!(event["object"]["rows"][0]["cells"][0], "a");
}

async fn a_watch_can_show_metadata_alone(cluster: Cluster) {
    let event = typed_event(&cluster, "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io").await;
    assert_eq!(event["object"]["kind"], "PartialObjectMetadata");
    assert!(event["object"].get("data").is_none());
}

async fn a_version_that_is_too_old_is_an_error_in_the_stream(cluster: Cluster) {
    // A kind that is new has no history from before it was known.
    let path = super::custom::establish(&cluster).await;
    let mut watch = cluster.watch(&path, "resourceVersion=1").await;
    let event = watch.next().await.expect("an event");
    assert_eq!(event["type"], "ERROR", "{event}");
    let status = &event["object"];
    assert_eq!(
        (&status["kind"], &status["code"], &status["reason"]),
        (&json!("Status"), &json!(410), &json!("Expired"))
    );
    let message = status["message"].as_str().unwrap_or_default();
    assert!(message.starts_with("too old resource version: 1 ("), "{message}");
    assert!(watch.next().await.is_none(), "the stream ends after it");
    super::custom::forget(&cluster).await;
}

async fn a_quiet_watch_resumes_from_its_bookmark(cluster: Cluster) {
    let pods = cluster.path("pods");
    let list = cluster.get(&pods).await.expect_code(200);
    let start = list["metadata"]["resourceVersion"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    for number in 0..100 {
        cluster.config_map(&format!("noise-{number}"), &json!({})).await;
    }
    let mut bookmark = None;
    // The bookmark is due two seconds before the end: a busy server may be too late with it in a short watch.
    for seconds in [4, 8, 16, 32] {
        let query = format!("allowWatchBookmarks=true&timeoutSeconds={seconds}&resourceVersion={start}");
        let mut watch = cluster.watch(&pods, &query).await;
        while let Some(event) = watch.next().await {
            assert_eq!(event["type"], "BOOKMARK", "nothing else happens to pods: {event}");
            bookmark = event["object"]["metadata"]["resourceVersion"]
                .as_str()
                .map(str::to_owned);
        }
        if bookmark.is_some() {
            break;
        }
    }
    let bookmark = bookmark.expect("a bookmark before the end");
    assert!(bookmark.parse::<u64>().unwrap_or_default() >= start.parse().unwrap_or_default());
    let mut resumed = cluster.watch(&pods, &format!("resourceVersion={bookmark}")).await;
    cluster.pod("p", None).await;
    assert_eq!(resumed.about("p").await.0, "ADDED");
}
