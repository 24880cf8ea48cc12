//! The KWOK provider: makes Node objects directly, compatible with upstream's KWOK provider.
//!
//! There is no cloud behind it. A launch creates a Node that a [KWOK](https://kwok.sigs.k8s.io) controller (or the sandbox's
//! kubelets) brings to life, and everything the provider knows is read back from Nodes.

pub mod catalogue;
pub mod node;
pub mod node_class;
pub mod provider;
pub mod readiness;
pub mod repair;

pub use catalogue::Catalogue;
pub use node_class::KwokNodeClass;
pub use provider::KwokProvider;
