//! Scheduling and disruption decisions: pure functions from a snapshot to a plan with reasons.
//!
//! The engine does no I/O, reads no clock and draws no random numbers: the same snapshot gives the same plan every time,
//! whatever order the input came in.
//!
//! - [`model`] is the input: pods, nodes, NodePools and instance types, compact and shared.
//! - [`catalog`] interns NodePools and instance types once; passes reuse it until either changes.
//! - [`plan`] and [`reason`] are the answer.
//! - [`simulation`] asks: [`solve`] once, or a [`Simulator`] many "what if" questions about one snapshot.
//!
//! # How a pass is made fast
//! Label keys, values, requirements and whole requirement sets are interned, so that "does this pod go with that planned node"
//! is the lookup of a pair of integers that was worked out once. Instance types are rows of bits: a requirement set is a mask,
//! a resource request is a mask, and what a planned node can still become is their intersection, which only ever shrinks.
//! Pods are recognised by the `Arc`s they share (convert them through one [`convert::Interner`]) and decided on as kinds,
//! each with all its steps of relaxation. Topology rules are counters per domain. Why a pod was refused is worked out
//! at the end, for the pods that have no place.

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
pub use simulation::{Budget, Simulator, WhatIf, solve, solve_within};
