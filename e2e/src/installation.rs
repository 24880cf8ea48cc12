//! Our controller as its users run it: CRDs, RBAC of the chart, a ServiceAccount's token, one process a replica.

use std::path::PathBuf;

use anyhow::{Context, Result};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::{Api, Client, api::PostParams};

use crate::controlplane::Process;
use crate::runner::Environment;
use crate::suites::crds;
use crate::world;

pub(crate) const NAMESPACE: &str = "karpenter";

/// Where the rendered chart of the KWOK provider stands.
pub(crate) const MANIFESTS: &str = "deploy/kwok.yaml";

/// CRDs and RBAC are in place and a token is at hand; replicas can be started.
#[derive(Debug)]
pub(crate) struct Installation {
    karpenter: PathBuf,
    logs: PathBuf,
    kubeconfig: PathBuf,
    started: usize,
}

// === impl Installation ===

impl Installation {
    /// Applies what `kubectl apply` of the released files would, the Deployment aside: there are no containers here.
    pub(crate) async fn install(environment: &Environment) -> Result<Self> {
        let client = environment.control_plane.admin().await?;
        crds::install(&client).await?;
        world::apply(
            &client,
            &format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: {NAMESPACE}}}"),
        )
        .await?;
        let manifests = std::fs::read_to_string(MANIFESTS).with_context(|| format!("cannot read {MANIFESTS}"))?;
        let objects = world::documents(&manifests)?
            .into_iter()
            .filter(|object| object.types.as_ref().is_some_and(|types| types.kind != "Deployment"))
            .map(|object| serde_norway::to_string(&object))
            .collect::<Result<Vec<_>, _>>()?;
        world::apply(&client, &objects.join("\n---\n")).await?;
        let kubeconfig = environment.logs.join("karpenter.kubeconfig");
        environment
            .control_plane
            .token_kubeconfig(&kubeconfig, &token(&client).await?)?;
        Ok(Self {
            karpenter: environment.karpenter.clone(),
            logs: environment.logs.clone(),
            kubeconfig,
            started: 0,
        })
    }

    /// Starts one more replica and waits until it is ready. `settings` are environment variables, as in the chart.
    pub(crate) async fn start(&mut self, settings: &[(&str, &str)]) -> Result<Replica> {
        self.started += 1;
        let name = format!("karpenter-{}", self.started);
        let (metrics, probes) = (free_port()?, free_port()?);
        let (metrics_text, probes_text) = (metrics.to_string(), probes.to_string());
        let kubeconfig = self.kubeconfig.to_string_lossy().into_owned();
        let mut variables = vec![
            ("KUBECONFIG", kubeconfig.as_str()),
            ("METRICS_PORT", metrics_text.as_str()),
            ("HEALTH_PROBE_PORT", probes_text.as_str()),
            ("LEADER_ELECTION_NAMESPACE", NAMESPACE),
        ];
        variables.extend_from_slice(settings);
        let process = Process::start_with_env(
            &name,
            &self.logs,
            &self.karpenter,
            &["controller", "--provider", "kwok"],
            &variables,
        )?;
        crate::controlplane::wait_http(&process, &format!("127.0.0.1:{probes}"), "/readyz").await?;
        Ok(Replica { process })
    }
}

/// A running controller process.
#[derive(Debug)]
pub(crate) struct Replica {
    pub(crate) process: Process,
}

fn free_port() -> Result<u16> {
    Ok(std::net::TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

async fn token(client: &Client) -> Result<String> {
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
        .create_token_request("karpenter", &PostParams::default(), &request)
        .await?;
    Ok(answer.status.context("the API server gave no token")?.token)
}
