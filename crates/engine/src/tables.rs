//! Interned vocabulary: label keys and values, requirements and requirement sets become small integers.
//!
//! Requirements and sets of them are hash-consed, so that equality is a comparison of ids, and the outcome of combining
//! two of them is worked out once and remembered. Ids say nothing about order and never decide anything.

pub(crate) mod names;
pub(crate) mod req;
pub(crate) mod resources;
pub(crate) mod set;

pub(crate) use names::{KeyId, Names, ValueId};
pub(crate) use req::{Req, ValueSet};
pub(crate) use resources::{Amounts, Dims, milli_down};
pub(crate) use set::{Clash, ReqId, SetId, Tables};
