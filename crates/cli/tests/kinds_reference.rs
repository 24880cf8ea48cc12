//! docs/reference/kinds.md says what the CRDs say. `UPDATE_DOCS=1 cargo test -p karpenter --test kinds_reference` rewrites it.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

#[test]
fn the_reference_of_kinds_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/kinds.md");
    let expected = reference();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, &expected).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == expected,
        "run UPDATE_DOCS=1 cargo test -p karpenter --test kinds_reference"
    );
}

fn reference() -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_karpenter"))
        .arg("crds")
        .output()
        .unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let mut page = String::from(
        "# Kinds\n\nEvery kind that Karpenter reads, with its fields, defaults and rules. This page is generated from the CRDs \
         (`karpenter crds`).\n",
    );
    for document in printed.split("---\n").filter(|document| !document.is_empty()) {
        kind(&mut page, &serde_norway::from_str(document).unwrap());
    }
    page
}

fn kind(page: &mut String, crd: &Value) {
    let names = &crd["spec"]["names"];
    let version = &crd["spec"]["versions"][0];
    let schema = &version["schema"]["openAPIV3Schema"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    writeln!(
        page,
        "\n## {}\n\n{}\n",
        text(&names["kind"]),
        text(&schema["description"])
    )
    .unwrap();
    let listed = |value: &Value| {
        let items = value.as_array().into_iter().flatten().filter_map(Value::as_str);
        items.map(|item| format!("`{item}`")).collect::<Vec<_>>().join(", ")
    };
    writeln!(
        page,
        "- API version: `{}/{}`",
        text(&crd["spec"]["group"]),
        text(&version["name"])
    )
    .unwrap();
    writeln!(page, "- Scope: {}", text(&crd["spec"]["scope"])).unwrap();
    // With its group: other products have kinds of the same name.
    writeln!(page, "- `kubectl get {}`", text(&crd["metadata"]["name"])).unwrap();
    for (title, value) in [
        ("Short names", &names["shortNames"]),
        ("Categories", &names["categories"]),
    ] {
        if value.is_array() {
            writeln!(page, "- {title}: {}", listed(value)).unwrap();
        }
    }
    if version["subresources"]["scale"].is_object() {
        writeln!(page, "- Can be scaled with `kubectl scale`").unwrap();
    }
    let mut rows = Vec::new();
    let mut rules = Vec::new();
    for part in ["spec", "status"] {
        walk(part, &schema["properties"][part], &mut rows, &mut rules);
    }
    writeln!(page, "\n| Field | Type | Default | Description |\n|---|---|---|---|").unwrap();
    for row in rows {
        writeln!(page, "{row}").unwrap();
    }
    writeln!(page, "\nRules:\n").unwrap();
    for rule in rules {
        writeln!(page, "{rule}").unwrap();
    }
}

fn walk(path: &str, schema: &Value, rows: &mut Vec<String>, rules: &mut Vec<String>) {
    for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
        rules.push(format!("- `{path}`: {}", rule["message"].as_str().unwrap_or_default()));
    }
    let required: Vec<&str> = schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    for (name, child) in schema["properties"].as_object().into_iter().flatten() {
        let child_path = format!("{path}.{name}");
        let needed = required.contains(&name.as_str()) && child["default"].is_null();
        rows.push(row(&child_path, child, if needed { "required" } else { "" }));
        walk(&child_path, child, rows, rules);
    }
    if schema["items"].is_object() {
        walk(&format!("{path}[]"), &schema["items"], rows, rules);
    }
}

fn row(path: &str, schema: &Value, needed: &str) -> String {
    let default = match &schema["default"] {
        Value::Null => needed.to_owned(),
        default => format!("`{default}`"),
    };
    let mut description = schema["description"].as_str().unwrap_or_default().to_owned();
    let choices = schema["enum"].as_array().or_else(|| schema["items"]["enum"].as_array());
    if let Some(choices) = choices {
        let choices: Vec<String> = choices
            .iter()
            .filter_map(Value::as_str)
            .map(|choice| format!("`{choice}`"))
            .collect();
        description = format!("{description} One of {}.", choices.join(", "));
    }
    let bound = |key: &str| schema[key].as_i64();
    let range = match (bound("minimum"), bound("maximum")) {
        (Some(min), Some(max)) => format!(" {min} to {max}."),
        (Some(min), None) => format!(" {min} or more."),
        (None, Some(max)) => format!(" {max} or less."),
        (None, None) => String::new(),
    };
    let most = bound("maxItems")
        .map(|max| format!(" At most {max}."))
        .unwrap_or_default();
    format!(
        "| `{path}` | {} | {default} | {} |",
        type_of(schema),
        format!("{description}{range}{most}")
            .replace('|', "\\|")
            .replace('<', "\\<")
    )
}

fn type_of(schema: &Value) -> String {
    if schema["x-kubernetes-int-or-string"] == true {
        return "quantity".to_owned();
    }
    match schema["type"].as_str().unwrap_or_default() {
        "array" => format!("list of {}", type_of(&schema["items"])),
        "object" if schema["additionalProperties"].is_object() => {
            format!("map to {}", type_of(&schema["additionalProperties"]))
        }
        "string" if schema["format"] == "date-time" => "time".to_owned(),
        plain => plain.to_owned(),
    }
}
