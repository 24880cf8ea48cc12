//! The recordings of a real management server, replayed against the simulated one: the same requests in the same order
//! must be answered with the same codes, the same fields of the same types and the same error texts.

mod compare;
mod recordings;
mod unrecorded;

use std::time::Duration;

use karpenter_cloud::{
    clock::{ManualClock, later},
    http::install_crypto_provider,
};
use karpenter_cloudstack::{client::signing, sim::Simulator};
use serde_json::Value;

use compare::Ids;
use recordings::Exchange;

/// The order in which the groups were recorded; later ones see what earlier ones did.
const ORDER: [&str; 35] = [
    "capabilities",
    "zones",
    "service-offerings",
    "disk-offerings",
    "templates",
    "networks",
    "security-groups",
    "ssh-keypairs",
    "affinity-groups",
    "deploy",
    "deploy-errors",
    "list-vms",
    "tags",
    "power",
    "volumes-nics",
    "limits",
    "errors",
    "capacity",
    "address-exhausted",
    "zones-available",
    "projects",
    "destroy",
    "name-race",
    "faults",
    "own-template",
    "misc",
    "server-restart",
    "throttling",
    "enforcement",
    "page-size",
    "template-not-in-zone",
    "security-group-zone",
    "background-expunge",
    "volumes-attach",
    "user-data",
];
const LAST: &str = "affinity-groups-delete";

/// A simulated server in the state that the recorded one was in, and what is known of both.
pub(crate) struct Replay {
    pub(crate) simulator: Simulator,
    pub(crate) clock: ManualClock,
    pub(crate) ids: Ids,
    http: reqwest::Client,
}

/// An answer on the wire.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) content_type: String,
    pub(crate) body: Value,
}

/// Nothing is left out: what is not replayed here is signed in `recordings.rs`.
#[test]
fn every_recording_is_replayed() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures");
    let files = std::fs::read_dir(folder).expect("the recordings");
    let stem = |path: std::path::PathBuf| path.file_stem().expect("a name").to_string_lossy().into_owned();
    let mut recorded: Vec<String> = files.map(|file| stem(file.expect("a file").path())).collect();
    recorded.sort();
    let replayed = ORDER.iter().chain([&LAST, &"signing-vectors"]);
    let mut replayed: Vec<String> = replayed.map(|name| (*name).to_owned()).collect();
    replayed.sort();
    assert_eq!(recorded, replayed);
}

#[tokio::test]
async fn recorded_requests_are_answered_alike_field_by_field() {
    let mut replay = Replay::start().await;
    let mut wrong = Vec::new();
    let mut asked = 0;
    for file in ORDER.iter().chain([&LAST]) {
        for exchange in recordings::of(file) {
            replay.before(&exchange).await;
            let answer = replay.ask_again_until_ended(&exchange).await;
            replay.ids.learn(&exchange.body, &answer.body);
            let differences = compare::answers(&replay.ids, &exchange, &answer);
            if !differences.is_empty() {
                wrong.push(format!(
                    "{file}: {}\n    {}",
                    exchange.title,
                    differences.join("\n    ")
                ));
            }
            asked += 1;
        }
        replay.after(file);
    }
    assert!(
        wrong.is_empty(),
        "{} of {asked} answers differ:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    assert_eq!(asked, 587);
}

impl Replay {
    async fn start() -> Self {
        let clock = ManualClock::starting_at("2026-11-15T09:00:00Z".parse().expect("a moment"));
        let simulator = Simulator::start(clock.clock(), recordings::seed())
            .await
            .expect("a free port");
        install_crypto_provider();
        Self {
            simulator,
            clock,
            ids: Ids::default(),
            http: reqwest::Client::new(),
        }
    }

    /// Polls between acceptance and end of a job were not recorded.
    async fn ask_again_until_ended(&self, exchange: &Exchange) -> Answer {
        let job = |body: &Value| body["queryasyncjobresultresponse"]["jobstatus"].as_i64();
        let has_ended = job(&exchange.body).is_some_and(|status| status != 0);
        for _ in 0..600 {
            let answer = self.ask(exchange).await;
            if !has_ended || job(&answer.body) != Some(0) {
                return answer;
            }
            self.clock.advance(Duration::from_secs(1));
        }
        panic!("the job of {} never ended", exchange.title);
    }

    async fn ask(&self, exchange: &Exchange) -> Answer {
        let params = self.params(exchange);
        self.send(exchange.is_post, &params).await
    }

    /// Sends parameters that are complete.
    pub(crate) async fn send(&self, is_post: bool, params: &[(String, String)]) -> Answer {
        let encoded = url::form_urlencoded::Serializer::new(String::new())
            .extend_pairs(params)
            .finish();
        let request = if is_post {
            self.http
                .post(self.simulator.url())
                .header("content-type", "application/x-www-form-urlencoded")
                .body(encoded)
        } else {
            self.http.get(format!("{}?{encoded}", self.simulator.url()))
        };
        let answer = request.send().await.expect("an answer");
        let status = answer.status().as_u16();
        let content_type = answer.headers()["content-type"].to_str().expect("text").to_owned();
        let text = answer.text().await.expect("a body");
        let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
        Answer {
            status,
            content_type,
            body,
        }
    }

    /// Signs parameters for an account, as the client does.
    pub(crate) fn signed(&self, account: &str, mut params: Vec<(String, String)>) -> Vec<(String, String)> {
        let keys = self.simulator.keys(account);
        params.push(("apikey".to_owned(), keys.api_key.clone()));
        params.push(("response".to_owned(), "json".to_owned()));
        let canonical = signing::canonical(params.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        params.push(("signature".to_owned(), signing::sign(&canonical, &keys.secret_key)));
        params
    }

    /// The recorded parameters, with what was left out of the recording filled in.
    fn params(&self, exchange: &Exchange) -> Vec<(String, String)> {
        let keys = (exchange.account != "none").then(|| self.simulator.keys(exchange.account));
        let mut params: Vec<(String, String)> = Vec::new();
        for (name, value) in &exchange.params {
            if name == "signature" {
                continue;
            }
            let value = match value.as_str() {
                "<API_KEY>" if exchange.title == "unknown API key" => "nobody".to_owned(),
                "<API_KEY>" => keys.as_ref().expect("an account").api_key.clone(),
                "<EXPIRES>" => {
                    let minutes = match exchange.title.as_str() {
                        "expires 16 min ahead" => 16,
                        "expires 14 min ahead" => 14,
                        _ => 10,
                    };
                    let until = later(self.clock.clock().now(), Duration::from_secs(minutes * 60));
                    until.strftime("%Y-%m-%dT%H:%M:%S+0000").to_string()
                }
                value => self.ids.translate(&recordings::whole(value)),
            };
            params.push((name.clone(), value));
        }
        let Some(keys) = keys.filter(|_| exchange.title != "API key without signature") else {
            return params;
        };
        let secret = match exchange.title.as_str() {
            "wrong secret key" => "wrong".to_owned().into(),
            _ => keys.secret_key,
        };
        let canonical = signing::canonical(params.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        params.push(("signature".to_owned(), signing::sign(&canonical, &secret)));
        params
    }
}
