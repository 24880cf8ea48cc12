//! A reason why something is not ready, in the two parts of a condition.

/// The reason and message of a condition that is false.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// CamelCase, stable, for machines.
    pub reason: &'static str,
    /// A sentence for people.
    pub message: String,
}

impl Problem {
    pub fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
        }
    }
}
