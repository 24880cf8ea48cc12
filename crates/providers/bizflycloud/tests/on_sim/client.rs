//! Tokens, the catalogue and errors of the API, through the real client.

use std::time::Duration;

use futures::future::join_all;
use karpenter_bizflycloud::{
    client::{AuthMethod, AuthMode, ErrorClass},
    region::Region,
    sim::{self, Fault, Often, Operation, SimOptions},
};

use crate::environment::{Setting, World};

const HOUR: Duration = Duration::from_secs(3600);

fn fails(operation: Operation, status: u16, body: &str) -> Fault {
    Fault::Http {
        operation,
        status,
        body: body.to_owned(),
        retry_after: None,
    }
}

#[tokio::test]
async fn one_token_serves_everybody_and_is_renewed_before_it_ends() {
    let world = World::start().await;
    let before = world.count("POST", "/api/token");
    let client = world.client(|_| {});
    let answers = join_all((0..50).map(|_| client.servers())).await;
    assert!(answers.iter().all(Result::is_ok));
    assert_eq!(world.count("POST", "/api/token") - before, 1);
    world.clock.sleep(HOUR * 3 + HOUR / 2).await;
    let answers = join_all((0..50).map(|_| client.servers())).await;
    assert!(answers.iter().all(Result::is_ok));
    assert_eq!(world.count("POST", "/api/token") - before, 2);
    let refused = world
        .cloud
        .requests()
        .iter()
        .filter(|request| request.status == 401)
        .count();
    assert_eq!(refused, 0, "no request went out with a token that had ended");
}

#[tokio::test]
async fn a_token_that_does_not_tell_its_end_lives_four_hours() {
    for (key, hours) in [(Some("expires_at"), 1), (Some("expire_at"), 1), (None, 4)] {
        let world = World::with(Setting {
            options: SimOptions {
                token_lifetime: HOUR,
                ..SimOptions::default()
            },
            ..Setting::default()
        })
        .await;
        world.cloud.set_expiry_key(key);
        let client = world.client(|_| {});
        client.authenticate().await.expect("known");
        let left = client
            .token_expires_at()
            .expect("a token")
            .duration_since(world.clock.now());
        assert!((left.as_secs() - hours * 3600).abs() <= 60, "{key:?}: {left:?}");
    }
}

#[tokio::test]
async fn a_storm_of_refused_tokens_causes_one_login() {
    let world = World::start().await;
    let client = world.client(|_| {});
    client.servers().await.expect("answered");
    let before = world.count("POST", "/api/token");
    world.cloud.expire_tokens();
    let answers = join_all((0..20).map(|_| client.servers())).await;
    assert!(
        answers.iter().all(Result::is_ok),
        "every request is sent again with the new token"
    );
    assert_eq!(world.count("POST", "/api/token") - before, 1);
}

#[tokio::test]
async fn a_rotated_password_is_not_tried_in_a_loop() {
    let world = World::start().await;
    world.cloud.set_password("another-password");
    let client = world.client(|_| {});
    let answers = join_all((0..10).map(|_| client.servers())).await;
    for answer in &answers {
        let error = answer.as_ref().expect_err("the password is wrong");
        assert_eq!(error.class, ErrorClass::Auth);
        assert!(error.message.contains("does not accept the credentials"), "{error}");
        assert!(!error.to_string().contains(sim::PASSWORD));
    }
    let before = world.count("POST", "/api/token");
    client.servers().await.expect_err("still wrong");
    assert_eq!(world.count("POST", "/api/token"), before, "not asked again at once");
    // 30 seconds later, then 60 after that: one attempt each, however many ask.
    for (seconds, attempts) in [(31, 1), (31, 1), (31, 2)] {
        world.clock.sleep(Duration::from_secs(seconds)).await;
        let answers = join_all((0..5).map(|_| client.servers())).await;
        assert!(answers.iter().all(Result::is_err));
        assert_eq!(world.count("POST", "/api/token") - before, attempts);
    }
    world.cloud.set_password(sim::PASSWORD);
    world.clock.sleep(Duration::from_secs(121)).await;
    client.servers().await.expect("asked again after a while");
}

#[tokio::test]
async fn an_application_credential_works_by_token_and_by_header() {
    let world = World::start().await;
    for mode in [AuthMode::Token, AuthMode::Header] {
        let client = world.client(|connection| {
            connection.mode = mode;
            connection.identity.method = AuthMethod::ApplicationCredential {
                id: sim::CREDENTIAL_ID.to_owned(),
                secret: sim::CREDENTIAL_SECRET.to_owned().into(),
            };
        });
        client
            .servers()
            .await
            .unwrap_or_else(|error| panic!("{mode:?}: {error}"));
    }
}

#[tokio::test]
async fn a_token_for_another_project_is_refused() {
    let world = World::start().await;
    let client = world.client(|connection| connection.identity.project_id = Some("project-2".to_owned()));
    let error = client.servers().await.expect_err("another project");
    assert_eq!(error.class, ErrorClass::ProjectMismatch);
    assert!(
        error.message.contains("project-1") && error.message.contains("project-2"),
        "{error}"
    );
    let client = world.client(|_| {});
    assert_eq!(client.authenticate().await.expect("known"), sim::PROJECT);
    client.servers().await.expect("answered");
    let asked = world.cloud.requests().pop().expect("asked");
    assert_eq!(
        asked.headers["x-project-id"],
        sim::PROJECT,
        "the one that the token is for"
    );
}

#[tokio::test]
async fn a_service_that_the_region_lacks_is_named_and_no_other_host_is_asked() {
    let world = World::start().await;
    let client = world.client(|connection| connection.region = Region::HoChiMinh);
    let before = world.cloud.requests().len();
    let error = client.kubernetes_versions().await.expect_err("BKE is in HN only");
    assert_eq!(error.class, ErrorClass::ServiceNotInCatalog);
    assert!(
        error.message.contains("kubernetes_engine") && error.message.contains("HCM"),
        "{error}"
    );
    let requests = world.cloud.requests();
    assert!(
        requests[before..]
            .iter()
            .all(|request| request.path == "/api/auth/service")
    );
}

#[tokio::test]
async fn failures_of_reads_are_retried_with_patience_and_told_in_the_end() {
    let world = World::start().await;
    let client = world.client(|_| {});
    client.servers().await.expect("answered");
    world
        .cloud
        .inject(fails(Operation::Read, 503, "<html>busy</html>"), Often::Times(4));
    let before = world.clock.now();
    client.servers().await.expect("the fifth try succeeds");
    let took = world.clock.since(before).as_secs_f64();
    assert!(
        (12.0..=18.0).contains(&took),
        "1, 2, 4 and 8 seconds, each ± 20 %: {took}"
    );
    let tries: Vec<_> = world
        .cloud
        .requests()
        .into_iter()
        .rev()
        .take(5)
        .map(|own| own.at)
        .collect();
    let waits = tries.windows(2).map(|own| own[0].duration_since(own[1]).as_secs_f64());
    for (wait, asked) in waits.zip([8.0, 4.0, 2.0, 1.0]) {
        assert!((wait / asked - 1.0).abs() <= 0.2 + 1e-6, "{wait} instead of {asked} s");
    }
    world
        .cloud
        .inject(fails(Operation::Read, 502, "Bad gateway"), Often::Always);
    let error = client.servers().await.expect_err("five tries are enough");
    assert_eq!(error.class, ErrorClass::Transient);
    assert!(error.message.contains("Bad gateway"), "{error}");
}

#[tokio::test]
async fn one_attempt_means_no_retry() {
    let world = World::start().await;
    let client = world.client(|connection| connection.attempts = 1);
    client.authenticate().await.expect("known");
    client.servers().await.expect("answered");
    world.cloud.inject(fails(Operation::Read, 503, ""), Often::Times(1));
    client.servers().await.expect_err("not tried again");
}

#[tokio::test]
async fn what_the_cloud_asks_us_to_wait_is_waited() {
    let world = World::start().await;
    let client = world.client(|_| {});
    client.servers().await.expect("answered");
    let throttled = Fault::Http {
        operation: Operation::Read,
        status: 429,
        body: String::new(),
        retry_after: Some(7),
    };
    world.cloud.inject(throttled, Often::Times(1));
    let before = world.clock.now();
    client.servers().await.expect("answered in the end");
    assert!(world.clock.since(before).as_secs() >= 7);
}

#[tokio::test]
async fn a_connection_that_drops_while_a_call_is_repeated_with_a_new_token_is_a_clean_error() {
    let world = World::start().await;
    let client = world.client(|connection| connection.attempts = 1);
    client.servers().await.expect("answered");
    world
        .cloud
        .inject(fails(Operation::Read, 401, "expired"), Often::Times(1));
    world.cloud.inject(Fault::LoseAnswer(Operation::Read), Often::Times(1));
    let before = world.count("GET", "/servers");
    let error = client.servers().await.expect_err("cut off");
    assert_eq!(error.class, ErrorClass::Transient, "{error}");
    assert_eq!(world.count("GET", "/servers") - before, 2, "refused, and repeated once");
    world
        .cloud
        .inject(fails(Operation::CreateServers, 401, "expired"), Often::Times(1));
    world
        .cloud
        .inject(Fault::LoseAnswer(Operation::CreateServers), Often::Times(1));
    let error = client.create_servers(&[]).await.expect_err("cut off");
    assert_eq!(
        error.class,
        ErrorClass::Ambiguous,
        "an order may have been taken: {error}"
    );
    client.servers().await.expect("the client goes on");
}

fn application_credential(secret: &str) -> AuthMethod {
    AuthMethod::ApplicationCredential {
        id: sim::CREDENTIAL_ID.to_owned(),
        secret: secret.to_owned().into(),
    }
}

#[tokio::test]
async fn an_application_credential_works_whichever_spelling_the_api_reads() {
    for spelling in ["credential", "application"] {
        let world = World::start().await;
        world.cloud.inject(Fault::StrictCredentials(spelling), Often::Always);
        let with = |secret: &str| {
            let secret = secret.to_owned();
            world.client(move |connection| connection.identity.method = application_credential(&secret))
        };
        with(sim::CREDENTIAL_SECRET)
            .servers()
            .await
            .unwrap_or_else(|error| panic!("{spelling}: {error}"));
        with("wrong").servers().await.expect_err("the fields are read");
    }
}

#[tokio::test]
async fn a_wrong_credential_is_found_out_in_header_mode_too() {
    let world = World::start().await;
    let with = |secret: &str| {
        let secret = secret.to_owned();
        world.client(move |connection| {
            connection.mode = AuthMode::Header;
            connection.identity.method = application_credential(&secret);
        })
    };
    with(sim::CREDENTIAL_SECRET).authenticate().await.expect("known");
    let error = with("wrong").authenticate().await.expect_err("not known");
    assert_eq!(error.class, ErrorClass::Auth, "{error}");
}
