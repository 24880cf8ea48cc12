//! A corner of a cluster for one test, and raw access to its API.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use http::{HeaderMap, Request};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

use super::{Access, Target};

/// How long a test waits for anything, in real time: what takes a moment takes a minute on a machine that is busy.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);

/// The same for what takes a real cluster a minute.
pub(super) const LONG_PATIENCE: Duration = Duration::from_secs(300);

static CORNERS: AtomicU64 = AtomicU64::new(0);

/// One test's corner of a cluster.
#[derive(Clone)]
pub struct Cluster {
    access: Access,
    pub target: Target,
    /// A namespace of the test's own.
    pub namespace: String,
    /// A text that is unique among running tests; part of cluster-scoped names.
    pub unique: String,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Cluster")
            .field("target", &self.target)
            .field("namespace", &self.namespace)
            .finish()
    }
}

/// A raw answer.
#[derive(Clone, Debug)]
pub struct Answer {
    pub code: u16,
    pub headers: HeaderMap,
    pub text: String,
}

async fn send(client: &Client, method: &str, path: &str, headers: &[(&str, &str)], body: Vec<u8>) -> Answer {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Body::from(body)).expect("a well-formed request");
    let response = client.send(request).await.expect("the API server answers");
    let (parts, body) = response.into_parts();
    let bytes = body.collect().await.expect("the answer arrives").to_bytes();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    Answer {
        code: parts.status.as_u16(),
        headers: parts.headers,
        text,
    }
}

impl Cluster {
    pub(super) async fn prepare(access: Access, target: Target, test: &str) -> Self {
        let number = CORNERS.fetch_add(1, Ordering::SeqCst);
        let process = std::process::id();
        let initials: String = test.split('_').filter_map(|word| word.chars().next()).take(8).collect();
        let unique = format!("{initials}{process}x{number}");
        let cluster = Self {
            access,
            target,
            namespace: format!("behaviour-{unique}"),
            unique,
        };
        let namespace = json!({"metadata": {"name": cluster.namespace}});
        cluster.post("/api/v1/namespaces", &namespace).await.expect_code(201);
        // Pods need the account, which a real cluster makes a little later.
        cluster
            .wait_for_code(&cluster.path("serviceaccounts/default"), 200)
            .await;
        cluster
    }

    pub(super) async fn clean_up(&self) {
        let _ = self.delete(&format!("/api/v1/namespaces/{}", self.namespace)).await;
        let nodes = format!("/api/v1/nodes?labelSelector=behaviour%3D{}", self.unique);
        let _ = self.delete(&nodes).await;
    }

    pub fn client(&self) -> Client {
        self.access.client.clone()
    }

    /// The path of something in the test's namespace of the core group.
    pub fn path(&self, rest: &str) -> String {
        format!("/api/v1/namespaces/{}/{rest}", self.namespace)
    }

    /// Sends a request as it is.
    pub async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: Vec<u8>) -> Answer {
        send(&self.access.client, method, path, headers, body).await
    }

    /// The same, from somebody whom the server knows only by the headers.
    pub async fn send_as_stranger(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
        send(&self.access.stranger, method, path, headers, Vec::new()).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], Vec::new()).await
    }

    pub async fn get_as(&self, path: &str, accept: &str) -> Answer {
        self.send("GET", path, &[("Accept", accept)], Vec::new()).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send(
            "POST",
            path,
            &[("Content-Type", "application/json")],
            body.to_string().into(),
        )
        .await
    }

    pub async fn put(&self, path: &str, body: &Value) -> Answer {
        self.send(
            "PUT",
            path,
            &[("Content-Type", "application/json")],
            body.to_string().into(),
        )
        .await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        self.send("DELETE", path, &[], Vec::new()).await
    }

    pub async fn delete_with(&self, path: &str, options: &Value) -> Answer {
        self.send(
            "DELETE",
            path,
            &[("Content-Type", "application/json")],
            options.to_string().into(),
        )
        .await
    }

    /// `kind` is `json`, `merge` or `strategic-merge`.
    pub async fn patch(&self, path: &str, kind: &str, body: &Value) -> Answer {
        let content = format!("application/{kind}-patch+json");
        self.send("PATCH", path, &[("Content-Type", &content)], body.to_string().into())
            .await
    }

    /// Server-side apply; `query` goes behind the field manager.
    pub async fn apply(&self, path: &str, manager: &str, query: &str, body: &Value) -> Answer {
        let path = format!("{path}?fieldManager={manager}{query}");
        let content = [("Content-Type", "application/apply-patch+yaml")];
        self.send("PATCH", &path, &content, body.to_string().into()).await
    }

    /// Opens a watch; `query` begins without `&`.
    pub async fn watch(&self, path: &str, query: &str) -> Lines {
        self.watch_as(path, query, "application/json").await
    }

    /// As [`Self::watch`], in the form that `accept` asks for.
    pub async fn watch_as(&self, path: &str, query: &str, accept: &str) -> Lines {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let request = Request::get(format!("{path}?watch=true&{query}"))
                .header("Accept", accept)
                .body(Body::empty())
                .expect("a request");
            let response = self.access.client.send(request).await.expect("the API server answers");
            let code = response.status().as_u16();
            // A real server turns watches of a new kind away until its cache of that kind is filled.
            if code == 429 && tokio::time::Instant::now() < deadline {
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
            assert_eq!(code, 200, "a watch answers 200 whatever comes");
            return Lines {
                body: response.into_body(),
                buffer: BytesMut::new(),
            };
        }
    }

    /// Waits until a GET answers with `code`.
    pub async fn wait_for_code(&self, path: &str, code: u16) -> Answer {
        self.wait(path, &format!("code {code}"), |answer| answer.code == code)
            .await
    }

    /// Waits until a GET answers as `condition` wants.
    pub async fn wait(&self, path: &str, what: &str, condition: impl Fn(&Answer) -> bool) -> Answer {
        self.wait_within(PATIENCE, path, what, condition).await
    }

    /// As [`Self::wait`], for what takes longer.
    pub async fn wait_within(
        &self,
        patience: Duration,
        path: &str,
        what: &str,
        condition: impl Fn(&Answer) -> bool,
    ) -> Answer {
        let deadline = tokio::time::Instant::now() + patience;
        let mut pause = Duration::from_millis(20);
        loop {
            // Only an answer from after the deadline says that it was missed.
            let is_last = tokio::time::Instant::now() >= deadline;
            let answer = self.get(path).await;
            if condition(&answer) {
                return answer;
            }
            assert!(!is_last, "{path}: {what} never came; last: {}", answer.text);
            tokio::time::sleep(pause).await;
            pause = (pause * 3 / 2).min(Duration::from_millis(250));
        }
    }

    /// Creates a ConfigMap in the test's namespace.
    pub async fn config_map(&self, name: &str, data: &Value) -> Value {
        let body = json!({"metadata": {"name": name}, "data": data});
        self.post(&self.path("configmaps"), &body).await.expect_code(201)
    }

    /// The name of a node that does not exist. Pods of one test alone are bound there: a real cluster collects all pods of a
    /// missing node at once, less than a minute after it has seen the first.
    pub fn nowhere(&self) -> String {
        format!("nowhere-{}", self.unique)
    }

    /// Creates a pod in the test's namespace, bound to a node if one is named.
    pub async fn pod(&self, name: &str, node: Option<&str>) -> Value {
        let mut body = json!({
            "metadata": {"name": name, "labels": {"app": name}},
            "spec": {"schedulerName": "nobody", "containers": [{"name": "c", "image": "example.org/image:1"}]},
        });
        if let Some(node) = node {
            body["spec"]["nodeName"] = node.into();
        }
        self.post(&self.path("pods"), &body).await.expect_code(201)
    }
}

impl Answer {
    /// The body as JSON; null if it is none.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_default()
    }

    /// Fails unless the code is this one; the body.
    #[track_caller]
    pub fn expect_code(&self, code: u16) -> Value {
        assert_eq!(self.code, code, "{}", self.text);
        self.json()
    }

    /// Fails unless this is a Status of that code and reason; its message.
    #[track_caller]
    pub fn expect_status(&self, code: u16, reason: &str) -> String {
        let status = self.expect_code(code);
        assert_eq!(status["kind"], "Status", "{}", self.text);
        assert_eq!(status["reason"].as_str().unwrap_or_default(), reason, "{}", self.text);
        status["message"].as_str().unwrap_or_default().to_owned()
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
    }
}

/// The events of a watch.
#[derive(Debug)]
pub struct Lines {
    body: Body,
    buffer: BytesMut,
}

impl Lines {
    /// The next event, or `None` at the end of the stream.
    pub async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line = self.buffer.split_to(end + 1);
                return Some(serde_json::from_slice(&line).expect("each line is JSON"));
            }
            let frame = tokio::time::timeout(PATIENCE, self.body.frame())
                .await
                .expect("the watch goes on")?;
            if let Ok(data) = frame.expect("the watch does not break").into_data() {
                self.buffer.extend_from_slice(&data);
            }
        }
    }

    /// The next event about the object of this name, as its type and object.
    pub async fn about(&mut self, name: &str) -> (String, Value) {
        loop {
            let mut event = self.next().await.expect("the watch goes on");
            if event["object"]["metadata"]["name"] == name {
                return (
                    event["type"].as_str().unwrap_or_default().to_owned(),
                    event["object"].take(),
                );
            }
        }
    }
}

/// An object's resourceVersion as a number.
pub(super) fn version(object: &Value) -> u64 {
    let text = object["metadata"]["resourceVersion"].as_str().unwrap_or_default();
    text.parse()
        .unwrap_or_else(|_| panic!("no resourceVersion in {object}"))
}
