//! The provider over the simulated BizFly Cloud.

mod client;
mod collection;
mod conformance;
mod crashes;
mod doctor;
mod environment;
mod errors;
mod fleet;
mod kinds;
mod launching;
mod offers;
mod provisioners;
mod quotas;
mod secrets;
mod sharing;
mod story;
mod volumes;
mod warm;
