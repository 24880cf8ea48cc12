//! Listing: order, pages, versions, selectors.

use serde_json::{Value, json};

use super::{Cluster, behaviours};

behaviours! {
    "2.10" => pages_show_one_moment,
    "2.10" => continue_tokens_are_checked,
    "2.10" => version_zero_is_not_paged,
    "2.10" => an_exact_version_shows_the_past,
    "2.10" => contradicting_list_options_are_refused,
    "2.11" => label_selectors_select,
    "2.11" => field_selectors_select_known_fields,
    "2.1" => list_items_say_what_they_are_only_if_custom,
    "2.10" => a_version_from_the_future_times_out,
    "2.10" => a_long_list_comes_in_pages_of_one_version,
}

fn names(list: &Value) -> Vec<&str> {
    let items = list["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    items
        .iter()
        .filter_map(|item| item["metadata"]["name"].as_str())
        .collect()
}

async fn pages_show_one_moment(cluster: Cluster) {
    for index in 0..7 {
        let body = json!({"metadata": {"name": format!("m{index}"), "labels": {"page": "yes"}}});
        cluster.post(&cluster.path("secrets"), &body).await.expect_code(201);
    }
    let first = cluster.get(&cluster.path("secrets?limit=3")).await.expect_code(200);
    assert_eq!(names(&first), ["m0", "m1", "m2"]);
    assert_eq!(first["metadata"]["remainingItemCount"], 4);
    cluster.delete(&cluster.path("secrets/m4")).await.expect_code(200);
    cluster
        .post(&cluster.path("secrets"), &json!({"metadata": {"name": "m9"}}))
        .await
        .expect_code(201);
    let mut seen: Vec<String> = names(&first).into_iter().map(str::to_owned).collect();
    let mut page = first.clone();
    while let Some(token) = page["metadata"]["continue"].as_str().filter(|token| !token.is_empty()) {
        let path = cluster.path(&format!("secrets?limit=3&continue={token}"));
        page = cluster.get(&path).await.expect_code(200);
        assert_eq!(
            page["metadata"]["resourceVersion"],
            first["metadata"]["resourceVersion"]
        );
        seen.extend(names(&page).into_iter().map(str::to_owned));
    }
    assert_eq!(seen, ["m0", "m1", "m2", "m3", "m4", "m5", "m6"]);
}

async fn continue_tokens_are_checked(cluster: Cluster) {
    cluster.config_map("a", &json!({})).await;
    cluster.config_map("b", &json!({})).await;
    let first = cluster.get(&cluster.path("configmaps?limit=1")).await.expect_code(200);
    let token = first["metadata"]["continue"].as_str().expect("a token");
    let both = cluster.path(&format!("configmaps?limit=1&continue={token}&resourceVersion=7"));
    let message = cluster.get(&both).await.expect_status(400, "BadRequest");
    assert_eq!(
        message,
        "specifying resource version is not allowed when using continue"
    );
    cluster
        .get(&cluster.path("configmaps?limit=1&continue=garbage"))
        .await
        .expect_status(400, "BadRequest");
}

async fn version_zero_is_not_paged(cluster: Cluster) {
    for name in ["a", "b", "c"] {
        cluster.config_map(name, &json!({})).await;
    }
    let path = cluster.path("configmaps?limit=2&resourceVersion=0");
    // A real server's cache may be a moment behind.
    cluster
        .wait(&path, "three maps", |answer| names(&answer.json()).len() >= 3)
        .await;
}

async fn an_exact_version_shows_the_past(cluster: Cluster) {
    cluster.config_map("a", &json!({"k": "old"})).await;
    let before = cluster.get(&cluster.path("configmaps")).await.expect_code(200);
    let version = before["metadata"]["resourceVersion"]
        .as_str()
        .expect("a version")
        .to_owned();
    cluster
        .patch(&cluster.path("configmaps/a"), "merge", &json!({"data": {"k": "new"}}))
        .await
        .expect_code(200);
    cluster.config_map("b", &json!({})).await;
    let path = format!("configmaps?resourceVersionMatch=Exact&resourceVersion={version}");
    let past = cluster.get(&cluster.path(&path)).await.expect_code(200);
    assert_eq!(names(&past), names(&before));
    assert_eq!(past["items"][0]["data"]["k"], "old");
    assert_eq!(past["metadata"]["resourceVersion"], version.as_str());
    let newer = cluster.path(&format!(
        "configmaps?resourceVersionMatch=NotOlderThan&resourceVersion={version}"
    ));
    cluster
        .wait(&newer, "b", |answer| names(&answer.json()).contains(&"b"))
        .await;
}

async fn contradicting_list_options_are_refused(cluster: Cluster) {
    for query in [
        "resourceVersionMatch=Exact",
        "resourceVersionMatch=Exact&resourceVersion=0",
        "resourceVersionMatch=Sideways&resourceVersion=1",
        "sendInitialEvents=true",
    ] {
        let path = cluster.path(&format!("configmaps?{query}"));
        cluster.get(&path).await.expect_status(422, "Invalid");
    }
    cluster
        .get(&cluster.path("configmaps?resourceVersion=abc"))
        .await
        .expect_status(400, "BadRequest");
}

async fn label_selectors_select(cluster: Cluster) {
    for (name, labels) in [
        ("a", json!({"x": "1", "n": "7"})),
        ("b", json!({"x": "2"})),
        ("c", json!({})),
    ] {
        let body = json!({"metadata": {"name": name, "labels": labels}});
        cluster.post(&cluster.path("secrets"), &body).await.expect_code(201);
    }
    for (selector, expected) in [
        ("x=1", vec!["a"]),
        ("x!=1", vec!["b", "c"]),
        ("x", vec!["a", "b"]),
        ("!x", vec!["c"]),
        ("x in (1,2)", vec!["a", "b"]),
        ("x notin (1)", vec!["b", "c"]),
        ("n>5", vec!["a"]),
        ("x,n", vec!["a"]),
    ] {
        let encoded: String = url::form_urlencoded::byte_serialize(selector.as_bytes()).collect();
        let list = cluster
            .get(&cluster.path(&format!("secrets?labelSelector={encoded}")))
            .await
            .expect_code(200);
        assert_eq!(names(&list), expected, "{selector}");
    }
    cluster
        .get(&cluster.path("secrets?labelSelector=a%3Db%3Dc%20d"))
        .await
        .expect_status(400, "BadRequest");
}

async fn field_selectors_select_known_fields(cluster: Cluster) {
    let here = cluster.nowhere();
    cluster.pod("a", Some(&here)).await;
    cluster.pod("b", None).await;
    let there = cluster
        .get(&cluster.path(&format!("pods?fieldSelector=spec.nodeName={here}")))
        .await
        .expect_code(200);
    assert_eq!(names(&there), ["a"]);
    let rest = cluster
        .get(&cluster.path(&format!(
            "pods?fieldSelector=spec.nodeName!={here},status.phase!=Failed"
        )))
        .await;
    assert_eq!(names(&rest.expect_code(200)), ["b"]);
    let named = cluster
        .get(&cluster.path("pods?fieldSelector=metadata.name=b"))
        .await
        .expect_code(200);
    assert_eq!(names(&named), ["b"]);
    let message = cluster
        .get(&cluster.path("pods?fieldSelector=spec.foo=1"))
        .await
        .expect_status(400, "BadRequest");
    assert!(message.contains("field label not supported: spec.foo"), "{message}");
    let message = cluster
        .get(&cluster.path("configmaps?fieldSelector=data.a=1"))
        .await
        .expect_status(400, "BadRequest");
    assert!(
        message.contains("\"data.a\" is not a known field selector"),
        "{message}"
    );
}

async fn list_items_say_what_they_are_only_if_custom(cluster: Cluster) {
    cluster.config_map("a", &json!({})).await;
    let list = cluster.get(&cluster.path("configmaps")).await.expect_code(200);
    assert_eq!(list["kind"], "ConfigMapList");
    assert!(list["items"][0].get("kind").is_none());
}

async fn a_version_from_the_future_times_out(cluster: Cluster) {
    let path = cluster.path("configmaps?resourceVersion=999999999999");
    let answer = cluster.get(&path).await;
    let message = answer.expect_status(504, "Timeout");
    assert!(message.contains("Too large resource version"), "{message}");
    assert_eq!(
        answer.json()["details"]["causes"][0]["reason"],
        "ResourceVersionTooLarge"
    );
}

async fn a_long_list_comes_in_pages_of_one_version(cluster: Cluster) {
    let path = cluster.path("secrets");
    let numbers: Vec<usize> = (0..1200).collect();
    for some in numbers.chunks(60) {
        let created = some.iter().map(|number| {
            let body = json!({"metadata": {"name": format!("s{number:04}")}});
            let (cluster, path) = (&cluster, &path);
            async move { cluster.post(path, &body).await.expect_code(201) }
        });
        futures::future::join_all(created).await;
    }
    let mut page = cluster.get(&format!("{path}?limit=500")).await.expect_code(200);
    let version = page["metadata"]["resourceVersion"].clone();
    let mut sizes = vec![names(&page).len()];
    let mut last = String::new();
    while let Some(token) = page["metadata"]["continue"].as_str().filter(|token| !token.is_empty()) {
        let late = json!({"metadata": {"name": format!("late-{}", sizes.len())}});
        let next = format!("{path}?limit=500&continue={token}");
        cluster.post(&path, &late).await.expect_code(201);
        page = cluster.get(&next).await.expect_code(200);
        assert_eq!(page["metadata"]["resourceVersion"], version);
        assert!(
            names(&page)
                .iter()
                .all(|name| !name.starts_with("late") && **name > *last)
        );
        last = names(&page).last().copied().unwrap_or_default().to_owned();
        sizes.push(names(&page).len());
    }
    assert_eq!(sizes, [500, 500, 200]);
}
