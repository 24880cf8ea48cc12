//! Flavors as instance types: what they are, what pods get of them, and what they cost.

pub mod catalog;
pub mod flavors;
pub mod learned;
pub mod overhead;
pub mod types;

pub use catalog::PriceList;
pub use learned::Learned;
pub use types::{Billing, TypeFacts, Zones};
