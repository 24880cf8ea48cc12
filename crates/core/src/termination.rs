//! The end of a Node: no new pods, the old ones leave in order, volumes come off, the machine goes, then the Node.

pub mod drain;
pub mod volumes;
