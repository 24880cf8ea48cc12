//! The provider against the simulated CloudStack API, on a real socket.

mod conformance;
mod crashes;
mod drift;
mod environment;
mod errors;
mod launches;
mod lifecycle;
mod scale;
mod transport;
