//! Scheduling and disruption decisions: pure functions from a snapshot to a plan with reasons.
//!
//! The engine does no I/O, reads no clock and draws no random numbers: the same snapshot gives the same plan every time,
//! whatever order the input came in.
//!
//! - [`model`] is the input: pods, nodes, NodePools and instance types, compact and shared.
//! - [`catalog`] interns NodePools and instance types once; passes reuse it until either changes.
//! - [`plan`] and [`reason`] are the answer.

pub mod catalog;
pub mod catalog_file;
pub mod convert;
pub mod disruption;
pub mod model;
pub mod overlay;
pub mod plan;
pub mod reason;
pub mod simulation;
mod solve;
mod tables;

pub use catalog::{Catalog, PoolTypes};
pub use plan::Plan;
pub use simulation::{Simulator, WhatIf, solve, solve_within};
