//! The OVHcloud Managed Kubernetes provider.
//!
//! The service has no call that makes one machine: capacity exists only as the size of node pools. [`pool`] is the heart of
//! this crate and explains how claims become nodes all the same; [`client`] speaks the API, [`catalogue`] turns flavors into
//! instance types, [`directory`] finds the way to the cluster, [`provider`] answers core, and (feature `sim`) `sim` is the
//! API without the cloud.

pub mod catalogue;
pub mod client;
pub mod contract;
pub mod directory;
pub mod events;
mod gpus;
pub mod metrics;
pub mod names;
pub mod node_class;
mod nodes;
pub mod pool;
pub mod provider;
mod readiness;
mod refreshed;
mod registrations;
pub mod repair;
pub mod rights;
pub mod settings;
#[cfg(feature = "sim")]
pub mod sim;
mod tidying;
pub mod unavailable;
mod workload;

pub use node_class::OvhNodeClass;
pub use provider::OvhProvider;
pub use settings::OvhSettings;
