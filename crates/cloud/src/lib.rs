//! The CloudProvider trait and the kit that providers are built with.

pub mod clock;
pub mod error;
pub mod node_class;
pub mod repair;

pub use error::CloudError;
