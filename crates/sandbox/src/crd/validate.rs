//! Validation of a value against the OpenAPI keywords of its schema, with the API server's error texts (sandbox.md §3.3).

use serde_json::Value;

use super::error::FieldError;
use super::format;
use super::lists::counterpart;
use super::schema::{Bound, Schema};

/// What validation found.
#[derive(Debug, Default)]
pub(super) struct Findings {
    pub(super) errors: Vec<FieldError>,
    /// Whether an error was so basic that CEL rules can't be trusted to evaluate.
    pub(super) blocks_rules: bool,
}

pub(super) fn validate(root: &Schema, new: &Value, old: Option<&Value>) -> Findings {
    let mut findings = Findings::default();
    findings.check(root, new, old, "");
    findings
}

impl Findings {
    fn blocking(&mut self, error: FieldError) {
        self.errors.push(error);
        self.blocks_rules = true;
    }

    fn tolerable(&mut self, error: FieldError) {
        self.errors.push(error);
    }

    /// Unchanged parts of an existing object are not judged again (ratcheting).
    fn check(&mut self, schema: &Schema, value: &Value, old: Option<&Value>, path: &str) {
        if old == Some(value) || (value.is_null() && schema.nullable) {
            return;
        }
        if !self.check_type(schema, value, path) {
            return;
        }
        self.check_enum(schema, value, path);
        match value {
            Value::String(text) => self.check_string(schema, text, value, path),
            Value::Number(_) => self.check_number(schema, value, path),
            Value::Array(items) => {
                self.check_size(schema.min_items, schema.max_items, items.len(), path, "items");
                let Some(item_schema) = &schema.items else {
                    return self.check_combinations(schema, value, path);
                };
                for (i, item) in items.iter().enumerate() {
                    self.check(
                        item_schema,
                        item,
                        counterpart(schema, item, old),
                        &format!("{path}[{i}]"),
                    );
                }
            }
            Value::Object(map) => {
                self.check_size(
                    schema.min_properties,
                    schema.max_properties,
                    map.len(),
                    path,
                    "properties",
                );
                for name in &schema.required {
                    if !map.contains_key(name) {
                        self.blocking(FieldError::required(join(path, name), ""));
                    }
                }
                for (name, child) in map {
                    if let Some(child_schema) = schema.child(name) {
                        self.check(child_schema, child, old.and_then(|o| o.get(name)), &join(path, name));
                    }
                }
            }
            Value::Null | Value::Bool(_) => {}
        }
        self.check_combinations(schema, value, path);
    }

    /// Returns whether the type is right; nothing else is worth saying about a value of the wrong type.
    fn check_type(&mut self, schema: &Schema, value: &Value, path: &str) -> bool {
        let Some(expected) = schema.kind.as_deref() else {
            return true;
        };
        if schema.int_or_string {
            return true;
        }
        let actual = type_name(value);
        let fits = match expected {
            "number" => matches!(actual, "number" | "integer"),
            "integer" => actual == "integer" || is_whole(value),
            other => actual == other,
        };
        if !fits {
            self.blocking(wrong_type(path, expected, actual));
        }
        fits
    }

    fn check_enum(&mut self, schema: &Schema, value: &Value, path: &str) {
        if schema.enumeration.is_empty() || schema.enumeration.contains(value) {
            return;
        }
        let supported = schema.enumeration.iter().map(|v| match v {
            Value::String(s) => s.clone(),
            other => other.to_string(),
        });
        self.blocking(FieldError::not_supported(path, value, supported));
    }

    fn check_string(&mut self, schema: &Schema, text: &str, value: &Value, path: &str) {
        let length = text.chars().count();
        if let Some(limit) = schema.max_length
            && length > limit
        {
            self.blocking(FieldError::too_long(path, limit));
        }
        if let Some(limit) = schema.min_length
            && length < limit
        {
            let detail = format!("{path} in body should be at least {limit} chars long");
            self.tolerable(FieldError::invalid(path, value, &detail));
        }
        if let Some(pattern) = &schema.pattern
            && !pattern.is_match(text)
        {
            let detail = format!("{path} in body should match '{}'", pattern.as_str());
            self.tolerable(FieldError::invalid(path, value, &detail));
        }
        if let Some(name) = schema.format.as_deref()
            && !format::accepts(name, text)
        {
            let detail = format!("{path} in body must be of type {name}: {text:?}");
            self.blocking(FieldError::type_invalid(path, value, &detail));
        }
    }

    fn check_number(&mut self, schema: &Schema, value: &Value, path: &str) {
        let Some(number) = value.as_f64() else { return };
        if let Some(name @ ("int32" | "int64")) = schema.format.as_deref()
            && !format::holds_integer(name, value)
        {
            let detail = format!("{path} in body must be of type {name}: \"{value}\"");
            self.blocking(FieldError::type_invalid(path, value, &detail));
        }
        if let Some(bound) = schema.minimum
            && (number < bound.value || (bound.exclusive && number <= bound.value))
        {
            let detail = format!("{path} in body should be greater than {}", limit(bound));
            self.tolerable(FieldError::invalid(path, value, &detail));
        }
        if let Some(bound) = schema.maximum
            && (number > bound.value || (bound.exclusive && number >= bound.value))
        {
            let detail = format!("{path} in body should be less than {}", limit(bound));
            self.tolerable(FieldError::invalid(path, value, &detail));
        }
        if let Some(factor) = schema.multiple_of
            && factor > 0.0
            && (number / factor).fract().abs() > f64::EPSILON
        {
            let detail = format!("{path} in body should be a multiple of {factor}");
            self.tolerable(FieldError::invalid(path, value, &detail));
        }
    }

    fn check_size(&mut self, min: Option<usize>, max: Option<usize>, size: usize, path: &str, noun: &str) {
        if let Some(limit) = max
            && size > limit
        {
            self.blocking(FieldError::too_many(path, size, limit));
        }
        if let Some(limit) = min
            && size < limit
        {
            let detail = format!("{path} in body should have at least {limit} {noun}");
            self.tolerable(FieldError::invalid(path, &size.into(), &detail));
        }
    }

    /// `allOf`, `anyOf`, `oneOf`, `not`; the real server reports these without a field.
    fn check_combinations(&mut self, schema: &Schema, value: &Value, path: &str) {
        for part in &schema.all_of {
            self.check(part, value, None, path);
        }
        if !schema.any_of.is_empty() {
            let attempts: Vec<Findings> = schema.any_of.iter().map(|part| attempt(part, value, path)).collect();
            if attempts.iter().all(|a| !a.errors.is_empty()) {
                for error in attempts.into_iter().flat_map(|a| a.errors) {
                    self.blocking(error);
                }
                self.blocking(no_field(&format!("{path:?} must validate at least one schema (anyOf)")));
            }
        } else if schema.int_or_string && !matches!(type_name(value), "integer" | "string") {
            self.blocking(wrong_type(path, "integer,string", type_name(value)));
        }
        if !schema.one_of.is_empty() {
            let passing = schema
                .one_of
                .iter()
                .filter(|part| attempt(part, value, path).errors.is_empty())
                .count();
            if passing != 1 {
                let found = if passing == 0 {
                    "none valid".to_owned()
                } else {
                    format!("{passing} valid alternatives")
                };
                let detail = format!("{path:?} must validate one and only one schema (oneOf). Found {found}");
                self.blocking(no_field(&detail));
            }
        }
        if let Some(not) = &schema.not
            && attempt(not, value, path).errors.is_empty()
        {
            self.blocking(no_field(&format!("{path:?} must not validate the schema (not)")));
        }
    }
}

fn attempt(schema: &Schema, value: &Value, path: &str) -> Findings {
    let mut findings = Findings::default();
    findings.check(schema, value, None, path);
    findings
}

fn no_field(detail: &str) -> FieldError {
    FieldError::invalid("<nil>", &"".into(), detail)
}

fn wrong_type(path: &str, expected: &str, actual: &str) -> FieldError {
    let detail = format!("{path} in body must be of type {expected}: {actual:?}");
    FieldError::type_invalid(path, &actual.into(), &detail)
}

fn limit(bound: Bound) -> String {
    let Bound { value, exclusive } = bound;
    if exclusive {
        value.to_string()
    } else {
        format!("or equal to {value}")
    }
}

pub(super) fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if n.is_i64() || n.is_u64() => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn is_whole(value: &Value) -> bool {
    value.as_f64().is_some_and(|n| n.fract() == 0.0 && n.abs() < 9.0e15)
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}.{name}")
    }
}
