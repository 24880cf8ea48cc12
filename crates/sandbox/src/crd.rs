//! Custom resources: what a CustomResourceDefinition says about the objects of its kind, compiled once and applied to
//! every write (sandbox.md §3).
//!
//! Everything here is a pure function on JSON values. The API server decides when to call what; the usual write path is
//! [`CompiledSchema::admit`].

mod cel;
mod cel_library;
mod compiled;
mod defaults;
mod definition;
mod error;
mod format;
mod jsonpath;
mod lists;
mod pattern;
mod prune;
mod schema;
mod validate;

pub use definition::{Definition, Names, PrinterColumn, ScalePaths, Scope, Version};
pub use error::{FieldError, FieldErrorReason};
pub use jsonpath::{JsonPath, JsonPathError};
pub use schema::{AdditionalProperties, CompiledSchema, ListType, MapType, Schema};

use serde_json::Value;

/// What admission of a custom resource found worth saying although the object is acceptable.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Admitted {
    /// Paths of fields that the schema doesn't know and that were pruned, e.g. `spec.foo`.
    pub unknown_fields: Vec<String>,
}

impl CompiledSchema {
    /// Runs the whole write pipeline on `new`: prune, drop nulls, default, validate, CEL (sandbox.md §3.2).
    ///
    /// `old` is the stored object on an update; it feeds transition rules, and parts that did not change are not
    /// judged again, so that an object stored under an older schema stays editable.
    pub fn admit(&self, new: &mut Value, old: Option<&Value>) -> Result<Admitted, Vec<FieldError>> {
        let unknown_fields = self.prune(new);
        self.default(new);
        let errors = self.validate(new, old);
        if errors.is_empty() {
            Ok(Admitted { unknown_fields })
        } else {
            Err(errors)
        }
    }

    /// Removes fields that the schema does not declare and returns their paths.
    pub fn prune(&self, object: &mut Value) -> Vec<String> {
        prune::prune(self.root(), object)
    }

    /// Drops nulls of non-nullable fields and fills in the schema's defaults, parents before children.
    pub fn default(&self, object: &mut Value) {
        defaults::drop_nulls(self.root(), object);
        defaults::apply(self.root(), object);
    }

    /// Everything that is wrong with an object that has been pruned and defaulted.
    pub fn validate(&self, new: &Value, old: Option<&Value>) -> Vec<FieldError> {
        let mut found = validate::validate(self.root(), new, old);
        found.errors.extend(lists::duplicates(self.root(), new, old));
        if found.blocks_rules {
            found.errors.push(FieldError::rules_not_checked());
        } else {
            found.errors.extend(cel::check(self.root(), new, old));
        }
        found.errors
    }
}

#[cfg(test)]
mod tests;
