//! `x-kubernetes-validations`: CEL rules, compiled with the schema and evaluated on every write (sandbox.md §3.4).

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use cel::objects::OptionalValue;
use cel::{Context, ExecutionError, Program, Value as CelValue};
use serde_json::Value;

use super::cel_library::environment;
use super::compiled::Compiled;
use super::error::{FieldError, FieldErrorReason};
use super::lists::counterpart;
use super::schema::Schema;
use super::validate::type_name;

static COMPILED: Compiled<Program> = Compiled::keeping(4096);

/// One rule of a schema node.
#[derive(Debug)]
pub(super) struct Rule {
    source: String,
    program: Arc<Program>,
    message: Option<String>,
    message_expression: Option<Arc<Program>>,
    reason: FieldErrorReason,
    field_path: Option<String>,
    old_self: OldSelf,
}

/// What a rule wants to know of the previous value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OldSelf {
    Unused,
    /// A transition rule: runs only where there was a value before.
    Required,
    /// `optionalOldSelf`: runs always.
    Optional,
}

impl Rule {
    pub(super) fn compile_all(rules: Option<&Value>, path: &str, errors: &mut Vec<FieldError>) -> Vec<Self> {
        let rules = rules.and_then(Value::as_array).into_iter().flatten();
        rules
            .enumerate()
            .filter_map(|(i, rule)| Self::compile(rule, &format!("{path}.x-kubernetes-validations[{i}]"), errors))
            .collect()
    }

    fn compile(rule: &Value, path: &str, errors: &mut Vec<FieldError>) -> Option<Self> {
        let text = |key: &str| {
            rule.get(key)
                .and_then(Value::as_str)
                .filter(|s| !s.is_empty())
                .map(str::to_owned)
        };
        let Some(source) = text("rule") else {
            errors.push(FieldError::required(format!("{path}.rule"), "rule is not specified"));
            return None;
        };
        let mut program_of = |key: &str, source: &str| match COMPILED.of(source, || environment().compile(source)) {
            Ok(program) => Some(program),
            Err(error) => {
                let detail = format!("compilation failed: {error}");
                errors.push(FieldError::invalid(format!("{path}.{key}"), &source.into(), &detail));
                None
            }
        };
        let program = program_of("rule", &source)?;
        let message_expression = match text("messageExpression") {
            Some(expression) => Some(program_of("messageExpression", &expression)?),
            None => None,
        };
        let references = program.references();
        let uses_old = references.has_variable("oldSelf");
        let old_self = match rule.get("optionalOldSelf").and_then(Value::as_bool) {
            Some(true) => OldSelf::Optional,
            _ if uses_old => OldSelf::Required,
            _ => OldSelf::Unused,
        };
        Some(Self {
            message: text("message"),
            message_expression,
            reason: match text("reason").as_deref() {
                Some("FieldValueForbidden") => FieldErrorReason::Forbidden,
                Some("FieldValueRequired") => FieldErrorReason::Required,
                Some("FieldValueDuplicate") => FieldErrorReason::Duplicate,
                _ => FieldErrorReason::Invalid,
            },
            field_path: text("fieldPath"),
            old_self,
            program,
            source,
        })
    }

    fn runs(&self, new: &Value, old: Option<&Value>) -> bool {
        match self.old_self {
            OldSelf::Unused => old != Some(new),
            OldSelf::Required => old.is_some(),
            OldSelf::Optional => true,
        }
    }

    fn check(&self, node: &Node<'_>, path: &str) -> Option<FieldError> {
        if !self.runs(node.value, node.old) {
            return None;
        }
        let mut context = Context::with_env(Arc::clone(environment()));
        context.add_variable_from_value("self", to_cel(node.schema, node.value));
        match (self.old_self, node.old) {
            (OldSelf::Unused, _) | (OldSelf::Required, None) => {}
            (OldSelf::Required, Some(old)) => {
                context.add_variable_from_value("oldSelf", to_cel(node.schema, old));
            }
            (OldSelf::Optional, old) => {
                let optional = match old {
                    Some(old) => OptionalValue::of(to_cel(node.schema, old)),
                    None => OptionalValue::none(),
                };
                context.add_variable_from_value("oldSelf", CelValue::Opaque(Arc::new(optional)));
            }
        }
        match self.program.execute(&context) {
            Ok(CelValue::Bool(true)) => None,
            Ok(CelValue::Bool(false)) => Some(self.failure(node, &context, path)),
            Ok(_) => Some(self.evaluation_error(node, path, "rule did not evaluate to a bool")),
            Err(error) => Some(self.evaluation_error(node, path, &error_text(&error))),
        }
    }

    fn failure(&self, node: &Node<'_>, context: &Context<'_, '_>, path: &str) -> FieldError {
        let computed = self.message_expression.as_ref().and_then(|m| m.execute(context).ok());
        let text = match computed {
            Some(CelValue::String(text)) if !text.trim().is_empty() => text.to_string(),
            _ => self.stated(),
        };
        let field = format!("{path}{}", self.field_path.as_deref().unwrap_or_default());
        let field = if field.is_empty() {
            "<nil>".to_owned()
        } else {
            field.trim_start_matches('.').to_owned()
        };
        let is_scalar = !matches!(node.value, Value::Array(_) | Value::Object(_));
        match self.reason {
            FieldErrorReason::Forbidden => FieldError::forbidden(field, &text),
            FieldErrorReason::Required => FieldError::required(field, &text),
            FieldErrorReason::Duplicate => FieldError::duplicate(field, node.value),
            _ if is_scalar && self.field_path.is_none() => FieldError::invalid(field, node.value, &text),
            _ => FieldError::invalid_without_value(field, &text),
        }
    }

    fn evaluation_error(&self, node: &Node<'_>, path: &str, error: &str) -> FieldError {
        let kind = node.schema.kind.as_deref().unwrap_or_else(|| type_name(node.value));
        let field = if path.is_empty() { "<nil>" } else { path };
        let rule = self.message.as_ref().unwrap_or(&self.source);
        FieldError::invalid(field, &kind.into(), &format!("{error} evaluating rule: {rule}"))
    }

    fn stated(&self) -> String {
        self.message
            .clone()
            .unwrap_or_else(|| format!("failed rule: {}", self.source))
    }
}

struct Node<'v> {
    schema: &'v Schema,
    value: &'v Value,
    old: Option<&'v Value>,
}

/// Runs every rule on every present value, parents before children.
pub(super) fn check(root: &Schema, new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    walk(
        &Node {
            schema: root,
            value: new,
            old,
        },
        "",
        &mut errors,
    );
    errors
}

fn walk(node: &Node<'_>, path: &str, errors: &mut Vec<FieldError>) {
    let Node { schema, value, old } = *node;
    if !schema.has_rules || value.is_null() {
        return;
    }
    errors.extend(schema.rules.iter().filter_map(|rule| rule.check(node, path)));
    match value {
        Value::Object(map) => {
            for (name, child) in map {
                let Some(schema) = schema.child(name) else { continue };
                let child_path = if path.is_empty() {
                    name.clone()
                } else {
                    format!("{path}.{name}")
                };
                let old = old.and_then(|o| o.get(name)).filter(|o| !o.is_null());
                walk(
                    &Node {
                        schema,
                        value: child,
                        old,
                    },
                    &child_path,
                    errors,
                );
            }
        }
        Value::Array(items) => {
            let Some(item_schema) = &schema.items else { return };
            for (i, item) in items.iter().enumerate() {
                let old = counterpart(schema, item, old);
                walk(
                    &Node {
                        schema: item_schema,
                        value: item,
                        old,
                    },
                    &format!("{path}[{i}]"),
                    errors,
                );
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// A JSON value as CEL sees it: typed by its schema, property names escaped where CEL could not spell them.
fn to_cel(schema: &Schema, value: &Value) -> CelValue {
    match value {
        Value::Null => CelValue::Null,
        Value::Bool(b) => CelValue::Bool(*b),
        Value::Number(n) if schema.kind.as_deref() == Some("number") => CelValue::Float(n.as_f64().unwrap_or(f64::NAN)),
        Value::Number(n) => match n.as_i64() {
            Some(i) => CelValue::Int(i),
            None => CelValue::Float(n.as_f64().unwrap_or(f64::NAN)),
        },
        Value::String(text) => typed_string(schema.format.as_deref(), text),
        Value::Array(items) => {
            let nothing = Schema::default();
            let item_schema = schema.items.as_deref().unwrap_or(&nothing);
            CelValue::from(items.iter().map(|i| to_cel(item_schema, i)).collect::<Vec<_>>())
        }
        Value::Object(map) => {
            let nothing = Schema::default();
            let mut fields: HashMap<String, CelValue> = HashMap::with_capacity(map.len());
            for (name, child) in map.iter().filter(|(_, child)| !child.is_null()) {
                let child_schema = schema.child(name).unwrap_or(&nothing);
                let spelled = if schema.properties.contains_key(name) {
                    escape(name)
                } else {
                    name.clone()
                };
                fields.insert(spelled, to_cel(child_schema, child));
            }
            CelValue::from(fields)
        }
    }
}

static TO_TIMESTAMP: LazyLock<Program> = LazyLock::new(|| {
    environment()
        .compile("timestamp(text)")
        .expect("a constant expression parses")
});
static TO_DURATION: LazyLock<Program> = LazyLock::new(|| {
    environment()
        .compile("duration(text)")
        .expect("a constant expression parses")
});

/// Strings of some formats are values of their own CEL type; what doesn't convert stays a string.
fn typed_string(format: Option<&str>, text: &str) -> CelValue {
    let convert = match format {
        Some("date-time") => &TO_TIMESTAMP,
        Some("duration") => &TO_DURATION,
        _ => return CelValue::from(text),
    };
    let mut context = Context::with_env(Arc::clone(environment()));
    context.add_variable_from_value("text", text);
    convert.execute(&context).unwrap_or_else(|_| CelValue::from(text))
}

/// Property names that are CEL keywords or no identifiers, as Kubernetes spells them in rules.
fn escape(name: &str) -> String {
    const KEYWORDS: [&str; 21] = [
        "true",
        "false",
        "null",
        "in",
        "as",
        "break",
        "const",
        "continue",
        "else",
        "for",
        "function",
        "if",
        "import",
        "let",
        "loop",
        "package",
        "namespace",
        "return",
        "var",
        "void",
        "while",
    ];
    if KEYWORDS.contains(&name) {
        return format!("__{name}__");
    }
    if name.chars().all(|c| c.is_ascii_alphanumeric()) {
        return name.to_owned();
    }
    name.replace("__", "__underscores__")
        .replace('.', "__dot__")
        .replace('-', "__dash__")
        .replace('/', "__slash__")
}

/// Evaluation errors in cel-go's words, which users of a real cluster have seen and searched for.
fn error_text(error: &ExecutionError) -> String {
    match error {
        ExecutionError::NoSuchKey(key) => format!("no such key: {key}"),
        ExecutionError::IndexOutOfBounds(CelValue::Int(i)) => format!("index out of bounds: {i}"),
        ExecutionError::DivisionByZero(_) => "division by zero".to_owned(),
        ExecutionError::RemainderByZero(_) => "modulus by zero".to_owned(),
        ExecutionError::NoSuchOverload(_) => "no such overload".to_owned(),
        ExecutionError::FunctionError { function, message } if message.contains("parse error") => {
            format!("type conversion error from 'string' to '{function}'")
        }
        ExecutionError::FunctionError { message, .. } => message.clone(),
        other => {
            let text = other.to_string();
            let mut chars = text.chars();
            chars
                .next()
                .map(|c| c.to_lowercase().chain(chars).collect())
                .unwrap_or_default()
        }
    }
}
