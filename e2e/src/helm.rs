//! Helm, found or installed with Go, and what our chart becomes in its hands.
//!
//! Its version stands in the control plane's `go.mod`: both are built from the same Kubernetes libraries, which compile for minutes.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, bail, ensure};

const MODULE: &str = "e2e/control-plane";
const PACKAGE: &str = "helm.sh/helm/v3/cmd/helm";

/// The chart under test.
const CHART: &str = "charts/karpenter";

#[derive(Debug)]
pub(crate) struct Helm {
    program: PathBuf,
}

// === impl Helm ===

impl Helm {
    /// From the `PATH`, from where Go installs to, or installed there now.
    pub(crate) fn obtain() -> Result<Self> {
        let works = |program: &Path| {
            Command::new(program)
                .arg("version")
                .output()
                .is_ok_and(|output| output.status.success())
        };
        let on_path = PathBuf::from("helm");
        if works(&on_path) {
            return Ok(Self { program: on_path });
        }
        let output = Command::new("go")
            .args(["env", "GOPATH"])
            .output()
            .context("neither helm nor go is on the PATH")?;
        let installed = Path::new(String::from_utf8(output.stdout)?.trim()).join("bin/helm");
        if !works(&installed) {
            println!("  helm: installing {PACKAGE}");
            // As the control plane is built, or nothing of it could be used.
            let status = Command::new("go")
                .args(["install", "-C", MODULE, "-trimpath", "-buildvcs=false", PACKAGE])
                .env("CGO_ENABLED", "0")
                .status()?;
            ensure!(status.success(), "go install {PACKAGE} in {MODULE} failed");
        }
        Ok(Self { program: installed })
    }

    /// Where it is; only a name when it is on the `PATH`.
    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// The manifests that the chart renders to.
    pub(crate) fn template(&self, arguments: &[&str]) -> Result<String> {
        let output = self.run(arguments)?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "helm template {arguments:?} failed: {error}");
        Ok(String::from_utf8(output.stdout)?)
    }

    /// What Helm says of values that it must refuse.
    pub(crate) fn refusal(&self, arguments: &[&str]) -> Result<String> {
        let output = self.run(arguments)?;
        if output.status.success() {
            bail!("helm template {arguments:?} was expected to fail");
        }
        Ok(String::from_utf8_lossy(&output.stderr).into_owned())
    }

    fn run(&self, arguments: &[&str]) -> Result<Output> {
        let mut command = Command::new(&self.program);
        command
            .args(["template", "karpenter", CHART, "--namespace", "karpenter"])
            .args(arguments);
        Ok(command.output()?)
    }

    pub(crate) fn lint(&self, arguments: &[&str]) -> Result<()> {
        let mut command = Command::new(&self.program);
        let output = command
            .args(["lint", "--strict", CHART, "charts/karpenter-crd"])
            .args(arguments)
            .output()?;
        ensure!(
            output.status.success(),
            "helm lint {arguments:?}: {}",
            String::from_utf8_lossy(&output.stdout)
        );
        Ok(())
    }
}
