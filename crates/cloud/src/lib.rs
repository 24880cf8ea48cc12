//! The CloudProvider trait and the kit that providers are built with.
//!
//! - [`provider`] is the contract, [`error`] what can go wrong and what core does about it.
//! - [`selection`] answers the questions about instance types that everybody asks.
//! - [`http`], [`cache`], [`batch`], [`unavailable`], [`user_data`] and [`ownership`] are the parts that every provider is
//!   built from, each usable alone.

pub mod batch;
pub mod cache;
pub mod clock;
pub mod error;
pub mod fake;
pub mod http;
pub mod instance;
pub mod node_class;
pub mod ownership;
pub mod provider;
pub mod registration;
pub mod repair;
pub mod selection;
pub mod unavailable;
pub mod user_data;

pub use error::{CloudError, ErrorKind, LaunchEffect, RebootEffect};
pub use instance::{ClaimMark, Instance, InstancePhase};
pub use karpenter_engine::model::{InstanceType, Offering, OfferingOverrides, Overhead};
pub use node_class::{NodeClassKind, NodeClassState, Readiness};
pub use provider::{
    CloudProvider, Deletion, DriftReason, Finding, InstanceTypes, LaunchHints, RebootOperation, UnregisteredTaint,
};
pub use registration::{HookOutcome, HookVerdict, RegistrationHook};
pub use repair::{RepairAction, RepairPolicies, RepairPolicy};
