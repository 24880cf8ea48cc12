//! The OVHcloud Managed Kubernetes provider.
//!
//! The service has no call that makes one machine: capacity exists only as the size of node pools. [`pool`] is the heart of
//! this crate and explains how claims become nodes all the same; [`client`] speaks the API, [`catalogue`] turns flavors into
//! instance types, [`provider`] answers core, and (feature `sim`) [`sim`] is the API without the cloud.

pub mod catalogue;
pub mod client;
pub mod names;
pub mod node_class;
pub mod pool;

pub use node_class::OvhNodeClass;
