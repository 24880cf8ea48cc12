//! What users see, from their manifests to running pods, with core's controllers at work.

use std::collections::{BTreeMap, BTreeSet};

use karpenter_api::labels::{INSTANCE_TYPE, NODEPOOL};
use karpenter_cloudstack::{
    CloudStackNodeClass,
    settings::Switch,
    sim::{Seed, seed},
};
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::whole::Whole;

/// What the prototype's manifests look for: one zone, and everything tagged for discovery. Offerings cannot be tagged: they
/// have details.
fn discoverable(offerings: &[(&str, i64, i64)]) -> Seed {
    let mut seed = Seed::of_zones(&["zone-01"]);
    let tag = |key: &str, value: &str| json!({"key": key, "value": value});
    for network in &mut seed.catalogue.networks {
        network["tags"] = json!([
            tag("karpenter.sh/discovery", "my-cluster"),
            tag("environment", "production")
        ]);
    }
    for template in &mut seed.catalogue.templates {
        template["tags"] = json!([tag("os", "ubuntu"), tag("version", "22.04"), tag("type", "karpenter")]);
    }
    let offering = |(name, cpu, memory): &(&str, i64, i64)| {
        let mut own = seed::offering(name, *cpu, *memory);
        own["serviceofferingdetails"] = json!({"karpenter.sh/discovery": "my-cluster"});
        own
    };
    seed.catalogue.offerings = offerings.iter().map(offering).collect();
    // Nobody said that it is for machines of the cluster.
    seed.catalogue.offerings.push(seed::offering("tiny", 1, 1024));
    seed
}

/// The class of the prototype's quick start.
const QUICK_CLASS: &str = r#"
apiVersion: karpenter.k8s.cloudstack/v1
kind: CloudStackNodeClass
metadata:
  name: default
spec:
  zone: zone-01
  networkSelectorTerms:
  - tags: {karpenter.sh/discovery: my-cluster}
  serviceOfferingSelectorTerms:
  - tags: {karpenter.sh/discovery: my-cluster}
  templateSelectorTerms:
  - tags: {os: ubuntu, version: "22.04"}
  userData: |
    #!/bin/bash
    echo "a node begins"
"#;

const QUICK_POOL: &str = r#"
apiVersion: karpenter.sh/v1
kind: NodePool
metadata:
  name: default
spec:
  template:
    spec:
      nodeClassRef: {group: karpenter.k8s.cloudstack, kind: CloudStackNodeClass, name: default}
      requirements:
      - {key: karpenter.sh/capacity-type, operator: In, values: ["on-demand"]}
      - {key: node.kubernetes.io/instance-type, operator: In, values: ["medium", "large"]}
"#;

/// The test workload of the prototype's installation guide.
const INFLATE: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata:
  name: inflate
spec:
  replicas: 5
  selector:
    matchLabels: {app: inflate}
  template:
    metadata:
      labels: {app: inflate}
    spec:
      containers:
      - name: inflate
        image: public.ecr.aws/eks-distro/kubernetes/pause:3.7
        resources:
          requests: {cpu: 1, memory: 2Gi}
"#;

const SIZES: [(&str, i64, i64); 2] = [("medium", 2, 4096), ("large", 4, 8192)];

#[tokio::test]
async fn the_quick_start_of_the_prototype_goes_from_manifests_to_running_pods_and_back() {
    let whole = Whole::start(discoverable(&SIZES), |_| {}).await;
    for manifest in [QUICK_CLASS, QUICK_POOL, INFLATE] {
        whole.apply(manifest);
    }
    whole
        .until("the pods of inflate run", |whole| whole.running().len() == 5)
        .await;
    let nodes = whole.nodes();
    assert_eq!(nodes.len(), whole.claims().len());
    for node in &nodes {
        assert!(["medium", "large"].contains(&node.labels()[INSTANCE_TYPE].as_str()));
        assert_eq!(node.labels()["topology.kubernetes.io/zone"], "zone-01");
        assert_eq!(node.labels()[NODEPOOL], "default");
    }
    let scale = json!({"spec": {"replicas": 0}});
    let objects = whole.sandbox.objects();
    objects
        .patch::<k8s_openapi::api::apps::v1::Deployment>("default", "inflate", &scale)
        .expect("it is there");
    let is_over = |whole: &Whole| whole.nodes().is_empty() && whole.claims().is_empty();
    whole.until("empty nodes go", is_over).await;
    assert!(whole.simulator.machines().iter().all(|machine| !machine.is_live()));
    assert_eq!(whole.simulator.violations(), [""; 0]);
}

/// A class and a pool with every field that the prototype had, as its own examples use them.
#[tokio::test]
async fn the_prototypes_full_class_and_pool_run_the_pods_that_tolerate_them() {
    let mut seed = discoverable(&[("Medium Instance", 2, 4096), ("Large Instance", 4, 8192)]);
    for account in &mut seed.accounts {
        account.key_pairs.push("my-keypair".to_owned());
    }
    let whole = Whole::start(seed, |_| {}).await;
    whole.apply(
        r#"
apiVersion: karpenter.k8s.cloudstack/v1
kind: CloudStackNodeClass
metadata: {name: default}
spec:
  zone: zone-01
  networkSelectorTerms:
  - tags: {karpenter.sh/discovery: my-cluster, environment: production}
  serviceOfferingSelectorTerms:
  - tags: {karpenter.sh/discovery: my-cluster}
  templateSelectorTerms:
  - tags: {os: ubuntu, version: "22.04", type: karpenter}
  userData: |
    #!/bin/bash
    set -e
    cloud-init status --wait
  tags: {team: platform, managed-by: karpenter, environment: production}
  rootDiskSize: 50
  diskOffering: data-10
  sshKeyPair: my-keypair
"#,
    );
    whole.apply(
        r#"
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: default}
spec:
  template:
    spec:
      nodeClassRef: {group: karpenter.k8s.cloudstack, kind: CloudStackNodeClass, name: default}
      # Where the prototype had it beside disruption, and names with spaces, v1 knows neither.
      expireAfter: 720h
      requirements:
      - {key: karpenter.sh/capacity-type, operator: In, values: ["on-demand"]}
      - {key: node.kubernetes.io/instance-type, operator: In, values: ["Medium-Instance", "Large-Instance"]}
      - {key: kubernetes.io/arch, operator: In, values: ["amd64"]}
      - {key: kubernetes.io/os, operator: In, values: ["linux"]}
      taints:
      - {key: workload-type, value: batch, effect: NoSchedule}
  limits: {cpu: "1000", memory: 1000Gi}
  disruption: {consolidationPolicy: WhenEmptyOrUnderutilized, consolidateAfter: 30s}
"#,
    );
    let tolerations = json!([{"key": "workload-type", "value": "batch", "effect": "NoSchedule"}]);
    whole.apply(&pod("batch", "3", json!({"tolerations": tolerations})));
    whole.apply(&pod("web", "1", json!({})));
    let runs = |name: &'static str| move |whole: &Whole| whole.running().iter().any(|(pod, _)| pod == name);
    whole.until("the batch runs", runs("batch")).await;
    assert!(!runs("web")(&whole), "it does not tolerate the taint");
    let machine = whole.simulator.machines().remove(0);
    assert_eq!(
        (machine.cpu, machine.key_pairs.as_slice()),
        (4, &["my-keypair".to_owned()][..])
    );
    for tag in [
        ("team", "platform"),
        ("managed-by", "karpenter"),
        ("environment", "production"),
    ] {
        let tag = (tag.0.to_owned(), tag.1.to_owned());
        assert!(machine.tags.contains(&tag), "{tag:?} of {:?}", machine.tags);
    }
    let node = whole.nodes().remove(0);
    for label in [
        "network-name",
        "network-id",
        "disk-offering-id",
        "service-offering-name",
        "template-name",
    ] {
        let label = format!("karpenter.k8s.cloudstack/{label}");
        assert!(node.labels().contains_key(&label), "{label} of {:?}", node.labels());
    }
    let class: CloudStackNodeClass = whole.sandbox.objects().get("", "default").expect("the class");
    let offered: Vec<String> = class
        .status
        .expect("a status")
        .service_offerings
        .into_iter()
        .map(|own| own.name)
        .collect();
    assert_eq!(offered, ["Large Instance", "Medium Instance"]);
    let volumes = whole.simulator.volumes();
    assert!(
        volumes
            .iter()
            .any(|(name, at)| name.starts_with("DATA-") && at.as_ref() == Some(&machine.id))
    );
}

fn pod(name: &str, cpu: &str, more: Value) -> String {
    let mut spec = json!({"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}]});
    for (key, value) in more.as_object().expect("an object") {
        spec[key] = value.clone();
    }
    let pod =
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec});
    pod.to_string()
}

#[tokio::test]
async fn pods_find_the_class_for_computing_by_the_label_of_its_pool() {
    let offerings = [("Medium Instance", 2, 4096), ("Compute Optimized Large", 16, 32768)];
    let whole = Whole::start(discoverable(&offerings), |_| {}).await;
    let kind = |name: &str, offering: &str, label: &str, taints: &str| {
        let class = format!(
            "
apiVersion: karpenter.k8s.cloudstack/v1
kind: CloudStackNodeClass
metadata: {{name: {name}}}
spec:
  zone: zone-01
  networkSelectorTerms:
  - tags: {{karpenter.sh/discovery: my-cluster}}
  serviceOfferingSelectorTerms:
  - name: {offering:?}
  templateSelectorTerms:
  - tags: {{os: ubuntu, version: \"22.04\"}}
  rootDiskSize: 100
"
        );
        let pool = format!(
            "
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {{name: {name}}}
spec:
  template:
    spec:
      nodeClassRef: {{group: karpenter.k8s.cloudstack, kind: CloudStackNodeClass, name: {name}}}
      requirements:
      - {{key: karpenter.sh/capacity-type, operator: In, values: [on-demand]}}
      - {{key: workload-type, operator: In, values: [{label}]}}
      taints: {taints}
  limits: {{cpu: '500', memory: 500Gi}}
"
        );
        whole.apply(&class);
        whole.apply(&pool);
    };
    kind("general", "Medium Instance", "general", "[]");
    let taint = "[{key: workload-type, value: compute, effect: NoSchedule}]";
    kind("compute-intensive", "Compute Optimized Large", "compute", taint);
    let tolerations = json!([{"key": "workload-type", "value": "compute", "effect": "NoSchedule"}]);
    let more = json!({"nodeSelector": {"workload-type": "compute"}, "tolerations": tolerations});
    whole.apply(&pod("compute-job", "8", more));
    whole.apply(&pod("web", "1", json!({})));
    whole.until("both run", |whole| whole.running().len() == 2).await;
    let pools: BTreeMap<String, String> = whole
        .nodes()
        .iter()
        .map(|node| (node.name_any(), node.labels()[NODEPOOL].clone()))
        .collect();
    let of: BTreeMap<String, &String> = whole
        .running()
        .into_iter()
        .map(|(pod, node)| (pod, &pools[&node]))
        .collect();
    assert_eq!(of["compute-job"], "compute-intensive");
    assert_eq!(of["web"], "general");
}

/// Deploys by claim and offering, each with how often it was asked for.
fn asked(whole: &Whole) -> BTreeMap<(String, String), usize> {
    let mut asked = BTreeMap::new();
    for deploy in whole.deploys() {
        *asked.entry(deploy).or_insert(0) += 1;
    }
    asked
}

#[tokio::test]
async fn a_claim_without_capacity_asks_once_for_each_offering_and_is_never_launched_again() {
    let whole = Whole::start(discoverable(&SIZES), |_| {}).await;
    whole.simulator.operate(|operator| operator.settings().sold_out = true);
    whole.apply(QUICK_CLASS);
    whole.apply(QUICK_POOL);
    whole.apply(&pod("web", "1", json!({})));
    let both = |whole: &Whole| whole.deploys().len() >= 2;
    whole.until("both offerings were asked for", both).await;
    let first = whole.deploys()[0].0.clone();
    assert!(!first.is_empty());
    let is_gone = |whole: &Whole| whole.claims().iter().all(|claim| claim.uid().as_ref() != Some(&first));
    whole.until("the claim is deleted", is_gone).await;
    // Long enough for marks to pass, for further claims, and for whoever still believes in the first one.
    whole.clock.sleep(std::time::Duration::from_secs(600)).await;
    let asked = asked(&whole);
    assert!(asked.values().all(|times| *times == 1), "{asked:#?}");
    let of_first = asked.keys().filter(|(claim, _)| *claim == first).count();
    assert_eq!(of_first, 2, "each offering once: {asked:#?}");
    let told = whole.told();
    let sentence = "CloudStack has no capacity for";
    let about = |kind: &str| {
        let events = told.iter();
        events
            .filter(|event| event.starts_with(kind) && event.contains("InsufficientCapacityError"))
            .any(|event| {
                event.contains(sentence) && event.contains("add hosts, or allow other instance types or zones")
            })
    };
    assert!(about("NodeClaim/") && about("Pod/web"), "{told:#?}");

    whole.simulator.heal();
    whole.until("the pod runs", |whole| whole.running().len() == 1).await;
    assert_eq!(whole.simulator.machines().iter().filter(|own| own.is_live()).count(), 1);
    assert_eq!(whole.simulator.violations(), [""; 0]);
}

#[tokio::test]
async fn a_used_up_quota_is_told_on_the_claim_and_on_its_pods() {
    let whole = Whole::start(discoverable(&SIZES), |settings| settings.quota_preflight = Switch::Off).await;
    let limit = |resource: &str, most: i64| {
        whole
            .simulator
            .operate(|operator| operator.limit(seed::ACCOUNT, resource, most));
    };
    limit("user_vm", 0);
    whole.apply(QUICK_CLASS);
    whole.apply(QUICK_POOL);
    for (resource, pod_name, reasons) in [
        (
            "user_vm",
            "web",
            ["QuotaExceeded", "InsufficientCapacityError"].as_slice(),
        ),
        ("cpu", "db", ["InsufficientCapacityError"].as_slice()),
    ] {
        whole.apply(&pod(pod_name, "1", json!({})));
        let sentence = format!("the quota of {resource} is reached; raise the limit or free some");
        let told = |whole: &Whole| {
            let of = |event: &String| event.contains(&sentence).then(|| event.clone());
            whole.told().iter().filter_map(of).collect::<BTreeSet<String>>()
        };
        let of_pod = format!("Pod/{pod_name}");
        let is_told = |whole: &Whole| told(whole).iter().any(|event| event.starts_with(&of_pod));
        whole.until("it is told", is_told).await;
        let told = told(&whole);
        for reason in reasons {
            let is_it = |event: &String| event.starts_with("NodeClaim/") && event.contains(reason);
            assert!(told.iter().any(is_it), "{resource}, {reason}: {told:#?}");
        }
        limit("user_vm", -1);
        limit("cpu", 1);
    }
}
