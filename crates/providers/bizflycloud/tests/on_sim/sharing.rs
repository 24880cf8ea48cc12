//! Two clusters in one project that divide its quota by weight.

use std::{collections::BTreeMap, time::Duration};

use futures::future::join_all;
use karpenter_api::{NodeClaim, labels::INSTANCE_TYPE};
use karpenter_bizflycloud::{
    BizflyCloudProvider,
    capacity_share::BizflyCapacityShare,
    sim::{self, Fault, Often, Operation},
};
use karpenter_cloud::{CloudProvider, LaunchEffect};
use karpenter_sandbox::Sandbox;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::environment::{World, claim, secret, settings};

fn only(flavor: &str) -> Value {
    json!([{"key": INSTANCE_TYPE, "operator": "In", "values": [flavor]}])
}

/// A world whose project has room for five servers of four vCPUs, shared by this cluster with that weight.
async fn world(weight: u32) -> World {
    let world = World::start().await;
    world.apply(&world.config(json!({
        "region": "HN", "quota": {"vCPU": 20}, "coordination": {"mode": "Ledger", "weight": weight},
    })));
    world.clock.sleep(Duration::from_secs(3)).await;
    world
}

/// Another cluster's controller in the same project, with the same hub.
fn neighbour(world: &World) -> BizflyCloudProvider {
    let mut settings = settings(&world.in_flight);
    settings.cluster_name = "staging".to_owned();
    BizflyCloudProvider::new(world.sandbox.client(), world.clock.clone(), settings)
}

async fn launch(provider: &BizflyCloudProvider, numbers: std::ops::Range<u32>) -> usize {
    let mut launched = 0;
    for number in numbers {
        launched += usize::from(provider.create(&claim(number, only("nix.4c_8g"))).await.is_ok());
    }
    launched
}

#[tokio::test]
async fn what_nobody_else_wants_is_had_by_whoever_comes() {
    let world = world(1).await;
    let other = neighbour(&world);
    other.share().await.expect("told");
    world.provider.share().await.expect("told");
    assert_eq!(launch(&world.provider, 1..7).await, 5, "all of the quota, and no more");
    world.provider.share().await.expect("told");
    let shares = world.sandbox.objects().list::<BizflyCapacityShare>("");
    let own = shares.iter().find(|share| share.spec.cluster == "prod").expect("told");
    assert_eq!(
        (own.spec.used.vcpu, own.spec.used.servers, own.spec.used.ram_gib),
        (20, 5, 40)
    );
    assert_eq!(
        (own.spec.wanted.vcpu, own.spec.wanted.servers),
        (4, 1),
        "the sixth found no room"
    );
    let other = shares
        .iter()
        .find(|share| share.spec.cluster == "staging")
        .expect("told");
    assert_eq!((other.spec.used.vcpu, other.spec.wanted.vcpu), (0, 0));
}

#[tokio::test]
async fn what_another_cluster_waits_for_is_left_to_it_by_weight() {
    let world = world(1).await;
    let other = neighbour(&world);
    assert_eq!(launch(&world.provider, 1..6).await, 5);
    // It wants as much as there is, and gets nothing yet.
    assert_eq!(launch(&other, 10..15).await, 0);
    other.share().await.expect("told");
    world.provider.share().await.expect("told");
    // One of ours ends: that is the other's now.
    let ours = world.provider.list().await.expect("a list");
    world
        .cloud
        .vanish(ours[0].provider_id.strip_prefix("bizflycloud://").expect("ours"));
    world.clock.sleep(Duration::from_secs(15)).await;
    other.share().await.expect("told");
    world.provider.share().await.expect("told");
    let error = world
        .provider
        .create(&claim(6, only("nix.4c_8g")))
        .await
        .expect_err("over our share");
    assert_eq!(error.launch_effect(), LaunchEffect::DeleteForCapacity);
    let sentence = "of the 20 of spec.quota this cluster's share by weight is";
    assert!(error.to_string().contains(sentence), "{error}");
    // It asks again once its refusal is forgotten.
    world.clock.sleep(Duration::from_secs(185)).await;
    other.share().await.expect("told");
    world.provider.share().await.expect("told");
    let error = world.provider.create(&claim(7, only("nix.4c_8g"))).await;
    let error = error.expect_err("it is still kept").to_string();
    assert!(error.contains(sentence), "{error}");
    other.share().await.expect("told");
    let made = other.create(&claim(10, only("nix.4c_8g"))).await;
    made.expect("what was left to it");
}

#[tokio::test]
async fn what_a_silent_cluster_wanted_is_forgotten() {
    let world = world(1).await;
    let other = neighbour(&world);
    assert_eq!(launch(&world.provider, 1..6).await, 5);
    assert_eq!(launch(&other, 10..15).await, 0);
    other.share().await.expect("told");
    world.provider.share().await.expect("told");
    let ours = world.provider.list().await.expect("a list");
    world
        .cloud
        .vanish(ours[0].provider_id.strip_prefix("bizflycloud://").expect("ours"));
    world.clock.sleep(Duration::from_secs(15)).await;
    let error = world.provider.create(&claim(6, only("nix.4c_8g"))).await;
    let error = error.expect_err("it waits for it").to_string();
    assert!(error.contains("this cluster's share by weight is"), "{error}");
    // Nothing is heard of it for longer than its lease, nor of the refusal that was ours.
    world.clock.sleep(Duration::from_secs(200)).await;
    world.provider.share().await.expect("told");
    let made = world.provider.create(&claim(7, only("nix.4c_8g"))).await;
    made.expect("nobody waits for it any more");
}

#[tokio::test]
async fn a_hub_that_cannot_be_reached_is_told_and_does_not_stop_launches() {
    let world = world(1).await;
    world.apply(&world.config(json!({
        "region": "HN", "quota": {"vCPU": 20},
        "coordination": {"mode": "Ledger", "hubSecretRef": {"name": "hub", "namespace": "default"}},
    })));
    world.clock.sleep(Duration::from_secs(3)).await;
    let error = world.provider.share().await.expect_err("no Secret").to_string();
    assert!(
        error.contains("secret default/hub of the hub does not exist"),
        "{error}"
    );
    let mut broken = secret("x");
    broken["metadata"]["name"] = json!("hub");
    broken["stringData"] = json!({"kubeconfig": "users: [{name: a, user: {token: hunter2}}"});
    world.apply(&broken);
    let error = world.provider.share().await.expect_err("no kubeconfig").to_string();
    assert!(
        error.contains("leads to no cluster") && !error.contains("hunter2"),
        "{error}"
    );
    assert!(!world.events("HubUnreachable").is_empty());
    assert_eq!(launch(&world.provider, 1..2).await, 1);
}

#[tokio::test]
async fn a_hub_that_never_answers_is_told_and_keeps_nobody_from_another() {
    let world = World::start().await;
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = silent.local_addr().expect("bound");
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "hub",
        "clusters": [{"name": "hub", "cluster": {"server": format!("http://{address}")}}],
        "contexts": [{"name": "hub", "context": {"cluster": "hub", "user": "hub"}}],
        "users": [{"name": "hub", "user": {"token": "hunter2"}}],
    });
    let mut hub = secret("x");
    hub["metadata"]["name"] = json!("hub");
    hub["stringData"] = json!({"kubeconfig": kubeconfig.to_string()});
    world.apply(&hub);
    world.apply(&world.config(json!({
        "region": "HN", "quota": {"vCPU": 20},
        "coordination": {"mode": "Ledger", "hubSecretRef": {"name": "hub", "namespace": "default"}},
    })));
    let mut second = world.config(json!({"region": "HN", "coordination": {"mode": "Ledger"}}));
    second["metadata"]["name"] = json!("second");
    world.apply(&second);
    world.clock.sleep(Duration::from_secs(3)).await;
    let error = world.provider.share().await.expect_err("no answer").to_string();
    assert!(error.contains("the hub did not answer in time"), "{error}");
    assert_eq!(world.events("HubUnreachable").len(), 1);
    let told = world.sandbox.objects().list::<BizflyCapacityShare>("");
    assert_eq!(told.len(), 1, "by the other account, in its hub");
    let idle = world.events("NoQuotaToShare");
    assert!(idle.len() == 1 && idle[0].contains("spec.quota"), "{idle:?}");
}

/// The servers that each of two clusters has by now.
fn by_cluster(world: &World) -> (usize, usize) {
    let of = |cluster: &str| {
        let servers = world.cloud.servers().into_iter();
        let own = servers.filter(|server| {
            server
                .metadata
                .get("karpenter.bizflycloud.sh/cluster")
                .is_some_and(|own| own == cluster)
        });
        own.count()
    };
    (of("prod"), of("staging"))
}

#[tokio::test]
async fn two_clusters_share_a_quota_through_the_hub_of_a_third_and_never_exceed_it() {
    let world = World::start().await;
    // The hub is reached over its socket with a kubeconfig, as from another cluster.
    let hub = Sandbox::builder().api_server_only().start();
    for crd in karpenter_bizflycloud::node_class::crds() {
        hub.apply(&crd.to_yaml()).expect("the CRD is accepted");
    }
    let served = hub.serve_tcp(([127, 0, 0, 1], 0).into()).await.expect("a free port");
    let mut access = secret("x");
    access["metadata"]["name"] = json!("hub");
    access["stringData"] = json!({"kubeconfig": served.kubeconfig()});
    let config = |weight: u32| {
        world.config(json!({
            "region": "HN", "quota": {"vCPU": 20}, "cloudConfig": {"qps": 1000, "burst": 1000},
            "coordination": {
                "mode": "Ledger", "weight": weight, "hubSecretRef": {"name": "hub", "namespace": "default"},
            },
        }))
    };
    world.apply(&access);
    world.apply(&config(3));
    let other = world.neighbour("staging", &config(1)).await;
    other.sandbox.apply(&access.to_string()).expect("accepted");
    world.clock.sleep(Duration::from_secs(3)).await;
    let share = async || {
        for provider in [&world.provider, &other.provider, &world.provider] {
            // Time stands still while the hub is asked: its socket is none that the clock knows of.
            let _asked = world.in_flight.enter();
            provider.share().await.expect("the hub answers");
        }
    };
    // Both want all of it while somebody else has it.
    let others: Vec<String> = (0..10)
        .map(|number| world.cloud.add_foreign_server(&format!("other-{number}")))
        .collect();
    let mut waiting: Vec<(&BizflyCloudProvider, u32)> = (1..=5).map(|number| (&world.provider, number)).collect();
    waiting.extend((11..=15).map(|number| (&other.provider, number)));
    share().await;
    let mut seen = Vec::new();
    for round in 0..4 {
        let claims: Vec<NodeClaim> = waiting
            .iter()
            .map(|(_, number)| claim(*number, only("nix.4c_8g")))
            .collect();
        let orders = waiting
            .iter()
            .zip(&claims)
            .map(|((provider, _), claim)| provider.create(claim));
        let made = join_all(orders).await;
        let mut results = made.iter();
        waiting.retain(|_| results.next().is_some_and(Result::is_err));
        let vcpus: u64 = world.cloud.servers().iter().map(|own| own.vcpus).sum();
        assert!(vcpus <= 20, "{vcpus} vCPUs in round {round}");
        seen.push(by_cluster(&world));
        if round == 0 {
            share().await;
            others.iter().for_each(|id| world.cloud.vanish(id));
        }
        // What was refused is asked for again once that is forgotten.
        world.clock.sleep(Duration::from_secs(185)).await;
        share().await;
    }
    // 15 and 5 of 20 are three machines of four and one; what is left beside them is the heavier cluster's.
    assert_eq!(seen, [(0, 0), (3, 1), (4, 1), (4, 1)]);
    let told = hub.objects().list::<BizflyCapacityShare>("");
    let used: BTreeMap<&str, u64> = told
        .iter()
        .map(|own| (own.spec.cluster.as_str(), own.spec.used.vcpu))
        .collect();
    assert_eq!(used, [("prod", 16), ("staging", 4)].into());
    for own in [&world.sandbox, &other.sandbox] {
        let told = own.objects().list::<BizflyCapacityShare>("");
        assert!(told.is_empty(), "nothing is told but in the hub: {told:?}");
    }
    assert_eq!(world.events("HubUnreachable"), Vec::<String>::new());
}

#[tokio::test]
async fn a_cloud_that_does_not_answer_is_not_taken_for_the_hub() {
    let world = world(1).await;
    let broken = Fault::Http {
        operation: Operation::Read,
        status: 503,
        body: String::new(),
        retry_after: None,
    };
    world.cloud.inject(broken, Often::Always);
    world.clock.sleep(Duration::from_secs(60)).await;
    let error = world.provider.share().await.expect_err("no answer").to_string();
    assert!(!error.contains("the hub"), "{error}");
    assert_eq!(world.events("HubUnreachable"), Vec::<String>::new());
    assert_eq!(world.events("QuotaNotShared").len(), 1);
}

#[tokio::test]
async fn what_the_cloud_refuses_for_its_quota_is_wanted_until_it_is_had() {
    let world = world(1).await;
    let wanted = || {
        let shares = world.sandbox.objects().list::<BizflyCapacityShare>("");
        let own = shares.into_iter().find(|share| share.spec.cluster == "prod");
        own.expect("told").spec.wanted
    };
    // Less than spec.quota says: somebody else was faster.
    world.cloud.inject(Fault::VcpuQuota(8), Often::Always);
    assert_eq!(launch(&world.provider, 1..4).await, 2);
    world.provider.share().await.expect("told");
    assert_eq!((wanted().vcpu, wanted().servers), (4, 1));
    world.cloud.heal();
    // The refusal is forgotten before the want is.
    world.clock.sleep(Duration::from_secs(4 * 60)).await;
    assert_eq!(launch(&world.provider, 3..4).await, 1);
    world.provider.share().await.expect("told");
    assert_eq!(wanted().servers, 0);
}

#[tokio::test]
async fn a_project_that_is_not_known_is_not_shared() {
    let world = World::start().await;
    let mut credentials = secret("x");
    credentials["metadata"]["name"] = json!("application");
    credentials["stringData"] = json!({"app-cred-id": sim::CREDENTIAL_ID, "app-cred-secret": sim::CREDENTIAL_SECRET});
    world.apply(&credentials);
    let mut config = world.config(json!({
        "region": "HN", "quota": {"vCPU": 20}, "coordination": {"mode": "Ledger"}, "cloudConfig": {"authMode": "Header"},
    }));
    config["spec"]["secretRef"]["name"] = json!("application");
    world.apply(&config);
    world.clock.sleep(Duration::from_secs(3)).await;
    let error = world.provider.share().await.expect_err("which project?").to_string();
    assert!(error.contains("set project-id"), "{error}");
    let told = world.sandbox.objects().list::<BizflyCapacityShare>("");
    assert!(told.is_empty(), "{told:?}");
}
