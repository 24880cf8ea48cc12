//! One thing that is wrong with a field, in the words of the real API server.

use std::fmt;

use serde_json::Value;

/// A field error: becomes one cause of a 422 `Invalid` status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldError {
    pub reason: FieldErrorReason,
    /// Path such as `spec.containers[0].name`, or `<nil>` for errors about no particular field.
    pub field: String,
    /// Text without the path, e.g. `Invalid value: 0: must be positive`.
    pub message: String,
}

/// The `reason` of a status cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldErrorReason {
    Required,
    Invalid,
    TypeInvalid,
    NotSupported,
    Forbidden,
    Duplicate,
    TooLong,
    TooMany,
}

impl FieldErrorReason {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Required => "FieldValueRequired",
            Self::Invalid => "FieldValueInvalid",
            Self::TypeInvalid => "FieldValueTypeInvalid",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Forbidden => "FieldValueForbidden",
            Self::Duplicate => "FieldValueDuplicate",
            Self::TooLong => "FieldValueTooLong",
            Self::TooMany => "FieldValueTooMany",
        }
    }
}

impl fmt::Display for FieldErrorReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FieldError {
    fn new(reason: FieldErrorReason, field: impl Into<String>, message: String) -> Self {
        Self {
            reason,
            field: field.into(),
            message,
        }
    }

    pub fn required(field: impl Into<String>, detail: &str) -> Self {
        Self::new(FieldErrorReason::Required, field, with_detail("Required value", detail))
    }

    pub fn invalid(field: impl Into<String>, value: &Value, detail: &str) -> Self {
        Self::new(
            FieldErrorReason::Invalid,
            field,
            with_detail(&format!("Invalid value: {}", shown(value)), detail),
        )
    }

    /// An `Invalid value` error that does not show the value, as CEL rules on objects and lists do.
    pub fn invalid_without_value(field: impl Into<String>, detail: &str) -> Self {
        Self::new(FieldErrorReason::Invalid, field, with_detail("Invalid value", detail))
    }

    pub fn type_invalid(field: impl Into<String>, value: &Value, detail: &str) -> Self {
        Self::new(
            FieldErrorReason::TypeInvalid,
            field,
            with_detail(&format!("Invalid value: {}", shown(value)), detail),
        )
    }

    pub fn not_supported<S: AsRef<str>>(
        field: impl Into<String>,
        value: &Value,
        supported: impl IntoIterator<Item = S>,
    ) -> Self {
        let supported: Vec<String> = supported.into_iter().map(|s| format!("{:?}", s.as_ref())).collect();
        let detail = format!("supported values: {}", supported.join(", "));
        Self::new(
            FieldErrorReason::NotSupported,
            field,
            with_detail(&format!("Unsupported value: {}", shown(value)), &detail),
        )
    }

    pub fn forbidden(field: impl Into<String>, detail: &str) -> Self {
        Self::new(FieldErrorReason::Forbidden, field, with_detail("Forbidden", detail))
    }

    pub fn duplicate(field: impl Into<String>, value: &Value) -> Self {
        Self::new(
            FieldErrorReason::Duplicate,
            field,
            format!("Duplicate value: {}", shown(value)),
        )
    }

    pub fn too_long(field: impl Into<String>, limit: usize) -> Self {
        Self::new(
            FieldErrorReason::TooLong,
            field,
            format!("Too long: may not be more than {limit} bytes"),
        )
    }

    pub fn too_many(field: impl Into<String>, actual: usize, limit: usize) -> Self {
        Self::new(
            FieldErrorReason::TooMany,
            field,
            format!("Too many: {actual}: must have at most {limit} items"),
        )
    }

    /// The cause appended when schema errors kept the CEL rules from running.
    pub(super) fn rules_not_checked() -> Self {
        Self::invalid(
            "<nil>",
            &Value::Null,
            "some validation rules were not checked because the object was invalid; correct the existing errors to \
             complete validation",
        )
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

fn with_detail(head: &str, detail: &str) -> String {
    if detail.is_empty() {
        head.to_owned()
    } else {
        format!("{head}: {detail}")
    }
}

/// How a bad value is printed: JSON, which is also how Go quotes strings and prints numbers.
fn shown(value: &Value) -> String {
    value.to_string()
}
