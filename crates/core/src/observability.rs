//! Metrics about objects: what they are, how long they have been it, and what changed.

pub mod nodepools;
pub mod nodes;
pub mod pods;
pub mod status_conditions;
pub mod transitions;
