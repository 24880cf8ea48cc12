//! Collects the fields of spans and events as JSON values.

use std::fmt;

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};

/// Fields by name; the message is one of them.
#[derive(Debug, Default)]
pub(super) struct Fields(Map<String, Value>);

impl Fields {
    /// Removes and returns the message.
    pub(super) fn take_message(&mut self) -> String {
        match self.0.remove("message") {
            Some(Value::String(text)) => text,
            Some(other) => other.to_string(),
            None => String::new(),
        }
    }

    /// All fields that say something.
    pub(super) fn non_empty(&self) -> impl Iterator<Item = (String, Value)> {
        let says_something = |(_, value): &(&String, &Value)| !matches!(value, Value::String(text) if text.is_empty());
        self.0
            .iter()
            .filter(says_something)
            .map(|(key, value)| (key.clone(), value.clone()))
    }

    fn put(&mut self, field: &Field, value: impl Into<Value>) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value);
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.put(field, value.to_string());
    }
}
