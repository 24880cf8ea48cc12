//! Cluster state and controllers: watches become facts, plans become effects.

pub mod claims;
pub mod clock;
pub mod error;
pub mod events;
pub mod eviction;
pub mod index;
pub mod limit;
pub mod metrics;
pub mod nodepool;
pub mod nodes;
pub mod patch;
pub mod pools;
pub mod runner;
pub mod termination;
pub mod watch;

pub use error::{Error, Result};
