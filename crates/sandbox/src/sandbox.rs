//! The front door: starts a cluster and lets a test drive it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use crate::clock::{Clock, later};
use crate::objects::Objects;
use crate::server::{Server, WriteOptions};
use crate::settle::settle;

/// A running embedded control plane; everything ends when the last handle is dropped.
#[derive(Clone, Debug)]
pub struct Sandbox {
    server: Arc<Server>,
}

/// Choices made before a sandbox starts.
#[derive(Clone, Debug)]
pub struct SandboxBuilder {
    clock: Clock,
    seed: u64,
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
        }
    }

    pub fn clock(&self) -> &Clock {
        self.server.clock()
    }

    /// Reads and writes objects in process, past HTTP and its faults.
    pub fn objects(&self) -> Objects {
        Objects::new(Arc::clone(&self.server))
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

    pub fn start(self) -> Sandbox {
        let server = Server::new(self.clock, self.seed);
        let namespaces = server.resource("", "namespaces").expect("namespaces are built in");
        for name in ["default", "kube-system", "kube-public", "kube-node-lease"] {
            server
                .create(
                    &namespaces,
                    "",
                    json!({"metadata": {"name": name}}),
                    &WriteOptions::default(),
                )
                .expect("an empty cluster accepts its namespaces");
        }
        Sandbox { server }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::{DeleteOptions, Endpoint};
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
