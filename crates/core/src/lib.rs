//! Cluster state and controllers: watches become facts, plans become effects.

pub mod claims;
pub mod client;
pub mod clock;
pub mod context;
pub mod error;
pub mod events;
pub mod eviction;
pub mod gate;
pub mod health;
pub mod index;
pub mod leader;
pub mod limit;
pub mod logging;
pub mod metrics;
pub mod nodepool;
pub mod nodes;
pub mod operator;
pub mod options;
pub mod patch;
pub mod pools;
pub mod runner;
pub mod server;
pub mod state;
pub mod termination;
pub mod watch;

pub use error::{Error, Result};
