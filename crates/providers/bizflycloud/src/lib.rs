//! The BizFly Cloud provider: launches servers of BizFly Cloud as nodes, on BizFly Kubernetes Engine or any other cluster.
//!
//! [`client`] speaks the cloud's API, [`node_class`] and [`provider_config`] are what users write, [`provider`] is the
//! CloudProvider, and [`provisioner`] carries out manifests of the earlier product. With the feature `sim`, `sim` is a
//! simulated BizFly Cloud that speaks the same API on a real socket.

mod account;
mod admission;
mod billing;
pub mod bootstrap;
pub mod capacity_share;
pub mod catalogue;
pub mod client;
pub mod compat;
pub mod convert;
pub mod cost;
pub mod credentials;
mod events;
pub mod flavor;
mod fleet;
mod garbage_collection;
pub mod images;
pub mod instance;
pub mod labels;
mod ledger;
pub mod metrics;
pub mod node_class;
pub mod pool_advice;
pub mod prices;
pub mod problem;
pub mod provider;
pub mod provider_config;
pub mod provisioner;
mod quota;
mod readiness;
mod refusals;
pub mod region;
pub mod repair;
mod resolution;
pub mod settings;
mod sharing;
#[cfg(feature = "sim")]
pub mod sim;
pub mod tags;
mod volume_plans;

pub use node_class::BizflyCloudNodeClass;
pub use provider::BizflyCloudProvider;
pub use provider_config::ProviderConfig;
pub use settings::Settings;
