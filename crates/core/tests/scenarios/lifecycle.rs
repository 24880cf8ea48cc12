//! From a NodeClaim to a node: launch, registration, initialization, and giving up.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Node;
use karpenter_api::conditions::StatusConditions;
use karpenter_api::{NodeClaim, NodePool};
use karpenter_cloud::fake::{Method, Moment};
use karpenter_cloud::provider::{LaunchHints, UnregisteredTaint};
use karpenter_cloud::{CloudError, HookVerdict, RegistrationHook};
use karpenter_core::provisioning;
use karpenter_sandbox::DeleteOptions;
use karpenter_sandbox::faults::Fault;
use parking_lot::Mutex;
use serde_json::json;

use crate::cluster::Cluster;
use crate::world::World;

#[tokio::test]
async fn a_claim_becomes_a_node() {
    let cluster = Cluster::start().await;
    let claim = cluster
        .claim("a", "taints: [{key: team, value: a, effect: NoSchedule}]")
        .await;
    for condition in ["Launched", "Registered", "Initialized", "Ready"] {
        assert_eq!(cluster.condition("a", condition), format!("True/{condition}"));
    }
    assert_eq!(
        claim.metadata.finalizers.as_deref(),
        Some(&["karpenter.sh/termination".to_owned()][..])
    );
    let node = cluster.node();
    let labels = node.metadata.labels.unwrap();
    for (key, value) in [
        ("karpenter.sh/nodepool", "default"),
        ("karpenter.sh/registered", "true"),
        ("karpenter.sh/initialized", "true"),
        ("karpenter.test.sh/testnodeclass", "default"),
        ("node.kubernetes.io/instance-type", "fake-2x"),
        ("team", "a"),
    ] {
        assert_eq!(labels.get(key).map(String::as_str), Some(value), "{key}");
    }
    let taints: Vec<String> = node
        .spec
        .unwrap()
        .taints
        .unwrap()
        .into_iter()
        .map(|taint| taint.key)
        .collect();
    assert_eq!(taints, ["team"]);
    assert_eq!(claim.status.unwrap().node_name, node.metadata.name);
    let zone = &labels["topology.kubernetes.io/zone"];
    assert_eq!(
        cluster.metric(&format!(
            "karpenter_nodes_created_total{{nodepool=\"default\",zone=\"{zone}\"}}"
        )),
        1.0
    );
}

#[tokio::test]
async fn conditions_of_an_older_generation_are_brought_up_to_date_and_the_claim_stays_ready() {
    let cluster = Cluster::start().await;
    let claim = cluster.claim("a", "").await;
    let generation = claim.metadata.generation;
    let mut conditions = serde_json::to_value(claim.status.unwrap().conditions).unwrap();
    for condition in conditions.as_array_mut().unwrap() {
        condition["observedGeneration"] = json!(0);
    }
    let outdated = json!({"status": {"conditions": conditions}});
    cluster.objects().patch_status::<NodeClaim>("", "a", &outdated).unwrap();
    cluster.sandbox.settle().await;
    let claim = cluster.get_claim("a").unwrap();
    for condition in ["Launched", "Registered", "Initialized", "Ready"] {
        let found = claim.condition(condition).unwrap();
        assert!(found.is_true(), "{condition}");
        assert_eq!(found.observed_generation, generation, "{condition}");
    }
    assert_eq!(cluster.cloud.calls(Method::Create), 1);
}

#[tokio::test]
async fn no_machine_is_made_before_the_finalizer_is_written() {
    let cluster = Cluster::start().await;
    cluster
        .sandbox
        .faults()
        .inject(Fault::fail(409).verb("patch").resource("nodeclaims"));
    cluster.claim("a", "").await;
    cluster.seconds(10).await;
    assert_eq!(cluster.cloud.calls(Method::Create), 0);
    cluster.sandbox.faults().clear();
    cluster.minutes(1).await;
    assert_eq!(cluster.cloud.calls(Method::Create), 1);
    assert_eq!(cluster.condition("a", "Initialized"), "True/Initialized");
}

#[tokio::test]
async fn a_launch_that_could_not_be_recorded_is_not_repeated() {
    let cluster = Cluster::start_with(|cloud| cloud.set_latency(Method::Create, Duration::from_secs(1))).await;
    cluster.claim("a", "").await;
    cluster.sandbox.faults().inject(Fault::fail(500).verb("patch").times(1));
    cluster.seconds(10).await;
    assert_eq!(cluster.condition("a", "Launched"), "True/Launched");
    assert_eq!(cluster.cloud.calls(Method::Create), 1);
}

#[tokio::test]
async fn a_crash_after_the_launch_finds_the_machine_again() {
    let mut cluster = Cluster::start_with(|cloud| cloud.set_latency(Method::Create, Duration::from_secs(1))).await;
    cluster.claim("a", "").await;
    cluster.sandbox.faults().inject(Fault::fail(500).verb("patch").times(1));
    cluster.seconds(1).await;
    cluster.restart().await;
    cluster.seconds(10).await;
    assert_eq!(cluster.condition("a", "Initialized"), "True/Initialized");
    assert_eq!(cluster.cloud.launches(), 1);
}

#[tokio::test]
async fn a_claim_that_cannot_be_had_is_deleted_at_once() {
    let cluster = Cluster::start().await;
    let sold_out = CloudError::insufficient_capacity("no fake-2x left");
    cluster.cloud.fail_next(Method::Create, Moment::Before, sold_out);
    cluster
        .apply(&crate::cluster::claim_yaml("a", &cluster.pool_uid(), ""))
        .await;
    assert!(cluster.get_claim("a").is_none());
    assert_eq!(cluster.disrupted("insufficient_capacity"), 1.0);
    assert!(
        cluster
            .events()
            .contains(&"NodeClaim/InsufficientCapacityError".to_owned())
    );
}

#[tokio::test]
async fn what_is_written_on_a_claim_during_its_launch_does_not_make_it_launch_again() {
    let check = async |error: CloudError, reason: &str| {
        let cluster = Cluster::start_with(|cloud| cloud.set_latency(Method::Create, Duration::from_secs(5))).await;
        cluster.cloud.fail_next(Method::Create, Moment::Before, error);
        cluster.claim("a", "").await;
        // As a provider does that notes which job of its cloud makes the machine.
        let note = json!({"metadata": {"annotations": {"example.com/job": "17"}}});
        cluster.objects().patch::<NodeClaim>("", "a", &note).unwrap();
        cluster.minutes(1).await;
        assert!(cluster.get_claim("a").is_none());
        assert_eq!(cluster.cloud.calls(Method::Create), 1, "{reason}");
        assert_eq!(cluster.disrupted(reason), 1.0);
    };
    check(CloudError::insufficient_capacity("sold out"), "insufficient_capacity").await;
    let unready = CloudError::node_class_not_ready("default", "no image");
    check(unready, "nodeclass_not_ready").await;
}

#[tokio::test]
async fn a_claim_whose_class_is_not_ready_is_deleted_at_once() {
    let cluster = Cluster::start().await;
    cluster.cloud.fail_next(
        Method::Create,
        Moment::Before,
        CloudError::node_class_not_ready("default", "no image"),
    );
    cluster
        .apply(&crate::cluster::claim_yaml("a", &cluster.pool_uid(), ""))
        .await;
    assert!(cluster.get_claim("a").is_none());
    assert_eq!(cluster.disrupted("nodeclass_not_ready"), 1.0);
}

#[tokio::test]
async fn a_failing_launch_shows_why_and_is_given_up_after_five_minutes() {
    let cluster = Cluster::start().await;
    cluster.cloud.fail_when(|method| {
        (method == Method::Create).then(|| (Moment::Before, CloudError::create("NoImage", "x".repeat(5000))))
    });
    cluster.claim("a", "").await;
    assert_eq!(cluster.condition("a", "Launched"), "Unknown/NoImage");
    let claim = cluster.get_claim("a").unwrap();
    assert!(claim.condition("Launched").unwrap().message.len() <= 1024);
    cluster.seconds(299).await;
    assert!(cluster.get_claim("a").is_some());
    // A failing launch is looked at once a minute by then.
    cluster.seconds(70).await;
    assert!(cluster.get_claim("a").is_none());
    assert_eq!(cluster.disrupted("launch_timeout"), 1.0);
    assert_eq!(cluster.disrupted("registration_timeout"), 0.0);
}

#[tokio::test]
async fn a_slow_cloud_gets_the_time_it_asked_for() {
    let hints = LaunchHints {
        launch_timeout: Duration::from_secs(20 * 60),
        ..LaunchHints::default()
    };
    let cluster = Cluster::start_with(|cloud| {
        cloud.set_launch_hints(LaunchHints {
            registration_timeout: Duration::from_secs(30 * 60),
            ..hints
        });
        cloud.set_latency(Method::Create, Duration::from_secs(19 * 60));
    })
    .await;
    cluster.claim("a", "").await;
    cluster.minutes(18).await;
    assert!(cluster.get_claim("a").is_some());
    cluster.minutes(2).await;
    assert_eq!(cluster.condition("a", "Initialized"), "True/Initialized");
}

#[tokio::test]
async fn a_claim_that_is_deleted_while_it_launches_does_not_wait_for_the_cloud() {
    let cluster = Cluster::start_with(|cloud| cloud.set_latency(Method::Create, Duration::from_secs(240))).await;
    cluster.claim("a", "").await;
    cluster.delete_claim("a").await;
    cluster.seconds(1).await;
    assert!(cluster.get_claim("a").is_none());
    assert_eq!(cluster.cloud.calls(Method::Abandon), 1);
    cluster.minutes(5).await;
    assert!(cluster.cloud.machines().is_empty());
}

#[tokio::test]
async fn a_machine_that_never_joins_is_given_up_after_fifteen_minutes() {
    let cluster = Cluster::start_with(|cloud| cloud.set_boot_delay(Duration::from_secs(3600))).await;
    cluster.claim("a", "").await;
    assert_eq!(cluster.condition("a", "Registered"), "Unknown/NodeNotFound");
    cluster.seconds(15 * 60 - 1).await;
    assert!(cluster.get_claim("a").is_some());
    cluster.seconds(10).await;
    assert!(cluster.get_claim("a").is_none());
    assert!(cluster.cloud.machines().is_empty());
    assert_eq!(cluster.disrupted("registration_timeout"), 1.0);
    assert_eq!(cluster.disrupted("launch_timeout"), 0.0);
}

#[tokio::test]
async fn a_node_that_registered_late_is_kept_for_ever() {
    let cluster = Cluster::start_with(|cloud| cloud.set_boot_delay(Duration::from_secs(14 * 60))).await;
    cluster.claim("a", "expireAfter: Never").await;
    cluster.minutes(16).await;
    assert_eq!(cluster.condition("a", "Initialized"), "True/Initialized");
}

#[tokio::test]
async fn two_timeouts_make_a_pool_unhealthy_until_most_launches_succeed_again() {
    let cluster = Cluster::start_with(|cloud| cloud.set_boot_delay(Duration::from_secs(3600))).await;
    let healthy = || {
        cluster
            .pool()
            .condition("NodeRegistrationHealthy")
            .map(|found| found.status.to_string())
    };
    cluster.claim("a", "").await;
    cluster.claim("b", "").await;
    assert_eq!(healthy().as_deref(), Some("Unknown"));
    cluster.minutes(16).await;
    assert_eq!(healthy().as_deref(), Some("False"));
    cluster.cloud.set_boot_delay(Duration::ZERO);
    cluster.claim("c", "").await;
    assert_eq!(healthy().as_deref(), Some("False"));
    cluster.claim("d", "").await;
    assert_eq!(healthy().as_deref(), Some("False"));
    cluster.claim("e", "").await;
    assert_eq!(healthy().as_deref(), Some("True"));
}

#[tokio::test]
async fn two_nodes_of_one_machine_are_an_error() {
    let cluster = Cluster::start_with(|cloud| cloud.set_boot_delay(Duration::from_secs(60))).await;
    let claim = cluster.claim("a", "").await;
    let twin: Node = serde_json::from_value(json!({
        "metadata": {"name": "twin"}, "spec": {"providerID": claim.status.unwrap().provider_id},
    }))
    .unwrap();
    let mut second = twin.clone();
    second.metadata.name = Some("other-twin".to_owned());
    // Between the two creations nothing else runs.
    cluster.objects().create(&twin).unwrap();
    cluster.objects().create(&second).unwrap();
    cluster.sandbox.settle().await;
    assert_eq!(cluster.condition("a", "Registered"), "False/MultipleNodesFound");
    // Neither is known to be the claim's, so neither goes with it.
    cluster.delete_claim("a").await;
    cluster.seconds(5).await;
    assert!(cluster.get_claim("a").is_none() && cluster.cloud.machines().is_empty());
    let nodes: Vec<Node> = cluster.objects().list("");
    assert_eq!(nodes.len(), 2);
    assert!(nodes.iter().all(|node| node.metadata.deletion_timestamp.is_none()));
}

#[tokio::test]
async fn a_node_without_the_guarding_taint_registers_with_a_warning() {
    let check = async |expected: UnregisteredTaint, warned: bool| {
        let cluster = Cluster::start_with(|cloud| {
            cloud.set_boot_delay(Duration::from_secs(3600));
            cloud.set_launch_hints(LaunchHints {
                unregistered_taint: expected,
                ..LaunchHints::default()
            });
        })
        .await;
        let claim = cluster.claim("a", "").await;
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": "bare"}, "spec": {"providerID": claim.status.unwrap().provider_id},
        }))
        .unwrap();
        cluster.objects().create(&node).unwrap();
        cluster.sandbox.settle().await;
        assert_eq!(cluster.condition("a", "Registered"), "True/Registered");
        assert_eq!(
            cluster
                .events()
                .contains(&"NodeClaim/UnregisteredTaintMissing".to_owned()),
            warned
        );
    };
    check(UnregisteredTaint::Expected, true).await;
    check(UnregisteredTaint::NotExpected, false).await;
}

#[tokio::test]
async fn a_node_is_initialized_step_by_step_and_its_startup_taints_stay_removed() {
    let cluster = Cluster::start_with(|cloud| cloud.set_boot_delay(Duration::from_secs(1))).await;
    cluster
        .claim("a", "startupTaints: [{key: cni, effect: NoExecute}]")
        .await;
    cluster.seconds(1).await;
    assert_eq!(cluster.condition("a", "Initialized"), "Unknown/StartupTaintsExist");
    cluster.set_ready("False").await;
    assert_eq!(cluster.condition("a", "Initialized"), "Unknown/NodeNotReady");
    cluster.set_ready("True").await;
    let taints = json!({"spec": {"taints": [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]}});
    cluster
        .objects()
        .patch::<Node>("", &cluster.node_name(), &taints)
        .unwrap();
    cluster.sandbox.settle().await;
    assert_eq!(
        cluster.condition("a", "Initialized"),
        "Unknown/KnownEphemeralTaintsExist"
    );
    cluster
        .objects()
        .patch::<Node>("", &cluster.node_name(), &json!({"spec": {"taints": []}}))
        .unwrap();
    cluster.sandbox.settle().await;
    assert_eq!(cluster.condition("a", "Initialized"), "True/Initialized");
    cluster.minutes(5).await;
    assert!(cluster.node().spec.unwrap().taints.unwrap_or_default().is_empty());
}

#[derive(Debug, Default)]
struct Gatekeeper {
    open: Mutex<bool>,
}

#[async_trait]
impl RegistrationHook for Gatekeeper {
    fn name(&self) -> &str {
        "gatekeeper"
    }

    async fn registered(&self, claim: &mut NodeClaim) -> Result<HookVerdict, CloudError> {
        if !*self.open.lock() {
            return Ok(HookVerdict::WaitFor(Duration::from_secs(5)));
        }
        claim
            .metadata
            .labels
            .get_or_insert_default()
            .insert("rack".to_owned(), "r1".to_owned());
        Ok(HookVerdict::Proceed)
    }
}

#[tokio::test]
async fn a_pending_hook_holds_back_registration_but_not_the_labels() {
    let gatekeeper = Arc::new(Gatekeeper::default());
    let cluster = Cluster::start_with(|cloud| cloud.set_registration_hooks(vec![gatekeeper.clone()])).await;
    cluster.claim("a", "").await;
    assert_eq!(cluster.condition("a", "Registered"), "Unknown/RegistrationHookPending");
    let claim = cluster.get_claim("a").unwrap();
    assert_eq!(claim.condition("Registered").unwrap().message, "gatekeeper");
    let node = cluster.node();
    assert_eq!(node.metadata.labels.as_ref().unwrap()["team"], "a");
    assert_eq!(
        node.metadata.finalizers.as_deref(),
        Some(&["karpenter.sh/termination".to_owned()][..])
    );
    assert!(
        !node
            .metadata
            .labels
            .as_ref()
            .unwrap()
            .contains_key("karpenter.sh/registered")
    );
    assert!(
        node.spec
            .unwrap()
            .taints
            .unwrap()
            .iter()
            .any(|taint| taint.key == "karpenter.sh/unregistered")
    );

    *gatekeeper.open.lock() = true;
    cluster.seconds(5).await;
    assert_eq!(cluster.condition("a", "Registered"), "True/Registered");
    assert_eq!(cluster.node().metadata.labels.unwrap()["rack"], "r1");
    assert_eq!(cluster.get_claim("a").unwrap().metadata.labels.unwrap()["rack"], "r1");
}

#[tokio::test]
async fn a_claim_with_a_foreign_class_is_left_alone() {
    let cluster = Cluster::start().await;
    let yaml = crate::cluster::claim_yaml("a", &cluster.pool_uid(), "").replace("TestNodeClass", "OtherNodeClass");
    cluster.apply(&yaml).await;
    cluster.minutes(20).await;
    let claim = cluster.get_claim("a").unwrap();
    assert_eq!((claim.metadata.finalizers, claim.status), (None, None));
}

#[tokio::test]
async fn a_deleted_claim_takes_its_node_and_then_its_machine_with_it() {
    let cluster = Cluster::start_with(|cloud| cloud.set_termination_delay(Duration::from_secs(12))).await;
    cluster.claim("a", "").await;
    cluster.delete_claim("a").await;
    assert_eq!(cluster.cloud.calls(Method::Delete), 0);
    assert!(cluster.node().metadata.deletion_timestamp.is_some());
    let annotations = cluster.get_claim("a").unwrap().metadata.annotations.unwrap_or_default();
    let deadline = "karpenter.sh/nodeclaim-termination-timestamp";
    assert!(!annotations.contains_key(deadline), "it has no grace period");
    cluster.seconds(6).await;
    assert_eq!(cluster.condition("a", "Drained"), "True/Drained");
    assert_eq!(
        cluster.condition("a", "InstanceTerminating"),
        "True/InstanceTerminating"
    );
    assert_eq!(cluster.cloud.machines().len(), 1);
    cluster.seconds(20).await;
    assert!(cluster.get_claim("a").is_none());
    assert!(cluster.objects().list::<Node>("").is_empty());
    assert!(cluster.cloud.machines().is_empty());
    assert_eq!(
        cluster.metric("karpenter_nodes_drained_total{nodepool=\"default\"}"),
        1.0
    );
}

#[tokio::test]
async fn an_unregistered_claim_is_terminated_without_touching_nodes() {
    let cluster = Cluster::start_with(|cloud| cloud.set_boot_delay(Duration::from_secs(3600))).await;
    cluster.claim("a", "").await;
    cluster.delete_claim("a").await;
    cluster.seconds(5).await;
    assert!(cluster.get_claim("a").is_none());
    assert!(cluster.cloud.machines().is_empty());
}

#[tokio::test]
async fn a_claim_that_does_not_say_yet_that_its_node_registered_is_drained_all_the_same() {
    let cluster = Cluster::start().await;
    cluster.claim("a", "").await;
    cluster
        .pod("web", "annotations: {karpenter.sh/do-not-disrupt: 'true'}", "")
        .await;
    let unsaid = json!({"status": {"conditions": [
        {"type": "Launched", "status": "True", "reason": "Launched", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
    cluster.objects().patch_status::<NodeClaim>("", "a", &unsaid).unwrap();
    cluster.delete_claim("a").await;
    cluster.minutes(1).await;
    assert!(cluster.get_claim("a").is_some(), "the pod holds up the drain");
    assert!(cluster.node().metadata.deletion_timestamp.is_some());
    assert_eq!(cluster.cloud.calls(Method::Delete), 0);
}

#[tokio::test]
async fn a_machine_that_cannot_be_terminated_keeps_its_claim() {
    let cluster = Cluster::start_with(|cloud| cloud.set_boot_delay(Duration::from_secs(3600))).await;
    cluster.claim("a", "").await;
    cluster
        .cloud
        .fail_when(|method| (method == Method::Delete).then(|| (Moment::Before, CloudError::auth("key revoked"))));
    cluster.delete_claim("a").await;
    cluster.minutes(5).await;
    assert!(cluster.get_claim("a").is_some());
    cluster.cloud.stop_failing();
    cluster.minutes(2).await;
    assert!(cluster.get_claim("a").is_none());
}

#[tokio::test]
async fn the_deadline_of_a_claim_is_its_deletion_plus_its_grace_period() {
    const DEADLINE: &str = "karpenter.sh/nodeclaim-termination-timestamp";
    let cluster = Cluster::start().await;
    cluster.claim("a", "terminationGracePeriod: 5m").await;
    cluster.pod("web", "", "terminationGracePeriodSeconds: 30").await;
    cluster.delete_claim("a").await;
    let claim = cluster.get_claim("a").unwrap();
    assert_eq!(claim.metadata.annotations.unwrap()[DEADLINE], "2026-01-01T00:05:00Z");
    assert!(
        cluster
            .events()
            .contains(&"NodeClaim/TerminationGracePeriodExpiring".to_owned())
    );
}

#[tokio::test]
async fn a_deadline_that_is_already_set_stands() {
    const DEADLINE: &str = "karpenter.sh/nodeclaim-termination-timestamp";
    let cluster = Cluster::start().await;
    cluster.claim("a", "terminationGracePeriod: 5m").await;
    let earlier = json!({"metadata": {"annotations": {DEADLINE: "2026-01-01T00:01:00Z"}}});
    cluster.objects().patch::<NodeClaim>("", "a", &earlier).unwrap();
    cluster.pod("web", "", "").await;
    cluster
        .objects()
        .delete::<NodeClaim>("", "a", &DeleteOptions::default())
        .unwrap();
    cluster.sandbox.settle().await;
    assert_eq!(
        cluster.get_claim("a").unwrap().metadata.annotations.unwrap()[DEADLINE],
        "2026-01-01T00:01:00Z"
    );
}

#[tokio::test]
async fn a_pool_that_was_made_anew_is_not_blamed_for_the_claims_of_the_old_one() {
    let cluster = Cluster::start_with(|cloud| cloud.set_boot_delay(Duration::from_secs(3600))).await;
    cluster.claim("a", "").await;
    cluster.claim("b", "").await;
    let old = cluster.pool();
    cluster
        .objects()
        .delete::<NodePool>("", "default", &DeleteOptions::default())
        .unwrap();
    let mut new = NodePool::new("default", old.spec.clone());
    new.metadata.labels = old.metadata.labels.clone();
    cluster.objects().create(&new).unwrap();
    cluster.minutes(16).await;
    assert_ne!(cluster.pool_uid(), old.metadata.uid.unwrap());
    assert_eq!(cluster.disrupted("registration_timeout"), 2.0);
    let healthy = cluster.pool().condition("NodeRegistrationHealthy").cloned();
    assert!(healthy.is_none_or(|healthy| !healthy.is_false()));
}

#[tokio::test]
async fn only_pods_that_still_wait_hear_that_their_machine_cannot_be_had() {
    let world = World::start(|ctx| {
        let mut controllers = provisioning::controllers(ctx).0;
        controllers.push(karpenter_core::lifecycle::controller(ctx));
        controllers
    })
    .await;
    world.pool("default", json!({}));
    // Too small to be taken for the pods.
    world.node("elsewhere", "other://elsewhere", 1, json!({}));
    world.cloud.set_latency(Method::Create, Duration::from_secs(5));
    let sold_out = CloudError::insufficient_capacity("no machine left");
    world.cloud.fail_next(Method::Create, Moment::Before, sold_out);
    world.pending_pod("waits", "1500m", json!({}));
    world.pending_pod("bound", "1500m", json!({}));
    world.pass(3).await;
    assert_eq!(world.claims().len(), 1);
    world.bind("bound", "elsewhere").await;
    world.pass(4).await;
    let told = |pod: &str| {
        let events = world.events(pod);
        events
            .iter()
            .any(|event| event.starts_with("InsufficientCapacityError"))
    };
    assert!(told("waits") && !told("bound"));
}
