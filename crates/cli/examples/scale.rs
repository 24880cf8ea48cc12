//! What the controller needs under load: a sandbox in this process, `karpenter controller` as another, figures of the latter.
//!
//! `cargo build --release && cargo run --release --example scale -- up-down 1000` brings that many plain pods to running and
//! back to zero; `burst 10000` measures from the creation of pods of 50 deployments to the last NodeClaim; `idle 2000` has
//! ten pods on each of that many nodes and measures a minute at rest. The API server speaks TLS, as a real one does:
//! connections and their buffers are a good part of what a client costs. The binary is `karpenter` beside this
//! example's directory, or `KARPENTER_BIN`.

#![allow(clippy::print_stdout)]

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Node, Pod};
use karpenter_api::NodeClaim;
use karpenter_sandbox::{Clock, Objects, Sandbox};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(900);

#[tokio::main]
async fn main() -> Result<(), Error> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |default: usize| arguments.get(1).map_or(Ok(default), |text| text.parse());
    match arguments.first().map(String::as_str) {
        Some("up-down") => up_down(number(1000)?).await,
        Some("burst") => burst(number(10_000)?).await,
        Some("idle") => idle(number(2_000)?).await,
        _ => Err("say up-down PODS, burst PODS or idle NODES".into()),
    }
}

/// Plain pods of one Deployment, up and down again.
async fn up_down(pods: usize) -> Result<(), Error> {
    let world = World::start("").await?;
    world.report("at rest")?;
    let started = Instant::now();
    world.sandbox.apply(&deployment("load", pods, "500m", "512Mi"))?;
    let claims = world.claims_until_running(pods).await?;
    let running = started.elapsed();
    let nodes = world.objects.list::<Node>("").len();
    println!("{pods} pods, {nodes} nodes");
    println!("last NodeClaim after {:.1} s", claims.as_secs_f64());
    println!("all running after    {:.1} s", running.as_secs_f64());
    world.report("all running")?;
    let started = Instant::now();
    world.scale("load", 0)?;
    world
        .until("empty again", |objects| {
            objects.list::<Node>("").is_empty() && objects.list::<NodeClaim>("").is_empty()
        })
        .await?;
    println!("empty again after    {:.1} s", started.elapsed().as_secs_f64());
    world.report("empty again")
}

/// Pods of fifty Deployments at once, to the last NodeClaim.
async fn burst(pods: usize) -> Result<(), Error> {
    let world = World::start("").await?;
    let shapes = ["100m", "250m", "500m", "1", "2"];
    let started = Instant::now();
    for number in 0..50 {
        let cpu = shapes[number % shapes.len()];
        let memory = format!("{}Mi", 256 << (number % 4));
        world
            .sandbox
            .apply(&deployment(&format!("load-{number}"), pods / 50, cpu, &memory))?;
    }
    let wanted = pods / 50 * 50;
    world
        .until("all pods refused by the scheduler", |objects| {
            let waiting =
                |pod: &Pod| is_unschedulable(pod) || pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
            objects.list::<Pod>("").iter().filter(|pod| waiting(pod)).count() == wanted
        })
        .await?;
    let refused = started.elapsed();
    println!("scheduler refused the last pod after {:.1} s", refused.as_secs_f64());
    let claims = world.claims_until_running(wanted).await?;
    let beyond = claims.saturating_sub(refused);
    println!(
        "{} NodeClaims; the last one {:.1} s after that (the batching window is 1 s of calm)",
        world.objects.list::<NodeClaim>("").len(),
        beyond.as_secs_f64()
    );
    world.report("all running")
}

/// A minute of a large cluster in which nothing happens.
async fn idle(nodes: usize) -> Result<(), Error> {
    let requirement = "{key: node.kubernetes.io/instance-type, operator: In, values: [c-1x-amd64-linux]}";
    let world = World::start(requirement).await?;
    let pods = nodes * 10;
    world.sandbox.apply(&deployment("load", pods, "85m", "64Mi"))?;
    world.claims_until_running(pods).await?;
    println!("{pods} pods on {} nodes", world.objects.list::<Node>("").len());
    world.report("all running")?;
    tokio::time::sleep(Duration::from_secs(90)).await;
    for minute in 1..=3 {
        let before = world.usage()?.cpu_seconds;
        tokio::time::sleep(Duration::from_secs(60)).await;
        let used = world.usage()?.cpu_seconds - before;
        println!("minute {minute} at rest: {used:.2} CPU s, {:.2} %", used / 0.6);
    }
    world.report("at rest")
}

/// The cluster and the controller; both end with it.
struct World {
    sandbox: Sandbox,
    objects: Objects,
    controller: Child,
    _directory: tempfile::TempDir,
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.controller.kill();
        let _ = self.controller.wait();
    }
}

/// What a process used so far.
struct Usage {
    cpu_seconds: f64,
    peak_mib: f64,
    resident_mib: f64,
    anonymous_mib: f64,
}

impl World {
    async fn start(requirement: &str) -> Result<Self, Error> {
        let sandbox = Sandbox::builder().clock(Clock::real()).start();
        for crd in karpenter_api::crd::all()
            .into_iter()
            .chain(karpenter_kwok::node_class::crds())
        {
            sandbox.apply(&crd.to_yaml())?;
        }
        sandbox.apply(&pool(requirement))?;
        let plain = sandbox.serve_tcp(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
        let directory = tempfile::tempdir()?;
        let kubeconfig = directory.path().join("kubeconfig");
        serve_tls(plain.address(), &kubeconfig).await?;
        // The port closes with the process, not before.
        std::mem::forget(plain);
        let log = directory.path().join("karpenter.log");
        let controller = Command::new(binary()?)
            .args(["controller", "--provider", "kwok", "--disable-leader-election=true"])
            .args(["--metrics-port", "0", "--health-probe-port", "0"])
            .env("KUBECONFIG", &kubeconfig)
            .stdout(std::fs::File::create(&log)?)
            .stderr(Stdio::inherit())
            .spawn()?;
        let world = Self {
            objects: sandbox.objects(),
            sandbox,
            controller,
            _directory: directory,
        };
        world
            .until("the NodePool ready", |objects| {
                let pool = objects.get::<karpenter_api::NodePool>("", "default");
                pool.is_some_and(|pool| karpenter_api::conditions::StatusConditions::is_true(&pool, "Ready"))
            })
            .await?;
        Ok(world)
    }

    /// Waits until all pods run; when the number of NodeClaims last changed, counted from now.
    async fn claims_until_running(&self, pods: usize) -> Result<Duration, Error> {
        let started = Instant::now();
        let mut names: BTreeSet<String> = BTreeSet::new();
        let mut last = Duration::ZERO;
        loop {
            let before = names.len();
            let claims = self.objects.list::<NodeClaim>("").into_iter();
            names.extend(claims.filter_map(|claim| claim.metadata.name));
            if names.len() != before {
                last = started.elapsed();
            }
            let running = |pod: &Pod| pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running");
            if self.objects.list::<Pod>("").iter().filter(|pod| running(pod)).count() == pods {
                return Ok(last);
            }
            if started.elapsed() > PATIENCE {
                return Err("pods did not get to run".into());
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    async fn until(&self, what: &str, holds: impl Fn(&Objects) -> bool) -> Result<(), Error> {
        let started = Instant::now();
        while !holds(&self.objects) {
            // What has ended has no memory left.
            if self.usage()?.resident_mib == 0.0 {
                return Err("the controller has ended; its complaint stands above".into());
            }
            if started.elapsed() > PATIENCE {
                return Err(format!("waited in vain: {what}").into());
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        Ok(())
    }

    fn scale(&self, name: &str, replicas: i32) -> Result<(), Error> {
        let patch = json!({"spec": {"replicas": replicas}});
        self.objects.patch::<Deployment>("default", name, &patch)?;
        Ok(())
    }

    fn usage(&self) -> Result<Usage, Error> {
        let process = PathBuf::from(format!("/proc/{}", self.controller.id()));
        let status = std::fs::read_to_string(process.join("status"))?;
        let mib = |key: &str| {
            let line = status.lines().find(|line| line.starts_with(key));
            let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<f64>().ok());
            kib.unwrap_or_default() / 1024.0
        };
        let stat = std::fs::read_to_string(process.join("stat"))?;
        // After the name in parentheses, user and system time are the 12th and 13th; a tick is 10 ms.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks = |at: usize| {
            fields
                .get(at)
                .and_then(|text| text.parse::<f64>().ok())
                .unwrap_or_default()
        };
        Ok(Usage {
            cpu_seconds: (ticks(11) + ticks(12)) / 100.0,
            peak_mib: mib("VmHWM:"),
            resident_mib: mib("VmRSS:"),
            anonymous_mib: mib("RssAnon:"),
        })
    }

    fn report(&self, when: &str) -> Result<(), Error> {
        let usage = self.usage()?;
        println!(
            "controller, {when}: {:.2} CPU s, peak {:.1} MiB, now {:.1} MiB ({:.1} of it heap)",
            usage.cpu_seconds, usage.peak_mib, usage.resident_mib, usage.anonymous_mib
        );
        Ok(())
    }
}

/// Puts TLS before the plain port, and writes the kubeconfig for it.
async fn serve_tls(plain: SocketAddr, kubeconfig: &Path) -> Result<(), Error> {
    let certified = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()])?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(certified.signing_key.serialize_der()));
    let config = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certified.cert.der().clone()], key)?;
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
    let authority = base64::engine::general_purpose::STANDARD.encode(certified.cert.pem());
    let document = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "sandbox",
        "clusters": [{"name": "sandbox", "cluster": {
            "server": format!("https://{}", listener.local_addr()?), "certificate-authority-data": authority,
        }}],
        "contexts": [{"name": "sandbox", "context": {"cluster": "sandbox", "user": "sandbox"}}],
        "users": [{"name": "sandbox", "user": {}}],
    });
    std::fs::write(kubeconfig, document.to_string())?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let mut client = acceptor.accept(stream).await?;
                let mut server = TcpStream::connect(plain).await?;
                server.set_nodelay(true)?;
                tokio::io::copy_bidirectional(&mut client, &mut server).await
            });
        }
    });
    Ok(())
}

fn binary() -> Result<PathBuf, Error> {
    if let Some(path) = std::env::var_os("KARPENTER_BIN") {
        return Ok(path.into());
    }
    let own = std::env::current_exe()?;
    let target = own.parent().and_then(Path::parent).ok_or("no target directory")?;
    let binary = target.join("karpenter");
    if binary.exists() {
        Ok(binary)
    } else {
        Err(format!("{} is missing: build it first, or set KARPENTER_BIN", binary.display()).into())
    }
}

fn is_unschedulable(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition.type_ == "PodScheduled" && condition.status == "False")
}

fn pool(requirement: &str) -> String {
    format!(
        "
apiVersion: karpenter.kwok.sh/v1alpha1
kind: KWOKNodeClass
metadata: {{name: default}}
spec: {{}}
---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {{name: default}}
spec:
  disruption: {{consolidationPolicy: WhenEmpty, consolidateAfter: 5s, budgets: [{{nodes: \"100%\"}}]}}
  template:
    spec:
      requirements: [{requirement}]
      expireAfter: Never
      nodeClassRef: {{group: karpenter.kwok.sh, kind: KWOKNodeClass, name: default}}
"
    )
}

fn deployment(name: &str, replicas: usize, cpu: &str, memory: &str) -> String {
    format!(
        "
apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}}}
spec:
  replicas: {replicas}
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata: {{labels: {{app: {name}}}}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: app
        image: registry.example/app:1
        resources: {{requests: {{cpu: {cpu}, memory: {memory}}}}}
"
    )
}
