//! What a server sees of our requests, byte by byte, and what we see of its answers.

use std::collections::BTreeMap;
use std::error::Error;

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use super::*;

#[derive(Debug, thiserror::Error)]
#[error("not any more")]
struct TooLate;

async fn server() -> (TcpListener, Config) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let config = Config::new(format!("http://{address}").parse().unwrap());
    (listener, config)
}

/// Reads one request to its end and returns it as it was sent.
async fn request(stream: &mut TcpStream) -> String {
    let mut said = Vec::new();
    while !is_whole(&String::from_utf8_lossy(&said)) {
        assert_ne!(stream.read_buf(&mut said).await.unwrap(), 0, "the client went away");
    }
    String::from_utf8(said).unwrap()
}

fn is_whole(said: &str) -> bool {
    let Some((head, body)) = said.split_once("\r\n\r\n") else {
        return false;
    };
    if header(head, "transfer-encoding") == Some("chunked") {
        return body.ends_with("0\r\n\r\n");
    }
    body.len() == header(head, "content-length").map_or(0, |length| length.parse().unwrap())
}

fn header<'a>(request: &'a str, name: &str) -> Option<&'a str> {
    let mut headers = request.lines().skip(1).filter_map(|line| line.split_once(": "));
    headers.find_map(|(header, value)| (header == name).then_some(value))
}

/// Answers one request with `body` and returns it.
async fn answer(listener: &TcpListener, body: &str) -> String {
    let (mut stream, _) = listener.accept().await.unwrap();
    let request = request(&mut stream).await;
    let head = format!(
        "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(body.as_bytes()).await.unwrap();
    request
}

/// All that a client says until it goes away.
async fn everything(listener: &TcpListener) -> String {
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).await.unwrap();
    said
}

fn asking(last_word: LastWord, method: &str, body: &str) -> Request<Body> {
    Request::builder()
        .method(method)
        .uri("/api/v1/namespaces/default/configmaps/a")
        .extension(last_word)
        .body(Body::from(body.as_bytes().to_vec()))
        .unwrap()
}

fn sources(error: &kube::Error) -> Vec<String> {
    let outermost: &dyn Error = error;
    let chain = std::iter::successors(Some(outermost), |error| (*error).source());
    chain.map(ToString::to_string).collect()
}

#[tokio::test]
async fn a_write_that_is_refused_at_the_last_moment_leaves_no_byte_on_the_wire() {
    for body in ["{}", ""] {
        let (listener, config) = server().await;
        let client = connect(config).unwrap();
        let sending = client.send(asking(LastWord::new(|| Err(TooLate)), "DELETE", body));
        let (said, sent) = tokio::join!(everything(&listener), sending);
        assert_eq!(said, "", "with the body {body:?}");
        let sources = sources(&sent.unwrap_err());
        assert_eq!(sources.last().unwrap(), "not any more", "{sources:?}");
    }
}

#[tokio::test]
async fn a_write_that_may_go_arrives_as_if_nobody_had_been_asked() {
    let (listener, config) = server().await;
    let client = connect(config).unwrap();
    let permit = LastWord::new(|| Ok::<_, TooLate>(()));
    let sending = client.send(asking(permit, "DELETE", r#"{"gracePeriodSeconds":0}"#));
    let (said, sent) = tokio::join!(answer(&listener, "{}"), sending);
    assert!(
        said.starts_with("DELETE /api/v1/namespaces/default/configmaps/a HTTP/1.1\r\n"),
        "{said}"
    );
    assert_eq!(header(&said, "content-length"), Some("24"));
    assert!(said.ends_with("\r\n\r\n{\"gracePeriodSeconds\":0}"), "{said}");
    assert!(sent.unwrap().status().is_success());
}

#[tokio::test]
async fn a_write_without_a_body_that_may_go_arrives_without_one() {
    let (listener, config) = server().await;
    let client = connect(config).unwrap();
    let permit = LastWord::new(|| Ok::<_, TooLate>(()));
    let sending = client.send(asking(permit, "POST", ""));
    let (said, sent) = tokio::join!(answer(&listener, "{}"), sending);
    assert_eq!(header(&said, "transfer-encoding"), Some("chunked"));
    assert!(said.ends_with("\r\n\r\n0\r\n\r\n"), "{said}");
    assert!(sent.unwrap().status().is_success());
}

#[tokio::test]
async fn a_connection_that_is_kept_open_asks_for_each_request() {
    let (listener, config) = server().await;
    let client = connect(config).unwrap();
    let serving = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        request(&mut stream).await;
        let answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
        stream.write_all(answer.as_bytes()).await.unwrap();
        let mut rest = String::new();
        stream.read_to_string(&mut rest).await.unwrap();
        rest
    };
    let sending = async {
        let permit = LastWord::new(|| Ok::<_, TooLate>(()));
        let first = client.send(asking(permit, "PUT", "{}")).await.unwrap();
        first.into_body().collect_bytes().await.unwrap();
        client.send(asking(LastWord::new(|| Err(TooLate)), "PUT", "{}")).await
    };
    let (rest, second) = tokio::join!(serving, sending);
    assert_eq!(rest, "");
    assert!(second.is_err());
}

#[tokio::test]
async fn every_write_of_one_object_has_a_body_and_says_how_long_it_is() {
    let (listener, config) = server().await;
    let api: Api<ConfigMap> = Api::default_namespaced(connect(config).unwrap());
    let object = ConfigMap::default();
    let saying = async |sending: futures::future::BoxFuture<'_, kube::Result<()>>| {
        let (said, sent) = tokio::join!(answer(&listener, "{}"), sending);
        sent.unwrap();
        let length: usize = header(&said, "content-length").unwrap().parse().unwrap();
        assert!(length >= 2 && header(&said, "transfer-encoding").is_none(), "{said}");
    };
    let (posting, patching) = (PostParams::default(), PatchParams::default());
    let deleting = DeleteParams::default();
    let patch = Patch::Merge(json!({}));
    saying(Box::pin(async { api.create(&posting, &object).await.map(drop) })).await;
    saying(Box::pin(async { api.replace("a", &posting, &object).await.map(drop) })).await;
    saying(Box::pin(async { api.patch("a", &patching, &patch).await.map(drop) })).await;
    saying(Box::pin(async { api.delete("a", &deleting).await.map(drop) })).await;
}

#[tokio::test]
async fn a_list_much_larger_than_the_buffer_is_read_whole() {
    let item = |index: usize| {
        let data = BTreeMap::from([("text".to_owned(), format!("{index:01000}"))]);
        json!({"metadata": {"name": format!("map-{index}")}, "data": data})
    };
    let items: Vec<_> = (0..3000).map(item).collect();
    let list = json!({"apiVersion": "v1", "kind": "ConfigMapList", "metadata": {}, "items": items}).to_string();
    assert!(list.len() > 90 * MOST_BUFFERED);
    let (listener, config) = server().await;
    let api: Api<ConfigMap> = Api::default_namespaced(connect(config).unwrap());
    let params = ListParams::default();
    let (_, read) = tokio::join!(answer(&listener, &list), api.list(&params));
    let read = read.unwrap().items;
    assert_eq!(read.len(), 3000);
    assert!(read.iter().enumerate().all(|(index, map)| {
        map.data.as_ref().unwrap()["text"] == format!("{index:01000}")
            && map.metadata.name == Some(format!("map-{index}"))
    }));
}

#[tokio::test]
async fn a_watch_goes_on_event_by_event() {
    let (listener, config) = server().await;
    let api: Api<ConfigMap> = Api::default_namespaced(connect(config).unwrap());
    let (seen, is_seen) = oneshot::channel();
    let event = |name: &str| {
        let object = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"text": "x".repeat(3 * MOST_BUFFERED)},
        });
        let line = format!("{}\n", json!({"type": "ADDED", "object": object}));
        format!("{:x}\r\n{line}\r\n", line.len())
    };
    let serving = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        request(&mut stream).await;
        let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(event("first").as_bytes()).await.unwrap();
        is_seen.await.unwrap();
        stream.write_all(event("second").as_bytes()).await.unwrap();
        stream.write_all(b"0\r\n\r\n").await.unwrap();
    };
    let watching = async {
        let mut events = api.watch(&WatchParams::default(), "0").await.unwrap().boxed();
        let first = events.try_next().await.unwrap().unwrap();
        seen.send(()).unwrap();
        let rest: Vec<_> = events.try_collect().await.unwrap();
        (first, rest)
    };
    let ((), (first, rest)) = tokio::join!(serving, watching);
    let names: Vec<_> = std::iter::once(first).chain(rest).map(name).collect();
    assert_eq!(names, ["first", "second"]);
}

fn name(event: WatchEvent<ConfigMap>) -> String {
    match event {
        WatchEvent::Added(map) => map.metadata.name.unwrap(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn credentials_and_impersonation_go_with_every_request() {
    let (listener, mut config) = server().await;
    config.auth_info.token = Some("secret".to_owned().into());
    config.auth_info.impersonate = Some("somebody".to_owned());
    let client = connect(config).unwrap();
    let asking = Request::get("/version").body(Body::empty()).unwrap();
    let (said, sent) = tokio::join!(answer(&listener, "{}"), client.send(asking));
    sent.unwrap();
    assert_eq!(header(&said, "authorization"), Some("Bearer secret"));
    assert_eq!(header(&said, "impersonate-user"), Some("somebody"));
}

#[tokio::test]
async fn a_proxy_is_refused_rather_than_passed_by() {
    for (url, expect) in [
        ("http://proxy:3128", "kube/http-proxy"),
        ("socks5://proxy:1080", "kube/socks5"),
        ("ftp://proxy", "unsupported protocol"),
    ] {
        let (_listener, mut config) = server().await;
        config.proxy_url = Some(url.parse().unwrap());
        let refused = connect(config).err().unwrap().to_string();
        assert!(refused.contains(expect), "{refused}");
    }
}

#[tokio::test]
async fn a_task_keeps_the_last_word_of_the_one_that_started_it_if_it_is_inherited() {
    let has_one = || async { LastWord::current().is_some() };
    let starts = async { (tokio::spawn(inherited(has_one())), tokio::spawn(has_one())) };
    let (inheriting, other) = LastWord::new(|| Ok::<_, BoxError>(())).over(starts).await;
    assert!(inheriting.await.unwrap() && !other.await.unwrap());
    assert!(!tokio::spawn(inherited(has_one())).await.unwrap());
}
