//! Objects that each rule of our CRDs accepts and rejects, to be replayed offline and against a real API server.
//!
//! A file in `testdata/acceptance` has a valid `base` object and a list of rules. Each example is a merge patch on the base:
//! - under `accept` the API server stores the object and Karpenter can use it,
//! - under `reject` the API server refuses it,
//! - under `unusable` the API server stores it, and runtime validation then finds fault with it.
//!
//! `$update` makes an example an update: the patch without it is stored first, then `$update` is merged on top. A list item
//! with `$repeat: n` stands for n copies of itself (or of its `$item`), with `{i}` counting; `<a*64>` is 64 times the letter a.

use serde_json::{Map, Value};

/// One object, what it is meant to show, and what must come of it.
#[derive(Debug, Clone)]
pub struct Case {
    /// The rule that the example belongs to.
    pub rule: String,
    pub verdict: Verdict,
    /// The object that is stored before, when the example is an update.
    pub old: Option<Value>,
    pub object: Value,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Accepted,
    Rejected,
    Unusable,
}

const FILES: [(&str, &str); 4] = [
    ("nodepool", include_str!("../testdata/acceptance/nodepool.yaml")),
    ("nodeclaim", include_str!("../testdata/acceptance/nodeclaim.yaml")),
    ("nodeoverlay", include_str!("../testdata/acceptance/nodeoverlay.yaml")),
    (
        "capacitybuffer",
        include_str!("../testdata/acceptance/capacitybuffer.yaml"),
    ),
];

/// All examples of all kinds, each with a name of its own.
///
/// # Panics
/// When a file does not have the format above; it is part of this crate.
pub fn cases() -> Vec<Case> {
    FILES
        .into_iter()
        .flat_map(|(file, text)| cases_of(file, text))
        .collect()
}

/// The examples of one file of this format, such as a provider keeps for its NodeClass; `name` is part of their names.
///
/// # Panics
/// When the text does not have the format.
pub fn cases_of(name: &str, text: &str) -> Vec<Case> {
    let mut cases = Vec::new();
    let document: Value = serde_norway::from_str(text).expect("acceptance files are YAML");
    for rule in document["rules"].as_array().expect("a list of rules") {
        let sentence = rule["rule"].as_str().expect("every rule has a sentence");
        for (key, verdict) in [
            ("accept", Verdict::Accepted),
            ("reject", Verdict::Rejected),
            ("unusable", Verdict::Unusable),
        ] {
            for example in rule[key].as_array().into_iter().flatten() {
                let mut case = Case::new(&document["base"], format!("{name}: {sentence}"), verdict, example);
                case.rename(&format!("{name}-{}", cases.len()));
                cases.push(case);
            }
        }
    }
    cases
}

impl Case {
    fn new(base: &Value, rule: String, verdict: Verdict, example: &Value) -> Self {
        let mut patch = expanded(example.clone());
        let update = patch.as_object_mut().and_then(|fields| fields.remove("$update"));
        let mut object = base.clone();
        merge(&mut object, patch);
        let old = update.map(|update| {
            let old = object.clone();
            merge(&mut object, update);
            old
        });
        Self {
            rule,
            verdict,
            old,
            object,
        }
    }

    fn rename(&mut self, name: &str) {
        self.object["metadata"]["name"] = name.into();
        if let Some(old) = &mut self.old {
            old["metadata"]["name"] = name.into();
        }
    }
}

/// RFC 7386: objects merge, null removes, everything else replaces.
fn merge(target: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *target = patch;
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Some(fields) = target.as_object_mut() else { return };
    for (key, value) in patch {
        if value.is_null() {
            fields.remove(&key);
        } else {
            merge(fields.entry(key).or_insert(Value::Null), value);
        }
    }
}

fn expanded(value: Value) -> Value {
    match value {
        Value::Object(fields) => fields
            .into_iter()
            .map(|(key, value)| (stretched(&key), expanded(value)))
            .collect(),
        Value::Array(items) => Value::Array(items.into_iter().flat_map(copies).map(expanded).collect()),
        Value::String(text) => Value::String(stretched(&text)),
        scalar => scalar,
    }
}

fn copies(mut item: Value) -> Vec<Value> {
    let Some(count) = item.as_object_mut().and_then(|fields| fields.remove("$repeat")) else {
        return vec![item];
    };
    let count = count.as_u64().expect("$repeat is a count");
    let original = item
        .as_object_mut()
        .and_then(|fields| fields.remove("$item"))
        .unwrap_or(item);
    let text = original.to_string();
    (0..count)
        .map(|i| serde_json::from_str(&text.replace("{i}", &i.to_string())).expect("still JSON"))
        .collect()
}

/// `<a*3>` as `aaa`.
fn stretched(text: &str) -> String {
    let Some((before, rest)) = text.split_once('<') else {
        return text.to_owned();
    };
    let Some((inside, after)) = rest.split_once('>') else {
        return text.to_owned();
    };
    let Some((letter, count)) = inside.split_once('*') else {
        return text.to_owned();
    };
    format!(
        "{before}{}{after}",
        letter.repeat(count.parse().expect("<letter*count>"))
    )
}
