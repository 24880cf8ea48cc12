//! The solver: first fit, largest pods first, on existing nodes, then on planned ones, then on a new one (scheduling.md §3).
//!
//! `World` holds what does not change during a pass (interned nodes, pod kinds, topology groups, templates) and remembers
//! what it has worked out; a run keeps its own small state on top, so that many runs can share one world.

mod attempt;
mod cheaper;
mod claims;
mod daemons;
mod default_spread;
mod demand;
mod diagnose;
mod domains;
mod effective_zones;
mod finish;
mod groups;
mod kinds;
mod nodes;
mod ports;
mod reserved;
mod run;
mod templates;
mod volumes;
mod world;

pub(crate) use run::{Run, Settings};
pub(crate) use world::World;
