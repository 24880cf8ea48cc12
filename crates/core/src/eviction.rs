//! The one place that makes pods leave: a queue that evicts, waits where budgets say so, and forces at the deadline.

pub mod api;
pub mod request;
