use super::*;

fn provisioner(spec: Value) -> Provisioner {
    serde_json::from_value(json!({
        "apiVersion": "karpenter.sh/v1alpha5", "kind": "Provisioner", "metadata": {"name": "default"}, "spec": spec,
    }))
    .expect("a Provisioner")
}

fn config(region: &str) -> ProviderConfig {
    serde_json::from_value(json!({
        "apiVersion": "bizflycloud.karpenter.sh/v1alpha1", "kind": "ProviderConfig", "metadata": {"name": "default"},
        "spec": {"region": region, "secretRef": {"name": "bizflycloud-credentials", "namespace": "karpenter"}},
    }))
    .expect("a ProviderConfig")
}

fn with_reference(mut spec: Value) -> Value {
    spec["providerRef"] = json!({"name": "default", "kind": "ProviderConfig"});
    spec
}

fn converted(spec: Value) -> Conversion {
    convert(&provisioner(with_reference(spec)), Some(&config("HN1")), None).expect("convertible")
}

fn refused(spec: Value) -> Vec<String> {
    let findings = convert(&provisioner(with_reference(spec)), Some(&config("HN1")), None).expect_err("refused");
    findings.iter().map(ToString::to_string).collect()
}

fn requirement(conversion: &Conversion, key: &str) -> Value {
    let requirements = conversion.node_pool["spec"]["template"]["spec"]["requirements"].as_array();
    let found = requirements.and_then(|own| own.iter().find(|own| own["key"] == key));
    found.cloned().unwrap_or_default()
}

#[test]
fn the_example_of_the_earlier_product_becomes_its_pool_and_class() {
    let conversion = converted(json!({
        "requirements": [
            {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["4c_8g", "8c_16g", "16c_32g"]},
            {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["HN1", "HN2"]},
            {"key": "karpenter.bizflycloud.sh/image-id", "operator": "In", "values": ["ubuntu-20.04"]},
        ],
        "limits": {"resources": {"cpu": 100, "memory": "200Gi"}},
        "ttlSecondsAfterEmpty": 30,
        "ttlSecondsUntilExpired": 2592000,
    }));
    let types: Vec<String> = [(4, 8), (8, 16), (16, 32)]
        .into_iter()
        .flat_map(|(vcpus, gib)| crate::flavor::Size { vcpus, gib }.spellings())
        .collect();
    assert_eq!(
        conversion.node_pool,
        json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "default"},
            "spec": {
                "disruption": {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "30s"},
                "limits": {"cpu": "100", "memory": "200Gi"},
                "template": {"spec": {
                    "expireAfter": "720h",
                    "nodeClassRef": {"group": "karpenter.bizflycloud.com", "kind": "BizflyCloudNodeClass", "name": "default"},
                    "requirements": [
                        {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": types},
                        {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["HN1", "HN2"]},
                        {"key": "karpenter.bizflycloud.sh/image-id", "operator": "In", "values": ["ubuntu-20.04"]},
                    ],
                }},
            },
        })
    );
    assert_eq!(
        conversion.node_class,
        Some(json!({
            "apiVersion": "karpenter.bizflycloud.com/v1", "kind": "BizflyCloudNodeClass", "metadata": {"name": "default"},
            "spec": {
                "providerConfigRef": {"name": "default"}, "region": "HN", "imageSelectorTerms": [{"alias": "ubuntu-20.04"}],
            },
        }))
    );
    assert!(
        conversion.notes[0].starts_with("HN1 is a zone of region HN"),
        "{:?}",
        conversion.notes
    );
}

#[test]
fn what_is_unset_stays_never() {
    let spec = &converted(json!({})).node_pool["spec"];
    assert_eq!(
        spec["disruption"],
        json!({"consolidationPolicy": "WhenEmpty", "consolidateAfter": "Never"})
    );
    assert_eq!(spec["template"]["spec"]["expireAfter"], "Never");
    assert_eq!(spec["template"]["spec"]["requirements"], json!([]));
}

#[test]
fn times_to_live_keep_their_meaning() {
    for (seconds, text) in [(3600, "1h"), (90, "90s"), (5400, "90m"), (0, "0s")] {
        let conversion = converted(json!({"ttlSecondsUntilExpired": seconds}));
        assert_eq!(conversion.node_pool["spec"]["template"]["spec"]["expireAfter"], text);
    }
    let empty = converted(json!({"ttlSecondsAfterEmpty": 0}));
    assert_eq!(empty.node_pool["spec"]["disruption"]["consolidateAfter"], "0s");
    let consolidating = converted(json!({"consolidation": {"enabled": true}}));
    assert_eq!(
        consolidating.node_pool["spec"]["disruption"]["consolidationPolicy"],
        "WhenEmptyOrUnderutilized"
    );
    let both = refused(json!({"ttlSecondsAfterEmpty": 0, "consolidation": {"enabled": true}}));
    assert_eq!(
        both,
        ["spec.ttlSecondsAfterEmpty: and spec.consolidation.enabled can't both be set"]
    );
    assert_eq!(
        refused(json!({"ttlSecondsUntilExpired": -1})),
        ["spec.ttlSecondsUntilExpired: -1 is negative"]
    );
}

#[test]
fn a_short_flavor_name_expands_and_a_listed_one_does_not() {
    let of = |operator: &str, values: Value| {
        let spec = json!({"requirements": [{"key": "beta.kubernetes.io/instance-type", "operator": operator, "values": values}]});
        requirement(&converted(spec), "node.kubernetes.io/instance-type")
    };
    let not_in = of("NotIn", json!(["4c_8g"]));
    assert!(
        not_in["values"]
            .as_array()
            .expect("values")
            .contains(&json!("nix.4c_8g"))
    );
    assert_eq!(of("In", json!(["nix.4c_8g"]))["values"], json!(["nix.4c_8g"]));
    let spec = json!({"requirements": [
        {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["4c_8g"]}]});
    let listed = [
        "nix.4c_8g".to_owned(),
        "p2.4c_8g".to_owned(),
        "4c_8g_vps".to_owned(),
        "nix.8c_16g".to_owned(),
    ];
    let online = convert(&provisioner(with_reference(spec)), None, Some(&listed)).expect("convertible");
    let found = requirement(&online, "node.kubernetes.io/instance-type");
    assert_eq!(found["values"], json!(["nix.4c_8g", "p2.4c_8g"]));
}

#[test]
fn zones_lose_invented_suffixes_and_must_be_in_the_region() {
    let of = |values: Value| json!({"requirements": [{"key": "topology.kubernetes.io/zone", "operator": "In", "values": values}]});
    let suffixed = converted(of(json!(["HN1-a", "HN1-b", "HN2", "HCM1"])));
    assert_eq!(
        requirement(&suffixed, "topology.kubernetes.io/zone")["values"],
        json!(["HN1", "HN2"])
    );
    assert!(
        suffixed.notes.iter().any(|note| note.contains("HCM1")),
        "{:?}",
        suffixed.notes
    );
    assert!(
        suffixed.notes.iter().any(|note| note.contains("HN1-a")),
        "{:?}",
        suffixed.notes
    );
    assert_eq!(
        refused(of(json!(["HCM1"]))),
        ["spec.requirements[0].values: none of the zones is in region HN"]
    );
}

#[test]
fn images_become_terms_in_order() {
    let uuid = "11111111-2222-3333-4444-555555555555";
    let of = |operator: &str, values: Value| json!({"requirements": [{"key": "karpenter.bizflycloud.sh/image-id", "operator": operator, "values": values}]});
    let class = converted(of("In", json!(["ubuntu-22.04", uuid])))
        .node_class
        .expect("a class");
    assert_eq!(
        class["spec"]["imageSelectorTerms"],
        json!([{"alias": "ubuntu-22.04"}, {"id": uuid}])
    );
    let excluded = converted(of("NotIn", json!(["ubuntu-18.04"])));
    assert!(
        excluded.node_class.expect("a class")["spec"]
            .get("imageSelectorTerms")
            .is_none()
    );
    assert_eq!(
        refused(of("Gt", json!(["1"]))),
        ["spec.requirements[0].operator: images can't be compared by size"]
    );
}

#[test]
fn spot_becomes_a_capacity_type_and_a_setting_of_the_class() {
    let of = |values: Value| json!({"requirements": [{"key": "karpenter.bizflycloud.sh/instance-spot", "operator": "In", "values": values}]});
    let spot = converted(of(json!(["true"])));
    assert_eq!(
        requirement(&spot, "karpenter.sh/capacity-type")["values"],
        json!(["spot"])
    );
    assert_eq!(
        spot.node_class.expect("a class")["spec"]["spot"],
        json!({"enabled": true})
    );
    let not = converted(of(json!(["false"])));
    assert_eq!(
        requirement(&not, "karpenter.sh/capacity-type")["values"],
        json!(["on-demand"])
    );
}

#[test]
fn old_size_labels_become_the_new_ones() {
    let conversion = converted(json!({"requirements": [
        {"key": "karpenter.bizflycloud.sh/instance-cpu", "operator": "Gt", "values": ["3"]},
        {"key": "karpenter.bizflycloud.sh/instance-memory", "operator": "In", "values": ["8Gi"]},
        {"key": "karpenter.bizflycloud.sh/instance-gpu-enabled", "operator": "In", "values": ["true"]},
    ]}));
    assert_eq!(
        requirement(&conversion, "karpenter.bizflycloud.com/instance-cpu")["operator"],
        "Gt"
    );
    assert_eq!(
        requirement(&conversion, "karpenter.bizflycloud.com/instance-memory")["values"],
        json!(["8192"])
    );
    assert_eq!(
        requirement(&conversion, "karpenter.bizflycloud.com/instance-gpu-count")["operator"],
        "Gt"
    );
}

#[test]
fn kubelet_settings_move_to_the_class_except_the_runtime() {
    let conversion = converted(json!({"kubeletConfiguration": {"maxPods": 50, "containerRuntime": "containerd"}}));
    assert_eq!(
        conversion.node_class.expect("a class")["spec"]["kubelet"],
        json!({"maxPods": 50})
    );
    assert!(conversion.notes.iter().any(|note| note.contains("containerRuntime")));
    let unknown = refused(json!({"kubeletConfiguration": {"registryBurst": 5}}));
    assert_eq!(unknown.len(), 1);
}

#[test]
fn all_twelve_settings_of_the_kubelet_land_in_the_class_as_they_are() {
    let settings = json!({
        "clusterDNS": ["10.0.0.10"], "maxPods": 50, "podsPerCore": 10,
        "systemReserved": {"cpu": "100m", "memory": "100Mi"}, "kubeReserved": {"cpu": "50m", "ephemeral-storage": "1Gi"},
        "evictionHard": {"memory.available": "5%"}, "evictionSoft": {"nodefs.available": "10%"},
        "evictionSoftGracePeriod": {"nodefs.available": "1m"}, "evictionMaxPodGracePeriod": 60,
        "imageGCHighThresholdPercent": 85, "imageGCLowThresholdPercent": 80, "cpuCFSQuota": true,
    });
    assert_eq!(settings.as_object().expect("fields").len(), 12);
    let mut old = settings.clone();
    old["containerRuntime"] = json!("containerd");
    let conversion = converted(json!({ "kubeletConfiguration": old }));
    assert_eq!(conversion.node_class.expect("a class")["spec"]["kubelet"], settings);
    assert!(conversion.notes.iter().any(|note| note.contains("containerRuntime")));
}

#[test]
fn mistakes_are_named_with_their_place() {
    let none = convert(&provisioner(json!({})), None, None).expect_err("no reference");
    assert_eq!(none[0].path, "spec.providerRef");
    let labels = refused(json!({"labels": {"karpenter.sh/provisioner-name": "x"}}));
    assert!(
        labels[0].starts_with("spec.labels[karpenter.sh/provisioner-name]"),
        "{labels:?}"
    );
    let taint = json!({"key": "a", "effect": "NoSchedule"});
    let twice = refused(json!({"taints": [taint], "startupTaints": [taint]}));
    assert_eq!(twice, ["spec.startupTaints: taint a:NoSchedule is there twice"]);
    let name = refused(json!({"requirements": [
        {"key": "karpenter.sh/provisioner-name", "operator": "In", "values": ["a"]}]}));
    assert!(name[0].contains("is set by Karpenter"), "{name:?}");
    let empty = refused(json!({"requirements": [{"key": "a", "operator": "In"}]}));
    assert_eq!(empty, ["spec.requirements[0].values: In needs at least one value"]);
}

#[test]
fn karpenters_own_taints_are_left_out_with_a_note() {
    let conversion = converted(json!({"startupTaints": [
        {"key": "karpenter.sh/unregistered", "effect": "NoExecute"}, {"key": "a", "effect": "NoSchedule"}]}));
    let taints = &conversion.node_pool["spec"]["template"]["spec"]["startupTaints"];
    assert_eq!(taints.as_array().expect("taints").len(), 1);
    assert!(
        conversion
            .notes
            .iter()
            .any(|note| note.contains("karpenter.sh/unregistered"))
    );
}

#[test]
fn a_provisioner_that_adds_to_the_config_gets_a_class_of_its_own_name() {
    let mut spec = with_reference(json!({}));
    spec["providerRef"]["name"] = json!("account");
    let plain = convert(&provisioner(spec.clone()), None, None).expect("convertible");
    assert_eq!(plain.node_class.expect("a class")["metadata"]["name"], "account");
    spec["kubeletConfiguration"] = json!({"maxPods": 20});
    let more = convert(&provisioner(spec), None, None).expect("convertible");
    assert_eq!(more.node_class.expect("a class")["metadata"]["name"], "default");
}
