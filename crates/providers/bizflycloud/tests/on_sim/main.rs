//! The provider over the simulated BizFly Cloud.

mod client;
mod conformance;
mod crashes;
mod environment;
mod fleet;
mod kinds;
mod launching;
mod provisioners;
