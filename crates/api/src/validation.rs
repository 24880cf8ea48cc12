//! What the API server can't check: the rules that make an admitted object unusable (api.md §1.1.5).
//!
//! Findings end up in the `ValidationSucceeded` condition and on the lines of `karpenter validate`.

mod capacity_buffer;
mod node_overlay;
mod node_pool;
mod requirement;

pub use requirement::{RequirementText, ignored_values, requirement};

use std::fmt;

/// One thing that is wrong with an object, where, and what would be right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The field, such as `spec.template.spec.taints[0].key`.
    pub path: String,
    pub problem: String,
}

impl Finding {
    pub fn new(path: impl Into<String>, problem: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            problem: problem.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.problem)
    }
}

/// All findings as the message of a condition.
pub fn message(findings: &[Finding]) -> String {
    findings.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// A path to an entry of a map, with the key in brackets when dots in it would mislead.
fn entry(path: &str, key: &str) -> String {
    format!("{path}[{key}]")
}
