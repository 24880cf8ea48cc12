//! The Kubernetes kinds of Karpenter, and the vocabulary that every other crate shares.
//!
//! Text that users write (quantities, durations, schedules, selectors, requirements) is parsed here once, into types that
//! can't be wrong inside. Nothing in this crate does I/O, reads a clock or needs an async runtime.

#[cfg(feature = "testdata")]
pub mod acceptance;
pub mod budget;
pub mod capacity_buffer;
pub mod conditions;
pub mod crd;
pub mod cron;
pub mod duration;
pub mod hash;
pub mod labels;
pub mod names;
pub mod node_claim;
pub mod node_class;
pub mod node_overlay;
pub mod node_pool;
pub mod percent;
pub mod pods;
pub mod quantity;
pub mod requirement;
pub mod resources;
pub mod schema;
pub mod selector;
pub mod taint;
pub mod validation;

pub use capacity_buffer::CapacityBuffer;
pub use node_claim::NodeClaim;
pub use node_class::NodeClassReference;
pub use node_overlay::NodeOverlay;
pub use node_pool::NodePool;
pub use quantity::Quantity;
pub use requirement::{Operator, Requirement, Requirements};
pub use resources::ResourceList;
