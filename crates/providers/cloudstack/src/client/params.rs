//! The parameters of a command.

use std::fmt;

use super::signing;

/// A command and its parameters, in the order they were added.
#[derive(Clone, PartialEq, Eq)]
pub struct Request {
    pub command: &'static str,
    params: Vec<(String, String)>,
}

/// Parameters whose values are not shown.
const MASKED: [&str; 5] = ["apikey", "signature", "userdata", "secretkey", "password"];

impl Request {
    pub fn new(command: &'static str) -> Self {
        Self {
            command,
            params: Vec::new(),
        }
    }

    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.add(name, value);
        self
    }

    /// Adds the parameter if there is a value.
    #[must_use]
    pub fn with_some(mut self, name: &str, value: Option<impl Into<String>>) -> Self {
        if let Some(value) = value {
            self.add(name, value);
        }
        self
    }

    /// Adds a comma-separated list, if it has items.
    #[must_use]
    pub fn with_list<S: AsRef<str>>(mut self, name: &str, items: &[S]) -> Self {
        if !items.is_empty() {
            let items: Vec<&str> = items.iter().map(AsRef::as_ref).collect();
            self.add(name, items.join(","));
        }
        self
    }

    /// Adds `name[i].key=…&name[i].value=…` for every entry.
    #[must_use]
    pub fn with_tags<'a>(mut self, name: &str, tags: impl IntoIterator<Item = (&'a String, &'a String)>) -> Self {
        for (index, (key, value)) in tags.into_iter().enumerate() {
            self.add(format!("{name}[{index}].key"), key);
            self.add(format!("{name}[{index}].value"), value);
        }
        self
    }

    /// Adds `name[0].<key>=<value>` for every entry.
    #[must_use]
    pub fn with_details<'a>(mut self, name: &str, details: impl IntoIterator<Item = (&'a String, &'a String)>) -> Self {
        for (key, value) in details {
            self.add(format!("{name}[0].{key}"), value);
        }
        self
    }

    pub fn add(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.params.push((name.into(), value.into()));
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.params
            .iter()
            .find(|(own, _)| own == name)
            .map(|(_, value)| value.as_str())
    }

    pub fn params(&self) -> impl Iterator<Item = (&str, &str)> {
        self.params.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Whether the server takes it by GET under every setting.
    pub fn is_read(&self) -> bool {
        ["get", "list", "query", "find"]
            .iter()
            .any(|verb| self.command.strip_prefix(verb).is_some_and(|rest| !rest.is_empty()))
    }
}

/// The wire form, as a query or a form body.
pub(super) fn wire<'a>(params: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let pairs: Vec<String> = params
        .into_iter()
        .map(|(name, value)| format!("{}={}", signing::encode(name), signing::encode(value)))
        .collect();
    pairs.join("&")
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Request");
        shown.field("command", &self.command);
        for (name, value) in self.params() {
            let lower = name.to_lowercase();
            let is_masked = MASKED.iter().any(|masked| lower.starts_with(masked));
            shown.field(name, if is_masked { &"***" } else { &value });
        }
        shown.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_data_is_not_shown() {
        let request = Request::new("deployVirtualMachine")
            .with("name", "a")
            .with("userdata", "hunter2");
        let shown = format!("{request:?}");
        assert!(!shown.contains("hunter2") && shown.contains("name: \"a\""), "{shown}");
    }

    #[test]
    fn lists_and_queries_are_reads() {
        assert!(Request::new("listZones").is_read());
        assert!(Request::new("queryAsyncJobResult").is_read());
        assert!(!Request::new("deployVirtualMachine").is_read());
    }
}
