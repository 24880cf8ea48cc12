//! deploy/*.yaml, the chart as rendered: hardened pods, small roles. That they are what Helm renders is checked where Helm is.

use serde_json::Value;

use crate::read;

const PROVIDERS: [&str; 4] = ["bizflycloud", "cloudstack", "kwok", "ovhcloud"];

fn documents(provider: &str) -> Vec<Value> {
    let text = read(&format!("deploy/{provider}.yaml"));
    let documents = text.split("\n---\n").filter(|document| document.contains("kind:"));
    documents
        .map(|document| serde_norway::from_str(document).unwrap())
        .collect()
}

fn of_kind<'a>(documents: &'a [Value], kind: &str) -> Vec<&'a Value> {
    documents.iter().filter(|document| document["kind"] == kind).collect()
}

#[test]
fn pods_keep_to_the_restricted_profile() {
    for provider in PROVIDERS {
        let documents = documents(provider);
        let pod = &of_kind(&documents, "Deployment")[0]["spec"]["template"]["spec"];
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true, "{provider}");
        assert_eq!(
            pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault",
            "{provider}"
        );
        let container = &pod["containers"][0]["securityContext"];
        assert_eq!(container["readOnlyRootFilesystem"], true, "{provider}");
        assert_eq!(container["allowPrivilegeEscalation"], false, "{provider}");
        assert_eq!(
            container["capabilities"]["drop"],
            serde_json::json!(["ALL"]),
            "{provider}"
        );
        assert!(pod["hostNetwork"].is_null(), "{provider}");
    }
}

#[test]
fn replicas_stand_apart_and_off_the_nodes_that_they_manage() {
    for provider in PROVIDERS {
        let documents = documents(provider);
        let deployment = of_kind(&documents, "Deployment")[0];
        assert_eq!(deployment["spec"]["replicas"], 2, "{provider}");
        let pod = &deployment["spec"]["template"]["spec"];
        assert_eq!(pod["priorityClassName"], "system-cluster-critical", "{provider}");
        let terms =
            &pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
        let excluded = serde_json::json!({"key": "karpenter.sh/nodepool", "operator": "DoesNotExist"});
        for term in terms.as_array().unwrap() {
            assert!(
                term["matchExpressions"].as_array().unwrap().contains(&excluded),
                "{provider}: {term}"
            );
        }
        let affinity = pod["affinity"].to_string();
        assert!(
            affinity.contains("karpenter.sh/nodepool") && affinity.contains("kubernetes.io/hostname"),
            "{provider}"
        );
        assert!(
            pod["topologySpreadConstraints"][0]["labelSelector"].is_object(),
            "{provider}"
        );
        assert_eq!(of_kind(&documents, "PodDisruptionBudget").len(), 1, "{provider}");
    }
}

#[test]
fn probes_ask_the_port_that_the_controller_is_told() {
    for provider in PROVIDERS {
        let documents = documents(provider);
        let container = &of_kind(&documents, "Deployment")[0]["spec"]["template"]["spec"]["containers"][0];
        let port = |name: &str| {
            let ports = container["ports"].as_array().unwrap();
            ports.iter().find(|port| port["name"] == name).unwrap()["containerPort"].to_string()
        };
        let variable = |name: &str| {
            let variables = container["env"].as_array().unwrap();
            let found = variables.iter().find(|variable| variable["name"] == name).unwrap();
            found["value"].as_str().unwrap().to_owned()
        };
        for probe in ["livenessProbe", "readinessProbe"] {
            assert_eq!(container[probe]["httpGet"]["port"], "http", "{provider}");
        }
        assert_eq!(port("http"), variable("HEALTH_PROBE_PORT"), "{provider}");
        assert_eq!(port("http-metrics"), variable("METRICS_PORT"), "{provider}");
    }
}

#[test]
fn secrets_are_read_by_name_in_their_namespace_and_nowhere_else() {
    for provider in PROVIDERS {
        let documents = documents(provider);
        let about_secrets = |role: &Value| {
            let rules = role["rules"].as_array().cloned().unwrap_or_default();
            rules
                .into_iter()
                .filter(|rule| rule["resources"].to_string().contains("\"secrets\""))
                .collect::<Vec<_>>()
        };
        for role in of_kind(&documents, "ClusterRole") {
            assert!(
                about_secrets(role).is_empty(),
                "{provider}: {}",
                role["metadata"]["name"]
            );
        }
        let named: Vec<Value> = of_kind(&documents, "Role")
            .into_iter()
            .flat_map(about_secrets)
            .collect();
        assert_eq!(named.len(), usize::from(provider != "kwok"), "{provider}");
        // Only OVHcloud's provider watches.
        let verbs: &[&str] = match provider {
            "ovhcloud" => &["get", "list", "watch"],
            _ => &["get"],
        };
        for rule in named {
            assert!(rule["resourceNames"].is_array(), "{provider}: {rule}");
            assert_eq!(rule["verbs"], serde_json::json!(verbs), "{provider}");
        }
    }
}

#[test]
fn no_role_has_a_wildcard_and_no_manifest_a_secret() {
    for provider in PROVIDERS {
        let documents = documents(provider);
        assert!(of_kind(&documents, "Secret").is_empty(), "{provider}");
        for kind in ["ClusterRole", "Role"] {
            for role in of_kind(&documents, kind) {
                assert!(!role["rules"].to_string().contains("\"*\""), "{provider}: {role}");
            }
        }
    }
}

/// The command that the documents give finds the pods.
#[test]
fn pods_carry_the_label_that_logs_are_asked_by() {
    for provider in PROVIDERS {
        let documents = documents(provider);
        let deployment = of_kind(&documents, "Deployment")[0];
        let labels = &deployment["spec"]["template"]["metadata"]["labels"];
        assert_eq!(labels["app.kubernetes.io/name"], "karpenter", "{provider}");
        let name = if provider == "bizflycloud" {
            "karpenter-provider-bizflycloud"
        } else {
            "karpenter"
        };
        assert_eq!(deployment["metadata"]["name"], name);
    }
}
