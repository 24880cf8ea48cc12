//! Our controller as its users run it: CRDs, RBAC of the chart, a ServiceAccount's token, one process a replica.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::{Api, DynamicObject, PostParams};
use kube::{Client, ResourceExt};

use crate::controlplane::{Process, Proxy};
use crate::ports::free_port;
use crate::runner::Environment;
use crate::suites::{crds, rbac};
use crate::world;

pub(crate) const NAMESPACE: &str = "karpenter";

/// Where the rendered chart of a provider stands.
pub(crate) fn manifests_of(provider: &str) -> String {
    format!("deploy/{provider}.yaml")
}

/// CRDs and RBAC are in place; replicas can be started.
#[derive(Debug)]
pub(crate) struct Installation {
    provider: &'static str,
    /// The ServiceAccount that the chart makes.
    account: String,
    karpenter: PathBuf,
    logs: PathBuf,
}

// === impl Installation ===

impl Installation {
    /// Installs the KWOK provider.
    pub(crate) async fn install(environment: &Environment) -> Result<Self> {
        Self::install_provider(environment, "kwok").await
    }

    /// Applies what `kubectl apply` of the released files would, the Deployment aside: there are no containers here.
    pub(crate) async fn install_provider(environment: &Environment, provider: &'static str) -> Result<Self> {
        let client = environment.control_plane.admin().await?;
        crds::install(&client, &environment.karpenter).await?;
        world::apply(
            &client,
            &format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: {NAMESPACE}}}"),
        )
        .await?;
        let file = manifests_of(provider);
        let manifests = std::fs::read_to_string(&file).with_context(|| format!("cannot read {file}"))?;
        let manifests = world::documents(&manifests)?;
        let is_a = |object: &DynamicObject, kind: &str| object.types.as_ref().is_some_and(|types| types.kind == kind);
        let account = manifests.iter().find(|object| is_a(object, "ServiceAccount"));
        let account = account
            .with_context(|| format!("{file} has no ServiceAccount"))?
            .name_any();
        let objects = manifests
            .iter()
            .filter(|object| !is_a(object, "Deployment"))
            .map(serde_norway::to_string)
            .collect::<Result<Vec<_>, _>>()?;
        world::apply(&client, &objects.join("\n---\n")).await?;
        rbac::wait_until_granted(
            &client,
            provider,
            &format!("system:serviceaccount:{NAMESPACE}:{account}"),
        )
        .await?;
        Ok(Self {
            provider,
            account,
            karpenter: environment.karpenter.clone(),
            logs: environment.logs.clone(),
        })
    }

    /// Starts one more replica and waits until it is ready. `settings` are environment variables, as in the chart.
    ///
    /// It has a token and a way to the API server of its own, so that it can be told apart and cut off.
    pub(crate) async fn start(&self, environment: &Environment, settings: &[(&str, &str)]) -> Result<Replica> {
        let proxy = environment.control_plane.proxy().await?;
        let started = self.start_at(environment, &proxy.url(), settings).await?;
        Ok(Replica {
            name: started.name,
            process: started.process,
            proxy,
            credential: credential(&started.token)?,
            metrics: started.metrics,
        })
    }

    /// Starts one replica that is to be measured: nothing is between it and the API server.
    pub(crate) async fn start_direct(&self, environment: &Environment) -> Result<Process> {
        let url = environment.control_plane.url();
        Ok(self.start_at(environment, &url, &[]).await?.process)
    }

    async fn start_at(&self, environment: &Environment, url: &str, settings: &[(&str, &str)]) -> Result<Started> {
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        let name = format!("karpenter-{}", STARTED.fetch_add(1, Ordering::Relaxed) + 1);
        let token = token(&environment.control_plane.admin().await?, &self.account).await?;
        let kubeconfig = self.logs.join(format!("{name}.kubeconfig"));
        environment.control_plane.token_kubeconfig(&kubeconfig, &token, url)?;
        let (metrics, probes) = (free_port()?, free_port()?);
        let (metrics_text, probes_text) = (metrics.to_string(), probes.to_string());
        let kubeconfig = kubeconfig.to_string_lossy().into_owned();
        let mut variables = vec![
            ("KUBECONFIG", kubeconfig.as_str()),
            ("METRICS_PORT", metrics_text.as_str()),
            ("HEALTH_PROBE_PORT", probes_text.as_str()),
            ("LEADER_ELECTION_NAMESPACE", NAMESPACE),
            // Candidates for leadership are named after their host, which in a cluster is the pod.
            ("HOSTNAME", name.as_str()),
        ];
        variables.extend_from_slice(settings);
        let process = Process::start(
            &name,
            &self.logs,
            &self.karpenter,
            &["controller", "--provider", self.provider],
            &variables,
        )?;
        crate::controlplane::wait_http(&process, &format!("127.0.0.1:{probes}"), "/readyz").await?;
        Ok(Started {
            name,
            process,
            token,
            metrics,
        })
    }
}

/// A process that answers.
struct Started {
    name: String,
    process: Process,
    token: String,
    metrics: u16,
}

/// Starts upstream's KWOK controller on what is installed, and waits until it is ready. It has all rights: it is here to be
/// measured, and what it may do is not in question.
pub(crate) async fn start_upstream(environment: &Environment, program: &Path) -> Result<Process> {
    let (metrics, probes) = (free_port()?.to_string(), free_port()?.to_string());
    let kubeconfig = environment.control_plane.admin_kubeconfig();
    let variables = [
        ("KUBECONFIG", &*kubeconfig.to_string_lossy()),
        ("METRICS_PORT", &metrics),
        ("HEALTH_PROBE_PORT", &probes),
        ("SYSTEM_NAMESPACE", NAMESPACE),
        ("LEADER_ELECTION_NAMESPACE", NAMESPACE),
    ];
    let process = Process::start("upstream", &environment.logs, program, &[], &variables)?;
    crate::controlplane::wait_http(&process, &format!("127.0.0.1:{probes}"), "/readyz").await?;
    Ok(process)
}

/// A running controller process.
#[derive(Debug)]
pub(crate) struct Replica {
    pub(crate) name: String,
    pub(crate) process: Process,
    pub(crate) proxy: Proxy,
    /// How the audit log names its token.
    pub(crate) credential: String,
    /// The port of its metrics.
    pub(crate) metrics: u16,
}

/// The audit log's name of a token: its `jti` claim.
fn credential(token: &str) -> Result<String> {
    let payload = token.split('.').nth(1).context("a token has three parts")?;
    // ByteString reads padded base64 of the standard alphabet, which saves a dependency.
    let mut text = payload.replace('-', "+").replace('_', "/");
    while !text.len().is_multiple_of(4) {
        text.push('=');
    }
    let bytes: k8s_openapi::ByteString = serde_json::from_value(text.into()).context("a token's payload is base64")?;
    let claims: serde_json::Value = serde_json::from_slice(&bytes.0).context("a token's payload is JSON")?;
    let id = claims["jti"].as_str().context("a token has an id")?;
    Ok(format!("JTI={id}"))
}

async fn token(client: &Client, account: &str) -> Result<String> {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), NAMESPACE);
    let spec = TokenRequestSpec {
        expiration_seconds: Some(24 * 3600),
        ..TokenRequestSpec::default()
    };
    let request = TokenRequest {
        spec,
        ..TokenRequest::default()
    };
    let answer = accounts
        .create_token_request(account, &PostParams::default(), &request)
        .await?;
    Ok(answer.status.context("the API server gave no token")?.token)
}
