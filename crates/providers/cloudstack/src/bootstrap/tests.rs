use serde_json::json;

use super::*;

fn class(spec: serde_json::Value) -> CloudStackNodeClass {
    let mut whole = json!({
        "zone": "z", "networkSelectorTerms": [{"name": "n"}], "templateSelectorTerms": [{"name": "t"}],
        "serviceOfferingSelectorTerms": [{"name": "s"}],
    });
    for (key, value) in spec.as_object().expect("an object") {
        whole[key] = value.clone();
    }
    serde_json::from_value(json!({
        "apiVersion": "karpenter.k8s.cloudstack/v1", "kind": "CloudStackNodeClass", "metadata": {"name": "workers"}, "spec": whole,
    }))
    .expect("a class")
}

fn render(spec: serde_json::Value, secrets: Secrets) -> Result<Option<String>, BootstrapError> {
    let class = class(spec);
    let claim: NodeClaim = serde_json::from_value(json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
        "metadata": {"name": "default-abc", "uid": "u", "labels": {"karpenter.sh/nodepool": "default"}},
        "spec": {
            "requirements": [], "taints": [{"key": "team", "value": "blue", "effect": "NoSchedule"}],
            "nodeClassRef": {"group": "karpenter.k8s.cloudstack", "kind": "CloudStackNodeClass", "name": "workers"},
        },
    }))
    .expect("a claim");
    let labels = [
        ("team", "blue"),
        ("node-restriction.kubernetes.io/x", "y"),
        ("kubernetes.io/arch", "amd64"),
    ];
    let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    text(&Boot {
        class: &class,
        claim: &claim,
        cluster_name: "blue",
        vm_name: "karpenter-default-abc",
        zone: "zone-1",
        instance_type: "medium",
        offering_id: "o-1",
        template_id: "t-1",
        provider_id_prefix: "external-cloudstack://",
        max_pods: 110,
        labels: &labels,
        secrets: &secrets,
    })
}

#[test]
fn custom_user_data_is_sent_as_it_is() {
    let script = "#!/bin/sh\necho ${karpenter:NODECLAIM}\n";
    assert_eq!(
        render(json!({"userData": script}), Secrets::default()),
        Ok(Some(script.to_owned()))
    );
    assert_eq!(render(json!({}), Secrets::default()), Ok(None));
}

#[test]
fn placeholders_are_filled_in_where_users_ask_for_it() {
    let spec = |text: &str| json!({"userData": text, "userDataTemplating": "Placeholders"});
    let filled = render(
        spec("${karpenter:NODECLAIM} ${karpenter:TAINTS} $${karpenter:ZONE}"),
        Secrets::default(),
    );
    let expected = "default-abc team=blue:NoSchedule,karpenter.sh/unregistered:NoExecute ${karpenter:ZONE}";
    assert_eq!(filled, Ok(Some(expected.to_owned())));
    let unknown = render(spec("${karpenter:NOPE}"), Secrets::default());
    assert_eq!(unknown, Err(BootstrapError::UnknownPlaceholder("NOPE".into())));
}

#[test]
fn long_user_data_is_compressed_and_too_long_user_data_refused() {
    let long = "echo hello\n".repeat(4000);
    let encoded = encode(&long, UserDataCompression::Auto, true).expect("it fits");
    assert!(encoded.len() < USUAL_LIMIT && encoded.starts_with("H4sI"), "gzip");
    let plain = encode("short", UserDataCompression::Auto, true).expect("it fits");
    assert_eq!(plain, STANDARD.encode("short"));
    let noise: String = (0..1_200_000u32)
        .map(|own| char::from(b'!' + (own.wrapping_mul(2_654_435_761) >> 25) as u8 % 90))
        .collect();
    assert!(matches!(
        encode(&noise, UserDataCompression::None, true),
        Err(BootstrapError::TooLong { .. })
    ));
}

fn token() -> Secrets {
    Secrets {
        token: Some("abcdef.0123456789abcdef".to_owned()),
        ..Secrets::default()
    }
}

#[test]
fn a_k3s_agent_joins_with_labels_taints_and_reserved_resources() {
    let spec = json!({"bootstrap": {"mode": "K3s", "serverURL": "https://k3s:6443", "tokenSecretRef": {"name": "a", "namespace": "b", "key": "c"}}});
    let script = render(spec, token()).expect("rendered").expect("a script");
    for expected in [
        "server: https://k3s:6443",
        "- team=blue:NoSchedule",
        "- karpenter.sh/unregistered:NoExecute",
        "- team=blue",
        "kube-reserved=cpu=100m,memory=256Mi",
        "eviction-hard=memory.available<100Mi,nodefs.available<10%",
        "provider-id=__PROVIDER_ID__",
    ] {
        assert!(script.contains(expected), "{expected} is not in {script}");
    }
    assert!(
        !script.contains("node-restriction.kubernetes.io"),
        "a label that the kubelet may not set"
    );
}

#[test]
fn kubeadm_joins_after_the_users_own_part() {
    let spec = json!({"userData": "#cloud-config\n{}\n", "bootstrap": {
        "mode": "Kubeadm", "apiServerEndpoint": "10.0.0.1:6443", "caCertHashes": ["sha256:00"],
        "tokenSecretRef": {"name": "a", "namespace": "b", "key": "c"},
    }});
    let document = render(spec, token()).expect("rendered").expect("a document");
    let (own, join) = (
        document.find("text/cloud-config"),
        document.find("kubeadm join --config"),
    );
    assert!(own.is_some() && own < join, "{document}");
    assert!(document.contains("caCertHashes:"));
}

#[test]
fn talos_keeps_the_base_and_takes_the_nodes_settings() {
    let spec =
        json!({"bootstrap": {"mode": "Talos", "machineConfigSecretRef": {"name": "a", "namespace": "b", "key": "c"}}});
    let secrets = Secrets {
        machine_config: Some(
            "machine:\n  type: worker\n  network: {hostname: old, nameservers: [1.1.1.1]}\n".to_owned(),
        ),
        ..Secrets::default()
    };
    let rendered = render(spec, secrets).expect("rendered").expect("a configuration");
    let config: serde_json::Value = serde_norway::from_str(&rendered).expect("YAML");
    assert_eq!(config["machine"]["type"], "worker");
    assert_eq!(config["machine"]["network"]["hostname"], "karpenter-default-abc");
    assert_eq!(config["machine"]["network"]["nameservers"][0], "1.1.1.1");
    assert_eq!(config["machine"]["nodeLabels"]["team"], "blue");
}

#[test]
fn ignition_gets_the_flags_of_the_kubelet_as_one_more_file() {
    let own = r#"{"ignition": {"version": "3.4.0"}, "storage": {"files": [{"path": "/etc/motd"}]}}"#;
    let spec = json!({"userData": own, "bootstrap": {"mode": "Ignition"}, "kubelet": {"maxPods": 30}});
    let rendered = render(spec, Secrets::default()).expect("valid").expect("there");
    let rendered: serde_json::Value = serde_json::from_str(&rendered).expect("JSON");
    assert_eq!(rendered["ignition"]["version"], "3.4.0");
    let files = rendered["storage"]["files"].as_array().expect("a list");
    assert_eq!(files.len(), 2);
    let source = files[1]["contents"]["source"].as_str().expect("text");
    let encoded = source.strip_prefix("data:;base64,").expect("a data URL");
    let text = String::from_utf8(STANDARD.decode(encoded).expect("Base64")).expect("text");
    assert!(text.contains("--register-with-taints=team=blue:NoSchedule"), "{text}");
    assert!(text.contains("--max-pods="), "{text}");
    let wrong = json!({"userData": "not JSON", "bootstrap": {"mode": "Ignition"}});
    assert!(matches!(
        render(wrong, Secrets::default()),
        Err(BootstrapError::Ignition(_))
    ));
}

#[test]
fn an_ignition_document_of_another_form_is_refused_with_the_part_that_is_wrong() {
    let refused = |own: &str| {
        let spec = json!({"userData": own, "bootstrap": {"mode": "Ignition"}});
        render(spec, Secrets::default())
    };
    for (own, why) in [
        ("[]", "it is not an object"),
        (r#"{"storage": []}"#, "storage is not an object"),
        (r#"{"storage": "x"}"#, "storage is not an object"),
        (r#"{"storage": {"files": {}}}"#, "storage.files is not a list"),
    ] {
        assert_eq!(refused(own), Err(BootstrapError::Ignition(why.to_owned())), "{own}");
    }
    assert!(refused(r#"{"storage": null}"#).is_ok(), "null is nothing");
}

#[test]
fn the_certificate_authority_comes_from_the_clusters_own_words() {
    let spec = json!({"userData": "CA=${karpenter:CA_BUNDLE_BASE64}", "userDataTemplating": "Placeholders"});
    assert!(needs_cluster_info(&class(spec.clone()), &Secrets::default()));
    let info = "clusters: [{name: '', cluster: {server: 'https://a', certificate-authority-data: QUJD}}]";
    let secrets = Secrets {
        cluster_info: Some(info.to_owned()),
        ..Secrets::default()
    };
    assert_eq!(render(spec.clone(), secrets), Ok(Some("CA=QUJD".to_owned())));
    let secrets = Secrets {
        cluster_info: Some("clusters: []".to_owned()),
        ..Secrets::default()
    };
    assert!(matches!(render(spec, secrets), Err(BootstrapError::ClusterInfo(_))));
}

#[test]
fn user_data_from_a_secret_may_ask_for_the_certificate_authority_too() {
    let reference = json!({"secretRef": {"name": "a", "namespace": "b", "key": "c"}});
    let of_secret = |text: &str| Secrets {
        user_data: Some(text.to_owned()),
        ..Secrets::default()
    };
    let asks = of_secret("CA=${karpenter:CA_BUNDLE_BASE64}");
    let fills = class(json!({"userDataRef": reference, "userDataTemplating": "Placeholders"}));
    assert!(needs_cluster_info(&fills, &asks));
    assert!(!needs_cluster_info(&fills, &of_secret("CA=none")));
    let verbatim = class(json!({"userDataRef": reference}));
    assert!(!needs_cluster_info(&verbatim, &asks), "nothing is filled in");
}
