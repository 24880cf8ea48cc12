//! A class with every field, and the pools of the quick start, launch machines; each field reaches the request.

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use karpenter_api::{NodePool, labels::INSTANCE_TYPE};
use karpenter_cloud::CloudProvider;
use karpenter_cloudstack::sim::{Call, Seed, seed};
use serde_json::{Value, json};

use crate::environment::{Cloud, STEP, claim};

const EVERYTHING: &str = include_str!("../../../../../examples/cloudstack/everything.yaml");

/// What the example with every field finds at CloudStack.
fn prepared() -> Seed {
    let mut seed = Seed::default();
    for (index, network) in seed.catalogue.networks.iter_mut().enumerate() {
        network["tags"] = json!([{"key": "kubernetes", "value": "nodes"}]);
        network["acltype"] = json!("Domain");
        let zone = seed.catalogue.zones[index].clone();
        network["zoneid"] = zone["id"].clone();
    }
    let zones = seed.catalogue.zones.clone();
    for zone in &zones {
        let mut storage = seed::network("storage", zone, "Shared");
        storage["acltype"] = json!("Domain");
        seed.catalogue.networks.push(storage);
    }
    seed.catalogue.disk_offerings.push(seed::disk_offering("ssd", None));
    let mut flexible = seed::custom_offering("flexible");
    flexible["cpuspeed"] = json!(2000);
    flexible["serviceofferingdetails"] = json!({"karpenter.sh/discovery": "my-cluster"});
    seed.catalogue.offerings.push(flexible);
    seed.catalogue.offerings.push(seed::offering("reclaimable", 2, 4096));
    for account in &mut seed.accounts {
        account.key_pairs.push("second".to_owned());
    }
    seed
}

fn deploy(cloud: &Cloud) -> Call {
    let calls = cloud.simulator.calls();
    let found = calls.into_iter().find(|call| call.command == "deployVirtualMachine");
    found.expect("a machine was asked for")
}

#[tokio::test]
async fn the_example_with_every_field_launches_a_machine_that_has_them_all() {
    let cloud = Cloud::without_class(prepared(), STEP, |_| {}).await;
    let secret: Secret = serde_json::from_value(json!({
        "metadata": {"name": "node-user-data", "namespace": "karpenter"},
        "stringData": {"user-data": "#!/bin/sh\njoin ${karpenter:NODECLAIM}\n"},
    }))
    .expect("a Secret");
    let mut secret = secret;
    let text = secret.string_data.take().expect("data");
    secret.data = Some(
        text.into_iter()
            .map(|(key, value)| (key, k8s_openapi::ByteString(value.into_bytes())))
            .collect(),
    );
    cloud
        .sandbox
        .apply("apiVersion: v1\nkind: Namespace\nmetadata: {name: karpenter}\n")
        .expect("accepted");
    cloud.sandbox.objects().create(&secret).expect("accepted");
    cloud.sandbox.apply(EVERYTHING).expect("accepted");
    cloud.provider.reconcile_class("everything").await.expect("reconciled");
    let mut wanted = claim(
        1,
        "1",
        json!([{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]}]),
    );
    wanted.spec.node_class_ref.name = "everything".to_owned();
    let instance = cloud.provider.create(&wanted).await.expect("launched");
    assert!(instance.labels.contains_key(INSTANCE_TYPE));
    let sent = deploy(&cloud).params;
    let get = |name: &str| sent.get(name).map(String::as_str).unwrap_or_default();
    for (name, value) in [
        ("name", "karpenter-default-00001"),
        ("group", "kubernetes"),
        ("rootdisksize", "50"),
        ("keypairs", "ops,second"),
        ("boottype", "UEFI"),
        ("bootmode", "Secure"),
        ("iothreadsenabled", "true"),
        ("iodriverpolicy", "io_uring"),
        ("nicmultiqueuenumber", "4"),
        ("details[0].cpu.threadspercore", "1"),
        ("details[0].karpenter.cluster", "blue"),
        ("datadisksdetails[0].size", "100"),
        ("datadisksdetails[0].deviceid", "1"),
        ("datadisksdetails[1].deviceid", "2"),
    ] {
        assert_eq!(get(name), value, "{name} of {sent:?}");
    }
    for name in [
        "overridediskofferingid",
        "affinitygroupids",
        "projectid",
        "userdata",
        "datadisksdetails[0].diskofferingid",
    ] {
        assert!(!get(name).is_empty(), "{name} of {sent:?}");
    }
    assert_eq!(
        get("networkids").split(',').count(),
        2,
        "the additional network follows"
    );
    let decoded = {
        use base64::Engine;
        base64::engine::general_purpose::STANDARD
            .decode(get("userdata"))
            .expect("Base64")
    };
    assert_eq!(decoded, b"#!/bin/sh\njoin default-00001\n");
    assert_eq!(cloud.live()[0].boot, Some(("UEFI".to_owned(), "Secure".to_owned())));
}

#[tokio::test]
async fn the_quick_start_has_instance_types_and_launches() {
    let cloud = Cloud::without_class(Seed::default(), STEP, |_| {}).await;
    let text = include_str!("../../../../../examples/cloudstack/nodepool.yaml");
    let (class, pool) = text.split_once("\n---\n").expect("two documents");
    cloud.sandbox.apply(class).expect("accepted");
    cloud.provider.reconcile_class("general").await.expect("reconciled");
    let pool: NodePool = serde_norway::from_str(pool).expect("a NodePool");
    let types = cloud.provider.instance_types(&pool).await.expect("types");
    let names: Vec<&str> = types.iter().map(|own| own.name.as_str()).collect();
    assert_eq!(names, ["2xlarge", "large", "medium", "small", "xlarge"]);
    let mut wanted = claim(1, "1", json!([]));
    wanted.spec.node_class_ref.name = "general".to_owned();
    cloud.provider.create(&wanted).await.expect("launched");
    assert_eq!(deploy(&cloud).params["rootdisksize"], "50");
}

fn kubeadm() -> Value {
    json!({"bootstrap": {
        "mode": "Kubeadm", "apiServerEndpoint": "10.0.0.1:6443", "tokenTTL": "20m", "kubernetesVersion": "v1.34.1",
        "cloudProvider": "external",
    }})
}

fn tokens(cloud: &Cloud) -> Vec<Secret> {
    let all: Vec<Secret> = cloud.sandbox.objects().list("kube-system");
    let named = |own: &Secret| {
        own.metadata
            .name
            .as_ref()
            .is_some_and(|name| name.starts_with("bootstrap-token-"))
    };
    all.into_iter().filter(named).collect()
}

#[tokio::test]
async fn kubeadm_joins_with_a_token_of_its_own_that_goes_when_the_node_is_registered() {
    let cloud = Cloud::without_class(Seed::default(), STEP, |_| {}).await;
    for namespace in ["kube-system", "kube-public"] {
        cloud
            .sandbox
            .apply(&format!(
                "apiVersion: v1\nkind: Namespace\nmetadata: {{name: {namespace}}}\n"
            ))
            .expect("accepted");
    }
    cloud.apply_class(kubeadm()).await;
    let class = cloud.class();
    let status = class.status.expect("a status");
    let bootstrap = status
        .conditions
        .iter()
        .find(|own| own.type_ == "BootstrapReady")
        .expect("there");
    assert!(
        bootstrap.message.contains("kube-public/cluster-info cannot be used"),
        "{}",
        bootstrap.message
    );
    let info = "apiVersion: v1\nkind: Config\nclusters:\n- name: ''\n  cluster: {server: 'https://old:6443', certificate-authority-data: QUJD}\n";
    let map: ConfigMap = serde_json::from_value(json!({
        "metadata": {"name": "cluster-info", "namespace": "kube-public"}, "data": {"kubeconfig": info},
    }))
    .expect("a ConfigMap");
    cloud.sandbox.objects().create(&map).expect("accepted");
    cloud.resolve().await;
    let launched = cloud.launch(&claim(1, "1", json!([]))).await;
    let found = tokens(&cloud);
    assert_eq!(found.len(), 1);
    let data = found[0].data.clone().expect("data");
    let get = |key: &str| String::from_utf8(data[key].0.clone()).expect("text");
    assert_eq!(get("description"), "default-00001");
    assert_eq!(get("usage-bootstrap-authentication"), "true");
    assert_eq!(
        get("auth-extra-groups"),
        "system:bootstrappers:kubeadm:default-node-token"
    );
    let sent = deploy(&cloud).params["userdata"].clone();
    let script = {
        use base64::Engine;
        let bytes = base64::engine::general_purpose::STANDARD.decode(sent).expect("Base64");
        String::from_utf8(bytes).expect("text")
    };
    for part in [
        &format!("tlsBootstrapToken: {}.{}", get("token-id"), get("token-secret")),
        "server: https://10.0.0.1:6443",
        "certificate-authority-data: QUJD",
        "kubeadm version -o short",
        "cloud-provider",
    ] {
        assert!(script.contains(part), "{part} in {script}");
    }
    assert!(
        !script.contains("provider-id"),
        "the cloud-controller-manager writes it"
    );
    // A launch that is repeated uses the same token.
    cloud.provider.create(&launched).await.expect("found again");
    assert_eq!(tokens(&cloud).len(), 1);
    let mut memory = karpenter_cloudstack::tasks::sweep::Memory::default();
    cloud.provider.sweep(&mut memory).await.expect("a sweep");
    assert_eq!(tokens(&cloud).len(), 1, "the node did not join yet");
    let mut registered: karpenter_api::NodeClaim = cloud.sandbox.objects().get("", "default-00001").expect("there");
    registered.status = serde_json::from_value(json!({
        "providerID": launched.provider_id(),
        "conditions": [{"type": "Registered", "status": "True", "reason": "Registered", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}],
    }))
    .expect("a status");
    cloud.sandbox.objects().update_status(&registered).expect("accepted");
    cloud.provider.sweep(&mut memory).await.expect("a sweep");
    assert!(tokens(&cloud).is_empty(), "nobody needs it any more");
}
