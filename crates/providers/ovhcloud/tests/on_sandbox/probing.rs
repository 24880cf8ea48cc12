//! The probe, which asks a real service how it behaves, on one whose behaviour is known.

use std::sync::Arc;

use http::Method;
use k8s_openapi::api::core::v1::Node;
use karpenter_cloud::http::Redactor;
use karpenter_ovhcloud::{
    client::{ApiEndpoint, AuthMethod, ClientSettings, KubeApi, OvhClient},
    contract::{Answer, Contract, Ending, Outcome},
    metrics::Metrics,
    sim::{Delays, Effect, HttpFault, InstanceTypeLabel, KUBE_ID, SERVICE_NAME, SimulatedOvh, World, join_nodes},
};
use karpenter_sandbox::{Sandbox, Timing};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::environment::{Cluster, MINUTE, SECOND};

/// A cluster whose machines join it, and the probe of it.
async fn probed(world: World) -> (Cluster, Contract, tokio_util::sync::DropGuard) {
    let sandbox = Sandbox::builder().timing(Timing::instant()).start();
    let cluster = Cluster::on(sandbox, world, |_| (), json!({})).await;
    let stop = CancellationToken::new();
    tokio::spawn(join_nodes(cluster.sim.clone(), cluster.sandbox.client(), stop.clone()));
    let endpoint = ApiEndpoint::parse(&cluster.sim.endpoint(), None).expect("a URL");
    let settings = ClientSettings {
        in_flight: cluster.in_flight(),
        ..ClientSettings::default()
    };
    let client = OvhClient::new(
        cluster.clock.clone(),
        endpoint,
        AuthMethod::of(&SimulatedOvh::keys()).expect("complete"),
        &settings,
        Redactor::default(),
        Metrics::default(),
    );
    let api = KubeApi::new(Arc::new(client.expect("a client")), SERVICE_NAME, KUBE_ID);
    let contract = Contract::new(api, Some(cluster.sandbox.client()), cluster.clock.clone());
    (cluster, contract, stop.drop_guard())
}

fn answer(answers: &[Answer], question: &str) -> String {
    let own = answers.iter().find(|own| own.question.contains(question));
    match &own.unwrap_or_else(|| panic!("{question}: {answers:#?}")).outcome {
        Outcome::Seen(seen) => seen.clone(),
        Outcome::Unknown(why) => format!("unknown: {why}"),
    }
}

fn realistic() -> World {
    World {
        delays: Delays {
            visible: SECOND * 20,
            stale: SECOND * 7,
            ..Delays::realistic()
        },
        instance_type_label: InstanceTypeLabel::Id,
        ..World::default()
    }
}

#[tokio::test]
async fn a_trial_answers_every_question_and_leaves_nothing() {
    let mut world = realistic();
    let sold_out = world.flavors.iter_mut().find(|own| own.name == "b3-64");
    sold_out.expect("listed").state = "unavailable".into();
    let (cluster, contract, _joining) = probed(world).await;
    let theirs = cluster.sim(|sim| sim.foreign_pool("theirs", 1));
    cluster.pass(MINUTE * 3).await;
    let trial = contract.trial(Some("b3-8"), None, "FR").await.expect("it can be had");
    assert_eq!(
        (trial.zone.as_deref(), trial.price),
        (Some("eu-west-par-a"), Some(0.05))
    );
    cluster.sim(|sim| sim.requests.clear());
    let mut watched = cluster.sandbox.objects().watch::<Node>();
    let tried = contract.try_out(&trial, CancellationToken::new()).await;
    assert!(matches!(tried.ending, Ending::Done), "{:?}", tried.ending);
    assert_eq!(tried.left, Vec::<String>::new());
    let answers = tried.answers;
    let (mut open, mut cordoned) = (0, 0);
    while let Some(event) = watched.try_next() {
        let labels = event.object.metadata.labels.unwrap_or_default();
        if labels.get("nodepool") != Some(&trial.pool) {
            continue;
        }
        let spec = event.object.spec.unwrap_or_default();
        let is_tainted = spec.taints.iter().flatten().any(|own| own.key.ends_with("/probe"));
        match (is_tainted, spec.unschedulable == Some(true)) {
            (false, false) => open += 1,
            (false, true) => cordoned += 1,
            (true, _) => {}
        }
    }
    assert_eq!(open, 0, "nobody's pods may ever run there");
    assert!(cordoned > 0, "a Node whose taint was taken away is cordoned");
    for (question, expected) in [
        ("until a new pool can be read", "20 s"),
        (
            "second pool of the same name",
            "refused, which is read as Conflict: a node pool of that name already exists",
        ),
        (
            "flavor that cannot be had",
            "refused, which is read as Invalid: flavor is unknown or unavailable",
        ),
        ("reads show the old size", "7 s"),
        ("while the pool is being changed", "yes, while it is INSTALLING"),
        ("instance-type labels", "on 0 of 3 Nodes"),
        (
            "How much memory",
            "b3-8: 7700 MiB and 6110 MiB (estimated: 7577 and 5887)",
        ),
        ("zones called", "by pools: eu-west-par-a; by Nodes: eu-west-par-a"),
        ("taints of the pool come back", "not within 5 minutes"),
        ("whose Node was deleted", "the same instance"),
        (
            "hold the name of a node",
            "accepted: of 3 machines 1 went, 0 came, and the size is 2",
        ),
        (
            "with a node that is gone",
            "refused, which is read as Invalid: nodesToRemove names a node that is not",
        ),
        (
            "more nodes than the size falls by",
            "accepted: of 2 machines 1 went, 1 came, and the size is 2",
        ),
        (
            "fewer nodes than the size falls by",
            "accepted: of 2 machines 2 went, 0 came, and the size is 0",
        ),
        ("everything gone again", "yes"),
    ] {
        let told = answer(&answers, question);
        assert!(told.contains(expected), "{question} {told}");
    }
    let booted = answer(&answers, "until machines exist");
    assert!(booted.contains("s, and "), "{booted}");
    cluster.sim(|sim| {
        assert_eq!(
            sim.pools.keys().collect::<Vec<_>>(),
            [&theirs],
            "only what was there before"
        );
        let writes = sim.requests.iter().filter(|own| own.method != Method::GET);
        assert!(
            writes.filter(|own| own.path.contains(&theirs)).count() == 0,
            "and not touched"
        );
        let made = sim.requests_of(&Method::POST, "/nodepool");
        assert_eq!(
            made[0].body["template"]["spec"]["taints"][0]["effect"], "NoSchedule",
            "nobody's pods run there"
        );
        assert_eq!(made[0].body["desiredNodes"], 0, "what may be refused costs nothing");
    });
}

#[tokio::test]
async fn a_trial_that_is_stopped_or_fails_deletes_its_pool_all_the_same() {
    for is_stopped in [true, false] {
        let (cluster, contract, _joining) = probed(realistic()).await;
        let trial = contract.trial(None, None, "FR").await.expect("it can be had");
        let stop = CancellationToken::new();
        if is_stopped {
            let (clock, stop) = (cluster.clock.clone(), stop.clone());
            tokio::spawn(async move {
                clock.sleep(MINUTE).await;
                stop.cancel();
            });
        } else {
            cluster.sim(|sim| {
                sim.faults
                    .push(HttpFault::new(Method::POST, "/nodepool", Effect::Reset).once());
            });
        }
        let tried = contract.try_out(&trial, stop).await;
        assert_eq!(
            matches!(tried.ending, Ending::Stopped),
            is_stopped,
            "{:?}",
            tried.ending
        );
        let answers = tried.answers;
        assert!(
            answer(&answers, "everything tried").starts_with("unknown: no: "),
            "{answers:#?}"
        );
        assert!(
            cluster.sim(|sim| sim.pools.is_empty()),
            "stopped: {is_stopped}: {answers:#?}"
        );
    }
}

#[tokio::test]
async fn a_pool_whose_deletion_is_refused_at_first_is_deleted_all_the_same() {
    let refusals = [
        Effect::Answer(503, String::new()),
        Effect::Answer(409, json!({"message": "the node pool is busy"}).to_string()),
        Effect::Reset,
    ];
    for refusal in refusals {
        let (cluster, contract, _joining) = probed(realistic()).await;
        let trial = contract.trial(None, None, "FR").await.expect("it can be had");
        let stop = CancellationToken::new();
        let (clock, stopping) = (cluster.clock.clone(), stop.clone());
        tokio::spawn(async move {
            clock.sleep(MINUTE).await;
            stopping.cancel();
        });
        let fault = HttpFault::new(Method::DELETE, "/nodepool", refusal.clone());
        cluster.sim(|sim| {
            sim.faults.push(HttpFault {
                times: Some(3),
                ..fault
            });
        });
        let tried = contract.try_out(&trial, stop).await;
        assert_eq!(tried.left, Vec::<String>::new(), "{refusal:?}");
        assert!(cluster.sim(|sim| sim.pools.is_empty()), "{refusal:?}: {tried:#?}");
    }
}

#[tokio::test]
async fn a_pool_that_cannot_be_deleted_is_named() {
    let (cluster, contract, _joining) = probed(realistic()).await;
    let trial = contract.trial(None, None, "FR").await.expect("it can be had");
    cluster.sim(|sim| {
        sim.faults.push(HttpFault::new(
            Method::PUT,
            "/nodepool",
            Effect::Answer(503, String::new()),
        ));
        sim.faults.push(HttpFault::new(
            Method::DELETE,
            "/nodepool",
            Effect::Answer(503, String::new()),
        ));
    });
    let tried = contract.try_out(&trial, CancellationToken::new()).await;
    assert!(
        matches!(&tried.ending, Ending::Failed(error) if error.is_unanswered()),
        "{:?}",
        tried.ending
    );
    assert_eq!(tried.left.len(), 1, "{tried:#?}");
    let told = answer(&tried.answers, "everything gone again");
    assert!(
        told.contains(&format!("delete the pools named {} by hand", trial.pool)),
        "{told}"
    );
    let deletions = cluster.sim(|sim| sim.requests_of(&Method::DELETE, "/nodepool").len());
    assert!(deletions > 60, "tried for twenty minutes: {deletions}");
}

#[tokio::test]
async fn a_key_that_may_not_delete_is_not_asked_to_for_twenty_minutes() {
    let (cluster, contract, _joining) = probed(realistic()).await;
    let trial = contract.trial(None, None, "FR").await.expect("it can be had");
    let forbidden = json!({"class": "Client::Forbidden", "message": "This call has not been granted"}).to_string();
    cluster.sim(|sim| {
        sim.faults.push(HttpFault::new(
            Method::PUT,
            "/nodepool",
            Effect::Answer(403, forbidden.clone()),
        ));
        sim.faults.push(HttpFault::new(
            Method::DELETE,
            "/nodepool",
            Effect::Answer(403, forbidden),
        ));
    });
    let tried = contract.try_out(&trial, CancellationToken::new()).await;
    assert_eq!(tried.left.len(), 1, "{tried:#?}");
    assert!(tried.left[0].contains("has not been granted"), "{tried:#?}");
    let deletions = cluster.sim(|sim| sim.requests_of(&Method::DELETE, "/nodepool").len());
    assert_eq!(deletions, 1);
}

#[tokio::test]
async fn a_trial_whose_machines_never_come_up_is_not_done() {
    let mut world = realistic();
    world.delays.boot = MINUTE * 600;
    let (cluster, contract, _joining) = probed(world).await;
    let trial = contract.trial(None, None, "FR").await.expect("it can be had");
    let tried = contract.try_out(&trial, CancellationToken::new()).await;
    assert!(matches!(tried.ending, Ending::Incomplete), "{:?}", tried.ending);
    assert_eq!(
        answer(&tried.answers, "everything tried"),
        "unknown: no: the machines were not ready in time"
    );
    assert_eq!(tried.left, Vec::<String>::new());
    assert!(cluster.sim(|sim| sim.pools.is_empty()));
}

#[tokio::test]
async fn looking_tells_what_nodes_say_and_writes_nothing() {
    let (cluster, contract, _joining) = probed(realistic()).await;
    let answers = contract.look().await.expect("readable");
    assert!(answer(&answers, "memory").contains("no machine of the cluster is a Node yet"));
    cluster.sim(|sim| sim.foreign_pool("theirs", 2));
    cluster.pass(MINUTE * 3).await;
    cluster.sim(|sim| sim.requests.clear());
    let answers = contract.look().await.expect("readable");
    let labels = answer(&answers, "instance-type labels");
    assert!(labels.contains("is a b3-8 and says \"uuid-b3-8\""), "{labels}");
    assert_eq!(answer(&answers, "How many node pools"), "1 and 2");
    assert!(cluster.sim(|sim| sim.requests.iter().all(|own| own.method == Method::GET)));
}
