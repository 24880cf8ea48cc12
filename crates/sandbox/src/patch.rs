//! The four ways to change an object without sending all of it.

pub(crate) mod apply;
pub(crate) mod merge;
