//! One store of events, two views: the core form is kept, the `events.k8s.io` form is converted.

use serde_json::Value;

pub(crate) const GROUP: &str = "events.k8s.io";

/// Names that differ between the forms: core, then events.k8s.io.
const NAMES: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

/// From the core form to the events.k8s.io form.
pub(crate) fn to_regarding(value: Value) -> Value {
    rename(value, |name| {
        NAMES.iter().find(|(core, _)| *core == name).map(|(_, other)| *other)
    })
}

/// From the events.k8s.io form to the core form.
pub(crate) fn to_core(value: Value) -> Value {
    rename(value, |name| {
        NAMES.iter().find(|(_, other)| *other == name).map(|(core, _)| *core)
    })
}

fn rename(value: Value, other: impl Fn(&str) -> Option<&'static str>) -> Value {
    let Value::Object(map) = value else { return value };
    let map = map
        .into_iter()
        .map(|(key, value)| (other(&key).map_or(key, str::to_owned), value))
        .collect();
    Value::Object(map)
}
