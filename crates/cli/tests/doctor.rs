//! `karpenter doctor` against the sandbox over TCP: what it finds, what it says, and the exit code.

#[path = "cluster/served.rs"]
mod served;

use std::process::{Command, Output};

use karpenter_bizflycloud::sim::{self, SimOptions, SimulatedBizfly};
use serde_json::Value;

use served::Cluster;

struct World {
    cluster: Cluster,
}

impl World {
    async fn start() -> Self {
        Self {
            cluster: Cluster::start().await,
        }
    }

    /// With the CRDs, the chart's manifests, a ready controller that leads, and the example's NodePool, ready.
    async fn installed() -> Self {
        let world = Self::start().await;
        let crds = Command::new(env!("CARGO_BIN_EXE_karpenter"))
            .arg("crds")
            .output()
            .unwrap();
        world
            .cluster
            .sandbox
            .apply(&String::from_utf8(crds.stdout).unwrap())
            .unwrap();
        world.apply("apiVersion: v1\nkind: Namespace\nmetadata: {name: karpenter}");
        world.apply(
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: karpenter, namespace: karpenter, \
             labels: {app.kubernetes.io/name: karpenter}}\nspec: {replicas: 2, selector: {matchLabels: {a: b}}, template: \
             {metadata: {labels: {a: b}}, spec: {serviceAccountName: karpenter, containers: [{name: controller, image: k, \
             args: [controller, --provider, kwok]}]}}}\nstatus: {replicas: 2, readyReplicas: 2}",
        );
        world.lease(jiff::Timestamp::now());
        let pool = include_str!("../../../examples/kwok/nodepool.yaml");
        world.apply(&format!(
            "{pool}status: {{conditions: [{{type: Ready, status: \"True\", reason: Ready, message: '', lastTransitionTime: \
             2026-01-01T00:00:00Z}}]}}"
        ));
        world
    }

    fn lease(&self, renewed: jiff::Timestamp) {
        self.apply(&format!(
            "apiVersion: coordination.k8s.io/v1\nkind: Lease\nmetadata: {{name: karpenter-leader-election, namespace: karpenter}}\n\
             spec: {{holderIdentity: karpenter-0, renewTime: \"{renewed:.6}\"}}"
        ));
    }

    fn apply(&self, yaml: &str) {
        self.cluster.sandbox.apply(yaml).unwrap();
    }

    async fn doctor(&self, arguments: &[&str]) -> Output {
        self.cluster.karpenter(&[&["doctor"], arguments].concat()).await
    }

    async fn report(&self, arguments: &[&str]) -> (i32, Vec<Value>) {
        let output = self.doctor(&[arguments, &["-o", "json"]].concat()).await;
        let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
            panic!(
                "{error}: {}{}",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            )
        });
        assert_eq!(report["apiVersion"], "karpenter-rs/doctor/v1");
        (
            output.status.code().unwrap(),
            report["checks"].as_array().unwrap().clone(),
        )
    }
}

/// The findings of one check as `status message`.
fn findings(checks: &[Value], check: &str) -> Vec<String> {
    checks
        .iter()
        .filter(|finding| finding["check"] == check)
        .map(|finding| {
            format!(
                "{} {}",
                finding["status"].as_str().unwrap(),
                finding["message"].as_str().unwrap()
            )
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_without_karpenter_fails_and_says_what_to_install() {
    let world = World::start().await;
    let (code, checks) = world.report(&["--provider", "kwok"]).await;
    assert_eq!(code, 1);
    assert!(
        findings(&checks, "cluster")[0].starts_with("ok Kubernetes v1."),
        "{checks:?}"
    );
    assert!(findings(&checks, "clock")[0].starts_with("ok "), "{checks:?}");
    assert!(
        findings(&checks, "controller")[0].starts_with("warn no Deployment"),
        "{checks:?}"
    );
    assert!(
        findings(&checks, "crds").contains(&"fail nodepools.karpenter.sh is not installed".to_owned()),
        "{checks:?}"
    );
    let remedy = checks.iter().find(|finding| finding["check"] == "crds").unwrap()["remedy"]
        .as_str()
        .unwrap();
    assert!(remedy.contains("karpenter crds | kubectl apply"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_healthy_installation_passes() {
    let world = World::installed().await;
    let (code, checks) = world.report(&[]).await;
    assert_eq!(code, 0, "{checks:?}");
    assert_eq!(
        findings(&checks, "crds"),
        ["ok all 5 are installed and current"].map(str::to_owned),
        "{checks:?}"
    );
    assert_eq!(findings(&checks, "leader"), ["ok karpenter-0 leads"]);
    let rights = findings(&checks, "rights");
    assert!(
        rights[0].starts_with("ok system:serviceaccount:karpenter:karpenter may do all "),
        "{rights:?}"
    );
    assert_eq!(findings(&checks, "nodepools"), ["ok default is ready"]);
    assert_eq!(findings(&checks, "nodeclasses"), ["ok KWOKNodeClass/default is ready"]);
    assert_eq!(
        findings(&checks, "cloud"),
        ["ok kwok answers; this cluster has 0 machines"]
    );
    assert!(
        findings(&checks, "catalogue")[0].starts_with("ok default: "),
        "{checks:?}"
    );
    assert_eq!(findings(&checks, "leftovers").len(), 1, "{checks:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crd_of_another_version_a_dead_leader_and_a_vanished_machine_are_found() {
    let world = World::installed().await;
    world.lease(jiff::Timestamp::now() - jiff::SignedDuration::from_secs(120));
    let crds: kube::Api<k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition> =
        kube::Api::all(world.cluster.sandbox.client());
    let patch = serde_json::json!([{
        "op": "replace", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/weight/maximum", "value": 7,
    }]);
    let patch: kube::api::Patch<()> = kube::api::Patch::Json(serde_json::from_value(patch).unwrap());
    crds.patch("nodepools.karpenter.sh", &kube::api::PatchParams::default(), &patch)
        .await
        .unwrap();
    world.apply(
        "apiVersion: karpenter.sh/v1\nkind: NodeClaim\nmetadata: {name: lost}\nspec: {requirements: [], nodeClassRef: {group: \
         karpenter.kwok.sh, kind: KWOKNodeClass, name: default}}\nstatus: {providerID: kwok://lost}",
    );
    let (code, checks) = world.report(&[]).await;
    assert_eq!(code, 1);
    assert_eq!(
        findings(&checks, "leader"),
        ["fail karpenter-0 holds the Lease but does not renew it"]
    );
    let crds = findings(&checks, "crds");
    assert!(
        crds[0].starts_with("warn nodepools.karpenter.sh is not that of this version: spec.versions[0]"),
        "{crds:?}"
    );
    assert_eq!(
        findings(&checks, "leftovers"),
        ["warn NodeClaims without a machine: lost"]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_does_not_answer_is_exit_code_3() {
    let world = World::start().await;
    let kubeconfig = world.cluster.kubeconfig();
    let text = std::fs::read_to_string(&kubeconfig).unwrap();
    // A port that was free a moment ago.
    let closed = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let server = text.lines().find(|line| line.contains("server:")).unwrap();
    let (indent, _) = server.split_once("server:").unwrap();
    std::fs::write(
        &kubeconfig,
        text.replace(server, &format!("{indent}server: http://{closed}")),
    )
    .unwrap();
    let output = world.doctor(&[]).await;
    assert_eq!(
        output.status.code(),
        Some(3),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
    assert!(String::from_utf8_lossy(&output.stdout).contains("fail  cluster  can't be reached"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_text_is_one_line_a_check_and_a_sum() {
    let world = World::installed().await;
    let output = world.doctor(&[]).await;
    let text = String::from_utf8(output.stdout).unwrap();
    let (checks, sum) = text.trim_end().split_once("\n\n").unwrap();
    assert!(
        checks
            .lines()
            .all(|line| ["ok  ", "warn", "fail"].contains(&&line[..4])),
        "{text}"
    );
    let ok = checks.lines().filter(|line| line.starts_with("ok")).count();
    assert!(sum.starts_with(&format!("{ok} ok, ")), "{text}");
}

/// A cluster whose ProviderConfig leads to a simulated BizFly Cloud, with this password in its Secret.
async fn on_bizfly(password: &str) -> (World, SimulatedBizfly) {
    let cloud = SimulatedBizfly::start(karpenter_core::clock::Clock::system(), SimOptions::default())
        .await
        .unwrap();
    let world = World::start().await;
    for crd in karpenter_api::crd::all() {
        world.apply(&crd.to_yaml());
    }
    for crd in karpenter_bizflycloud::node_class::crds() {
        world.apply(&crd.to_yaml());
    }
    world.apply(&format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: bizflycloud-credentials, namespace: default}}\n\
         stringData: {{email: {}, password: {password}}}",
        sim::EMAIL
    ));
    world.apply(&format!(
        "apiVersion: bizflycloud.karpenter.sh/v1alpha1\nkind: ProviderConfig\nmetadata: {{name: default}}\nspec: {{region: HN, \
         secretRef: {{name: bizflycloud-credentials, namespace: default}}, cloudConfig: {{apiEndpoint: '{}'}}}}",
        cloud.url()
    ));
    (world, cloud)
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_that_bizfly_refuses_are_exit_code_1_with_the_cause_and_without_the_password() {
    let (world, _cloud) = on_bizfly("wrong-password").await;
    let (code, checks) = world.report(&["--provider", "bizflycloud"]).await;
    assert_eq!(code, 1, "{checks:?}");
    let credentials = findings(&checks, "credentials");
    assert!(
        credentials.len() == 1
            && credentials[0].starts_with("fail default: token: BizFly Cloud does not accept the credentials"),
        "{credentials:?}"
    );
    let found = checks.iter().find(|finding| finding["check"] == "credentials").unwrap();
    assert_eq!(found["remedy"], "correct the Secret that the ProviderConfig names");
    let output = world.doctor(&["--provider", "bizflycloud"]).await;
    assert_eq!(output.status.code(), Some(1));
    let told = [output.stdout, output.stderr].concat();
    let told = String::from_utf8_lossy(&told);
    assert!(told.contains("fail  credentials"), "{told}");
    assert!(!told.contains("wrong-password"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_bizfly_says_of_an_account_in_order_is_told() {
    let (world, _cloud) = on_bizfly(sim::PASSWORD).await;
    let (_, checks) = world.report(&["--provider", "bizflycloud"]).await;
    for check in ["credentials", "catalogue", "region", "balance", "cloud"] {
        let told = findings(&checks, check);
        assert!(
            !told.is_empty() && told.iter().all(|own| own.starts_with("ok ")),
            "{check}: {told:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn orphan_volumes_are_bizflys_alone_and_their_deletion_must_be_asked_for() {
    let (world, _cloud) = on_bizfly(sim::PASSWORD).await;
    let (code, checks) = world.report(&["--provider", "bizflycloud", "--orphan-volumes"]).await;
    assert_eq!(code, 0);
    assert_eq!(findings(&checks, "orphan-volumes"), ["ok every root disk has a server"]);
    assert_eq!(checks.len(), 2, "nothing else is looked at but the cluster");
    let unknown = ["--provider", "bizflycloud", "--orphan-volumes", "--delete=nobodys"];
    let (code, checks) = world.report(&unknown).await;
    assert_eq!(code, 1);
    assert!(findings(&checks, "orphan-volumes")[1].contains("nobodys is none of them"));
    for wrong in [
        ["--orphan-volumes", "--provider", "kwok"],
        ["--delete", "--provider", "bizflycloud"],
    ] {
        assert_eq!(world.doctor(&wrong).await.status.code(), Some(2), "{wrong:?}");
    }
    let (world, _cloud) = on_bizfly("wrong-password").await;
    let (code, checks) = world.report(&["--provider", "bizflycloud", "--orphan-volumes"]).await;
    assert_eq!(code, 1);
    let told = findings(&checks, "orphan-volumes");
    assert!(told[0].contains("does not accept the credentials"), "{told:?}");
}
