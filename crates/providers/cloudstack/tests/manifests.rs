//! The examples, and manifests of the prototype's kind, are accepted by an API server with our CRDs; nonsense is not.

use karpenter_sandbox::Sandbox;
use serde_json::{Value, json};

fn cluster() -> Sandbox {
    let sandbox = Sandbox::builder().api_server_only().start();
    let crds = karpenter_api::crd::all();
    for crd in crds.into_iter().chain(karpenter_cloudstack::node_class::crds()) {
        sandbox.apply(&crd.to_yaml()).expect("the CRD is accepted");
    }
    sandbox
}

#[test]
fn the_examples_apply() {
    let sandbox = cluster();
    for text in [
        include_str!("../../../../examples/cloudstack/nodepool.yaml"),
        include_str!("../../../../examples/cloudstack/everything.yaml"),
    ] {
        sandbox.apply(text).expect("accepted");
    }
}

#[test]
fn manifests_of_the_prototype_apply_unchanged() {
    let class = "
apiVersion: karpenter.k8s.cloudstack/v1
kind: CloudStackNodeClass
metadata: {name: default}
spec:
  zone: zone-1
  networkSelectorTerms:
  - tags: {karpenter.sh/discovery: my-cluster}
  serviceOfferingSelectorTerms:
  - tags: {karpenter.sh/discovery: my-cluster}
  - name: Medium Instance
  templateSelectorTerms:
  - osType: Ubuntu 22.04
  - id: 959c4f53-e0d5-11f1-9142-02fc00000001
    name: kube
  userData: |
    #cloud-config
    runcmd: [join]
  tags: {environment: production}
  rootDiskSize: 50
  diskOffering: Medium
  sshKeyPair: ops
";
    cluster().apply(class).expect("accepted");
}

fn check(change: Value, refusal: &str) {
    let mut spec = json!({
        "zone": "z", "networkSelectorTerms": [{"name": "n"}], "templateSelectorTerms": [{"name": "t"}],
        "serviceOfferingSelectorTerms": [{"name": "s"}],
    });
    for (key, value) in change.as_object().expect("an object") {
        spec[key] = value.clone();
    }
    let class = json!({
        "apiVersion": "karpenter.k8s.cloudstack/v1", "kind": "CloudStackNodeClass", "metadata": {"name": "a"}, "spec": spec,
    });
    let error = cluster().apply(&class.to_string()).expect_err(refusal);
    assert!(error.to_string().contains(refusal), "{error}");
}

#[test]
fn nonsense_is_refused_with_a_reason() {
    check(json!({"zones": ["y"]}), "exactly one of zone and zones must be set");
    check(json!({"networkSelectorTerms": [{}]}), "expected at least one, got none");
    check(json!({"tags": {"": "x"}}), "empty tag keys aren't supported");
    check(
        json!({"tags": {"karpenter.sh/nodepool": "x"}}),
        "restricted tag matching karpenter.sh/nodepool",
    );
    check(
        json!({"tags": {"kubernetes.io/cluster/x": "owned"}}),
        "restricted tag matching kubernetes.io/cluster/",
    );
    check(
        json!({"diskOffering": "a", "dataDisks": [{"offering": "b"}]}),
        "diskOffering and dataDisks can't both be set",
    );
    check(json!({"details": {"cpuNumber": "4"}}), "are reserved");
    check(
        json!({"bootstrap": {"mode": "K3s"}}),
        "modes K3s and RKE2 need serverURL and tokenSecretRef",
    );
}
