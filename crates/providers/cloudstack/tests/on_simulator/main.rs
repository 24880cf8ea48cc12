//! The provider against the simulated CloudStack API, on a real socket.

mod certificates;
mod changed;
mod conformance;
mod crashes;
mod disks;
mod drift;
mod environment;
mod errors;
mod kept;
mod launches;
mod lifecycle;
mod load;
mod observed;
mod replay;
mod requests;
mod scale;
mod spec_examples;
mod transport;
mod upkeep;
mod webhook;
mod whole;
mod with_core;
