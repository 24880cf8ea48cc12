//! `karpenter cost` against the sandbox over TCP: what it says of a month, and the exit code.

#[path = "cluster/served.rs"]
mod served;

use std::process::Output;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use served::Cluster;

struct World {
    cluster: Cluster,
}

impl World {
    async fn empty() -> Self {
        Self {
            cluster: Cluster::start().await,
        }
    }

    /// With the CRDs, and a controller in a namespace of its own.
    async fn installed() -> Self {
        let world = Self::empty().await;
        let crds = karpenter_api::crd::all()
            .into_iter()
            .chain(karpenter_bizflycloud::node_class::crds());
        for crd in crds {
            world.cluster.sandbox.apply(&crd.to_yaml()).unwrap();
        }
        world.apply(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "nodes"}}));
        world.apply(&json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "karpenter", "namespace": "nodes", "labels": {"app.kubernetes.io/name": "karpenter"}},
            "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {
                "metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "controller", "image": "k"}]},
            }},
        }));
        world
    }

    fn apply(&self, object: &Value) {
        self.cluster.sandbox.apply(&object.to_string()).unwrap();
    }

    fn claim(&self, name: &str, pool: &str, kind: (&str, &str), price: &str) {
        self.apply(&json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
            "metadata": {
                "name": name, "labels": {"karpenter.sh/nodepool": pool},
                "annotations": {"karpenter.bizflycloud.com/hourly-price": price},
            },
            "spec": {"requirements": [], "nodeClassRef": {"group": kind.0, "kind": kind.1, "name": "default"}},
            "status": {"providerID": format!("bizflycloud://{name}")},
        }));
    }

    /// What the controller stored a minute ago, of this month.
    fn snapshot(&self, now: Timestamp) {
        let page = json!({
            "month": now.strftime("%Y-%m").to_string(), "since": "2026-11-03T00:00:00Z",
            "at": now - SignedDuration::from_secs(60), "unwatchedSeconds": 7500,
            "nodePools": [
                {"nodePool": "gone", "currency": "VND", "amount": 500.25},
                {"nodePool": "web", "currency": "VND", "amount": 1_234_567.5},
            ],
            "recommendedAt": now - SignedDuration::from_secs(60),
            "recommendations": [
                {"kind": "spot", "nodePool": "web", "sentence": "2 nodes could be spot", "perMonth": 72_000.0, "currency": "VND"},
                {"kind": "orphan-volume", "resource": "disk-1", "sentence": "has no server", "perMonth": 750.0, "currency": "VND"},
            ],
        });
        self.store(&page.to_string());
    }

    fn store(&self, page: &str) {
        self.apply(&json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "karpenter-bizflycloud-ledger", "namespace": "nodes"},
            "data": {"cost.json": page, "volumes.json": "{}"},
        }));
    }

    async fn cost(&self, arguments: &[&str]) -> Output {
        self.cluster.karpenter(&[&["cost"], arguments].concat()).await
    }

    /// With a snapshot of the month in which the command ran, also if that is the last second of one.
    async fn cost_this_month(&self, arguments: &[&str]) -> Output {
        loop {
            let now = Timestamp::now();
            self.snapshot(now);
            let output = self.cost(arguments).await;
            let month = |at: Timestamp| at.strftime("%Y-%m").to_string();
            if month(now) == month(Timestamp::now()) {
                return output;
            }
        }
    }
}

const BIZFLY: (&str, &str) = ("karpenter.bizflycloud.com", "BizflyCloudNodeClass");
const OTHER: (&str, &str) = ("karpenter.kwok.sh", "KWOKNodeClass");

fn text(output: &Output) -> String {
    assert_eq!(
        output.status.code(),
        Some(0),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout.clone()).unwrap()
}

async fn with_nodes() -> World {
    let world = World::installed().await;
    world.claim("web-1", "web", BIZFLY, "1000.5");
    world.claim("web-2", "web", BIZFLY, "500");
    world.claim("db-1", "db", BIZFLY, "2000");
    world.claim("elsewhere", "kwok", OTHER, "9");
    world
}

#[tokio::test(flavor = "multi_thread")]
async fn pools_their_month_and_what_could_be_saved_are_told() {
    let world = with_nodes().await;
    let told = text(&world.cost_this_month(&[]).await);
    let table: Vec<Vec<&str>> = told
        .lines()
        .take(5)
        .map(|line| {
            line.split("  ")
                .map(str::trim)
                .filter(|cell| !cell.is_empty())
                .collect()
        })
        .collect();
    let since = "2026-11-03 00:00 UTC";
    assert_eq!(
        table,
        [
            vec!["NODEPOOL", "NODES", "PER HOUR", "MONTH TO DATE", "SINCE"],
            vec!["db", "1", "2,000.00 VND", "0.00 VND", since],
            vec!["gone", "0", "0.00 VND", "500.25 VND", since],
            vec!["web", "2", "1,500.50 VND", "1,234,567.50 VND", since],
            vec!["total", "3", "3,500.50 VND", "1,235,067.75 VND"],
        ],
        "{told}"
    );
    assert!(told.contains("\nCounted until "), "{told}");
    assert!(told.contains("\nNobody watched for 2 h 5 min of that time"), "{told}");
    let (_, saved) = told.split_once("\n\n").unwrap();
    let saved: Vec<&str> = saved.lines().collect();
    assert!(saved[0].starts_with("Could be saved per month (720 h"), "{told}");
    assert_eq!(
        saved[1],
        "72,000.00 VND  spot            NodePool web: 2 nodes could be spot"
    );
    assert_eq!(saved[2], "   750.00 VND  orphan-volume   disk-1: has no server");
    assert_eq!(saved.len(), 3, "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_json_has_names_that_stay() {
    let world = with_nodes().await;
    let output = world.cost_this_month(&["-o", "json"]).await;
    let mut told: Value = serde_json::from_str(&text(&output)).unwrap();
    let snapshot = told["snapshot"].take();
    for key in ["month", "since", "at", "unwatchedSeconds"] {
        assert!(!snapshot[key].is_null(), "{key}: {snapshot}");
    }
    assert!(told["recommendedAt"].take().is_string());
    let since = "2026-11-03T00:00:00Z";
    assert_eq!(
        told,
        json!({
            "apiVersion": "karpenter-rs/cost/v1",
            "nodePools": [
                {"nodePool": "db", "nodes": 1, "perHour": 2000.0, "monthToDate": 0.0, "since": since, "currency": "VND"},
                {"nodePool": "gone", "nodes": 0, "perHour": 0.0, "monthToDate": 500.25, "since": since, "currency": "VND"},
                {"nodePool": "web", "nodes": 2, "perHour": 1500.5, "monthToDate": 1_234_567.5, "since": since, "currency": "VND"},
            ],
            "totals": [{"nodes": 3, "perHour": 3500.5, "monthToDate": 1_235_067.75, "currency": "VND"}],
            "recommendations": [
                {
                    "kind": "spot", "nodePool": "web", "resource": null, "sentence": "2 nodes could be spot",
                    "perMonth": 72_000.0, "currency": "VND",
                },
                {
                    "kind": "orphan-volume", "nodePool": null, "resource": "disk-1", "sentence": "has no server",
                    "perMonth": 750.0, "currency": "VND",
                },
            ],
            "recommendedAt": null,
            "snapshot": null,
        })
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_there_yet_is_said() {
    let world = World::installed().await;
    let told = text(&world.cost(&[]).await);
    assert!(
        told.starts_with("There are no NodeClaims of BizFly Cloud in this cluster.\n"),
        "{told}"
    );
    world.claim("web-1", "web", BIZFLY, "1000");
    let told = text(&world.cost(&[]).await);
    assert!(
        told.contains("No snapshot yet: the controller stores one in ConfigMap nodes/karpenter-bizflycloud-ledger"),
        "{told}"
    );
    let row = told.lines().find(|line| line.starts_with("web")).unwrap();
    assert!(row.ends_with("1,000.00 VND              -  -"), "{told}");
    let elsewhere = text(&world.cost(&["--namespace", "default"]).await);
    assert!(
        elsewhere.contains("ConfigMap default/karpenter-bizflycloud-ledger"),
        "{elsewhere}"
    );
    let report: Value = serde_json::from_str(&text(&world.cost(&["-o", "json"]).await)).unwrap();
    assert_eq!(
        (&report["snapshot"], &report["recommendations"]),
        (&Value::Null, &json!([]))
    );
    assert_eq!(report["nodePools"][0]["monthToDate"], Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_month_that_nobody_counted_is_not_the_last_one_that_somebody_did() {
    let world = with_nodes().await;
    let old: Timestamp = "2020-02-03T00:00:00Z".parse().unwrap();
    world.snapshot(old);
    let told = text(&world.cost(&[]).await);
    assert!(
        told.contains("This month was not counted yet: the last snapshot is of 2020-02-02 23:59 UTC"),
        "{told}"
    );
    assert!(!told.contains("1,234,567"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_read_is_exit_code_1_and_no_cluster_is_3() {
    let world = World::empty().await;
    let output = world.cost(&[]).await;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("does not know NodeClaims; install the CRDs"), "{said}");

    let world = World::installed().await;
    world.store("{not json");
    let output = world.cost(&[]).await;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("ConfigMap nodes/karpenter-bizflycloud-ledger: cost.json is not understood"),
        "{said}"
    );

    // A port that was free a moment ago.
    let closed = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let kubeconfig = world.cluster.kubeconfig();
    let text = std::fs::read_to_string(&kubeconfig).unwrap();
    let server = text.lines().find(|line| line.contains("server:")).unwrap();
    let (indent, _) = server.split_once("server:").unwrap();
    std::fs::write(
        &kubeconfig,
        text.replace(server, &format!("{indent}server: http://{closed}")),
    )
    .unwrap();
    let output = world.cost(&[]).await;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.starts_with("error: the cluster can't be reached"), "{said}");
    assert!(output.stdout.is_empty());

    std::fs::remove_file(&kubeconfig).unwrap();
    let output = world.cost(&[]).await;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.starts_with("error: the cluster can't be reached"), "{said}");
}
