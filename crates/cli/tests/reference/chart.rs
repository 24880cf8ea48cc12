//! charts/karpenter: its README is made from its values, and its schema knows exactly those values.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::process::Command;

use serde_json::Value;

use crate::settings::flags;
use crate::sources::{provider_folders, sources};
use crate::{cell, check_page, read};

const VALUES: &str = "charts/karpenter/values.yaml";

#[test]
fn the_readme_of_the_chart_is_current() {
    check_page("charts/karpenter/README.md", &readme());
}

#[test]
fn every_value_is_documented_and_in_the_schema_and_nothing_else_is() {
    let values: Value = serde_norway::from_str(&read(VALUES)).unwrap();
    let schema: Value = serde_json::from_str(&read("charts/karpenter/values.schema.json")).unwrap();
    let documented: BTreeSet<String> = documented().into_iter().map(|value| value.path).collect();
    let (mut leaves, mut allowed) = (BTreeSet::new(), BTreeSet::new());
    walk_values("", &values, &documented, &mut leaves);
    walk_schema("", &schema, &documented, &mut allowed);
    assert_eq!(leaves, documented, "every value has a `# --` line");
    allowed.remove("global");
    assert_eq!(allowed, documented, "the schema has the same values");
}

/// A variable that nothing reads would be a value without effect.
#[test]
fn every_variable_that_the_chart_sets_is_read_by_the_binary() {
    let mut known: BTreeSet<String> = flags().into_iter().map(|flag| flag.variable).collect();
    known.extend(["HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY"].map(str::to_owned));
    let code: String = provider_folders()
        .iter()
        .flat_map(|folder| sources(folder))
        .map(|(_, code)| code)
        .collect();
    for folder in &provider_folders()[1..] {
        let provider = folder.split('/').nth(2).unwrap();
        if !is_chosen_by_name(provider) {
            continue;
        }
        let rendered = read(&format!("deploy/{provider}.yaml"));
        for document in rendered
            .split("\n---\n")
            .filter(|text| text.contains("kind: Deployment"))
        {
            let deployment: Value = serde_norway::from_str(document).unwrap();
            let container = &deployment["spec"]["template"]["spec"]["containers"][0];
            for variable in container["env"].as_array().unwrap() {
                let name = variable["name"].as_str().unwrap();
                assert!(
                    known.contains(name) || code.contains(&format!("\"{name}\"")),
                    "deploy/{provider}.yaml sets {name}, which nothing reads"
                );
            }
        }
    }
}

/// Whether the binary has the provider; a crate that no command knows yet has nothing to read.
fn is_chosen_by_name(provider: &str) -> bool {
    let mut command = Command::new(env!("CARGO_BIN_EXE_karpenter"));
    command
        .args(["crds", "--provider", provider])
        .output()
        .unwrap()
        .status
        .success()
}

#[test]
fn the_version_of_the_chart_is_that_of_the_workspace() {
    let chart: Value = serde_norway::from_str(&read("charts/karpenter/Chart.yaml")).unwrap();
    assert_eq!(chart["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(chart["appVersion"], env!("CARGO_PKG_VERSION"));
}

fn readme() -> String {
    let mut page = String::from(
        "# karpenter\n\nThe controller of [karpenter-rs](../../README.md). This page is generated from [values.yaml](values.yaml); \
         [values.schema.json](values.schema.json) refuses values that it does not know.\n\n\
         ```\nhelm install karpenter charts/karpenter --namespace karpenter --create-namespace --set provider=kwok\n```\n\n\
         `provider` may be left out when exactly one provider's section is filled, so `--set ovh.serviceName=…` is enough.\n\n\
         The CRDs are in `crds/`: Helm makes those that are missing on the first install and leaves them alone afterwards \
         (`--skip-crds` leaves them out). To have Helm upgrade them as well, install the chart `karpenter-crd` first.\n\n\
         Credentials belong into a Secret that you make (`cloudstack.existingSecret`, `credentials.secretName`, \
         `bizflycloud.existingSecret`). Those given as values end in a Secret of the chart and nowhere else.\n\n\
         | Value | Default | Meaning |\n|---|---|---|\n",
    );
    for value in documented() {
        writeln!(
            page,
            "| `{}` | `{}` | {} |",
            value.path,
            cell(&value.default),
            cell(&value.text)
        )
        .unwrap();
    }
    page
}

#[derive(Debug)]
struct Documented {
    path: String,
    default: String,
    text: String,
}

/// The values with a `# --` comment above them, in the order of the file.
fn documented() -> Vec<Documented> {
    let text = read(VALUES);
    let values: Value = serde_norway::from_str(&text).unwrap();
    let mut found = Vec::new();
    let mut parents: Vec<(usize, String)> = Vec::new();
    let mut comment: Option<String> = None;
    for line in text.lines() {
        let trimmed = line.trim_start();
        let indent = line.len() - trimmed.len();
        if let Some(started) = trimmed.strip_prefix("# -- ") {
            comment = Some(started.to_owned());
            continue;
        }
        if let Some(more) = trimmed.strip_prefix("# ") {
            if let Some(comment) = &mut comment {
                comment.push(' ');
                comment.push_str(more);
            }
            continue;
        }
        let Some((key, _)) = trimmed
            .split_once(':')
            .filter(|(key, _)| !key.contains([' ', '-', '/', '"']))
        else {
            comment = None;
            continue;
        };
        parents.retain(|(depth, _)| *depth < indent);
        parents.push((indent, key.to_owned()));
        if let Some(text) = comment.take() {
            let keys: Vec<&str> = parents.iter().map(|(_, key)| key.as_str()).collect();
            let default = keys.iter().fold(&values, |value, key| &value[*key]);
            found.push(Documented {
                path: keys.join("."),
                default: default.to_string(),
                text,
            });
        }
    }
    found
}

fn walk_values(path: &str, value: &Value, documented: &BTreeSet<String>, leaves: &mut BTreeSet<String>) {
    match value {
        Value::Object(children) if !documented.contains(path) && !children.is_empty() => {
            for (key, child) in children {
                walk_values(&joined(path, key), child, documented, leaves);
            }
        }
        _ => {
            leaves.insert(path.to_owned());
        }
    }
}

fn walk_schema(path: &str, schema: &Value, documented: &BTreeSet<String>, allowed: &mut BTreeSet<String>) {
    match schema["properties"].as_object() {
        Some(children) if !documented.contains(path) => {
            assert_eq!(schema["additionalProperties"], false, "{path} takes anything");
            for (key, child) in children {
                walk_schema(&joined(path, key), child, documented, allowed);
            }
        }
        _ => {
            allowed.insert(path.to_owned());
        }
    }
}

fn joined(path: &str, key: &str) -> String {
    match path {
        "" => key.to_owned(),
        path => format!("{path}.{key}"),
    }
}
