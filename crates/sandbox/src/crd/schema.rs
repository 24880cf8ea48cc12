//! A structural schema, parsed out of `openAPIV3Schema` so that a write never looks at the raw document again.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::cel::Rule;
use super::error::FieldError;
use super::pattern::Pattern;

/// The schema of one version of a custom resource, ready to be applied to objects.
#[derive(Debug)]
pub struct CompiledSchema {
    root: Schema,
}

/// One node of a structural schema.
#[derive(Debug, Default)]
pub struct Schema {
    pub kind: Option<String>,
    pub format: Option<String>,
    pub nullable: bool,
    pub default: Option<Value>,
    pub properties: BTreeMap<String, Schema>,
    pub additional_properties: Option<AdditionalProperties>,
    pub items: Option<Box<Schema>>,
    pub required: Vec<String>,
    pub enumeration: Vec<Value>,
    pub(super) pattern: Option<Pattern>,
    pub(super) minimum: Option<Bound>,
    pub(super) maximum: Option<Bound>,
    pub(super) multiple_of: Option<f64>,
    pub(super) min_length: Option<usize>,
    pub(super) max_length: Option<usize>,
    pub(super) min_items: Option<usize>,
    pub(super) max_items: Option<usize>,
    pub(super) min_properties: Option<usize>,
    pub(super) max_properties: Option<usize>,
    pub(super) all_of: Vec<Schema>,
    pub(super) any_of: Vec<Schema>,
    pub(super) one_of: Vec<Schema>,
    pub(super) not: Option<Box<Schema>>,
    pub int_or_string: bool,
    pub preserve_unknown_fields: bool,
    pub embedded_resource: bool,
    pub list_type: ListType,
    pub list_map_keys: Vec<String>,
    pub map_type: MapType,
    pub(super) rules: Vec<Rule>,
    /// Whether this node or one below it has rules, so that the rest of a tree is not walked for nothing.
    pub(super) has_rules: bool,
}

/// What `additionalProperties` allows.
#[derive(Debug)]
pub enum AdditionalProperties {
    Anything,
    Schema(Box<Schema>),
}

/// `x-kubernetes-list-type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ListType {
    #[default]
    Atomic,
    Set,
    Map,
}

/// `x-kubernetes-map-type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MapType {
    #[default]
    Granular,
    Atomic,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Bound {
    pub(super) value: f64,
    pub(super) exclusive: bool,
}

impl CompiledSchema {
    /// Compiles `openAPIV3Schema`; `path` is where it stands in the CRD, for error messages.
    pub fn compile(document: &Value, path: &str) -> Result<Self, Vec<FieldError>> {
        let mut errors = Vec::new();
        if document.get("type").and_then(Value::as_str) != Some("object") {
            let shown = document.get("type").cloned().unwrap_or_else(|| "".into());
            errors.push(FieldError::invalid(
                format!("{path}.type"),
                &shown,
                "must be object at the root",
            ));
        }
        let root = Schema::parse(document, path, Place::Structural, &mut errors);
        if errors.is_empty() {
            Ok(Self { root })
        } else {
            Err(errors)
        }
    }

    pub fn root(&self) -> &Schema {
        &self.root
    }
}

/// Whether a node must be complete (structural) or is a fragment below `anyOf`, `not` and the like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Structural,
    Fragment,
}

impl Schema {
    fn parse(document: &Value, path: &str, place: Place, errors: &mut Vec<FieldError>) -> Self {
        let Some(map) = document.as_object() else {
            errors.push(FieldError::type_invalid(path, document, "must be a schema object"));
            return Self::default();
        };
        let mut schema = Self {
            kind: text(map, "type"),
            format: text(map, "format"),
            nullable: flag(map, "nullable"),
            default: map.get("default").cloned(),
            required: strings(map, "required"),
            enumeration: map.get("enum").and_then(Value::as_array).cloned().unwrap_or_default(),
            pattern: pattern(map, path, errors),
            minimum: bound(map, "minimum", "exclusiveMinimum"),
            maximum: bound(map, "maximum", "exclusiveMaximum"),
            multiple_of: map.get("multipleOf").and_then(Value::as_f64),
            min_length: count(map, "minLength"),
            max_length: count(map, "maxLength"),
            min_items: count(map, "minItems"),
            max_items: count(map, "maxItems"),
            min_properties: count(map, "minProperties"),
            max_properties: count(map, "maxProperties"),
            int_or_string: flag(map, "x-kubernetes-int-or-string"),
            preserve_unknown_fields: flag(map, "x-kubernetes-preserve-unknown-fields"),
            embedded_resource: flag(map, "x-kubernetes-embedded-resource"),
            list_type: list_type(map, path, errors),
            list_map_keys: strings(map, "x-kubernetes-list-map-keys"),
            map_type: map_type(map),
            ..Self::default()
        };
        for (name, child) in map.get("properties").and_then(Value::as_object).into_iter().flatten() {
            let child = Self::parse(child, &format!("{path}.properties[{name}]"), place, errors);
            schema.properties.insert(name.clone(), child);
        }
        schema.items = map
            .get("items")
            .map(|items| Box::new(Self::parse(items, &format!("{path}.items"), place, errors)));
        schema.additional_properties = match map.get("additionalProperties") {
            None | Some(Value::Bool(false)) => None,
            Some(Value::Bool(true)) => Some(AdditionalProperties::Anything),
            Some(child) => Some(AdditionalProperties::Schema(Box::new(Self::parse(
                child,
                &format!("{path}.additionalProperties"),
                place,
                errors,
            )))),
        };
        let mut fragments = |keyword: &str| -> Vec<Self> {
            let list = map.get(keyword).and_then(Value::as_array);
            list.into_iter()
                .flatten()
                .enumerate()
                .map(|(i, item)| Self::parse(item, &format!("{path}.{keyword}[{i}]"), Place::Fragment, errors))
                .collect()
        };
        schema.all_of = fragments("allOf");
        schema.any_of = fragments("anyOf");
        schema.one_of = fragments("oneOf");
        schema.not = map
            .get("not")
            .map(|not| Box::new(Self::parse(not, &format!("{path}.not"), Place::Fragment, errors)));
        schema.rules = Rule::compile_all(map.get("x-kubernetes-validations"), path, errors);
        schema.has_rules = !schema.rules.is_empty()
            || schema.properties.values().any(|s| s.has_rules)
            || schema.items.as_ref().is_some_and(|s| s.has_rules)
            || schema.additional_schema().is_some_and(|s| s.has_rules);
        if place == Place::Structural {
            schema.check_structure(path, errors);
        }
        schema
    }

    /// The schema of values of a map, if this is one with typed values.
    pub fn additional_schema(&self) -> Option<&Schema> {
        match &self.additional_properties {
            Some(AdditionalProperties::Schema(schema)) => Some(schema),
            Some(AdditionalProperties::Anything) | None => None,
        }
    }

    /// The schema that governs field `name` of an object with this schema.
    pub fn child(&self, name: &str) -> Option<&Schema> {
        self.properties.get(name).or_else(|| self.additional_schema())
    }

    fn check_structure(&self, path: &str, errors: &mut Vec<FieldError>) {
        match self.kind.as_deref() {
            None if !self.int_or_string && !self.preserve_unknown_fields => {
                errors.push(FieldError::required(
                    format!("{path}.type"),
                    "must not be empty for specified object fields",
                ));
            }
            Some("array") if self.items.is_none() => {
                errors.push(FieldError::required(format!("{path}.items"), "must be specified"));
            }
            Some("array" | "object" | "string" | "integer" | "number" | "boolean") | None => {}
            Some(other) => errors.push(FieldError::not_supported(
                format!("{path}.type"),
                &other.into(),
                ["array", "boolean", "integer", "number", "object", "string"],
            )),
        }
        if self.list_type == ListType::Map && self.list_map_keys.is_empty() {
            errors.push(FieldError::required(
                format!("{path}.x-kubernetes-list-map-keys"),
                "must not be empty if x-kubernetes-list-type is map",
            ));
        }
    }
}

fn text(map: &Map<String, Value>, key: &str) -> Option<String> {
    map.get(key)
        .and_then(Value::as_str)
        .filter(|s| !s.is_empty())
        .map(str::to_owned)
}

fn flag(map: &Map<String, Value>, key: &str) -> bool {
    map.get(key).and_then(Value::as_bool).unwrap_or(false)
}

fn count(map: &Map<String, Value>, key: &str) -> Option<usize> {
    map.get(key)
        .and_then(Value::as_u64)
        .and_then(|n| usize::try_from(n).ok())
}

fn strings(map: &Map<String, Value>, key: &str) -> Vec<String> {
    let list = map.get(key).and_then(Value::as_array);
    list.into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect()
}

fn bound(map: &Map<String, Value>, key: &str, exclusive: &str) -> Option<Bound> {
    let value = map.get(key).and_then(Value::as_f64)?;
    Some(Bound {
        value,
        exclusive: flag(map, exclusive),
    })
}

fn pattern(map: &Map<String, Value>, path: &str, errors: &mut Vec<FieldError>) -> Option<Pattern> {
    let source = text(map, "pattern")?;
    match Pattern::new(&source) {
        Ok(pattern) => Some(pattern),
        Err(error) => {
            let detail = format!("must be a valid regular expression: {error}");
            errors.push(FieldError::invalid(format!("{path}.pattern"), &source.into(), &detail));
            None
        }
    }
}

fn list_type(map: &Map<String, Value>, path: &str, errors: &mut Vec<FieldError>) -> ListType {
    match map.get("x-kubernetes-list-type").and_then(Value::as_str) {
        None | Some("atomic") => ListType::Atomic,
        Some("set") => ListType::Set,
        Some("map") => ListType::Map,
        Some(other) => {
            errors.push(FieldError::not_supported(
                format!("{path}.x-kubernetes-list-type"),
                &other.into(),
                ["atomic", "map", "set"],
            ));
            ListType::Atomic
        }
    }
}

fn map_type(map: &Map<String, Value>) -> MapType {
    match map.get("x-kubernetes-map-type").and_then(Value::as_str) {
        Some("atomic") => MapType::Atomic,
        _ => MapType::Granular,
    }
}
