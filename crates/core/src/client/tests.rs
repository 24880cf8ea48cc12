//! What passes the guards, and what of it reaches a server.

use std::sync::atomic::{AtomicUsize, Ordering};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::PostParams;
use kube::{Api, Config};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::clock::{Clock, ManualClock, later};

fn check(method: Method, path: &str, expect: [&str; 5]) {
    let target = Target::parse(method, path, false);
    assert_eq!(
        [
            target.verb,
            &target.group,
            &target.version,
            &target.resource,
            &target.subresource
        ],
        expect,
        "{path}"
    );
}

#[test]
fn requests_are_labelled_by_their_path() {
    check(Method::GET, "/api/v1/nodes", ["LIST", "", "v1", "nodes", ""]);
    check(
        Method::GET,
        "/api/v1/namespaces/default",
        ["GET", "", "v1", "namespaces", ""],
    );
    check(
        Method::GET,
        "/apis/karpenter.sh/v1/nodeclaims/a",
        ["GET", "karpenter.sh", "v1", "nodeclaims", ""],
    );
    check(
        Method::POST,
        "/api/v1/namespaces/a/pods/b/eviction",
        ["CREATE", "", "v1", "pods", "eviction"],
    );
    check(
        Method::PATCH,
        "/apis/karpenter.sh/v1/nodepools/a/status",
        ["PATCH", "karpenter.sh", "v1", "nodepools", "status"],
    );
}

#[test]
fn events_are_known_by_their_path_whatever_their_group() {
    let is_event = |path: &str| Target::parse(Method::POST, path, false).is_event();
    assert!(is_event("/api/v1/namespaces/default/events"));
    assert!(is_event("/apis/events.k8s.io/v1/namespaces/default/events"));
    assert!(!is_event("/api/v1/namespaces/default/pods/events/eviction"));
}

/// A server that counts requests and answers all with an empty ConfigMap.
fn counting() -> (Client, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let counter = count.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        counter.fetch_add(1, Ordering::SeqCst);
        let agent = request.headers().get(header::USER_AGENT).cloned();
        async move {
            assert_eq!(agent, Some(HeaderValue::from_static("karpenter/1.2.3")));
            let body = serde_json::to_vec(&ConfigMap::default()).expect("a ConfigMap is JSON");
            Ok::<_, BoxError>(Response::new(Body::from(body)))
        }
    });
    (Client::new(service, "default"), count)
}

#[tokio::test]
async fn a_shut_gate_lets_reads_pass_and_holds_writes_back() {
    let registry = Registry::new(Clock::system());
    let metrics = Arc::new(ClientMetrics::register(&registry));
    let gate = WriteGate::always_open(Clock::system());
    let (server, count) = counting();
    let client = Guards::new(gate.clone(), metrics, "1.2.3")
        .with_rate_limit(1000, 1000)
        .around(server);
    let api: Api<ConfigMap> = Api::default_namespaced(client);
    api.create(&PostParams::default(), &ConfigMap::default()).await.unwrap();
    gate.close();
    api.get("a").await.unwrap();
    let refused = api
        .create(&PostParams::default(), &ConfigMap::default())
        .await
        .unwrap_err();
    assert!(crate::Error::from(refused).is_not_leading());
    assert_eq!(count.load(Ordering::SeqCst), 2);
    assert!(
        registry
            .encode()
            .contains(r#"client_go_request_total{code="200",method="POST"} 1"#)
    );
}

/// An API server behind TLS, with which nobody has shaken hands yet.
struct Server {
    listener: TcpListener,
    tls: TlsAcceptor,
}

impl Server {
    async fn start() -> Self {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let config = rustls::ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
        Self {
            listener: TcpListener::bind("127.0.0.1:0").await.unwrap(),
            tls: TlsAcceptor::from(Arc::new(config)),
        }
    }

    fn client(&self) -> Client {
        let address = self.listener.local_addr().unwrap();
        let mut config = Config::new(format!("https://{address}").parse().unwrap());
        config.accept_invalid_certs = true;
        connect(config).unwrap()
    }

    /// ConfigMaps of this server, behind guards.
    fn config_maps(&self, gate: WriteGate) -> Api<ConfigMap> {
        let metrics = Arc::new(ClientMetrics::register(&Registry::new(Clock::system())));
        let client = Guards::new(gate, metrics, "1.2.3").around(self.client());
        Api::default_namespaced(client)
    }

    /// The next client, which has passed the guards and waits for its connection.
    async fn waiting(&self) -> TcpStream {
        self.listener.accept().await.unwrap().0
    }

    /// Lets `waiting` go on, answers if it asks for anything, and returns all that it ever said.
    async fn serve(&self, waiting: TcpStream) -> String {
        let mut stream = self.tls.accept(waiting).await.unwrap();
        let (mut said, mut is_answered) = (Vec::new(), false);
        // A client that drops the connection says no good-bye, which TLS calls an error.
        while let Ok(1..) = stream.read_buf(&mut said).await {
            if !is_answered && is_whole(&said) {
                let answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}";
                stream.write_all(answer.as_bytes()).await.unwrap();
                is_answered = true;
            }
        }
        String::from_utf8(said).unwrap()
    }
}

fn is_whole(said: &[u8]) -> bool {
    let said = String::from_utf8_lossy(said);
    let Some((head, body)) = said.split_once("\r\n\r\n") else {
        return false;
    };
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    body.len() == length.map_or(0, |length| length.parse().unwrap())
}

/// A gate that is open for ten seconds of the clock that comes with it.
fn ten_seconds() -> (WriteGate, ManualClock) {
    let manual = ManualClock::starting_at(Timestamp::UNIX_EPOCH);
    let gate = WriteGate::shut(manual.clock());
    gate.open_until(later(Timestamp::UNIX_EPOCH, Duration::from_secs(10)));
    (gate, manual)
}

#[tokio::test]
async fn a_write_whose_process_is_paused_before_it_has_a_connection_is_never_sent() {
    let server = Server::start().await;
    let (gate, time) = ten_seconds();
    let config_maps = server.config_maps(gate);
    let writing = tokio::spawn(async move { config_maps.create(&PostParams::default(), &ConfigMap::default()).await });
    let waiting = server.waiting().await;
    time.advance(Duration::from_secs(60));
    assert_eq!(server.serve(waiting).await, "");
    let refused = writing.await.unwrap().unwrap_err();
    assert!(crate::Error::from(refused).is_not_leading());
}

#[tokio::test]
async fn a_write_that_gets_its_connection_in_time_arrives_whole() {
    let server = Server::start().await;
    let (gate, time) = ten_seconds();
    let config_maps = server.config_maps(gate);
    let writing = tokio::spawn(async move { config_maps.create(&PostParams::default(), &ConfigMap::default()).await });
    let waiting = server.waiting().await;
    time.advance(Duration::from_secs(9));
    let said = server.serve(waiting).await;
    assert!(
        said.starts_with("POST /api/v1/namespaces/default/configmaps?"),
        "{said}"
    );
    assert!(is_whole(said.as_bytes()) && said.ends_with('}'), "{said}");
    writing.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_read_does_not_care_how_long_it_waited() {
    let server = Server::start().await;
    let (gate, time) = ten_seconds();
    let config_maps = server.config_maps(gate);
    let reading = tokio::spawn(async move { config_maps.get("a").await });
    let waiting = server.waiting().await;
    time.advance(Duration::from_secs(60));
    let said = server.serve(waiting).await;
    assert!(
        said.starts_with("GET /api/v1/namespaces/default/configmaps/a "),
        "{said}"
    );
    reading.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_provider_that_is_paused_before_it_has_a_connection_writes_nothing() {
    let server = Server::start().await;
    let (gate, time) = ten_seconds();
    let config_maps: Api<ConfigMap> = Api::default_namespaced(limited(server.client(), 1));
    let writing = tokio::spawn(
        gate.last_word()
            .over(async move { config_maps.create(&PostParams::default(), &ConfigMap::default()).await }),
    );
    let waiting = server.waiting().await;
    time.advance(Duration::from_secs(60));
    assert_eq!(server.serve(waiting).await, "");
    assert!(is_held_back(&writing.await.unwrap().unwrap_err()));
}
