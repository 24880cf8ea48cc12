//! The OVHcloud provider on the sandbox's API server and the simulated OVHcloud API.

mod classes;
mod conformance;
mod environment;
mod limits;
mod pools;
mod wire;
