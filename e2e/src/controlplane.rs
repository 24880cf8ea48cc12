//! A real control plane without containers: etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kwok as processes.
//!
//! One Go program (`e2e/control-plane`) holds all five parts. It is built once per content of its module files and kept in a
//! cache directory outside the checkout; a missing cache only costs the build. Every process listens on loopback, on free ports,
//! writes to its own log file and is stopped by its pid.

mod build;
mod certificates;
mod process;
mod proxy;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::ServiceAccount;
use karpenter_sandbox::behaviour::Access;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};

use crate::ports::free_port;
pub(crate) use build::Binary;
use certificates::Certificates;
pub(crate) use process::{Process, Usage};
pub(crate) use proxy::Proxy;

/// Records what our controller asks for, and nothing else.
const AUDIT_POLICY: &str = "
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: Metadata, userGroups: ['system:serviceaccounts:karpenter']}
- {level: None}
";

/// A cluster has a kubelet on every node; kwok by itself starts and deletes four pods at a time, and everything else waits for it.
const KWOK_OPTIONS: &str = "
apiVersion: config.kwok.x-k8s.io/v1alpha1
kind: KwokConfiguration
options: {podPlayStageParallelism: 32, nodePlayStageParallelism: 8, nodeLeaseParallelism: 4, podsOnNodeSyncParallelism: 4}
";

/// How long a part may take to come up: seconds on an idle machine, minutes on one that compiles beside us.
const PATIENCE: Duration = Duration::from_secs(240);

/// The parts in the order in which they start; they stop in the opposite order.
#[derive(Debug)]
pub(crate) struct ControlPlane {
    dir: PathBuf,
    binary: Binary,
    ports: Ports,
    certificates: Certificates,
    etcd: Process,
    apiserver: Process,
    controller_manager: Process,
    scheduler: Process,
    kwok: Process,
}

#[derive(Debug, Clone, Copy)]
struct Ports {
    apiserver: u16,
    etcd: u16,
    etcd_peer: u16,
    controller_manager: u16,
    scheduler: u16,
    kwok: u16,
}

// === impl ControlPlane ===

impl ControlPlane {
    /// Starts everything on an empty etcd below `dir` and returns when all parts are ready.
    pub(crate) async fn start(binary: &Binary, dir: &Path) -> Result<Self> {
        std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
        let ports = Ports::free()?;
        let certificates = Certificates::write(dir)?;
        for user in certificates::USERS {
            let file = dir.join(format!("{}.kubeconfig", user.name));
            std::fs::write(&file, certificates.kubeconfig(user.name, &ports.url())?)?;
        }
        std::fs::write(dir.join("audit-policy.yaml"), AUDIT_POLICY)?;
        std::fs::write(dir.join("kwok.yaml"), KWOK_OPTIONS)?;
        let etcd = start_etcd(binary, dir, ports)?;
        wait_http(&etcd, &format!("127.0.0.1:{}", ports.etcd), "/health").await?;
        let apiserver = start_apiserver(binary, dir, ports)?;
        let client = admin_client(dir).await?;
        apiserver.wait_until("ready", PATIENCE, || ready(&client)).await?;
        let controller_manager = start_controller_manager(binary, dir, ports)?;
        let scheduler = start_scheduler(binary, dir, ports)?;
        let kwok = start_kwok(binary, dir, ports)?;
        controller_manager
            .wait_until("serving", PATIENCE, || has_service_account(&client))
            .await?;
        wait_http(&kwok, &format!("127.0.0.1:{}", ports.kwok), "/healthz").await?;
        Ok(Self {
            dir: dir.to_owned(),
            binary: binary.clone(),
            ports,
            certificates,
            etcd,
            apiserver,
            controller_manager,
            scheduler,
            kwok,
        })
    }

    /// A client with all rights, without the rate limits of a controller.
    pub(crate) async fn admin(&self) -> Result<Client> {
        admin_client(&self.dir).await
    }

    /// What the behaviour suite needs: clients to which a refusal comes back instead of being tried again.
    pub(crate) async fn access(&self) -> Result<Access> {
        let mut config = admin_config(&self.dir).await?;
        config.default_retry = false;
        let mut strangers = config.clone();
        strangers.auth_info = AuthInfo::default();
        Ok(Access {
            client: Client::try_from(config)?,
            stranger: Client::try_from(strangers)?,
        })
    }

    /// The kubeconfig of the user with all rights.
    pub(crate) fn admin_kubeconfig(&self) -> PathBuf {
        self.dir.join("admin.kubeconfig")
    }

    /// What service accounts of the controller's namespace asked of the API server, one JSON record a line.
    pub(crate) fn audit_log(&self) -> PathBuf {
        self.dir.join("audit.log")
    }

    /// Writes a kubeconfig that authenticates with a bearer token, as a pod's ServiceAccount would, and goes to `url`.
    pub(crate) fn token_kubeconfig(&self, file: &Path, token: &str, url: &str) -> Result<()> {
        std::fs::write(file, self.certificates.token_kubeconfig(token, url))
            .with_context(|| format!("cannot write {}", file.display()))
    }

    /// Where the API server listens.
    pub(crate) fn url(&self) -> String {
        self.ports.url()
    }

    /// A way to the API server that can be cut.
    pub(crate) async fn proxy(&self) -> Result<Proxy> {
        Proxy::start(self.ports.apiserver).await
    }

    /// Kills the API server and starts it again on the same storage.
    pub(crate) async fn restart_apiserver(&mut self) -> Result<()> {
        self.apiserver.stop().await;
        self.apiserver = start_apiserver(&self.binary, &self.dir, self.ports)?;
        let client = self.admin().await?;
        self.apiserver.wait_until("ready", PATIENCE, || ready(&client)).await
    }

    /// Kills etcd and starts it again on the same data.
    pub(crate) async fn restart_etcd(&mut self) -> Result<()> {
        self.etcd.stop().await;
        self.etcd = start_etcd(&self.binary, &self.dir, self.ports)?;
        wait_http(&self.etcd, &format!("127.0.0.1:{}", self.ports.etcd), "/health").await?;
        let client = self.admin().await?;
        self.apiserver.wait_until("ready", PATIENCE, || ready(&client)).await
    }

    /// Stops every part; also called for what is left when a run is interrupted, through `Process`'s `Drop`.
    pub(crate) async fn stop(mut self) {
        for part in [
            &mut self.kwok,
            &mut self.scheduler,
            &mut self.controller_manager,
            &mut self.apiserver,
            &mut self.etcd,
        ] {
            part.stop().await;
        }
    }
}

// === impl Ports ===

impl Ports {
    fn free() -> Result<Self> {
        Ok(Self {
            apiserver: free_port()?,
            etcd: free_port()?,
            etcd_peer: free_port()?,
            controller_manager: free_port()?,
            scheduler: free_port()?,
            kwok: free_port()?,
        })
    }

    fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.apiserver)
    }
}

/// Starts a part. Collecting garbage less often costs memory, of which there is enough, and spares a tenth of both cores, which
/// everybody shares here.
fn start_part(name: &str, dir: &Path, program: &Path, arguments: &[&str]) -> Result<Process> {
    Process::start(name, dir, program, arguments, &[("GOGC", "400")])
}

fn start_etcd(binary: &Binary, dir: &Path, ports: Ports) -> Result<Process> {
    let client = format!("http://127.0.0.1:{}", ports.etcd);
    let peer = format!("http://127.0.0.1:{}", ports.etcd_peer);
    let members = format!("m={peer}");
    start_part(
        "etcd",
        dir,
        &binary.program,
        &[
            "etcd",
            "--name=m",
            "--data-dir=etcd-data",
            "--log-level=warn",
            "--unsafe-no-fsync",
            "--quota-backend-bytes=8589934592",
            &format!("--listen-client-urls={client}"),
            &format!("--advertise-client-urls={client}"),
            &format!("--listen-peer-urls={peer}"),
            &format!("--initial-advertise-peer-urls={peer}"),
            &format!("--initial-cluster={members}"),
        ],
    )
}

fn start_apiserver(binary: &Binary, dir: &Path, ports: Ports) -> Result<Process> {
    start_part(
        "kube-apiserver",
        dir,
        &binary.program,
        &[
            "kube-apiserver",
            &format!("--etcd-servers=http://127.0.0.1:{}", ports.etcd),
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            &format!("--secure-port={}", ports.apiserver),
            "--endpoint-reconciler-type=none",
            "--tls-cert-file=apiserver.crt",
            "--tls-private-key-file=apiserver.key",
            "--client-ca-file=ca.crt",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-account-key-file=sa.pub",
            "--service-account-signing-key-file=sa.key",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--authorization-mode=RBAC",
            "--audit-policy-file=audit-policy.yaml",
            "--audit-log-path=audit.log",
            "--allow-privileged",
            "--profiling=false",
            "--v=1",
        ],
    )
}

fn start_controller_manager(binary: &Binary, dir: &Path, ports: Ports) -> Result<Process> {
    start_part(
        "kube-controller-manager",
        dir,
        &binary.program,
        &[
            "kube-controller-manager",
            "--kubeconfig=kcm.kubeconfig",
            "--authentication-kubeconfig=kcm.kubeconfig",
            "--authorization-kubeconfig=kcm.kubeconfig",
            "--bind-address=127.0.0.1",
            &format!("--secure-port={}", ports.controller_manager),
            "--service-account-private-key-file=sa.key",
            "--root-ca-file=ca.crt",
            "--use-service-account-credentials",
            "--leader-elect=false",
            "--kube-api-qps=500",
            "--kube-api-burst=1000",
            "--concurrent-replicaset-syncs=20",
            "--cluster-cidr=10.244.0.0/16",
            "--allocate-node-cidrs=false",
            "--v=1",
        ],
    )
}

fn start_scheduler(binary: &Binary, dir: &Path, ports: Ports) -> Result<Process> {
    start_part(
        "kube-scheduler",
        dir,
        &binary.program,
        &[
            "kube-scheduler",
            "--kubeconfig=scheduler.kubeconfig",
            "--authentication-kubeconfig=scheduler.kubeconfig",
            "--authorization-kubeconfig=scheduler.kubeconfig",
            "--bind-address=127.0.0.1",
            &format!("--secure-port={}", ports.scheduler),
            "--leader-elect=false",
            "--kube-api-qps=500",
            "--kube-api-burst=1000",
            "--v=1",
        ],
    )
}

fn start_kwok(binary: &Binary, dir: &Path, ports: Ports) -> Result<Process> {
    start_part(
        "kwok",
        dir,
        &binary.program,
        &[
            "kwok",
            &format!("--config={}", binary.stages.display()),
            "--config=kwok.yaml",
            "--kubeconfig=kwok.kubeconfig",
            "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
            "--node-lease-duration-seconds=40",
            "--node-ip=127.0.0.1",
            &format!("--node-port={}", ports.kwok),
            &format!("--server-address=127.0.0.1:{}", ports.kwok),
        ],
    )
}

async fn admin_client(dir: &Path) -> Result<Client> {
    Ok(Client::try_from(admin_config(dir).await?)?)
}

async fn admin_config(dir: &Path) -> Result<Config> {
    let kubeconfig = Kubeconfig::read_from(dir.join("admin.kubeconfig"))?;
    Ok(Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?)
}

async fn ready(client: &Client) -> bool {
    let request = http_get("/readyz");
    matches!(client.request_text(request).await, Ok(text) if text == "ok")
}

async fn has_service_account(client: &Client) -> bool {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
    matches!(accounts.get_opt("default").await, Ok(Some(_)))
}

fn http_get(path: &str) -> http::Request<Vec<u8>> {
    http::Request::get(path)
        .body(Vec::new())
        .expect("a constant path makes a valid request")
}

/// Waits for a plain HTTP endpoint to answer 200.
pub(crate) async fn wait_http(process: &Process, address: &str, path: &str) -> Result<()> {
    let probe = || async { http_text(address, path).await.is_ok() };
    process.wait_until("ready", PATIENCE, probe).await
}

/// What a plain HTTP endpoint says, if it says 200.
pub(crate) async fn http_text(address: &str, path: &str) -> Result<String> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    anyhow::ensure!(
        answer.starts_with("HTTP/1.1 200"),
        "{address}{path} does not answer 200"
    );
    Ok(answer)
}
