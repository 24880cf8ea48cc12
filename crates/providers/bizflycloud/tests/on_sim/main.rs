//! The provider over the simulated BizFly Cloud.

mod admission;
mod client;
mod cluster;
mod collection;
mod conformance;
mod costs;
mod crashes;
mod doctor;
mod environment;
mod errors;
mod fleet;
mod kinds;
mod launching;
mod offers;
mod protection;
mod provisioners;
mod quotas;
mod secrets;
mod sharing;
mod story;
mod upkeep;
mod volumes;
mod warm;
