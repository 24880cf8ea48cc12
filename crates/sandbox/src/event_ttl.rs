//! Events are forgotten an hour after they were last written.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use rustc_hash::FxHashMap;
use tokio::task::JoinHandle;

use crate::clock::later;
use crate::objects::Objects;
use crate::server::DeleteOptions;
use crate::store::Change;

const TTL: Duration = Duration::from_secs(3600);

/// The task that forgets events; dropping it stops it.
#[derive(Debug)]
pub(crate) struct EventTtl(JoinHandle<()>);

impl EventTtl {
    pub(crate) fn start(objects: Objects) -> Self {
        Self(tokio::spawn(forget_old_events(objects)))
    }
}

impl Drop for EventTtl {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn forget_old_events(objects: Objects) {
    let events = objects.server().resource("", "events").expect("events are built in");
    let mut watch = objects.watch_untyped(&events);
    let mut due: BTreeSet<(Timestamp, Arc<str>)> = BTreeSet::new();
    let mut deadlines: FxHashMap<Arc<str>, Timestamp> = FxHashMap::default();
    loop {
        let next = due.first().map(|(deadline, _)| *deadline);
        let timer = async {
            match next {
                Some(deadline) => objects.clock().sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            event = watch.next() => {
                let Some((change, object)) = event else { return };
                let key: Arc<str> = Arc::from(&*object.key);
                if let Some(old) = deadlines.remove(&key) {
                    due.remove(&(old, Arc::clone(&key)));
                }
                if change != Change::Deleted {
                    let deadline = later(objects.clock().now(), TTL);
                    due.insert((deadline, Arc::clone(&key)));
                    deadlines.insert(key, deadline);
                }
            }
            () = timer => {
                let Some((_, key)) = due.pop_first() else { continue };
                deadlines.remove(&key);
                if let Some((namespace, name)) = key.split_once('/') {
                    // Somebody else may have deleted it just now.
                    let _ = objects.server().delete(&events, namespace, name, &DeleteOptions::default());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use k8s_openapi::api::core::v1::Event;
    use serde_json::json;

    use crate::Sandbox;

    #[tokio::test]
    async fn an_event_is_gone_after_an_hour() {
        let sandbox = Sandbox::start();
        let event: Event = serde_json::from_value(json!({
            "metadata": {"name": "e", "namespace": "default"}, "involvedObject": {"kind": "Pod", "name": "p"},
        }))
        .unwrap();
        sandbox.objects().create(&event).unwrap();
        sandbox.run_for(Duration::from_secs(3599)).await;
        assert!(sandbox.objects().get::<Event>("default", "e").is_some());
        sandbox.run_for(Duration::from_secs(2)).await;
        assert!(sandbox.objects().get::<Event>("default", "e").is_none());
    }
}
