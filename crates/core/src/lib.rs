//! Cluster state and controllers: watches become facts, plans become effects.

pub mod clock;
pub mod error;
pub mod events;
pub mod limit;
pub mod metrics;
pub mod runner;
pub mod watch;

pub use error::{Error, Result};
