//! The front door: starts a cluster and lets a test drive it.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use serde::Deserialize;
use serde_json::json;

use crate::boot;
use crate::clock::{Clock, later};
use crate::controllers::{Controllers, Kubelets, Timing};
use crate::faults::Faults;
use crate::http::Http;
use crate::objects::{Kind, Objects};
use crate::requests::RequestLog;
use crate::server::{Endpoint, Patch, Server, WriteOptions};
use crate::settle::settle;
use crate::status::ApiError;
use crate::tcp::{Cors, TcpServer};

/// How long [`Sandbox::wait_for`] waits, in real time.
const PATIENCE: Duration = Duration::from_secs(10);

/// A running embedded control plane; everything ends when the last handle is dropped.
#[derive(Clone, Debug)]
pub struct Sandbox {
    server: Arc<Server>,
    http: Http,
    /// Absent if the sandbox is an API server and nothing else.
    controllers: Option<Arc<Controllers>>,
}

/// Choices made before a sandbox starts.
#[derive(Clone, Debug)]
pub struct SandboxBuilder {
    clock: Clock,
    seed: u64,
    /// The pace of the controllers; `None`: there are none.
    timing: Option<Timing>,
}

impl Sandbox {
    /// A cluster on a manual clock that starts at 2026-01-01T00:00:00Z.
    pub fn start() -> Self {
        Self::builder().start()
    }

    pub fn builder() -> SandboxBuilder {
        let start = "2026-01-01T00:00:00Z".parse().expect("a timestamp in RFC 3339");
        SandboxBuilder {
            clock: Clock::manual(start),
            seed: 0,
            timing: Some(Timing::real()),
        }
    }

    pub fn clock(&self) -> &Clock {
        self.server.clock()
    }

    /// Reads and writes objects in process, past HTTP and its faults.
    pub fn objects(&self) -> Objects {
        Objects::new(Arc::clone(&self.server))
    }

    /// A kube client that talks to the API server without a socket.
    ///
    /// It has no retry layer: what the server refuses, the caller sees.
    pub fn client(&self) -> kube::Client {
        self.client_as("sandbox-client")
    }

    /// A client whose requests carry this `User-Agent`, so that faults and counts can tell it from others.
    pub fn client_as(&self, agent: &str) -> kube::Client {
        let http = self.http.clone();
        let agent = HeaderValue::from_str(agent).unwrap_or(HeaderValue::from_static("sandbox-client"));
        let service = tower::service_fn(move |mut request: http::Request<kube::client::Body>| {
            let http = http.clone();
            request.headers_mut().insert(http::header::USER_AGENT, agent.clone());
            async move { http.serve(request).await }
        });
        kube::Client::new(service, "default")
    }

    /// Listens on a TCP port for kubectl and browsers, until the answer is dropped; port 0 picks a free one.
    ///
    /// Fails if the address can't be bound.
    pub async fn serve_tcp(&self, address: SocketAddr) -> io::Result<TcpServer> {
        self.serve_tcp_with(address, Cors::Off).await
    }

    /// As [`Sandbox::serve_tcp`], with a choice about browsers.
    pub async fn serve_tcp_with(&self, address: SocketAddr, cors: Cors) -> io::Result<TcpServer> {
        TcpServer::start(self.http.clone(), address, cors).await
    }

    /// The faults in force; tests add to them.
    pub fn faults(&self) -> &Faults {
        &self.http.faults
    }

    /// The requests that were answered.
    pub fn requests(&self) -> &RequestLog {
        &self.http.requests
    }

    /// Makes every resourceVersion up to now too old to watch from.
    pub fn expire_resource_versions(&self) {
        self.server.store.expire_history();
    }

    /// Applies every document of a YAML text; objects without a namespace go to `default`.
    ///
    /// Fails with the API server's refusal of the first document that it does not accept.
    pub fn apply(&self, yaml: &str) -> Result<(), ApiError> {
        for document in serde_norway::Deserializer::from_str(yaml) {
            let value = serde_json::Value::deserialize(document)
                .map_err(|error| ApiError::bad_request(format!("the YAML can't be read: {error}")))?;
            if !value.is_null() {
                self.apply_value(value)?;
            }
        }
        Ok(())
    }

    fn apply_value(&self, value: serde_json::Value) -> Result<(), ApiError> {
        let api_version = value["apiVersion"].as_str().unwrap_or_default();
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let kind = value["kind"].as_str().unwrap_or_default();
        let Some(resource) = self.server.resource_of_version(group, version, kind) else {
            return Err(ApiError::bad_request(format!(
                "no matches for kind {kind:?} in version {api_version:?}"
            )));
        };
        let name = value["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let namespace = match (resource.is_namespaced(), value["metadata"]["namespace"].as_str()) {
            (false, _) => String::new(),
            (true, namespace) => namespace.unwrap_or("default").to_owned(),
        };
        if name.is_empty() {
            return self
                .server
                .create(&resource, &namespace, value, &WriteOptions::default())
                .map(|_| ());
        }
        let options = WriteOptions {
            field_manager: "sandbox".into(),
            ..WriteOptions::default()
        };
        let has_status = resource.has_status() && value.get("status").is_some();
        let patch = Patch::Apply {
            wanted: value.clone(),
            force: true,
        };
        self.server
            .patch(&resource, &namespace, &name, Endpoint::Main, &patch, &options)?;
        if has_status {
            // A test that writes a status means it.
            let status = Patch::Merge(json!({"status": value["status"]}));
            self.server
                .patch(&resource, &namespace, &name, Endpoint::Status, &status, &options)?;
        }
        Ok(())
    }

    /// Waits, driven by a watch, until the object satisfies `condition`; `None` stands for "does not exist".
    ///
    /// # Panics
    /// After ten seconds of real time, with the object as it then is.
    pub async fn wait_for<K: Kind + std::fmt::Debug>(
        &self,
        namespace: &str,
        name: &str,
        condition: impl Fn(Option<&K>) -> bool,
    ) -> Option<K> {
        let objects = self.objects();
        let mut watch = objects.watch::<K>();
        let wait = async {
            loop {
                let object = objects.get::<K>(namespace, name);
                if condition(object.as_ref()) {
                    return object;
                }
                watch.next().await;
            }
        };
        match tokio::time::timeout(PATIENCE, wait).await {
            Ok(object) => object,
            Err(_) => panic!(
                "{} {namespace}/{name} never became as expected; it is {:#?}",
                K::kind(&()),
                objects.get::<K>(namespace, name)
            ),
        }
    }

    /// Lets time pass on a manual clock, timer by timer, until `condition` holds; whether it did within `limit`.
    pub async fn run_until(&self, limit: Duration, condition: impl Fn(&Objects) -> bool) -> bool {
        let end = later(self.clock().now(), limit);
        let objects = self.objects();
        loop {
            self.settle().await;
            if condition(&objects) {
                return true;
            }
            match self.clock().next_timer().filter(|next| *next <= end) {
                Some(next) => self.clock().advance_to(next),
                None => return false,
            }
        }
    }

    /// The simulated machines and their kubelets.
    ///
    /// # Panics
    /// If the sandbox was built with [`SandboxBuilder::api_server_only`].
    pub fn kubelets(&self) -> &Kubelets {
        let controllers = self.controllers.as_ref();
        controllers.expect("a sandbox with controllers").kubelets()
    }

    /// Waits until nothing happens any more at the present time of the clock.
    pub async fn settle(&self) {
        settle(&self.server.store, &self.server.progress, self.clock()).await;
    }

    /// Lets `duration` pass on a manual clock, timer by timer, and lets the cluster settle after each.
    pub async fn run_for(&self, duration: Duration) {
        let end = later(self.clock().now(), duration);
        self.settle().await;
        while let Some(next) = self.clock().next_timer().filter(|next| *next <= end) {
            self.clock().advance_to(next);
            self.settle().await;
        }
        self.clock().advance_to(end);
        self.settle().await;
    }
}

impl SandboxBuilder {
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Names, uids and injected faults follow from the seed.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// How long the control plane and the kubelets take; [`Timing::real`] if not said otherwise.
    pub fn timing(mut self, timing: Timing) -> Self {
        self.timing = Some(timing);
        self
    }

    /// Leaves out scheduler, controllers and kubelets: nothing happens but what clients do.
    pub fn api_server_only(mut self) -> Self {
        self.timing = None;
        self
    }

    /// Starts the cluster.
    ///
    /// # Panics
    /// Outside of a Tokio runtime: the controllers need one to run on.
    pub fn start(self) -> Sandbox {
        let server = Server::new(self.clock, self.seed);
        boot::furnish(&server);
        let http = Http {
            server: Arc::clone(&server),
            faults: Arc::new(Faults::new(self.seed)),
            requests: Arc::new(RequestLog::default()),
        };
        let controllers = self
            .timing
            .map(|timing| Arc::new(Controllers::start(Arc::clone(&server), timing, self.seed)));
        Sandbox {
            server,
            http,
            controllers,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::DeleteOptions;
    use crate::store::Change;
    use k8s_openapi::api::core::v1::{ConfigMap, Pod};

    fn pod(name: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"containers": [{"name": "c", "image": "i"}], "nodeName": "n", "terminationGracePeriodSeconds": 30},
        }))
        .unwrap()
    }

    #[tokio::test]
    async fn a_deleted_running_pod_lingers_for_its_grace() {
        let sandbox = Sandbox::start();
        let objects = sandbox.objects();
        let mut watch = objects.watch::<Pod>();
        objects.create(&pod("a")).unwrap();
        objects
            .delete::<Pod>("default", "a", &DeleteOptions::default())
            .unwrap();
        let lingering: Pod = objects.get("default", "a").unwrap();
        assert_eq!(lingering.metadata.deletion_grace_period_seconds, Some(30));
        objects.delete::<Pod>("default", "a", &DeleteOptions::now()).unwrap();
        assert!(objects.get::<Pod>("default", "a").is_none());
        let changes: Vec<Change> = std::iter::from_fn(|| watch.try_next())
            .map(|event| event.change)
            .collect();
        assert_eq!(
            changes,
            [Change::Added, Change::Modified, Change::Modified, Change::Deleted]
        );
    }

    #[tokio::test]
    async fn an_unchanged_update_takes_no_version() {
        let sandbox = Sandbox::start();
        let objects = sandbox.objects();
        let map: ConfigMap =
            serde_json::from_value(json!({"metadata": {"name": "a", "namespace": "default"}, "data": {"k": "v"}}))
                .unwrap();
        let stored = objects.create(&map).unwrap();
        assert_eq!(objects.update(&stored).unwrap(), stored);
        let changed = objects
            .modify::<ConfigMap>("default", "a", Endpoint::Main, |map| {
                map.data = None;
                true
            })
            .unwrap()
            .unwrap();
        assert_ne!(changed.metadata.resource_version, stored.metadata.resource_version);
        assert!(objects.update(&stored).unwrap_err().is_conflict());
    }

    #[tokio::test]
    async fn a_watching_task_is_given_time_to_react() {
        let sandbox = Sandbox::start();
        let objects = sandbox.objects();
        let copier = tokio::spawn({
            let objects = objects.clone();
            async move {
                let mut watch = objects.watch::<Pod>();
                while let Some(event) = watch.next().await {
                    objects.clock().sleep(Duration::from_secs(10)).await;
                    let name = event.object.metadata.name.unwrap();
                    let _ = objects.patch_status::<Pod>("default", &name, &json!({"status": {"phase": "Running"}}));
                }
            }
        });
        objects.create(&pod("a")).unwrap();
        sandbox.settle().await;
        let phase = || {
            objects
                .get::<Pod>("default", "a")
                .unwrap()
                .status
                .and_then(|status| status.phase)
        };
        assert_ne!(phase().as_deref(), Some("Running"));
        sandbox.run_for(Duration::from_secs(10)).await;
        assert_eq!(phase().as_deref(), Some("Running"));
        copier.abort();
    }
}
