//! docs/getting-started as a reader follows it: every command of every page, in order, typed into a shell.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::crds;
use crate::controlplane::{Process, wait_http};
use crate::helm::Helm;
use crate::ports::free_port;
use crate::runner::{Case, Environment, Runs, Suite};
use crate::world;

/// A page may take this long.
const LIMIT: Duration = Duration::from_secs(1_500);

/// How long each command of a page may wait here, whatever the page says: readers have their machine for themselves.
const PATIENCE: &str = "--timeout=300s";

pub(crate) fn suite() -> Suite {
    Suite {
        name: "docs",
        runs: Runs::BesideOthers,
        cases: vec![
            case("the_sandbox_page_works_as_written", |environment| {
                Box::pin(follow(environment, "sandbox"))
            }),
            case("the_kwok_page_works_as_written", |environment| {
                Box::pin(kwok(environment))
            }),
            case("the_cloudstack_page_works_as_written", |environment| {
                Box::pin(follow(environment, "cloudstack"))
            }),
            case("the_ovhcloud_page_works_as_written", |environment| {
                Box::pin(follow(environment, "ovhcloud"))
            }),
            case("the_bizflycloud_page_works_as_written", |environment| {
                Box::pin(follow(environment, "bizflycloud"))
            }),
        ],
    }
}

type Page = for<'a> fn(&'a mut Environment) -> futures::future::LocalBoxFuture<'a, Result<()>>;

fn case(name: &str, page: Page) -> Case {
    Case {
        name: name.to_owned(),
        run: Box::new(page),
        limit: LIMIT,
    }
}

/// Commands of a page between two fences.
#[derive(Debug, PartialEq, Eq)]
struct Block {
    terminal: Terminal,
    commands: String,
}

/// Where a reader types them.
#[derive(Debug, PartialEq, Eq)]
enum Terminal {
    /// The one that they read beside.
    Own,
    /// Another one, in which something keeps running: ` ```sh background `.
    Another,
}

fn blocks(page: &str) -> Vec<Block> {
    let mut found = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let terminal = match line {
            "```sh" => Terminal::Own,
            "```sh background" => Terminal::Another,
            _ => continue,
        };
        let commands: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        found.push(Block {
            terminal,
            commands: commands.join("\n"),
        });
    }
    found
}

/// The same commands with more patience.
fn patient(commands: &str) -> String {
    let mut parts = commands.split("--timeout=");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        text += PATIENCE;
        text += part.trim_start_matches(|c: char| c.is_ascii_alphanumeric());
    }
    text
}

/// Follows a page from the root of a checkout, with `karpenter`, `helm` and `kubectl` at hand.
async fn follow(environment: &mut Environment, name: &str) -> Result<()> {
    if name != "sandbox" {
        if !has_provider(&environment.karpenter, name)? {
            println!("       skipped: this build has no provider {name}");
            return Ok(());
        }
        crds::install(&environment.control_plane.admin().await?, &environment.karpenter).await?;
    }
    let file = format!("docs/getting-started/{name}.md");
    let page = std::fs::read_to_string(&file).with_context(|| format!("cannot read {file}"))?;
    // It may have to be built; the suites share a thread and must not stand still meanwhile.
    let helm = tokio::task::spawn_blocking(Helm::obtain).await??;
    let desk = Desk::new(environment, name, &helm)?;
    let mut script = String::from("set -euxo pipefail\n");
    let mut running = Vec::new();
    for block in blocks(&page) {
        match block.terminal {
            Terminal::Own => script += &format!("{}\n", patient(&block.commands)),
            Terminal::Another => {
                let shell = Path::new("/bin/bash");
                let exec = format!("exec {}", block.commands);
                running.push(Process::start(
                    &format!("{name}-background"),
                    &desk.folder,
                    shell,
                    &["-c", &exec],
                    &desk.variables(),
                )?);
                // A reader waits until it has said that it is there.
                script += "until [ -s sandbox.kubeconfig ]; do sleep 0.2; done\n";
            }
        }
    }
    let outcome = desk.run(&script).await;
    for process in &mut running {
        process.stop().await;
    }
    outcome
}

fn has_provider(karpenter: &Path, name: &str) -> Result<bool> {
    let mut command = std::process::Command::new(karpenter);
    Ok(command.args(["crds", "--provider", name]).output()?.status.success())
}

/// The controller that `helm install` would start as a pod runs beside, as a process: nothing pulls images here.
async fn kwok(environment: &mut Environment) -> Result<()> {
    let client = environment.control_plane.admin().await?;
    crds::install(&client, &environment.karpenter).await?;
    two_nodes(&client).await?;
    let (metrics, probes) = (free_port()?.to_string(), free_port()?.to_string());
    let kubeconfig = environment
        .control_plane
        .admin_kubeconfig()
        .to_string_lossy()
        .into_owned();
    let variables = [
        ("KUBECONFIG", kubeconfig.as_str()),
        ("METRICS_PORT", metrics.as_str()),
        ("HEALTH_PROBE_PORT", probes.as_str()),
        ("LEADER_ELECTION_NAMESPACE", "default"),
    ];
    let arguments = ["controller", "--provider", "kwok"];
    let mut controller = Process::start(
        "docs-controller",
        &environment.logs,
        &environment.karpenter,
        &arguments,
        &variables,
    )?;
    wait_http(&controller, &format!("127.0.0.1:{probes}"), "/readyz").await?;
    let outcome = follow(environment, "kwok").await;
    controller.stop().await;
    outcome
}

/// Nodes that were there before Karpenter, for its own pods.
async fn two_nodes(client: &kube::Client) -> Result<()> {
    for name in ["own-a", "own-b"] {
        world::apply(
            client,
            &format!(
                "apiVersion: v1\nkind: Node\nmetadata: {{name: {name}, annotations: {{kwok.x-k8s.io/node: fake}}, \
                 labels: {{kubernetes.io/os: linux, kubernetes.io/hostname: {name}}}}}"
            ),
        )
        .await?;
        let nodes: Api<Node> = Api::all(client.clone());
        let resources = json!({"cpu": "4", "memory": "8Gi", "pods": "110"});
        let status = json!({"status": {"capacity": resources, "allocatable": resources}});
        nodes
            .patch_status(name, &PatchParams::default(), &Patch::Merge(&status))
            .await?;
    }
    Ok(())
}

/// A folder that looks like the root of a checkout, and a shell in it.
#[derive(Debug)]
struct Desk {
    folder: PathBuf,
    path: String,
    kubeconfig: String,
    log: PathBuf,
}

// === impl Desk ===

impl Desk {
    fn new(environment: &Environment, name: &str, helm: &Helm) -> Result<Self> {
        let folder = environment.logs.join(format!("desk-{name}"));
        std::fs::create_dir_all(folder.join("bin"))?;
        for shared in ["charts", "deploy", "examples"] {
            let target = std::path::absolute(shared)?;
            std::os::unix::fs::symlink(target, folder.join(shared))?;
        }
        std::os::unix::fs::symlink(&environment.karpenter, folder.join("bin/karpenter"))?;
        if helm.program().is_absolute() {
            std::os::unix::fs::symlink(helm.program(), folder.join("bin/helm"))?;
        }
        let kubectl = std::process::Command::new("kubectl")
            .args(["version", "--client"])
            .output();
        ensure!(
            kubectl.is_ok_and(|output| output.status.success()),
            "kubectl is not on the PATH; install it to run the commands of the documentation"
        );
        let path = std::env::var("PATH").unwrap_or_default();
        Ok(Self {
            path: format!("{}:{path}", folder.join("bin").display()),
            kubeconfig: environment
                .control_plane
                .admin_kubeconfig()
                .to_string_lossy()
                .into_owned(),
            log: environment.logs.join(format!("docs-{name}.log")),
            folder,
        })
    }

    fn variables(&self) -> [(&str, &str); 2] {
        [("PATH", &self.path), ("KUBECONFIG", &self.kubeconfig)]
    }

    async fn run(&self, script: &str) -> Result<()> {
        let log = std::fs::File::create(&self.log)?;
        let status = tokio::process::Command::new("/bin/bash")
            .args(["-c", script])
            .envs(self.variables())
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true)
            .status()
            .await?;
        if !status.success() {
            let said = std::fs::read_to_string(&self.log)?;
            let lines: Vec<&str> = said.lines().collect();
            bail!("{status}:\n{}", lines[lines.len().saturating_sub(12)..].join("\n"));
        }
        Ok(())
    }
}
