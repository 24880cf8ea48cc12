//! The provider over the simulated BizFly Cloud.

mod client;
mod conformance;
mod environment;
mod kinds;
mod launching;
mod provisioners;
