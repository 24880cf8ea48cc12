//! The real `kubectl` against both API servers: the sandbox's port and the real one answer the commands that users type alike.
//!
//! Needs `kubectl` on the PATH (or `KUBECTL`); without it the cases say so and pass.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use karpenter_sandbox::{Clock, Sandbox};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::Command;

use super::crds;
use crate::runner::{Case, Environment, Runs, Suite};

pub(crate) fn suite() -> Suite {
    let mut cases = Vec::new();
    for server in [Server::Sandbox, Server::Real] {
        cases.push(case("reads", server, |kubectl| Box::pin(reads(kubectl))));
        cases.push(case("applies_and_changes", server, |kubectl| {
            Box::pin(applies_and_changes(kubectl))
        }));
        cases.push(case("drains_waits_and_watches", server, |kubectl| {
            Box::pin(drains_waits_and_watches(kubectl))
        }));
    }
    Suite {
        name: "kubectl",
        runs: Runs::BesideOthers,
        cases,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Server {
    Sandbox,
    Real,
}

type Story = for<'a> fn(&'a Kubectl) -> futures::future::LocalBoxFuture<'a, Result<()>>;

fn case(what: &'static str, server: Server, story: Story) -> Case {
    let place = match server {
        Server::Sandbox => "the_sandbox",
        Server::Real => "a_real_api_server",
    };
    Case {
        name: format!("kubectl_{what}_on_{place}"),
        run: Box::new(move |environment| Box::pin(tell(environment, what, server, story))),
        limit: Duration::from_secs(1_200),
    }
}

async fn tell(environment: &mut Environment, what: &str, server: Server, story: Story) -> Result<()> {
    let binary = std::env::var("KUBECTL").unwrap_or_else(|_| "kubectl".into());
    if Command::new(&binary)
        .args(["version", "--client"])
        .output()
        .await
        .is_err()
    {
        println!("       skipped: there is no kubectl on the PATH");
        return Ok(());
    }
    let home = environment.logs.join(format!("{what}-{server:?}"));
    std::fs::create_dir_all(&home).with_context(|| format!("cannot create {}", home.display()))?;
    let kubectl = Kubectl {
        binary,
        kubeconfig: home.join("config"),
        home,
        server,
        namespace: what.replace('_', "-"),
    };
    match server {
        Server::Sandbox => {
            let sandbox = Sandbox::builder().clock(Clock::real()).start();
            let port = sandbox.serve_tcp(([127, 0, 0, 1], 0).into()).await?;
            port.write_kubeconfig(&kubectl.kubeconfig)?;
            crds::install(&sandbox.client(), &environment.karpenter).await?;
            kubectl.furnish().await?;
            story(&kubectl).await
        }
        Server::Real => {
            std::fs::copy(environment.control_plane.admin_kubeconfig(), &kubectl.kubeconfig)?;
            crds::install(&environment.control_plane.admin().await?, &environment.karpenter).await?;
            kubectl.furnish().await?;
            let outcome = story(&kubectl).await;
            kubectl.ok("delete nodes,nodepools --all --wait=false").await?;
            outcome
        }
    }
}

/// A kubectl with a kubeconfig, a namespace and a discovery cache of its own.
#[derive(Debug)]
struct Kubectl {
    binary: String,
    kubeconfig: PathBuf,
    home: PathBuf,
    server: Server,
    namespace: String,
}

// === impl Kubectl ===

impl Kubectl {
    /// What the stories find.
    async fn furnish(&self) -> Result<()> {
        let namespace = format!(
            "apiVersion: v1\nkind: Namespace\nmetadata: {{name: {}}}",
            self.namespace
        );
        self.ok_with("apply -f -", &namespace).await?;
        self.ok("wait --for=create serviceaccount/default --timeout 180s")
            .await?;
        self.ok_with("apply -f -", CLUSTER).await?;
        self.ok("wait --for=condition=Ready node/n1 --timeout 180s").await?;
        self.ok("wait --for=condition=Ready pod/p1 --timeout 180s").await?;
        Ok(())
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(&self.binary);
        command
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .arg("--cache-dir")
            .arg(self.home.join("cache"))
            .args(["--namespace", &self.namespace])
            .args(line.split(' '))
            .env("EDITOR", "sed -i s/edited=no/edited=yes/")
            .env("HOME", Path::new(&self.home))
            .kill_on_drop(true);
        command
    }

    async fn run(&self, line: &str, input: &str) -> Result<Output> {
        let mut child = self
            .command(line)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start kubectl")?;
        let mut stdin = child.stdin.take().context("stdin is piped")?;
        // A kubectl that fails early does not read its input.
        let _ = stdin.write_all(input.as_bytes()).await;
        drop(stdin);
        Ok(child.wait_with_output().await?)
    }

    /// Runs a command that must succeed; its standard output.
    async fn ok(&self, line: &str) -> Result<String> {
        self.ok_with(line, "").await
    }

    async fn ok_with(&self, line: &str, input: &str) -> Result<String> {
        let output = self.run(line, input).await?;
        let (stdout, stderr) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        ensure!(output.status.success(), "kubectl {line}\n{stdout}\n{stderr}");
        Ok(stdout.into_owned())
    }

    /// Runs a command that must succeed and print all of `parts`.
    async fn prints(&self, line: &str, parts: &[&str]) -> Result<()> {
        self.prints_with(line, "", parts).await
    }

    async fn prints_with(&self, line: &str, input: &str, parts: &[&str]) -> Result<()> {
        let text = self.ok_with(line, input).await?;
        for part in parts {
            ensure!(text.contains(part), "kubectl {line}: {part:?} is missing in\n{text}");
        }
        Ok(())
    }

    /// Runs a command that must fail and say `part`.
    async fn fails(&self, line: &str, input: &str, part: &str) -> Result<()> {
        let output = self.run(line, input).await?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(!output.status.success(), "kubectl {line} succeeded");
        ensure!(
            stderr.contains(part),
            "kubectl {line}: {part:?} is missing in\n{stderr}"
        );
        Ok(())
    }

    async fn exits(&self, line: &str, input: &str, code: i32) -> Result<()> {
        let output = self.run(line, input).await?;
        ensure!(
            output.status.code() == Some(code),
            "kubectl {line} ended with {:?}: {}",
            output.status.code(),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    }
}

const CLUSTER: &str = r#"
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {topology.kubernetes.io/zone: z1}, annotations: {kwok.x-k8s.io/node: fake}}
---
apiVersion: v1
kind: Pod
metadata: {name: p1, labels: {app: x}, annotations: {note: edited=no}}
spec: {nodeName: n1, containers: [{name: c, image: nginx}]}
---
apiVersion: v1
kind: Pod
metadata: {name: p2, labels: {app: z}}
spec: {schedulerName: nobody, containers: [{name: c, image: nginx}]}
---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: dynamic}
spec:
  limits: {cpu: 10}
  template:
    spec:
      requirements: [{key: kubernetes.io/arch, operator: In, values: [amd64]}]
      nodeClassRef: {group: karpenter.kwok.sh, kind: KWOKNodeClass, name: default}
---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: static}
spec:
  replicas: 1
  template:
    spec:
      requirements: [{key: kubernetes.io/arch, operator: In, values: [amd64]}]
      nodeClassRef: {group: karpenter.kwok.sh, kind: KWOKNodeClass, name: default}
"#;

const DEPLOYMENT: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: "nginx:1"}]}
"#;

async fn reads(kubectl: &Kubectl) -> Result<()> {
    kubectl.prints("version", &["Server Version: v1.36.3"]).await?;
    kubectl
        .prints(
            "api-resources",
            &["nodepools", "karpenter.sh/v1", "poddisruptionbudgets"],
        )
        .await?;
    kubectl
        .prints("api-versions", &["karpenter.sh/v1", "policy/v1"])
        .await?;
    kubectl
        .prints("get pods -o wide", &["NOMINATED NODE", "p1 ", "p2 ", "n1"])
        .await?;
    kubectl.prints("get pods -A", &["NAMESPACE", "reads", "p1"]).await?;
    kubectl
        .prints("get pod p1 -o yaml", &["kind: Pod", "nodeName: n1"])
        .await?;
    kubectl.prints("get pod p1 -o json", &["\"kind\": \"Pod\""]).await?;
    kubectl.prints("get pods -o name", &["pod/p1\npod/p2"]).await?;
    kubectl
        .prints(
            "get pods -o custom-columns=N:.metadata.name,P:.status.phase",
            &["p1", "Running"],
        )
        .await?;
    kubectl
        .prints("get pods --sort-by .metadata.name --show-labels", &["p1", "app=x"])
        .await?;
    kubectl.prints("get pods --chunk-size 1", &["p1", "p2"]).await?;
    for line in ["get pods -l app=x", "get pods --field-selector spec.nodeName=n1"] {
        let text = kubectl.ok(line).await?;
        ensure!(text.contains("p1") && !text.contains("p2"), "{line}\n{text}");
    }
    kubectl
        .prints("get nodes -L topology.kubernetes.io/zone", &["n1", "Ready", "z1"])
        .await?;
    kubectl
        .prints(
            "get karpenter",
            &["nodepool.karpenter.sh/dynamic", "nodepool.karpenter.sh/static"],
        )
        .await?;
    kubectl.prints("get nodepools", &["NODECLASS", "dynamic"]).await?;
    kubectl.prints("get all -A", &["service/kubernetes", "pod/p1"]).await?;
    kubectl
        .prints("describe node n1", &["Allocatable:", "Non-terminated Pods:", "p1"])
        .await?;
    kubectl
        .prints("describe pod p1", &["Service Account:  default", "Tolerations:"])
        .await?;
    kubectl
        .prints("describe nodepool dynamic", &["Consolidation Policy:"])
        .await?;
    // A real server publishes the schema of a new CRD a few seconds after the CRD.
    let explained = async {
        loop {
            let output = kubectl.run("explain nodepool.spec", "").await?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            if output.status.success() && text.contains("disruption") && text.contains("-required-") {
                return anyhow::Ok(());
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(180), explained)
        .await
        .context("explain never knew NodePools")??;
    kubectl
        .prints("explain nodepool.spec.disruption.budgets", &["nodes", "schedule"])
        .await?;
    kubectl.fails("get pod nope", "", "pods \"nope\" not found").await?;
    kubectl.fails("get gadgets", "", "doesn't have a resource type").await?;
    kubectl.fails("top nodes", "", "Metrics API not available").await?;
    if kubectl.server == Server::Sandbox {
        kubectl.fails("logs p1", "", "the sandbox runs no containers").await?;
        kubectl
            .fails("create configmap x --from-literal a=b", "", "kubectl create -f -")
            .await?;
    }
    Ok(())
}

async fn applies_and_changes(kubectl: &Kubectl) -> Result<()> {
    let apply = "apply -f -";
    // `diff` looks twice and shows what controllers wrote in between; it is asked when they are done.
    let rolled_out = "rollout status deployment/web --timeout 180s";
    kubectl.prints_with(apply, DEPLOYMENT, &["created"]).await?;
    kubectl.ok(rolled_out).await?;
    kubectl.prints_with(apply, DEPLOYMENT, &["unchanged"]).await?;
    let changed = DEPLOYMENT.replace("nginx:1", "nginx:2");
    kubectl.exits("diff -f -", &changed, 1).await?;
    kubectl.prints_with(apply, &changed, &["configured"]).await?;
    kubectl.ok(rolled_out).await?;
    kubectl.exits("diff -f -", &changed, 0).await?;
    kubectl
        .prints_with("apply --server-side -f -", &changed, &["serverside-applied"])
        .await?;
    kubectl
        .prints_with(
            "apply --server-side --force-conflicts -f -",
            DEPLOYMENT,
            &["serverside-applied"],
        )
        .await?;
    kubectl
        .fails(
            "apply --server-side --field-manager other -f -",
            &changed,
            "conflict with \"kubectl\"",
        )
        .await?;
    kubectl.prints("scale deployment web --replicas 3", &["scaled"]).await?;
    kubectl
        .prints("get deployment web -o jsonpath={.spec.replicas}", &["3"])
        .await?;
    kubectl
        .fails(
            "scale deployment web --current-replicas 7 --replicas 1",
            "",
            "Expected replicas to be 7",
        )
        .await?;
    kubectl
        .prints("set image deployment/web c=nginx:3", &["image updated"])
        .await?;
    kubectl.prints("rollout restart deployment/web", &["restarted"]).await?;
    kubectl
        .prints("describe deployment web", &["nginx:3", "restartedAt"])
        .await?;
    kubectl.prints("label deployment web a=b", &["labeled"]).await?;
    kubectl
        .fails("label deployment web a=c", "", "already has a value")
        .await?;
    kubectl.prints("label deployment web a-", &["unlabeled"]).await?;
    kubectl.prints("annotate deployment web a=b", &["annotated"]).await?;
    kubectl.prints("edit pod p1", &["edited"]).await?;
    kubectl
        .prints("get pod p1 -o jsonpath={.metadata.annotations.note}", &["edited=yes"])
        .await?;
    for line in [
        r#"patch node n1 -p {"metadata":{"labels":{"s":"1"}}}"#,
        r#"patch node n1 --type merge -p {"metadata":{"labels":{"m":"1"}}}"#,
        r#"patch node n1 --type json -p [{"op":"add","path":"/metadata/labels/j","value":"1"}]"#,
    ] {
        kubectl.prints(line, &["patched"]).await?;
    }
    kubectl
        .prints("get node n1 --show-labels", &["s=1", "m=1", "j=1"])
        .await?;
    kubectl
        .prints(
            r#"patch nodepool static --subresource status --type merge -p {"status":{"nodes":7}}"#,
            &["patched"],
        )
        .await?;
    kubectl
        .prints("get nodepool static -o jsonpath={.status.nodes}", &["7"])
        .await?;
    kubectl
        .prints("scale nodepool static --replicas 3", &["scaled"])
        .await?;
    kubectl
        .fails("scale nodepool dynamic --replicas 3", "", "is invalid")
        .await?;
    kubectl
        .fails(
            r#"patch nodepool dynamic -p {"spec":{"weight":1}}"#,
            "",
            "not supported",
        )
        .await?;
    kubectl
        .fails(
            apply,
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndatum: {}",
            "unknown field",
        )
        .await?;
    let map = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, labels: {l: m}}\ndata: {x: '1'}";
    kubectl.prints_with("create -f -", map, &["created"]).await?;
    kubectl.fails("create -f -", map, "already exists").await?;
    kubectl
        .prints_with("replace -f -", &map.replace("'1'", "'2'"), &["replaced"])
        .await?;
    kubectl.prints("delete configmap -l l=m", &["\"a\"", "deleted"]).await?;
    kubectl
        .prints("delete pod p2 --force --grace-period 0", &["deleted"])
        .await?;
    kubectl.prints("delete nodepools --all", &["dynamic", "static"]).await?;
    Ok(())
}

const BUDGET: &str = "
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web}
spec: {minAvailable: 2, selector: {matchLabels: {app: web}}}
";

async fn drains_waits_and_watches(kubectl: &Kubectl) -> Result<()> {
    kubectl.ok_with("create -f -", DEPLOYMENT).await?;
    kubectl
        .prints(
            "rollout status deployment/web --timeout 180s",
            &["successfully rolled out"],
        )
        .await?;
    kubectl.prints("rollout history deployment/web", &["REVISION"]).await?;
    for line in [
        "wait --for=condition=Available deployment/web --timeout 180s",
        "wait --for=jsonpath={.spec.replicas}=2 deployment/web --timeout 180s",
        "wait --for=condition=Ready pod -l app=web --timeout 180s",
    ] {
        kubectl.prints(line, &["condition met"]).await?;
    }

    kubectl.prints("taint node n1 a=b:NoSchedule", &["tainted"]).await?;
    kubectl.prints("taint node n1 a=b:NoSchedule-", &["untainted"]).await?;
    kubectl.prints("cordon n1", &["cordoned"]).await?;
    kubectl.prints("get nodes", &["SchedulingDisabled"]).await?;
    kubectl.prints("uncordon n1", &["uncordoned"]).await?;
    kubectl
        .prints("drain n1 --force --dry-run=server", &["drained"])
        .await?;
    kubectl.prints("get pod p1", &["p1"]).await?;

    // The budget wants both pods; a drain tries until its time is up.
    kubectl.ok_with("create -f -", BUDGET).await?;
    kubectl
        .ok("wait --for=jsonpath={.status.currentHealthy}=2 pdb/web --timeout 180s")
        .await?;
    kubectl
        .fails(
            "drain n1 --force --timeout 12s",
            "",
            "Cannot evict pod as it would violate the pod's disruption budget",
        )
        .await?;
    kubectl.prints("delete pdb web", &["deleted"]).await?;
    kubectl
        .prints("drain n1 --force --timeout 180s", &["evicted", "drained"])
        .await?;
    kubectl
        .prints("get node n1 -o jsonpath={.spec.unschedulable}", &["true"])
        .await?;

    let (waited, deleted) = tokio::join!(
        kubectl.ok("wait --for=delete pod/p2 --timeout 180s"),
        kubectl.ok("delete pod p2")
    );
    waited?;
    ensure!(deleted?.contains("deleted"), "delete says so");
    kubectl
        .prints("delete deployment web --cascade=foreground --wait=false", &["deleted"])
        .await?;
    watches(kubectl).await?;

    let event = format!(
        "
apiVersion: v1
kind: Event
metadata: {{name: e1}}
involvedObject: {{apiVersion: v1, kind: Pod, name: p1, namespace: {}}}
reason: Tested
message: an event of the test
type: Normal
lastTimestamp: \"2026-01-01T00:00:00Z\"
",
        kubectl.namespace
    );
    kubectl.ok_with("create -f -", &event).await?;
    kubectl
        .prints("get events", &["Tested", "pod/p1", "an event of the test"])
        .await?;
    kubectl.prints("events", &["Tested"]).await?;
    kubectl.prints("events --for pod/p1", &["Tested"]).await?;
    kubectl.prints("get events.events.k8s.io", &["Tested"]).await
}

/// `get -w` prints a line for what is there and one for each change.
async fn watches(kubectl: &Kubectl) -> Result<()> {
    let mut child = kubectl
        .command("get nodes -w --no-headers")
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start kubectl")?;
    let mut lines = BufReader::new(child.stdout.take().context("stdout is piped")?).lines();
    let first = tokio::time::timeout(Duration::from_secs(180), lines.next_line()).await??;
    ensure!(
        first.as_deref().is_some_and(|line| line.starts_with("n1 ")),
        "{first:?}"
    );
    // The watch begins some time after the list was printed: change until a change is seen.
    let change = async {
        for number in 0.. {
            kubectl
                .ok(&format!("label node n1 --overwrite watched=n{number}"))
                .await?;
        }
        anyhow::Ok(())
    };
    let second = tokio::select! {
        line = lines.next_line() => line?,
        ended = change => { ended?; None }
        () = tokio::time::sleep(Duration::from_secs(180)) => None,
    };
    child.kill().await?;
    ensure!(
        second.as_deref().is_some_and(|line| line.starts_with("n1 ")),
        "{second:?}"
    );
    Ok(())
}
