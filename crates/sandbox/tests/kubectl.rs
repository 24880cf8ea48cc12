//! kubectl against the TCP port: every command that users of a cluster type.
//!
//! Needs `kubectl` on the PATH (or `KUBECTL`); without it the tests say so and pass.

#![allow(clippy::print_stdout)]

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Output, Stdio};

use k8s_openapi::api::core::v1::{Node, Pod};
use karpenter_sandbox::tcp::TcpServer;
use karpenter_sandbox::{Clock, Sandbox};
use tempfile::TempDir;

/// A sandbox on a port and a kubectl that talks to it, with a discovery cache of its own.
struct Kubectl {
    sandbox: Sandbox,
    server: TcpServer,
    directory: TempDir,
    binary: String,
}

impl Kubectl {
    /// `None`, with a note, if there is no kubectl here.
    async fn start() -> Option<Self> {
        let binary = std::env::var("KUBECTL").unwrap_or_else(|_| "kubectl".into());
        if Command::new(&binary).args(["version", "--client"]).output().is_err() {
            println!("skipped: there is no kubectl on the PATH");
            return None;
        }
        let sandbox = Sandbox::builder().clock(Clock::real()).start();
        let server = sandbox.serve_tcp("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let directory = TempDir::new().unwrap();
        server.write_kubeconfig(&directory.path().join("config")).unwrap();
        for crd in karpenter_api::crd::all() {
            sandbox.apply(&serde_json::to_string(crd.as_value()).unwrap()).unwrap();
        }
        sandbox.apply(CLUSTER).unwrap();
        Some(Self {
            sandbox,
            server,
            directory,
            binary,
        })
    }

    fn command(&self, line: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        command
            .arg("--kubeconfig")
            .arg(self.directory.path().join("config"))
            .arg("--cache-dir")
            .arg(self.directory.path().join("cache"))
            .args(line)
            .env("EDITOR", "sed -i s/edited=no/edited=yes/")
            .env("HOME", self.directory.path());
        command
    }

    async fn run(&self, line: &str, input: &str) -> Output {
        let words: Vec<&str> = line.split(' ').collect();
        let mut command = self.command(&words);
        let input = input.to_owned();
        tokio::task::spawn_blocking(move || {
            let mut child = command
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .expect("kubectl starts");
            child
                .stdin
                .take()
                .expect("stdin is piped")
                .write_all(input.as_bytes())
                .expect("kubectl reads its input");
            child.wait_with_output().expect("kubectl ends")
        })
        .await
        .unwrap()
    }

    /// Runs a command that must succeed; its standard output.
    async fn ok(&self, line: &str) -> String {
        self.ok_with(line, "").await
    }

    async fn ok_with(&self, line: &str, input: &str) -> String {
        let output = self.run(line, input).await;
        let (stdout, stderr) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        assert!(output.status.success(), "kubectl {line}\n{stdout}\n{stderr}");
        stdout.into_owned()
    }

    /// Runs a command that must fail; its standard error.
    async fn fails(&self, line: &str, input: &str) -> String {
        let output = self.run(line, input).await;
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "kubectl {line} succeeded");
        stderr
    }
}

const CLUSTER: &str = r#"
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {topology.kubernetes.io/zone: z1}, annotations: {kwok.x-k8s.io/node: fake}}
status:
  capacity: {cpu: 4, memory: 8Gi, pods: 110}
  conditions: [{type: Ready, status: "True"}]
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

fn assert_has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing in\n{text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_reads() {
    let Some(kubectl) = Kubectl::start().await else { return };
    assert_has(&kubectl.ok("version").await, &["Server Version: v1.36.3+sandbox"]);
    assert_has(
        &kubectl.ok("api-resources").await,
        &["nodepools", "karpenter.sh/v1", "poddisruptionbudgets"],
    );
    assert_has(
        &kubectl.ok("get pods -o wide").await,
        &["NOMINATED NODE", "p1 ", "p2 ", "n1"],
    );
    assert_has(&kubectl.ok("get pods -A").await, &["NAMESPACE", "default"]);
    assert_has(&kubectl.ok("get pod p1 -o yaml").await, &["kind: Pod", "nodeName: n1"]);
    assert_has(&kubectl.ok("get pods -o name").await, &["pod/p1\npod/p2"]);
    assert_has(&kubectl.ok("get pods --sort-by .metadata.name").await, &["p1"]);
    assert_has(&kubectl.ok("get pods --chunk-size 1").await, &["p1", "p2"]);
    assert!(!kubectl.ok("get pods -l app=x").await.contains("p2"));
    assert!(
        !kubectl
            .ok("get pods --field-selector spec.nodeName=n1")
            .await
            .contains("p2")
    );
    assert_has(&kubectl.ok("get nodes").await, &["n1", "Ready"]);
    assert_has(
        &kubectl.ok("get karpenter").await,
        &["nodepool.karpenter.sh/dynamic", "nodepool.karpenter.sh/static"],
    );
    assert_has(&kubectl.ok("get all -A").await, &["service/kubernetes", "pod/p1"]);
    assert_has(
        &kubectl.ok("describe node n1").await,
        &["Allocatable:", "default", "p1"],
    );
    assert_has(
        &kubectl.ok("describe pod p1").await,
        &["Service Account:  default", "Tolerations:"],
    );
    assert_has(
        &kubectl.ok("describe nodepool dynamic").await,
        &["Consolidation Policy:"],
    );
    assert_has(
        &kubectl.ok("explain nodepool.spec").await,
        &["disruption", "-required-"],
    );
    assert_has(
        &kubectl.ok("explain nodepool.spec.disruption.budgets").await,
        &["nodes", "schedule"],
    );
    assert_has(&kubectl.fails("get pod nope", "").await, &["pods \"nope\" not found"]);
    assert_has(&kubectl.fails("top nodes", "").await, &["Metrics API not available"]);
    assert_has(&kubectl.fails("logs p1", "").await, &["the sandbox runs no containers"]);
    assert_has(
        &kubectl.fails("create configmap x --from-literal a=b", "").await,
        &["kubectl create -f -"],
    );
    assert!(kubectl.server.url().starts_with("http://127.0.0.1:"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_applies_and_changes() {
    let Some(kubectl) = Kubectl::start().await else { return };
    let apply = "apply -f -";
    assert_has(&kubectl.ok_with(apply, DEPLOYMENT).await, &["created"]);
    assert_has(&kubectl.ok_with(apply, DEPLOYMENT).await, &["unchanged"]);
    let changed = DEPLOYMENT.replace("nginx:1", "nginx:2");
    assert_eq!(kubectl.run("diff -f -", &changed).await.status.code(), Some(1));
    assert_has(&kubectl.ok_with(apply, &changed).await, &["configured"]);
    assert_eq!(kubectl.run("diff -f -", &changed).await.status.code(), Some(0));
    assert_has(
        &kubectl.ok_with("apply --server-side -f -", &changed).await,
        &["serverside-applied"],
    );
    assert_has(
        &kubectl
            .ok_with("apply --server-side --force-conflicts -f -", DEPLOYMENT)
            .await,
        &["serverside"],
    );
    assert_has(&kubectl.ok("scale deployment web --replicas 5").await, &["scaled"]);
    assert_has(
        &kubectl.ok("get deployment web -o jsonpath={.spec.replicas}").await,
        &["5"],
    );
    assert_has(
        &kubectl.ok("set image deployment/web c=nginx:3").await,
        &["image updated"],
    );
    assert_has(&kubectl.ok("rollout restart deployment/web").await, &["restarted"]);
    assert_has(
        &kubectl.ok("describe deployment web").await,
        &["nginx:3", "restartedAt"],
    );
    assert_has(&kubectl.ok("label deployment web a=b").await, &["labeled"]);
    assert_has(&kubectl.ok("annotate deployment web a=b").await, &["annotated"]);
    assert_has(&kubectl.ok("edit pod p1").await, &["edited"]);
    assert_has(
        &kubectl.ok("get pod p1 -o jsonpath={.metadata.annotations.note}").await,
        &["edited=yes"],
    );
    assert_has(
        &kubectl
            .ok(r#"patch node n1 -p {"metadata":{"labels":{"s":"1"}}}"#)
            .await,
        &["patched"],
    );
    assert_has(
        &kubectl
            .ok(r#"patch node n1 --type merge -p {"metadata":{"labels":{"m":"1"}}}"#)
            .await,
        &["patched"],
    );
    let json = r#"patch node n1 --type json -p [{"op":"add","path":"/metadata/labels/j","value":"1"}]"#;
    assert_has(&kubectl.ok(json).await, &["patched"]);
    assert_has(&kubectl.ok("get node n1 --show-labels").await, &["s=1", "m=1", "j=1"]);
    assert_has(&kubectl.ok("scale nodepool static --replicas 3").await, &["scaled"]);
    assert_has(
        &kubectl.fails("scale nodepool dynamic --replicas 3", "").await,
        &["is invalid"],
    );
    assert_has(
        &kubectl
            .fails(r#"patch nodepool dynamic -p {"spec":{"weight":1}}"#, "")
            .await,
        &["not supported"],
    );
    assert_has(
        &kubectl
            .fails(apply, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndatum: {}")
            .await,
        &["unknown field"],
    );
    let map = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {x: '1'}";
    assert_has(&kubectl.ok_with("create -f -", map).await, &["created"]);
    assert_has(&kubectl.fails("create -f -", map).await, &["already exists"]);
    assert_has(
        &kubectl.ok_with("replace -f -", &map.replace("'1'", "'2'")).await,
        &["replaced"],
    );
    assert_has(&kubectl.ok("delete configmap a").await, &["deleted"]);
    assert_has(&kubectl.ok("delete nodepools --all").await, &["dynamic", "static"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_drains_waits_and_watches() {
    let Some(kubectl) = Kubectl::start().await else { return };
    kubectl.ok_with("create -f -", DEPLOYMENT).await;
    assert_has(
        &kubectl.ok("rollout status deployment/web --timeout 60s").await,
        &["successfully rolled out"],
    );
    assert_has(&kubectl.ok("rollout history deployment/web").await, &["REVISION"]);
    assert_has(
        &kubectl
            .ok("wait --for=condition=Available deployment/web --timeout 10s")
            .await,
        &["condition met"],
    );
    assert_has(
        &kubectl
            .ok("wait --for=jsonpath={.spec.replicas}=2 deployment/web --timeout 10s")
            .await,
        &["met"],
    );
    assert_has(
        &kubectl
            .ok("wait --for=condition=Ready pod -l app=web --timeout 10s")
            .await,
        &["condition met"],
    );

    let objects = kubectl.sandbox.objects();
    assert_has(&kubectl.ok("taint node n1 a=b:NoSchedule").await, &["tainted"]);
    assert_has(&kubectl.ok("taint node n1 a=b:NoSchedule-").await, &["untainted"]);
    assert_has(&kubectl.ok("cordon n1").await, &["cordoned"]);
    assert_has(&kubectl.ok("get nodes").await, &["SchedulingDisabled"]);
    assert_has(&kubectl.ok("uncordon n1").await, &["uncordoned"]);
    assert_has(&kubectl.ok("drain n1 --force --dry-run=server").await, &["drained"]);
    assert!(objects.get::<Pod>("default", "p1").is_some());
    assert_has(
        &kubectl.ok("drain n1 --force --timeout 20s").await,
        &["evicted", "drained"],
    );
    assert!(objects.get::<Pod>("default", "p1").is_none());
    assert_eq!(
        objects.get::<Node>("", "n1").unwrap().spec.unwrap().unschedulable,
        Some(true)
    );

    let waiting = kubectl.ok("wait --for=delete pod/p2 --timeout 10s");
    let deleting = kubectl.ok("delete pod p2");
    let (_, deleted) = tokio::join!(waiting, deleting);
    assert_has(&deleted, &["deleted"]);
    assert_has(
        &kubectl
            .ok("delete deployment web --cascade=foreground --wait=false")
            .await,
        &["deleted"],
    );

    let mut child = kubectl
        .command(&["get", "nodes", "-w", "--no-headers"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("kubectl starts");
    let stdout = child.stdout.take().expect("stdout is piped");
    let label = kubectl.ok("label node n1 watched=yes");
    let lines = tokio::task::spawn_blocking(move || {
        BufReader::new(stdout)
            .lines()
            .take(2)
            .map(|line| line.unwrap())
            .collect::<Vec<_>>()
    });
    label.await;
    // Labelling again makes sure that one change comes after the watch began.
    let mut number = 0;
    while !lines.is_finished() {
        number += 1;
        kubectl
            .ok(&format!("label node n1 --overwrite watched=n{number}"))
            .await;
    }
    let lines = lines.await.unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(lines.iter().all(|line| line.starts_with("n1 ")), "{lines:?}");

    let event = r#"
apiVersion: v1
kind: Event
metadata: {name: e1, namespace: default}
involvedObject: {kind: Node, name: n1}
reason: Tested
message: an event of the test
type: Normal
lastTimestamp: "2026-01-01T00:00:00Z"
"#;
    kubectl.ok_with("create -f -", event).await;
    assert_has(
        &kubectl.ok("get events").await,
        &["Tested", "node/n1", "an event of the test"],
    );
    assert_has(&kubectl.ok("events").await, &["Tested"]);
    assert_has(&kubectl.ok("get events.events.k8s.io").await, &["Tested"]);
}
