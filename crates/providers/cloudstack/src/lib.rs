//! The Apache CloudStack provider: a client of its API, the CloudStackNodeClass, and a CloudProvider over both.
//!
//! With the feature `sim` there is also a simulated CloudStack on a real socket, for tests and the demo.

pub mod client;
pub mod node_class;
