//! The CloudProvider trait and the kit that providers are built with.

pub mod batch;
pub mod cache;
pub mod clock;
pub mod error;
pub mod http;
pub mod instance;
pub mod node_class;
pub mod ownership;
pub mod registration;
pub mod repair;
pub mod unavailable;
pub mod user_data;

pub use error::CloudError;
