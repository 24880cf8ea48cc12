//! A cluster on a port for the command line to talk to.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Output};

use karpenter_sandbox::tcp::TcpServer;
use karpenter_sandbox::{Clock, Sandbox};

/// An API server without controllers, and a kubeconfig for it.
pub(crate) struct Cluster {
    pub(crate) sandbox: Sandbox,
    _served: TcpServer,
    directory: tempfile::TempDir,
}

impl Cluster {
    pub(crate) async fn start() -> Self {
        let sandbox = Sandbox::builder().clock(Clock::real()).api_server_only().start();
        let served = sandbox.serve_tcp(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let directory = tempfile::tempdir().unwrap();
        served.write_kubeconfig(&directory.path().join("kubeconfig")).unwrap();
        Self {
            sandbox,
            _served: served,
            directory,
        }
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.directory.path().join("kubeconfig")
    }

    /// `karpenter` with these arguments, for this cluster.
    pub(crate) async fn karpenter(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_karpenter"));
        command
            .args(arguments)
            .env_remove("KUBERNETES_SERVICE_HOST")
            .env("CLUSTER_NAME", "prod")
            .env("KUBECONFIG", self.kubeconfig());
        tokio::task::spawn_blocking(move || command.output().unwrap())
            .await
            .unwrap()
    }
}
