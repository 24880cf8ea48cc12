//! The behaviour suite on the sandbox: without a socket, and over TCP.

use karpenter_sandbox::behaviour::{self, Access, Target, run};
use karpenter_sandbox::{Clock, Sandbox, Timing};
use kube::{Client, Config};

/// Part of a behaviour's name, to run only some.
fn filter() -> String {
    std::env::var("BEHAVIOUR").unwrap_or_default()
}

#[test]
fn the_suite_is_as_long_as_it_was() {
    assert!(behaviour::all().len() >= 161, "a module fell out of the suite");
}

fn assert_none(failures: &[String]) {
    assert!(
        failures.is_empty(),
        "{} behaviours failed:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

#[tokio::test]
async fn the_sandbox_behaves_without_a_socket() {
    let sandbox = Sandbox::builder()
        .clock(Clock::real())
        .timing(Timing::instant())
        .start();
    assert_none(&run(in_process(&sandbox), Target::Sandbox, &filter()).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sandbox_behaves_over_tcp() {
    let sandbox = Sandbox::builder()
        .clock(Clock::real())
        .timing(Timing::instant())
        .start();
    let server = sandbox.serve_tcp("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let mut config = Config::new(server.url().parse().unwrap());
    config.default_retry = false;
    let client = Client::try_from(config).unwrap();
    let access = Access {
        stranger: client.clone(),
        client,
    };
    assert_none(&run(access, Target::Sandbox, &filter()).await);
}

#[tokio::test]
async fn the_sandbox_behaves_when_a_minute_passes() {
    // Twenty times as fast as real time: what takes a real cluster a minute takes three seconds.
    let sandbox = Sandbox::builder().clock(Clock::scaled(20.0)).start();
    let checks = behaviour::slow().into_iter().map(|behaviour| {
        let access = in_process(&sandbox);
        async move { (behaviour.name, behaviour.check(access, Target::Sandbox).await) }
    });
    let failures: Vec<String> = futures::future::join_all(checks)
        .await
        .into_iter()
        .filter_map(|(name, outcome)| outcome.err().map(|reason| format!("{name}: {reason}")))
        .collect();
    assert_none(&failures);
}

fn in_process(sandbox: &Sandbox) -> Access {
    Access {
        client: sandbox.client(),
        stranger: sandbox.client(),
    }
}
