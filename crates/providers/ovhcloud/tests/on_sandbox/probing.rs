//! The probe, which asks a real service how it behaves, on one whose behaviour is known.

use std::sync::Arc;

use http::Method;
use karpenter_cloud::http::Redactor;
use karpenter_ovhcloud::{
    client::{ApiEndpoint, AuthMethod, ClientSettings, KubeApi, OvhClient},
    contract::{Answer, Contract, Outcome},
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
    let answers = contract.try_out(&trial, CancellationToken::new()).await;
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
        let answers = contract.try_out(&trial, stop).await;
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
