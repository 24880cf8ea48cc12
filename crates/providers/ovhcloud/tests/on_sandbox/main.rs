//! The provider on the embedded control plane and a simulated OVHcloud API, in virtual time.

mod classes;
mod conformance;
mod crashes;
mod deleting;
mod drifting;
mod endpoints;
mod environment;
mod failing;
mod interleavings;
mod launching;
mod limits;
mod mks;
mod offers;
mod probing;
mod steps;
mod whole;
mod wire;
mod with_core;
