//! Everything that the API can answer, and what a user is told of it (§1.9).

use std::time::Duration;

use karpenter_bizflycloud::{
    ProviderConfig,
    sim::{Fault, Often, Operation, PASSWORD},
};
use karpenter_cloud::{CloudProvider, LaunchEffect};
use serde_json::json;

use crate::environment::{World, claim, secret};

fn answer(operation: Operation, status: u16, body: &str) -> Fault {
    Fault::Http {
        operation,
        status,
        body: body.to_owned(),
        retry_after: None,
    }
}

/// What a launch says when its order is answered so: the reason on the claim, or `capacity`, and the sentence.
async fn told(world: &World, number: u32, fault: Fault) -> (String, String) {
    world.cloud.inject(fault, Often::Always);
    let error = world
        .provider
        .create(&claim(number, json!([])))
        .await
        .expect_err("refused");
    world.cloud.heal();
    // Long enough for refusals, payments, failures and what they taught to be forgotten.
    world.clock.sleep(Duration::from_secs(3700)).await;
    world.provider.reconcile_classes().await;
    let reason = match error.launch_effect() {
        LaunchEffect::DeleteForCapacity => "capacity".to_owned(),
        LaunchEffect::DeleteForNodeClass => "class".to_owned(),
        LaunchEffect::Retry { reason, .. } => reason,
    };
    assert!(!error.to_string().contains(PASSWORD));
    (reason, error.to_string())
}

#[tokio::test]
async fn every_refusal_of_an_order_has_its_reason_and_keeps_the_clouds_words() {
    let world = World::start().await;
    let order = |status, body| answer(Operation::CreateServers, status, body);
    for (number, (fault, reason, sentence)) in (1..).zip([
        (
            order(400, r#"{"message": "Image not found"}"#),
            "InvalidRequest",
            "Image not found",
        ),
        (
            order(402, r#"{"message": "Số dư không đủ"}"#),
            "PaymentRequired",
            "Số dư không đủ",
        ),
        (
            order(403, "permission denied"),
            "AuthenticationFailed",
            "permission denied",
        ),
        (
            order(403, r#""Quota exceeded for cores""#),
            "capacity",
            "Quota exceeded for cores",
        ),
        (order(400, "Vượt quá hạn mức vCPU"), "capacity", "Vượt quá hạn mức vCPU"),
        (order(400, "Flavor is out of stock"), "capacity", "out of stock"),
        (order(409, "No valid host was found"), "capacity", "No valid host"),
        (order(405, "<html>not allowed</html>"), "InvalidRequest", "not allowed"),
        (
            order(500, "<html>oops</html>"),
            "APIUnavailable",
            "the answer to the order was lost, and no server came of it",
        ),
        (
            order(504, ""),
            "APIUnavailable",
            "the answer to the order was lost, and no server came of it",
        ),
        (
            Fault::TaskFails("Không đủ tài nguyên".to_owned()),
            "capacity",
            "could not make the server: Không đủ tài nguyên",
        ),
        (Fault::ServerFails, "capacity", "went into ERROR"),
        (Fault::RamQuota(1), "capacity", "Quota exceeded for ram"),
        (Fault::ServerQuota(0), "capacity", "Quota exceeded for instances"),
    ]) {
        let shown = format!("{fault:?}");
        let (own, message) = told(&world, number, fault).await;
        assert_eq!(own, reason, "{shown}: {message}");
        assert!(message.contains(sentence), "{shown}: {message}");
    }
}

#[tokio::test]
async fn an_api_that_answers_too_many_requests_is_waited_for() {
    let world = World::start().await;
    let throttled = Fault::Http {
        operation: Operation::CreateServers,
        status: 429,
        body: "slow down".to_owned(),
        retry_after: Some(7),
    };
    world.cloud.inject(throttled, Often::Times(2));
    let started = world.clock.now();
    let mut launched = world.provider.create(&claim(1, json!([]))).await;
    while let Err(error) = launched {
        assert!(error.to_string().contains("slow down"), "{error}");
        world.clock.sleep(Duration::from_secs(7)).await;
        launched = world.provider.create(&claim(1, json!([]))).await;
    }
    assert!(world.clock.since(started).as_secs() >= 7);
    world.clock.sleep(Duration::from_secs(120)).await;
    assert_eq!(world.live().len(), 1, "waiting made no second server");
}

#[tokio::test]
async fn a_token_that_ends_mid_run_is_replaced_for_every_call_of_a_launch() {
    use crate::environment::Setting;
    use karpenter_bizflycloud::sim::SimOptions;

    let world = World::with(Setting {
        options: SimOptions {
            token_lifetime: Duration::from_secs(10),
            ..SimOptions::default()
        },
        ..Setting::default()
    })
    .await;
    // The API does not tell when tokens end, so that they end unexpectedly.
    world.cloud.set_expiry_key(None);
    let before = world.count("POST", "/api/token");
    world.clock.sleep(Duration::from_secs(700)).await;
    world.provider.create(&claim(1, json!([]))).await.expect("launched");
    assert_eq!(world.live().len(), 1);
    let logins = world.count("POST", "/api/token") - before;
    assert!(
        (2..=20).contains(&logins),
        "{logins} logins: one whenever a token had ended"
    );
}

#[tokio::test]
async fn a_storm_of_401_ends_in_a_condition_and_not_in_a_storm_of_logins() {
    let world = World::start().await;
    world.cloud.set_password("rotated-away");
    world.cloud.expire_tokens();
    let before = world.count("POST", "/api/token");
    let launches = (1..=10).map(|number| {
        let provider = world.provider.clone();
        async move { provider.create(&claim(number, json!([]))).await }
    });
    for error in futures::future::join_all(launches).await {
        let error = error.expect_err("refused");
        let LaunchEffect::Retry { reason, .. } = error.launch_effect() else {
            panic!("{error}")
        };
        assert_eq!(reason, "AuthenticationFailed");
        assert!(error.to_string().contains("does not accept the credentials"), "{error}");
    }
    assert_eq!(world.count("POST", "/api/token") - before, 1, "one login for all");
    world.provider.reconcile_classes().await;
    let told = world.events("AuthenticationFailed");
    assert_eq!(told.len(), 1, "{told:?}");
    world.cloud.set_password("correct-again");
    world.apply(&secret("correct-again"));
    world.clock.sleep(Duration::from_secs(3)).await;
    world.provider.reconcile_classes().await;
    assert_eq!(world.events("CredentialsRotated").len(), 1);
    world
        .provider
        .create(&claim(1, json!([])))
        .await
        .expect("recovered without a restart");
}

#[tokio::test]
async fn an_api_that_keeps_failing_is_left_alone_and_that_is_a_condition() {
    use karpenter_api::conditions::StatusConditions;

    let world = World::start().await;
    world.cloud.inject(answer(Operation::Any, 503, "busy"), Often::Always);
    for _ in 0..4 {
        world.clock.sleep(Duration::from_secs(3)).await;
        world.provider.list().await.expect_err("it fails");
    }
    let before = world.cloud.requests().len();
    let error = world.provider.list().await.expect_err("not asked");
    assert!(error.to_string().contains("is left alone until"), "{error}");
    assert_eq!(world.cloud.requests().len(), before);
    world.provider.reconcile_classes().await;
    let config: ProviderConfig = world.sandbox.objects().get("", "default").expect("it exists");
    assert!(config.condition("APIReachable").expect("judged").is_false());
    assert!(!world.events("APIUnreachable").is_empty());
    world.cloud.heal();
    world.clock.sleep(Duration::from_secs(31)).await;
    world.provider.list().await.expect("it answers again");
    world.provider.reconcile_classes().await;
    let config: ProviderConfig = world.sandbox.objects().get("", "default").expect("it exists");
    assert!(config.condition("APIReachable").expect("judged").is_true());
}

#[tokio::test]
async fn an_order_refused_for_lack_of_payment_pauses_launches_for_five_minutes() {
    use karpenter_api::conditions::StatusConditions;

    let world = World::start().await;
    world.cloud.inject(Fault::PaymentRequired, Often::Times(1));
    world.provider.create(&claim(1, json!([]))).await.expect_err("unpaid");
    world.provider.reconcile_classes().await;
    let config = || -> ProviderConfig { world.sandbox.objects().get("", "default").expect("it exists") };
    let billing = config().condition("BillingReady").cloned().expect("judged");
    assert_eq!((billing.is_false(), billing.reason.as_str()), (true, "PaymentRequired"));
    let orders = world.count("POST", "/servers");
    world.provider.create(&claim(2, json!([]))).await.expect_err("paused");
    assert_eq!(world.count("POST", "/servers"), orders, "nothing is ordered meanwhile");
    world.clock.sleep(Duration::from_secs(301)).await;
    world.provider.reconcile_classes().await;
    assert!(config().is_ready());
    world.provider.create(&claim(2, json!([]))).await.expect("launched");
}

#[tokio::test]
async fn a_refused_spot_order_turns_spot_off_for_an_hour() {
    use crate::environment::Setting;
    use karpenter_bizflycloud::sim::SimOptions;

    let world = World::with(Setting {
        options: SimOptions {
            sells_spot: true,
            ..SimOptions::default()
        },
        class: Some(json!({"spot": {"enabled": true}})),
        ..Setting::default()
    })
    .await;
    world.cloud.inject(Fault::NoSpot, Often::Always);
    let spot = json!([{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"]}]);
    let error = world
        .provider
        .create(&claim(1, spot.clone()))
        .await
        .expect_err("no spot");
    assert_eq!(error.launch_effect(), LaunchEffect::DeleteForCapacity);
    assert_eq!(world.events("SpotRefused").len(), 1);
    let orders = world.count("POST", "/servers");
    world
        .provider
        .create(&claim(2, spot.clone()))
        .await
        .expect_err("not asked for an hour");
    assert_eq!(world.count("POST", "/servers"), orders);
    world.cloud.heal();
    world.clock.sleep(Duration::from_secs(3601)).await;
    world.provider.create(&claim(3, spot)).await.expect("tried again");
}

#[tokio::test]
async fn a_claim_for_spot_is_told_that_its_class_has_none() {
    let world = World::start().await;
    let spot = json!([{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"]}]);
    let error = world.provider.create(&claim(1, spot)).await.expect_err("no spot");
    assert!(
        error.to_string().contains("spot is not enabled for NodeClass default"),
        "{error}"
    );
}
