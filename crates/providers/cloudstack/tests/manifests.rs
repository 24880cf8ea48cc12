//! The examples, and manifests of the prototype's kind, are accepted by an API server with our CRDs; nonsense is not.

use karpenter_api::{
    NodePool,
    acceptance::{self, Verdict},
    labels::LabelRules,
};
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

/// The same examples are replayed against a real API server in the end-to-end tier.
#[test]
fn each_rule_accepts_and_rejects_its_examples() {
    let sandbox = cluster();
    let text = include_str!("../testdata/acceptance/cloudstacknodeclass.yaml");
    let cases = acceptance::cases_of("cloudstacknodeclass", text);
    let mut wrong = Vec::new();
    for case in &cases {
        let applied = sandbox.apply(&case.object.to_string());
        let is_right = match case.verdict {
            Verdict::Accepted | Verdict::Unusable => applied.is_ok(),
            Verdict::Rejected => applied.is_err(),
        };
        if !is_right {
            wrong.push(format!(
                "{}: {:?}: {} {applied:?}",
                case.rule, case.verdict, case.object["spec"]
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(cases.len() > 90, "only {} examples", cases.len());
}

#[tokio::test]
async fn pools_of_the_prototype_that_v1_does_not_know_are_refused_with_a_reason() {
    let pool = |requirement: Value, disruption: Value| {
        json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "general"},
            "spec": {"disruption": disruption, "template": {"spec": {
                "requirements": [requirement],
                "nodeClassRef": {"group": "karpenter.k8s.cloudstack", "kind": "CloudStackNodeClass", "name": "default"},
            }}},
        })
    };
    let types =
        |values: &[&str]| json!({"key": "node.kubernetes.io/instance-type", "operator": "In", "values": values});
    let sandbox = cluster();
    let good = pool(types(&["Medium-Instance"]), json!({"consolidateAfter": "1m"}));
    sandbox.apply(&good.to_string()).expect("accepted");
    let spaces: NodePool = serde_json::from_value(pool(types(&["Medium Instance"]), json!({"consolidateAfter": "1m"})))
        .expect("a NodePool");
    let found = spaces.validate(&LabelRules::default());
    let told = format!("{found:?}");
    assert!(told.contains("Medium Instance"), "{told}");
    let within = pool(
        types(&["medium"]),
        json!({"consolidateAfter": "1m", "expireAfter": "720h"}),
    );
    let mut beside = pool(types(&["medium"]), json!({"consolidateAfter": "1m"}));
    beside["spec"]["expireAfter"] = json!("720h");
    for misplaced in [within, beside] {
        // As kubectl sends it.
        let request = http::Request::post("/apis/karpenter.sh/v1/nodepools?fieldValidation=Strict")
            .header("content-type", "application/json")
            .body(kube::client::Body::from(misplaced.to_string().into_bytes()))
            .expect("a request");
        let answer = sandbox.client().send(request).await.expect("an answer");
        assert_eq!(answer.status(), 400);
        let body = answer.into_body().collect_bytes().await.expect("a body");
        let text = String::from_utf8_lossy(&body).into_owned();
        assert!(text.contains("unknown field") && text.contains("expireAfter"), "{text}");
    }
}

/// One class for everything and one for computing, each with its pool, as the prototype's examples have them.
#[test]
fn general_and_compute_intensive_classes_and_pools_apply() {
    let sandbox = cluster();
    for (name, cpu, weight) in [("general", "100", 10), ("compute-intensive", "500", 50)] {
        let class = format!(
            "
apiVersion: karpenter.k8s.cloudstack/v1
kind: CloudStackNodeClass
metadata: {{name: {name}}}
spec:
  zone: zone-1
  networkSelectorTerms:
  - tags: {{karpenter.sh/discovery: my-cluster}}
  serviceOfferingSelectorTerms:
  - tags: {{karpenter.sh/discovery: my-cluster, workload: {name}}}
  templateSelectorTerms:
  - osType: Ubuntu 22.04 LTS
  tags: {{workload: {name}}}
"
        );
        let pool = format!(
            "
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {{name: {name}}}
spec:
  weight: {weight}
  limits: {{cpu: {cpu}, memory: 1000Gi}}
  disruption: {{consolidationPolicy: WhenEmptyOrUnderutilized, consolidateAfter: 1m}}
  template:
    metadata:
      labels: {{workload: {name}}}
    spec:
      expireAfter: 720h
      nodeClassRef: {{group: karpenter.k8s.cloudstack, kind: CloudStackNodeClass, name: {name}}}
      requirements:
      - {{key: kubernetes.io/arch, operator: In, values: [amd64]}}
      - {{key: karpenter.sh/capacity-type, operator: In, values: [on-demand]}}
"
        );
        sandbox.apply(&class).expect("the class is accepted");
        sandbox.apply(&pool).expect("the pool is accepted");
    }
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
