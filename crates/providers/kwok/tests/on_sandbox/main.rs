//! The KWOK provider on the sandbox's API server.

mod behaviour;
mod conformance;
mod environment;
