//! The Apache CloudStack provider: a client of its API, the CloudStackNodeClass, and a CloudProvider over both.
//!
//! With the feature `sim` there is also a simulated CloudStack on a real socket, for tests and the demo.

mod affinity;
pub mod bootstrap;
pub mod catalogue;
pub mod client;
pub mod credentials;
mod disks;
mod drift;
mod fleet;
pub mod inventory;
pub mod labels;
mod launch;
pub mod machine;
pub mod node_class;
pub mod pricing;
pub mod provider;
pub mod provider_id;
pub mod repair;
pub mod resolve;
pub mod settings;
#[cfg(feature = "sim")]
pub mod sim;
pub mod start;
pub mod tasks;
mod termination;
pub mod unavailable;
pub mod webhook;

pub use node_class::CloudStackNodeClass;
pub use provider::CloudStackProvider;
pub use settings::ProviderSettings;
