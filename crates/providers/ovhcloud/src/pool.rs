//! Turns claims into nodes of a service that only has node pools.
//!
//! MKS cannot make or delete one machine. It has pools with a wanted size, makes machines by itself when the size grows, and
//! takes the newest away when it shrinks, unless the victims are named. So claims *reserve* a place in a pool ([`ledger`]),
//! one actor per pool ([`actor`]) reads it, decides ([`plan`], a pure function) and writes, and machines are matched to the
//! claims that wait for them. Everything needed after a crash is in the claims' annotations and at the API.

pub mod actor;
pub mod engine;
pub mod key;
pub mod ledger;
pub mod placement;
pub mod plan;

pub use engine::{Engine, EngineSettings};
pub use key::{PoolKey, PoolOwner};
pub use ledger::Ledger;
