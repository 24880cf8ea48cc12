//! Builds the control-plane program, once per content of its module files.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha256};

/// The built program and the stage documents that tell kwok how its nodes and pods behave.
#[derive(Debug, Clone)]
pub(crate) struct Binary {
    pub(crate) program: PathBuf,
    pub(crate) stages: PathBuf,
}

const SOURCES: [&str; 3] = ["go.mod", "go.sum", "main.go"];

/// kwok's own documents for nodes and pods that come up at once.
const STAGES: [&str; 5] = [
    "node/fast/node-initialize",
    "node/heartbeat-with-lease/node-heartbeat-with-lease",
    "pod/fast/pod-ready",
    "pod/fast/pod-complete",
    "pod/fast/pod-delete",
];

// === impl Binary ===

impl Binary {
    /// Takes the program from the cache, or builds it (about ten minutes on two cores, once).
    pub(crate) fn obtain(module: &Path) -> Result<Self> {
        let dir = cache_dir()?.join(fingerprint(module)?);
        let built = Self {
            program: dir.join("controlplane"),
            stages: dir.join("kwok-stages.yaml"),
        };
        if built.program.exists() && built.stages.exists() {
            return Ok(built);
        }
        std::fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        built.compile(module)?;
        built.write_stages(module)?;
        Ok(built)
    }

    fn compile(&self, module: &Path) -> Result<()> {
        let version = kubernetes_version(module)?;
        let minor = version
            .split('.')
            .nth(1)
            .context("the Kubernetes version in go.mod has no minor part")?;
        // Without the stamp the API server reports a development version and other parts refuse it.
        let package = "k8s.io/component-base/version";
        let flags = format!(
            "-s -w -X {package}.gitVersion=v{version} -X {package}.gitMajor=1 -X {package}.gitMinor={minor} -X {package}.gitTreeState=clean"
        );
        let unfinished = self.program.with_extension("part");
        let status = Command::new("go")
            .args(["build", "-trimpath", "-buildvcs=false", "-ldflags", &flags, "-o"])
            .arg(&unfinished)
            .arg(".")
            .current_dir(module)
            .env("CGO_ENABLED", "0")
            .status()
            .context("cannot run `go`; install Go (its version stands in e2e/control-plane/go.mod)")?;
        ensure!(status.success(), "building the control plane failed");
        std::fs::rename(&unfinished, &self.program)?;
        Ok(())
    }

    fn write_stages(&self, module: &Path) -> Result<()> {
        let kwok = go(module, &["list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kwok"])?;
        let mut documents = String::new();
        for stage in STAGES {
            let file = Path::new(kwok.trim())
                .join("kustomize/stage")
                .join(format!("{stage}.yaml"));
            documents += &std::fs::read_to_string(&file).with_context(|| format!("kwok has no {}", file.display()))?;
            documents += "\n---\n";
        }
        let unfinished = self.stages.with_extension("part");
        std::fs::write(&unfinished, documents)?;
        std::fs::rename(&unfinished, &self.stages)?;
        Ok(())
    }
}

fn cache_dir() -> Result<PathBuf> {
    if let Some(dir) = std::env::var_os("KARPENTER_E2E_CACHE") {
        return Ok(dir.into());
    }
    let base = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")))
        .context("neither KARPENTER_E2E_CACHE, XDG_CACHE_HOME nor HOME is set")?;
    Ok(base.join("karpenter-e2e"))
}

fn fingerprint(module: &Path) -> Result<String> {
    let mut hash = Sha256::new();
    for name in SOURCES {
        let file = module.join(name);
        hash.update(std::fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?);
        hash.update([0]);
    }
    Ok(hash
        .finalize()
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect())
}

fn kubernetes_version(module: &Path) -> Result<String> {
    let text = std::fs::read_to_string(module.join("go.mod"))?;
    let line = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("k8s.io/kubernetes v"));
    Ok(line
        .context("go.mod does not require k8s.io/kubernetes")?
        .trim()
        .to_owned())
}

fn go(module: &Path, arguments: &[&str]) -> Result<String> {
    let output = Command::new("go")
        .args(arguments)
        .current_dir(module)
        .output()
        .context("cannot run `go`")?;
    if !output.status.success() {
        bail!(
            "go {}: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8(output.stdout)?)
}
