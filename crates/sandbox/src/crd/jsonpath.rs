//! The JSONPath subset of printer columns, selectable fields and scale subresources (sandbox.md §3.5).

use serde_json::Value;
use thiserror::Error;

/// A parsed path such as `.status.conditions[?(@.type=="Ready")].status`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsonPath {
    source: String,
    steps: Vec<Step>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Field(String),
    Index(i64),
    All,
    Filter {
        path: Vec<String>,
        equal: bool,
        value: Value,
    },
}

/// Why a path can't be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{path:?} is not a path we can follow: {problem}")]
pub struct JsonPathError {
    path: String,
    problem: String,
}

impl JsonPath {
    /// Parses a path; a leading dot may be missing and `{…}` around it is tolerated, as in kubectl.
    pub fn parse(source: &str) -> Result<Self, JsonPathError> {
        let fail = |problem: &str| JsonPathError {
            path: source.to_owned(),
            problem: problem.to_owned(),
        };
        let inner = source.trim();
        let inner = inner
            .strip_prefix('{')
            .and_then(|s| s.strip_suffix('}'))
            .unwrap_or(inner);
        let mut rest = inner.strip_prefix('$').unwrap_or(inner);
        let mut steps = Vec::new();
        while !rest.is_empty() {
            if let Some(tail) = rest.strip_prefix('[') {
                let end = closing_bracket(tail).ok_or_else(|| fail("a bracket is not closed"))?;
                steps.push(bracket(&tail[..end]).ok_or_else(|| fail("unknown expression in brackets"))?);
                rest = &tail[end + 1..];
                continue;
            }
            rest = rest.strip_prefix('.').unwrap_or(rest);
            let (name, tail) = field_name(rest);
            match name.as_str() {
                "" if tail.starts_with('[') || tail.is_empty() => {}
                "" => return Err(fail("an empty field name")),
                "*" => steps.push(Step::All),
                _ => steps.push(Step::Field(name)),
            }
            rest = tail;
        }
        Ok(Self {
            source: source.to_owned(),
            steps,
        })
    }

    pub fn as_str(&self) -> &str {
        &self.source
    }

    /// Field names of a path without indexes or filters, e.g. for writing through it.
    pub fn plain_fields(&self) -> Option<Vec<&str>> {
        self.steps
            .iter()
            .map(|step| match step {
                Step::Field(name) => Some(name.as_str()),
                Step::Index(_) | Step::All | Step::Filter { .. } => None,
            })
            .collect()
    }

    /// All values the path leads to.
    pub fn find<'v>(&self, root: &'v Value) -> Vec<&'v Value> {
        let mut current = vec![root];
        for step in &self.steps {
            current = current.into_iter().flat_map(|value| step.follow(value)).collect();
        }
        current
    }

    /// The first value the path leads to.
    pub fn first<'v>(&self, root: &'v Value) -> Option<&'v Value> {
        self.find(root).into_iter().next()
    }
}

impl Step {
    fn follow<'v>(&self, value: &'v Value) -> Vec<&'v Value> {
        match (self, value) {
            (Self::Field(name), Value::Object(map)) => map.get(name).into_iter().collect(),
            (Self::Index(i), Value::Array(items)) => {
                let index = if *i < 0 {
                    i + i64::try_from(items.len()).unwrap_or(i64::MAX)
                } else {
                    *i
                };
                usize::try_from(index)
                    .ok()
                    .and_then(|i| items.get(i))
                    .into_iter()
                    .collect()
            }
            (Self::All, Value::Array(items)) => items.iter().collect(),
            (Self::All, Value::Object(map)) => map.values().collect(),
            (Self::Filter { path, equal, value }, Value::Array(items)) => items
                .iter()
                .filter(|item| {
                    let found = path.iter().try_fold(*item, |v, name| v.get(name));
                    found.is_some() && (found == Some(value)) == *equal
                })
                .collect(),
            _ => Vec::new(),
        }
    }
}

/// Where the bracket ends, not counting brackets inside quotes.
fn closing_bracket(text: &str) -> Option<usize> {
    let mut quote = None;
    for (i, c) in text.char_indices() {
        match (quote, c) {
            (None, ']') => return Some(i),
            (None, '"' | '\'') => quote = Some(c),
            (Some(q), c) if q == c => quote = None,
            _ => {}
        }
    }
    None
}

fn bracket(inner: &str) -> Option<Step> {
    if inner == "*" {
        return Some(Step::All);
    }
    if let Ok(index) = inner.parse() {
        return Some(Step::Index(index));
    }
    if let Some(name) = unquote(inner) {
        return Some(Step::Field(name));
    }
    let expression = inner.strip_prefix("?(")?.strip_suffix(')')?.trim().strip_prefix('@')?;
    let (path, equal, value) = match expression.split_once("==") {
        Some((path, value)) => (path, true, value),
        None => expression.split_once("!=").map(|(path, value)| (path, false, value))?,
    };
    let value = value.trim();
    let value = unquote(value)
        .map(Value::String)
        .or_else(|| serde_json::from_str(value).ok())?;
    let path = path
        .trim()
        .trim_start_matches('.')
        .split('.')
        .map(str::to_owned)
        .collect();
    Some(Step::Filter { path, equal, value })
}

fn unquote(text: &str) -> Option<String> {
    let quote = text.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    Some(text.strip_prefix(quote)?.strip_suffix(quote)?.to_owned())
}

/// A field name up to the next `.` or `[`; `\.` is a dot inside the name.
fn field_name(text: &str) -> (String, &str) {
    let mut name = String::new();
    let mut chars = text.char_indices();
    while let Some((i, c)) = chars.next() {
        match c {
            '\\' => name.extend(chars.next().map(|(_, escaped)| escaped)),
            '.' | '[' => return (name, &text[i..]),
            _ => name.push(c),
        }
    }
    (name, "")
}
