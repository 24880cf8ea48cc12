//! Two answers side by side: same code, same fields, same types, same words; other values may differ.

use std::{collections::BTreeMap, sync::LazyLock};

use regex::Regex;
use serde_json::Value;

use super::{Answer, recordings::Exchange};

static UUID: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}").expect("the pattern is valid")
});
static NUMBER: LazyLock<Regex> = LazyLock::new(|| Regex::new("[0-9]+").expect("the pattern is valid"));
static TAG: LazyLock<Regex> = LazyLock::new(|| Regex::new("<[^>]*>").expect("the pattern is valid"));

/// Fields whose values are the server's own words, not data.
const WORDS: [&str; 22] = [
    "allocationstate",
    "canusefordeploy",
    "cmd",
    "count",
    "cserrorcode",
    "deleteprotection",
    "description",
    "destroyed",
    "errorcode",
    "isdefault",
    "isready",
    "jobinstancetype",
    "jobresultcode",
    "jobresulttype",
    "jobstatus",
    "max",
    "networktype",
    "resourcetype",
    "resourcetypename",
    "state",
    "type",
    "vmstate",
];

/// Which id of the simulated server stands for which of the recorded one.
#[derive(Debug, Default)]
pub(crate) struct Ids(BTreeMap<String, String>);

impl Ids {
    pub(crate) fn insert(&mut self, recorded: &str, simulated: &str) {
        self.0.entry(recorded.to_owned()).or_insert(simulated.to_owned());
    }

    pub(crate) fn get(&self, recorded: &str) -> String {
        self.0.get(recorded).cloned().unwrap_or_else(|| recorded.to_owned())
    }

    /// A recorded text as the simulated server would say it.
    pub(crate) fn translate(&self, text: &str) -> String {
        let translated = UUID.replace_all(text, |found: &regex::Captures<'_>| self.get(&found[0]));
        translated.into_owned()
    }

    /// Learns ids from two answers to the same request.
    pub(crate) fn learn(&mut self, recorded: &Value, simulated: &Value) {
        match (recorded, simulated) {
            (Value::Object(recorded), Value::Object(simulated)) => {
                for (key, value) in recorded {
                    if let Some(other) = simulated.get(key) {
                        self.learn(value, other);
                    }
                }
            }
            (Value::Array(recorded), Value::Array(simulated)) => {
                for (index, item) in recorded.iter().enumerate() {
                    if let Some(other) = self.partner(item, simulated, index) {
                        self.learn(item, other);
                    }
                }
            }
            (Value::String(recorded), Value::String(simulated)) if is_uuid(recorded) && is_uuid(simulated) => {
                self.insert(recorded, simulated);
            }
            _ => {}
        }
    }

    /// The entry of a list that stands for a recorded one, whatever order the lists are in.
    fn partner<'a>(&self, recorded: &Value, simulated: &'a [Value], index: usize) -> Option<&'a Value> {
        let known = recorded["id"].as_str().map(|id| self.get(id));
        let same_id = |own: &&Value| known.is_some() && own["id"].as_str() == known.as_deref();
        // Templates have a row per zone.
        let same = |own: &&Value, key: &str| match (&recorded[key], &own[key]) {
            // Names of volumes hold the server's own numbers.
            (Value::String(recorded), Value::String(own)) => {
                NUMBER.replace_all(&self.translate(recorded), "#") == NUMBER.replace_all(own, "#")
            }
            (Value::Number(recorded), Value::Number(own)) => recorded == own,
            _ => true,
        };
        if let Some(found) = simulated.iter().find(|own| same_id(own) && same(own, "zoneid")) {
            return Some(found);
        }
        let keys = [
            "name",
            "key",
            "resourceid",
            "resourcetypename",
            "type",
            "zoneid",
            "cidr",
            "deviceid",
        ];
        let is_named = keys.iter().any(|key| recorded[*key].is_string());
        if is_named && recorded["macaddress"].is_null() {
            return simulated.iter().find(|own| keys.iter().all(|key| same(own, key)));
        }
        simulated.get(index)
    }
}

fn is_uuid(text: &str) -> bool {
    text.len() == 36 && UUID.is_match(text)
}

/// What differs, in words.
pub(crate) fn answers(ids: &Ids, exchange: &Exchange, answer: &Answer) -> Vec<String> {
    let mut found = Vec::new();
    if exchange.status != answer.status {
        found.push(format!(
            "code {}, but {}: {}",
            exchange.status, answer.status, answer.body
        ));
        return found;
    }
    if exchange.content_type != answer.content_type {
        found.push(format!(
            "content type {}, but {}",
            exchange.content_type, answer.content_type
        ));
    }
    match (&exchange.body, &answer.body) {
        (Value::String(recorded), Value::String(simulated)) => {
            // Of pages, the first words; of XML, the elements.
            let outline = |text: &str| match text.starts_with("<?xml") {
                true => {
                    let mut tags: Vec<String> = TAG.find_iter(text).map(|tag| tag.as_str().to_owned()).collect();
                    tags.sort();
                    tags
                }
                false => vec![heading(text)],
            };
            if outline(recorded) != outline(simulated) {
                found.push(format!("{recorded}, but {simulated}"));
            }
        }
        (recorded, simulated) => {
            let mut walk = Walk {
                ids,
                is_cut: exchange.is_cut,
                found,
            };
            walk.compare("", recorded, simulated);
            found = walk.found;
        }
    }
    found
}

fn heading(page: &str) -> String {
    let title = page
        .split_once("<title>")
        .and_then(|(_, rest)| rest.split_once("</title>"));
    title.map_or_else(|| page.to_owned(), |(title, _)| title.to_owned())
}

struct Walk<'a> {
    ids: &'a Ids,
    is_cut: bool,
    found: Vec<String>,
}

impl Walk<'_> {
    fn compare(&mut self, path: &str, recorded: &Value, simulated: &Value) {
        let key = path.rsplit('.').next().unwrap_or_default();
        match (recorded, simulated) {
            (Value::Object(recorded), Value::Object(simulated)) => {
                for (name, value) in recorded {
                    let path = format!("{path}.{name}");
                    match simulated.get(name) {
                        Some(other) => self.compare(&path, value, other),
                        None => self.found.push(format!("{path} is missing: {value}")),
                    }
                }
                for (name, value) in simulated.iter().filter(|(name, _)| !recorded.contains_key(*name)) {
                    self.found
                        .push(format!("{path}.{name} is not in the recording: {value}"));
                }
            }
            (Value::Array(recorded), Value::Array(simulated)) => {
                if recorded.len() != simulated.len() && !self.is_cut {
                    let names = |all: &[Value]| {
                        let names = all.iter().map(|own| own["name"].as_str().unwrap_or("?"));
                        names.collect::<Vec<_>>().join(",")
                    };
                    self.found.push(format!(
                        "{path} has {} entries, but {}: {} / {}",
                        recorded.len(),
                        simulated.len(),
                        names(recorded),
                        names(simulated)
                    ));
                }
                for (index, item) in recorded.iter().enumerate() {
                    match self.ids.partner(item, simulated, index) {
                        Some(other) => self.compare(&format!("{path}[{index}]"), item, other),
                        None => self.found.push(format!("{path}[{index}] is missing: {item}")),
                    }
                }
            }
            (Value::String(recorded), Value::String(simulated)) => {
                let recorded = self.ids.translate(recorded);
                let differs = match key {
                    "errortext" => {
                        NUMBER.replace_all(&UUID.replace_all(&recorded, "ID"), "#")
                            != NUMBER.replace_all(&UUID.replace_all(simulated, "ID"), "#")
                    }
                    key if WORDS.contains(&key) => recorded != *simulated,
                    _ => is_uuid(&recorded) != is_uuid(simulated),
                };
                if differs {
                    self.found.push(format!("{path}: {recorded:?}, but {simulated:?}"));
                }
            }
            (Value::Number(recorded), Value::Number(simulated)) => {
                let same_kind = recorded.is_i64() == simulated.is_i64();
                let same_value = !WORDS.contains(&key) || self.is_cut || recorded == simulated;
                if !same_kind || !same_value {
                    self.found.push(format!("{path}: {recorded}, but {simulated}"));
                }
            }
            (Value::Bool(recorded), Value::Bool(simulated)) => {
                if WORDS.contains(&key) && recorded != simulated {
                    self.found.push(format!("{path}: {recorded}, but {simulated}"));
                }
            }
            (recorded, simulated) => self.found.push(format!("{path}: {recorded}, but {simulated}")),
        }
    }
}
