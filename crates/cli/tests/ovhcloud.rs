//! `karpenter ovhcloud` against the simulated API: it asks for exactly the eight rights, checks a key's rules, and probes.

use std::net::SocketAddr;
use std::process::{Command, Output};

use http::Method;
use karpenter_core::clock::Clock;
use karpenter_ovhcloud::rights;
use karpenter_ovhcloud::sim::{
    APPLICATION_KEY, APPLICATION_SECRET, CONSUMER_KEY, Effect, HttpFault, KUBE_ID, SERVICE_NAME, SimulatedOvh, World,
};
use karpenter_sandbox::Sandbox;
use serde_json::json;

/// Runs the command with the usual keys in its environment; the API is served by this process meanwhile.
async fn credentials(endpoint: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    ovhcloud("credentials", endpoint, arguments, environment).await
}

async fn ovhcloud(name: &str, endpoint: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_karpenter"));
    command
        .args(["ovhcloud", name])
        .args(["--service-name", SERVICE_NAME, "--kube-id", KUBE_ID])
        .args(arguments)
        .env("OVH_ENDPOINT", endpoint)
        .env("OVH_APPLICATION_KEY", APPLICATION_KEY)
        .env("OVH_APPLICATION_SECRET", APPLICATION_SECRET)
        .env("OVH_CONSUMER_KEY", CONSUMER_KEY)
        .envs(environment.iter().copied());
    tokio::task::spawn_blocking(move || command.output().unwrap())
        .await
        .unwrap()
}

/// The exit code and everything that was printed.
fn told(output: &Output) -> (Option<i32>, String) {
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.code(), text)
}

async fn simulated(rules: Vec<(String, String)>) -> SimulatedOvh {
    let world = World {
        rules,
        ..World::default()
    };
    SimulatedOvh::start(Clock::system(), world).await.unwrap()
}

fn rules_that_can_be_read() -> Vec<(String, String)> {
    let mut rules = World::minimal_rules(KUBE_ID);
    rules.push(("GET".into(), "/auth/currentCredential".into()));
    rules
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_is_asked_for_with_exactly_the_rights_that_are_needed() {
    let sim = simulated(Vec::new()).await;
    let output = credentials(&sim.endpoint(), &["--allowed-ip", "198.51.100.7/32"], &[]).await;
    let (code, text) = told(&output);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("https://www.ovh.test/auth/sso/api"), "{text}");
    assert!(text.contains(&format!("consumerKey={CONSUMER_KEY}")), "{text}");
    assert!(!text.contains(APPLICATION_SECRET), "{text}");
    let asked = sim.with(|sim| sim.requests_of(&Method::POST, "/auth/credential"));
    assert_eq!(asked.len(), 1);
    assert!(!asked[0].signed);
    let rules = serde_json::to_value(rights::minimum(SERVICE_NAME, KUBE_ID)).unwrap();
    assert_eq!(rules.as_array().unwrap().len(), 8);
    let expected = json!({"accessRules": rules, "redirection": null, "allowedIPs": ["198.51.100.7/32"]});
    assert_eq!(asked[0].body, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn useful_rights_are_asked_for_on_demand_and_an_unknown_application_is_refused() {
    let sim = simulated(Vec::new()).await;
    let output = credentials(&sim.endpoint(), &["--optional"], &[]).await;
    assert_eq!(told(&output).0, Some(0), "{}", told(&output).1);
    let asked = sim.with(|sim| sim.requests_of(&Method::POST, "/auth/credential"));
    assert!(asked[0].body["accessRules"].as_array().unwrap().len() > 8);
    assert!(asked[0].body.get("allowedIPs").is_none());
    let output = credentials(&sim.endpoint(), &[], &[("OVH_APPLICATION_KEY", "nobody")]).await;
    let (code, text) = told(&output);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("application key is invalid"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_is_held_to_its_rules() {
    let good = simulated(rules_that_can_be_read()).await;
    let (code, text) = told(&credentials(&good.endpoint(), &["--check"], &[]).await);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("grant everything that is needed"), "{text}");
    assert!(good.with(|sim| sim.requests.iter().all(|own| own.method == Method::GET)));

    let mut rules = rules_that_can_be_read();
    rules.retain(|(method, _)| method != "DELETE");
    let lacking = simulated(rules).await;
    let (code, text) = told(&credentials(&lacking.endpoint(), &["--check"], &[]).await);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("do not grant DELETE /cloud/project/"), "{text}");

    let silent = simulated(World::minimal_rules(KUBE_ID)).await;
    let (code, text) = told(&credentials(&silent.endpoint(), &["--check"], &[]).await);
    assert_eq!(code, Some(0), "what it may not be asked is no fault: {text}");
    assert!(text.contains("GET /auth/currentCredential"), "{text}");

    let unknown = [("OVH_CONSUMER_KEY", "wrong")];
    let (code, text) = told(&credentials(&good.endpoint(), &["--check"], &unknown).await);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("This credential does not exist"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_key_of_a_secret_is_checked_at_the_endpoint_that_it_names() {
    let sim = simulated(rules_that_can_be_read()).await;
    let sandbox = Sandbox::builder()
        .clock(karpenter_sandbox::Clock::real())
        .api_server_only()
        .start();
    let served = sandbox.serve_tcp(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    served.write_kubeconfig(&kubeconfig).unwrap();
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys", "namespace": "default"},
        "stringData": {
            "applicationKey": APPLICATION_KEY, "applicationSecret": APPLICATION_SECRET,
            "consumerKey": format!("{CONSUMER_KEY}\n"), "endpoint": sim.endpoint(),
        },
    });
    sandbox.apply(&secret.to_string()).unwrap();
    let kubeconfig = kubeconfig.to_string_lossy().into_owned();
    let elsewhere = [("KUBECONFIG", kubeconfig.as_str()), ("OVH_CONSUMER_KEY", "wrong")];
    for (name, expected) in [("default/keys", 0), ("default/none", 2), ("keys", 2)] {
        let (code, text) = told(&credentials("ovh-us", &["--check", "--secret", name], &elsewhere).await);
        assert_eq!(code, Some(expected), "{name}: {text}");
    }

    // What is said on the command line goes before what the Secret says.
    let other = simulated(rules_that_can_be_read()).await;
    let asked = sim.with(|sim| sim.requests.len());
    let explicit = ["--check", "--secret", "default/keys", "--endpoint", &other.endpoint()];
    let (code, text) = told(&credentials("ovh-us", &explicit, &elsewhere).await);
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(
        sim.with(|sim| sim.requests.len()),
        asked,
        "the Secret's endpoint is left alone"
    );
    let cluster = format!("/kube/{KUBE_ID}");
    let reads = other.with(|sim| sim.requests_of(&Method::GET, &cluster));
    let of_cluster = reads.iter().filter(|own| own.path.ends_with(&cluster));
    assert_eq!(of_cluster.count(), 1, "the cluster is asked about once");

    let nowhere = ["--check", "--secret", "default/keys", "--endpoint", "kimsufi-eu"];
    let (code, text) = told(&credentials("ovh-us", &nowhere, &elsewhere).await);
    assert_eq!(code, Some(2), "{text}");

    drop(served);
    let (code, text) = told(&credentials("ovh-us", &["--check", "--secret", "default/keys"], &elsewhere).await);
    assert_eq!(code, Some(3), "a cluster that does not answer: {text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_api_that_fails_is_not_a_key_that_is_refused() {
    let sim = simulated(Vec::new()).await;
    sim.with(|sim| {
        sim.faults
            .push(HttpFault::server_error(Method::POST, "/auth/credential"));
    });
    let (code, text) = told(&credentials(&sim.endpoint(), &[], &[]).await);
    assert_eq!(code, Some(3), "{text}");

    // Reached first, and not any more later.
    let sim = simulated(rules_that_can_be_read()).await;
    sim.with(|sim| sim.faults.push(HttpFault::server_error(Method::GET, "/flavors")));
    let (code, text) = told(&credentials(&sim.endpoint(), &["--check"], &[]).await);
    assert_eq!(code, Some(3), "{text}");
    assert!(
        text.contains("ok    node pools"),
        "what was found before is told: {text}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_application_key_on_the_command_line_goes_before_the_environments() {
    let sim = simulated(rules_that_can_be_read()).await;
    let unknown = [("OVH_APPLICATION_KEY", "nobody")];
    let check = ["--check", "--application-key", APPLICATION_KEY];
    let (code, text) = told(&credentials(&sim.endpoint(), &check, &unknown).await);
    assert_eq!(code, Some(0), "{text}");
    let both = ["--check", "--application-key", "x", "--secret", "a/b"];
    let (code, text) = told(&credentials(&sim.endpoint(), &both, &[]).await);
    assert_eq!(code, Some(2), "a Secret has its own: {text}");
    let (code, text) = told(&credentials(&sim.endpoint(), &["--application-key", "two\nlines"], &[]).await);
    assert_eq!(code, Some(2), "no header can hold it: {text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_probe_reads_and_asks_before_it_spends() {
    let sim = simulated(rules_that_can_be_read()).await;
    sim.with(|sim| sim.foreign_pool("theirs", 2));
    let nowhere = [("KUBECONFIG", "/nonexistent/kubeconfig")];
    let output = ovhcloud("probe", &sim.endpoint(), &["-o", "json"], &nowhere).await;
    assert_eq!(output.status.code(), Some(0), "{}", told(&output).1);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["apiVersion"], "karpenter-rs/ovhcloud-probe/v1");
    let answers = report["answers"].as_array().unwrap();
    let about = |word: &str| {
        let own = answers
            .iter()
            .find(|own| own["question"].as_str().unwrap().contains(word));
        own.unwrap_or_else(|| panic!("{word}: {report}")).clone()
    };
    assert_eq!(about("How many node pools")["answer"], "1 and 2");
    assert_eq!(about("own rules")["answer"], "yes: 9 rules");
    assert!(about("memory")["unknown"].as_str().unwrap().contains("KUBECONFIG"));

    // Nobody is there to say yes.
    let (code, text) = told(&ovhcloud("probe", &sim.endpoint(), &["--create-pool"], &nowhere).await);
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains("3 machines of flavor c3-4 in eu-west-par-a, about 0.14 EUR"),
        "{text}"
    );
    assert!(text.contains("not agreed to; nothing was made"), "{text}");
    let unknown = ["--create-pool", "--flavor", "b9-1", "--yes"];
    let (code, text) = told(&ovhcloud("probe", &sim.endpoint(), &unknown, &nowhere).await);
    assert_eq!(code, Some(2), "{text}");
    assert!(
        sim.with(|sim| sim.requests.iter().all(|own| own.method == Method::GET)),
        "nothing is written"
    );

    sim.with(|sim| sim.faults.push(HttpFault::server_error(Method::GET, "/nodepool")));
    let (code, text) = told(&ovhcloud("probe", &sim.endpoint(), &[], &nowhere).await);
    assert_eq!(code, Some(3), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trial_that_could_not_be_made_is_no_success() {
    let nowhere = [("KUBECONFIG", "/nonexistent/kubeconfig")];
    let mut rules = rules_that_can_be_read();
    rules.retain(|(method, _)| method != "POST");
    let sim = simulated(rules).await;
    let trial = ["--create-pool", "--yes"];
    let (code, text) = told(&ovhcloud("probe", &sim.endpoint(), &trial, &nowhere).await);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("Was everything tried?\n  not known: no: POST"), "{text}");
    assert!(text.contains("lack the right to POST"), "{text}");

    // Throttled, so that nothing was made for certain.
    let sim = simulated(rules_that_can_be_read()).await;
    let throttled = Effect::Answer(429, "{}".to_owned());
    sim.with(|sim| sim.faults.push(HttpFault::new(Method::POST, "/nodepool", throttled)));
    let (code, text) = told(&ovhcloud("probe", &sim.endpoint(), &trial, &nowhere).await);
    assert_eq!(code, Some(3), "{text}");
    assert!(text.contains("Is everything gone again?\n  yes"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_account_that_is_refused_is_a_refusal_and_not_a_wrong_argument() {
    let sim = simulated(rules_that_can_be_read()).await;
    let tokens = sim.token_url();
    let account = [
        ("KUBECONFIG", "/nonexistent/kubeconfig"),
        ("OVH_APPLICATION_KEY", ""),
        ("OVH_APPLICATION_SECRET", ""),
        ("OVH_CONSUMER_KEY", ""),
        ("OVH_CLIENT_ID", "nobody"),
        ("OVH_CLIENT_SECRET", "wrong"),
    ];
    let mut known = account.to_vec();
    known.push(("OVH_OAUTH2_TOKEN_URL", tokens.as_str()));
    let (code, text) = told(&ovhcloud("probe", &sim.endpoint(), &[], &known).await);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("the service account was refused"), "{text}");
    let (code, text) = told(&ovhcloud("probe", &sim.endpoint(), &[], &account).await);
    assert_eq!(code, Some(2), "nobody knows where to ask: {text}");
}
