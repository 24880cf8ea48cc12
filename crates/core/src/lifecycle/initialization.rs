//! Whether a registered node is all that its NodeClaim promised, so that pods may be counted on to run there.

use k8s_openapi::api::core::v1::{Node, Taint};
use karpenter_api::{NodeClaim, Quantity, taint};

use crate::nodes;

/// The first thing that a node still lacks.
#[derive(Debug, Clone, PartialEq)]
pub enum Unmet {
    /// The node is gone or cannot be told apart from another.
    NodeNotFound,
    /// The kubelet does not report Ready.
    NodeNotReady,
    /// A startup taint is still there: its agent has not finished.
    StartupTaint(Taint),
    /// A taint that every young node carries is still there.
    EphemeralTaint(Taint),
    /// A requested resource has not been registered, by its device plugin as a rule.
    Resource(String),
}

impl Unmet {
    /// The reason on the `Initialized` condition.
    pub fn reason(&self) -> &'static str {
        match self {
            Unmet::NodeNotFound => "NodeNotFound",
            Unmet::NodeNotReady => "NodeNotReady",
            Unmet::StartupTaint(_) => "StartupTaintsExist",
            Unmet::EphemeralTaint(_) => "KnownEphemeralTaintsExist",
            Unmet::Resource(_) => "ResourceNotRegistered",
        }
    }

    /// The message on the `Initialized` condition.
    pub fn message(&self) -> String {
        match self {
            Unmet::NodeNotFound => "Node not registered with cluster".to_owned(),
            Unmet::NodeNotReady => "Node status is NotReady".to_owned(),
            Unmet::StartupTaint(taint) => format!("StartupTaint {:?} still exists", taint::text(taint)),
            Unmet::EphemeralTaint(taint) => format!("KnownEphemeralTaint {:?} still exists", taint::text(taint)),
            Unmet::Resource(name) => format!("Resource {name:?} was requested but not registered"),
        }
    }
}

/// What `node` lacks to be what `claim` promised; `None` when nothing does.
pub fn unmet(claim: &NodeClaim, node: &Node) -> Option<Unmet> {
    if !nodes::is_ready(node) {
        return Some(Unmet::NodeNotReady);
    }
    let taints = node
        .spec
        .as_ref()
        .and_then(|spec| spec.taints.as_deref())
        .unwrap_or_default();
    let mut startup_taints = claim.spec.startup_taints.iter().flatten();
    if let Some(startup) = startup_taints.find(|startup| taints.iter().any(|present| taint::same(present, startup))) {
        return Some(Unmet::StartupTaint(startup.clone()));
    }
    if let Some(ephemeral) = taints.iter().find(|taint| taint::is_known_ephemeral(taint)) {
        return Some(Unmet::EphemeralTaint(ephemeral.clone()));
    }
    missing_resource(claim, node).map(Unmet::Resource)
}

fn missing_resource(claim: &NodeClaim, node: &Node) -> Option<String> {
    let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
    let is_there = |name: &str| {
        let amount = allocatable.and_then(|amounts| amounts.get(name));
        amount
            .and_then(|amount| Quantity::try_from(amount).ok())
            .is_some_and(|amount| !amount.is_zero())
    };
    let requests = claim
        .spec
        .resources
        .requests
        .iter()
        .flat_map(|requests| requests.iter());
    let mut requested = requests.filter(|(_, amount)| !amount.is_zero());
    requested
        .find(|(name, _)| !is_there(name))
        .map(|(name, _)| name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A claim with a startup taint `cni` and a GPU request, and a node as given.
    fn check(taints: &str, status: &str, expected: Option<&str>) {
        let claim: NodeClaim = serde_norway::from_str(
            "{apiVersion: karpenter.sh/v1, kind: NodeClaim, metadata: {name: c}, \
              spec: {requirements: [], nodeClassRef: {group: g, kind: K, name: n}, \
                startupTaints: [{key: cni, effect: NoExecute}], \
                resources: {requests: {nvidia.com/gpu: '1', cpu: '1', example.com/none: '0'}}}}",
        )
        .unwrap();
        let node: Node = serde_norway::from_str(&format!("{{spec: {{taints: {taints}}}, status: {status}}}")).unwrap();
        assert_eq!(
            unmet(&claim, &node).map(|unmet| unmet.reason()),
            expected,
            "{taints} {status}"
        );
    }

    const NOT_READY: &str = "{conditions: [{type: Ready, status: 'False'}]}";
    const READY: &str = "{conditions: [{type: Ready, status: 'True'}], allocatable: {cpu: '3', nvidia.com/gpu: '0'}}";
    const WITH_GPU: &str =
        "{conditions: [{type: Ready, status: 'True'}], allocatable: {cpu: '3', nvidia.com/gpu: '1'}}";

    #[test]
    fn a_node_lacks_one_thing_after_the_other_until_it_is_initialized() {
        let all = "[{key: cni, effect: NoExecute}, {key: node.kubernetes.io/not-ready, effect: NoSchedule}]";
        check(all, NOT_READY, Some("NodeNotReady"));
        check(all, READY, Some("StartupTaintsExist"));
        check(
            "[{key: readiness.k8s.io/x, effect: NoSchedule}]",
            READY,
            Some("KnownEphemeralTaintsExist"),
        );
        check("[]", READY, Some("ResourceNotRegistered"));
        check("[]", WITH_GPU, None);
    }

    #[test]
    fn other_taints_and_zero_requests_do_not_matter() {
        check("[{key: team, value: a, effect: NoSchedule}]", WITH_GPU, None);
    }

    #[test]
    fn the_message_names_what_is_missing() {
        let taint = Taint {
            key: "cni".to_owned(),
            effect: "NoExecute".to_owned(),
            ..Taint::default()
        };
        assert!(Unmet::StartupTaint(taint).message().contains("cni:NoExecute"));
        assert!(
            Unmet::Resource("nvidia.com/gpu".to_owned())
                .message()
                .contains("nvidia.com/gpu")
        );
    }
}
