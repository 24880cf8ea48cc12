use std::sync::atomic::{AtomicU32, Ordering};

use jiff::Timestamp;
use parking_lot::Mutex;
use wiremock::{
    Mock, MockServer, ResponseTemplate,
    matchers::{header_exists, method, path},
};

use super::*;
use crate::{
    clock::{ManualClock, TimeSource},
    error::ErrorKind,
};

/// Time passes as soon as somebody waits for it.
#[derive(Debug)]
struct Impatient(ManualClock);

impl TimeSource for Impatient {
    fn now(&self) -> Timestamp {
        TimeSource::now(&self.0)
    }

    fn sleep_until(&self, deadline: Timestamp) -> futures::future::BoxFuture<'static, ()> {
        self.0.advance_to(deadline);
        Box::pin(std::future::ready(()))
    }
}

#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Vec<(u32, Ending)>>>);

impl HttpObserver for Recorder {
    fn attempted(&self, attempt: &Attempt<'_>) {
        self.0.lock().push((attempt.number, attempt.ending));
    }
}

fn client(settings: HttpSettings) -> (HttpClient, Recorder) {
    let recorder = Recorder::default();
    let clock = Clock::from_source(Impatient(ManualClock::starting_at(Timestamp::UNIX_EPOCH)));
    let settings = HttpSettings {
        proxy: ProxyChoice::Direct,
        ..settings
    };
    let client = HttpClient::new(clock, settings, Redactor::default(), recorder.clone()).expect("a client");
    (client, recorder)
}

async fn send(client: &HttpClient, endpoint: Endpoint, url: String) -> Result<Answer, HttpError> {
    client
        .send(&endpoint, |requests| {
            requests
                .get(&url)
                .build()
                .map_err(|error| CloudError::invalid(error.to_string()))
        })
        .await
}

fn answered(status: u16) -> Ending {
    Ending::Answered(StatusCode::from_u16(status).expect("a status"))
}

#[tokio::test]
async fn a_read_is_repeated_after_a_temporary_failure() {
    let server = MockServer::start().await;
    let flaky = Mock::given(method("GET"))
        .respond_with(ResponseTemplate::new(502))
        .up_to_n_times(2);
    flaky.mount(&server).await;
    let fine = ResponseTemplate::new(200).set_body_string(r#"{"ok":true}"#);
    Mock::given(path("/zones"))
        .and(header_exists("x-request-id"))
        .respond_with(fine)
        .mount(&server)
        .await;
    let (client, recorder) = client(HttpSettings::default());

    let answer = send(&client, Endpoint::read("zones"), format!("{}/zones", server.uri()))
        .await
        .expect("an answer");

    assert_eq!(answer.json::<serde_json::Value>().expect("JSON")["ok"], true);
    assert_eq!(
        *recorder.0.lock(),
        [(1, answered(502)), (2, answered(502)), (3, answered(200))]
    );
}

#[tokio::test]
async fn a_write_is_not_repeated_when_it_may_have_happened() {
    let server = MockServer::start().await;
    Mock::given(method("GET"))
        .respond_with(ResponseTemplate::new(502))
        .expect(1)
        .mount(&server)
        .await;
    let (client, _) = client(HttpSettings::default());
    let answer = send(&client, Endpoint::write("deploy"), server.uri())
        .await
        .expect("an answer");
    assert_eq!(answer.status, 502);
}

#[tokio::test]
async fn a_write_that_timed_out_is_reported_as_unknown() {
    let server = MockServer::start().await;
    let slow = ResponseTemplate::new(200).set_delay(Duration::from_secs(30));
    Mock::given(method("GET"))
        .respond_with(slow)
        .expect(1)
        .mount(&server)
        .await;
    let (client, _) = client(HttpSettings::default());
    let endpoint = Endpoint {
        timeout: Some(Duration::from_millis(50)),
        ..Endpoint::write("deploy")
    };
    let error = send(&client, endpoint, server.uri()).await.expect_err("no answer");
    assert!(matches!(error, HttpError::Unknown { .. }), "{error:?}");
}

#[tokio::test]
async fn a_write_that_was_throttled_is_sent_again() {
    let server = MockServer::start().await;
    let busy = ResponseTemplate::new(429).insert_header("retry-after", "2");
    Mock::given(method("GET"))
        .respond_with(busy)
        .up_to_n_times(1)
        .mount(&server)
        .await;
    Mock::given(method("GET"))
        .respond_with(ResponseTemplate::new(200))
        .mount(&server)
        .await;
    let (client, recorder) = client(HttpSettings::default());
    send(&client, Endpoint::write("deploy"), server.uri())
        .await
        .expect("an answer");
    assert_eq!(*recorder.0.lock(), [(1, answered(429)), (2, answered(200))]);
}

#[tokio::test]
async fn a_refused_connection_was_certainly_not_sent_and_tells_no_secret() {
    let (client, recorder) = client(HttpSettings::default());
    client.redactor().add(&"topsecretkey".to_owned().into());
    let url = "http://127.0.0.1:1/?apikey=topsecretkey".to_owned();
    let error = send(&client, Endpoint::write("deploy"), url)
        .await
        .expect_err("nobody listens");
    assert!(matches!(error, HttpError::NotSent { .. }), "{error:?}");
    assert_eq!(recorder.0.lock().len(), 4, "not sent, so safe to try again");
    assert!(!format!("{error} {error:?}").contains("topsecretkey"));
    assert!(!format!("{error} {error:?}").contains("apikey"));
    assert_eq!(CloudError::from(error).kind(), ErrorKind::Transient);
}

#[tokio::test]
async fn every_attempt_is_built_anew() {
    let server = MockServer::start().await;
    Mock::given(path("/1"))
        .respond_with(ResponseTemplate::new(503))
        .mount(&server)
        .await;
    Mock::given(path("/2"))
        .respond_with(ResponseTemplate::new(200))
        .mount(&server)
        .await;
    let (client, _) = client(HttpSettings::default());
    let built = AtomicU32::new(0);
    let answer = client
        .send(&Endpoint::read("signed"), |requests| {
            let number = built.fetch_add(1, Ordering::Relaxed) + 1;
            requests
                .get(format!("{}/{number}", server.uri()))
                .build()
                .map_err(CloudError::other)
        })
        .await;
    assert_eq!(answer.expect("an answer").status, 200);
}

#[tokio::test]
async fn an_answer_longer_than_allowed_is_refused() {
    let server = MockServer::start().await;
    let long = ResponseTemplate::new(200).set_body_bytes(vec![b'x'; 101]);
    Mock::given(method("GET")).respond_with(long).mount(&server).await;
    let (client, _) = client(HttpSettings {
        longest_body: 100,
        ..HttpSettings::default()
    });
    let error = send(&client, Endpoint::write("catalog"), server.uri())
        .await
        .expect_err("too long");
    assert!(matches!(error, HttpError::TooLong { limit: 100, .. }), "{error:?}");
}

#[tokio::test]
async fn the_clouds_own_request_id_is_kept() {
    let server = MockServer::start().await;
    let told = ResponseTemplate::new(403).insert_header("x-query-id", "EU.1");
    Mock::given(method("GET")).respond_with(told).mount(&server).await;
    let (client, _) = client(HttpSettings {
        answer_id_headers: vec!["x-query-id"],
        ..HttpSettings::default()
    });
    let answer = send(&client, Endpoint::read("me"), server.uri())
        .await
        .expect("an answer");
    let error = answer.default_error("reading the account");
    assert_eq!(error.kind(), ErrorKind::Auth);
    assert_eq!(
        error.to_string(),
        "not authorised: reading the account (HTTP 403, request EU.1)"
    );
}
