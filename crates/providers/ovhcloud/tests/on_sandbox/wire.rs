//! What goes over the wire: paths, bodies, signatures, time, tokens, and answers that are not what was expected.

use std::{sync::Arc, time::Duration};

use http::Method;
use karpenter_cloud::{CloudProvider, Deletion, clock::Clock, credentials::Credentials, http::Redactor};
use karpenter_ovhcloud::{
    client::{ApiEndpoint, ApiErrorKind, AuthMethod, ClientSettings, KubeApi, OvhClient},
    metrics::Metrics,
    sim::{CLIENT_ID, CLIENT_SECRET, Effect, HttpFault, KUBE_ID, SERVICE_NAME, SimulatedOvh, World},
};
use serde_json::json;

use crate::environment::{Cluster, MINUTE, only};

fn api(sim: &SimulatedOvh, clock: Clock, credentials: &Credentials) -> KubeApi {
    let endpoint = ApiEndpoint::parse(&sim.endpoint(), Some(&sim.token_url())).expect("a URL");
    let method = AuthMethod::of(credentials).expect("complete");
    let mut settings = ClientSettings::default();
    settings.retry.first_delay = Duration::from_millis(1);
    let client = OvhClient::new(
        clock,
        endpoint,
        method,
        &settings,
        Redactor::default(),
        Metrics::default(),
    );
    KubeApi::new(Arc::new(client.expect("a client")), SERVICE_NAME, KUBE_ID)
}

async fn simulated(world: World) -> (SimulatedOvh, KubeApi) {
    let sim = SimulatedOvh::start(Clock::system(), world).await.expect("a socket");
    let api = api(&sim, Clock::system(), &SimulatedOvh::keys());
    (sim, api)
}

#[tokio::test]
async fn a_life_of_a_node_needs_the_eight_minimal_rights_and_their_exact_calls() {
    let world = World {
        rules: World::minimal_rules(KUBE_ID),
        ..World::default()
    };
    let cluster = Cluster::with(
        world,
        |settings| settings.engine.empty_ttl = MINUTE,
        json!({"tags": {"team": "web"}}),
    )
    .await;
    let taint = json!([{"key": "dedicated", "effect": "NoSchedule"}]);
    let spec = json!({"requirements": only("b3-16", "eu-west-par-a"), "taints": taint});
    let first = cluster.launch(&cluster.claim_with("a", spec.clone())).await;
    cluster.launch(&cluster.claim_with("b", spec)).await;
    let provider = cluster.provider();
    while provider.delete(&first).await.expect("deleted") != Deletion::Gone {
        cluster.pass(MINUTE / 12).await;
    }
    cluster.forget("a");
    let second = cluster.stored("b").expect("there");
    provider.abandon(&second).await.expect("abandoned");
    cluster.forget("b");
    cluster.pass(MINUTE * 3).await;
    assert!(
        cluster.until(|| cluster.sim(|sim| sim.pools.is_empty())).await,
        "the empty pool is deleted"
    );

    let base = format!("/1.0/cloud/project/{SERVICE_NAME}");
    let kube = format!("{base}/kube/{KUBE_ID}");
    let claim = cluster.sim(|sim| sim.requests_of(&Method::POST, "/nodepool"));
    assert_eq!(claim.len(), 1, "one pool is made");
    assert_eq!(claim[0].path, format!("{kube}/nodepool"));
    let mut body = claim[0].body.clone();
    let key = body["template"]["metadata"]["labels"]["karpenter.ovhcloud.sh/pool-key"].take();
    let name = body["name"].take();
    let name = name.as_str().expect("a name");
    assert!(
        name.starts_with("karpenter-b3-16-eu-west-par-a-") && name.ends_with("-0"),
        "{name}"
    );
    assert_eq!(key.as_str().expect("a key").len(), 16);
    assert_eq!(
        body,
        json!({
            "name": null, "flavorName": "b3-16", "desiredNodes": 1, "minNodes": 0, "maxNodes": 100, "autoscale": false,
            "monthlyBilled": false, "antiAffinity": false, "availabilityZones": ["eu-west-par-a"],
            "template": {
                "metadata": {
                    "labels": {
                        "karpenter.sh/nodepool": "default", "karpenter.ovhcloud.sh/ovhnodeclass": "default",
                        "karpenter.ovhcloud.sh/pool-key": null, "team": "web",
                    },
                    "annotations": {}, "finalizers": [],
                },
                "spec": {"taints": [{"key": "dedicated", "value": "", "effect": "NoSchedule"}], "unschedulable": false},
            },
        })
    );
    let puts = cluster.sim(|sim| sim.requests_of(&Method::PUT, "/nodepool/"));
    assert_eq!(puts[0].body, json!({"desiredNodes": 2}));
    assert_eq!(puts[1].body["desiredNodes"], 1);
    assert_eq!(puts[1].body["nodesToRemove"].as_array().expect("names").len(), 1);
    let deletes = cluster.sim(|sim| sim.requests_of(&Method::DELETE, ""));
    assert_eq!(deletes.len(), 1);
    assert!(deletes[0].path.starts_with(&format!("{kube}/nodepool/")));
    for path in [
        kube.clone(),
        format!("{kube}/nodepool"),
        format!("{kube}/flavors"),
        format!("{base}/capabilities/kube/flavors?region=EU-WEST-PAR"),
    ] {
        let calls = cluster.sim(|sim| sim.requests_of(&Method::GET, ""));
        assert!(
            calls.iter().any(|call| call.path == path && call.status == 200),
            "{path} is called"
        );
    }
    cluster.sim(|sim| {
        assert!(sim.unknown_paths.is_empty(), "{:?}", sim.unknown_paths);
        let public = |path: &str| path.contains("/auth/time") || path.contains("/order/catalog");
        for request in &sim.requests {
            assert_eq!(request.signed, !public(&request.path), "{}", request.path);
        }
        assert!(sim.unnamed_removals.is_empty());
    });
}

#[tokio::test]
async fn a_clock_an_hour_off_either_way_works() {
    for skew in [3600, -3600] {
        let world = World {
            skew,
            ..World::default()
        };
        let (sim, api) = simulated(world).await;
        api.cluster().await.expect("signed with the API's time");
        assert_eq!(
            sim.with(|sim| sim.requests.len()),
            2,
            "the time is asked for first, and once"
        );
        assert!(
            !sim.with(|sim| sim.requests[0].signed),
            "the question for the time is not signed"
        );
        let offset = api.client().clock_offset().expect("learned");
        assert!((offset + skew).abs() <= 2, "{offset}");
    }
}

#[tokio::test]
async fn a_clock_that_jumps_costs_one_refused_call_and_no_second_write() {
    let (sim, api) = simulated(World::default()).await;
    let pool = sim.with(|sim| sim.foreign_pool("other", 0));
    api.pool(&pool).await.expect("there");
    sim.with(|sim| sim.world.skew = 600);
    let update = karpenter_ovhcloud::client::model::PoolUpdate {
        desired_nodes: Some(2),
        ..Default::default()
    };
    api.update_pool(&pool, &update)
        .await
        .expect("repeated with the right time");
    let puts = sim.with(|sim| sim.requests_of(&Method::PUT, "/nodepool/"));
    let statuses: Vec<u16> = puts.iter().map(|put| put.status).collect();
    assert_eq!(statuses, [400, 200]);
}

#[tokio::test]
async fn a_revoked_key_is_asked_about_once_a_minute_and_not_more() {
    let (sim, api) = simulated(World::default()).await;
    api.cluster().await.expect("granted");
    sim.with(|sim| {
        sim.key_revoked = true;
        sim.requests.clear();
    });
    for _ in 0..100 {
        let error = api.pools().await.expect_err("revoked");
        assert_eq!(error.kind, ApiErrorKind::Auth);
    }
    assert_eq!(
        sim.with(|sim| sim.requests.len()),
        1,
        "one call finds out, the others are answered at once"
    );
}

#[tokio::test]
async fn a_service_account_fetches_a_token_and_renews_a_refused_one_once() {
    let sim = SimulatedOvh::start(Clock::system(), World::default())
        .await
        .expect("a socket");
    let account = [("clientId", CLIENT_ID), ("clientSecret", CLIENT_SECRET)];
    let account = Credentials::new(account.map(|(key, value)| (key.to_owned(), value.to_owned())));
    let api = api(&sim, Clock::system(), &account);
    api.cluster().await.expect("granted");
    api.cluster().await.expect("granted");
    assert_eq!(
        sim.with(|sim| sim.requests_of(&Method::POST, "/auth/oauth2/token").len()),
        1
    );
    sim.with(|sim| {
        sim.faults
            .push(HttpFault::new(Method::GET, "/kube/", Effect::Answer(401, "{}".into())).once());
    });
    api.cluster().await.expect("renewed");
    assert_eq!(
        sim.with(|sim| sim.requests_of(&Method::POST, "/auth/oauth2/token").len()),
        2
    );
    assert!(sim.with(|sim| sim.requests.iter().all(|request| !request.signed)));
}

#[tokio::test]
async fn answers_that_are_not_what_was_expected_are_errors_and_not_panics() {
    let (sim, api) = simulated(World::default()).await;
    let pool = sim.with(|sim| sim.foreign_pool("other", 0));
    let answers =
        |status, body: &str| HttpFault::new(Method::GET, "/nodepool", Effect::Answer(status, body.to_owned()));
    for (status, body, kind) in [
        (200, r#"[{"id": "x", "na"#, ApiErrorKind::Server),
        (200, "", ApiErrorKind::Server),
        (302, "", ApiErrorKind::Invalid),
        (403, r#"{"message": "Your quota is exceeded"}"#, ApiErrorKind::Quota),
    ] {
        sim.with(|sim| sim.faults.push(answers(status, body).once()));
        assert_eq!(api.pools().await.expect_err("an error").kind, kind, "{status} {body}");
    }
    sim.with(|sim| sim.faults.push(HttpFault::server_error(Method::GET, "/nodepool")));
    assert_eq!(api.pools().await.expect_err("an error").kind, ApiErrorKind::Server);
    sim.with(|sim| sim.faults.clear());
    for body in ["", "null", "{}"] {
        let fault = HttpFault::new(Method::PUT, "/nodepool", Effect::AnswerAfter(200, body.to_owned())).once();
        sim.with(|sim| sim.faults.push(fault));
        api.update_pool(&pool, &Default::default())
            .await
            .expect("the body does not matter");
    }
}

#[tokio::test]
async fn a_list_of_nodes_is_complete_or_an_error() {
    let world = World {
        page: 2,
        ..World::default()
    };
    let (sim, api) = simulated(world).await;
    let pool = sim.with(|sim| sim.foreign_pool("other", 5));
    assert_eq!(api.nodes(&pool).await.expect("all pages").len(), 5);
    // The first page passes, the next does not, however often it is tried.
    let broken = HttpFault::new(Method::GET, "/nodes", Effect::Answer(500, String::new())).after(1);
    sim.with(|sim| sim.faults.push(broken));
    let error = api.nodes(&pool).await.expect_err("half a list is none");
    assert_eq!(error.kind, ApiErrorKind::Server);
}

#[tokio::test]
async fn a_throttled_call_waits_as_long_as_it_is_told() {
    let clock = karpenter_cloud::clock::ManualClock::starting_at(jiff::Timestamp::now());
    let sim = SimulatedOvh::start(clock.clock(), World::default())
        .await
        .expect("a socket");
    let api = api(&sim, clock.clock(), &SimulatedOvh::keys());
    api.cluster().await.expect("granted");
    let slow = Effect::AnswerWith(429, "{}".into(), ("retry-after", "7".into()));
    sim.with(|sim| sim.faults.push(HttpFault::new(Method::GET, "/nodepool", slow).once()));
    let asked_at = clock.clock().now();
    let call = tokio::spawn(async move { api.pools().await });
    while clock.next_deadline().is_none() {
        tokio::task::yield_now().await;
    }
    let until = clock.next_deadline().expect("it waits");
    assert!(until.duration_since(asked_at).as_secs() >= 7);
    while !call.is_finished() {
        clock.advance(Duration::from_secs(1));
        tokio::task::yield_now().await;
    }
    call.await.expect("no panic").expect("answered in the end");
}

#[tokio::test]
async fn a_throttled_client_goes_at_half_its_rate_for_a_minute() {
    let cluster = Cluster::with(
        World::default(),
        |settings| settings.client.per_second = 10.0,
        json!({}),
    )
    .await;
    let slow = Effect::AnswerWith(429, "{}".into(), ("retry-after", "1".into()));
    cluster.sim(|sim| sim.faults.push(HttpFault::new(Method::GET, "/nodepool", slow).once()));
    let provider = cluster.provider();
    provider.list().await.expect("repeated");
    // Use up what may be sent at once, then count.
    for _ in 0..15 {
        provider.list().await.expect("listed");
    }
    let asked_at = cluster.clock.now();
    let before = cluster.sim(|sim| sim.requests.len());
    for _ in 0..25 {
        provider.list().await.expect("listed");
    }
    let calls = cluster.sim(|sim| sim.requests.len()) - before;
    let took = cluster.clock.since(asked_at).as_secs_f64();
    let rate = calls as f64 / took;
    assert!((4.0..6.0).contains(&rate), "{rate} calls per second");
}

#[tokio::test]
async fn a_token_is_renewed_before_it_ends() {
    let clock = karpenter_cloud::clock::ManualClock::starting_at(jiff::Timestamp::now());
    let sim = SimulatedOvh::start(clock.clock(), World::default())
        .await
        .expect("a socket");
    let account = [("clientId", CLIENT_ID), ("clientSecret", CLIENT_SECRET)];
    let account = Credentials::new(account.map(|(key, value)| (key.to_owned(), value.to_owned())));
    let api = api(&sim, clock.clock(), &account);
    let tokens = || sim.with(|sim| sim.requests_of(&Method::POST, "/auth/oauth2/token").len());
    api.cluster().await.expect("granted");
    clock.advance(Duration::from_secs(2870));
    api.cluster().await.expect("granted");
    assert_eq!(tokens(), 1, "not before 80 % of its life");
    clock.advance(Duration::from_secs(20));
    api.cluster().await.expect("granted");
    assert_eq!(tokens(), 2);
    assert!(
        sim.with(|sim| sim.requests.iter().all(|own| own.status == 200)),
        "and never refused"
    );
}

#[tokio::test]
async fn a_redirect_is_an_error_and_the_keys_stay_here() {
    let (sim, api) = simulated(World::default()).await;
    let (elsewhere, _) = simulated(World::default()).await;
    api.cluster().await.expect("granted");
    let target = format!("{}/cloud/project/x/kube/y", elsewhere.endpoint());
    let moved = Effect::AnswerWith(302, String::new(), ("location", target));
    sim.with(|sim| sim.faults.push(HttpFault::new(Method::GET, "/kube/", moved)));
    let error = api.cluster().await.expect_err("not followed");
    assert_eq!(error.kind, ApiErrorKind::Invalid);
    assert!(elsewhere.with(|sim| sim.requests.is_empty()), "nothing was sent there");
}

#[tokio::test]
async fn the_query_is_part_of_what_is_signed() {
    let (sim, api) = simulated(World::default()).await;
    // The simulated API recomputes the signature over the URL as it arrived.
    assert!(!api.region_flavors("EU-WEST-PAR").await.expect("accepted").is_empty());
    let path = sim.with(|sim| sim.requests.last().expect("one").path.clone());
    assert!(
        path.ends_with("/capabilities/kube/flavors?region=EU-WEST-PAR"),
        "{path}"
    );
}
