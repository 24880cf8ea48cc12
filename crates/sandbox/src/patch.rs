//! The four ways to change an object without sending all of it.

pub(crate) mod apply;
pub(crate) mod json;
pub(crate) mod lists;
pub(crate) mod merge;
pub(crate) mod strategic;
