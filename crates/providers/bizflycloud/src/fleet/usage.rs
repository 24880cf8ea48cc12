//! What the pods on each node ask for, kept up to date by a watch that remembers two numbers per pod.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use karpenter_api::pods;
use karpenter_engine::convert::pod_requests;
use kube::runtime::watcher::Event;

/// Requests of bound pods, by pod UID.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    pods: BTreeMap<String, Bound>,
    /// Pods of a list that is still being read.
    arriving: BTreeMap<String, Bound>,
}

#[derive(Clone, Debug)]
struct Bound {
    node: String,
    /// Cores and bytes.
    requests: [f64; 2],
}

impl Usage {
    pub(crate) fn of<'a>(pods: impl IntoIterator<Item = &'a Pod>) -> Self {
        let pods = pods.into_iter().filter_map(bound).collect();
        Self {
            pods,
            arriving: BTreeMap::new(),
        }
    }

    pub(super) fn take(&mut self, event: Event<Pod>) {
        match event {
            Event::Init => self.arriving.clear(),
            Event::InitApply(pod) => self.arriving.extend(bound(&pod)),
            Event::InitDone => self.pods = std::mem::take(&mut self.arriving),
            Event::Apply(pod) => match bound(&pod) {
                Some((uid, bound)) => {
                    self.pods.insert(uid, bound);
                }
                None => self.forget(&pod),
            },
            Event::Delete(pod) => self.forget(&pod),
        }
    }

    fn forget(&mut self, pod: &Pod) {
        self.pods.remove(pod.metadata.uid.as_deref().unwrap_or_default());
    }

    /// Cores and bytes by node.
    pub(super) fn by_node(&self) -> BTreeMap<&str, [f64; 2]> {
        let mut nodes: BTreeMap<&str, [f64; 2]> = BTreeMap::new();
        for pod in self.pods.values() {
            let sum = nodes.entry(&pod.node).or_default();
            sum[0] += pod.requests[0];
            sum[1] += pod.requests[1];
        }
        nodes
    }
}

/// A pod that takes room on a node.
fn bound(pod: &Pod) -> Option<(String, Bound)> {
    if pods::is_terminal(pod) {
        return None;
    }
    let node = pods::node_name(pod)?.to_owned();
    let requests = pod_requests(pod.spec.as_ref()?, pod.status.as_ref()).ok()?;
    let requests = [requests.cpu().to_f64(), requests.memory().to_f64()];
    Some((pod.metadata.uid.clone()?, Bound { node, requests }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(uid: &str, node: &str, phase: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": uid, "uid": uid},
            "spec": {"nodeName": node, "containers": [{"name": "c", "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}}]},
            "status": {"phase": phase},
        }))
        .expect("a pod")
    }

    #[test]
    fn pods_count_on_their_node_until_they_end() {
        let mut usage = Usage::default();
        for event in [
            Event::Init,
            Event::InitApply(pod("a", "n1", "Running")),
            Event::InitApply(pod("b", "n1", "Running")),
            Event::InitDone,
        ] {
            usage.take(event);
        }
        assert_eq!(usage.by_node()["n1"], [1.0, 2.0 * 1024.0 * 1024.0 * 1024.0]);
        usage.take(Event::Apply(pod("a", "n1", "Succeeded")));
        usage.take(Event::Delete(pod("b", "n1", "Running")));
        assert!(usage.by_node().is_empty());
    }
}
