//! The CloudProvider trait and the kit that providers are built with.
//!
//! - [`provider`] is the contract, [`error`] what can go wrong and what core does about it.
//! - [`selection`] answers the questions about instance types that everybody asks.
//! - [`http`], [`credentials`], [`cache`], [`events`], [`batch`], [`unavailable`], [`pricing`], [`user_data`], [`ownership`] and
//!   [`garbage_collection`] are the parts that every provider is built from, each usable alone.
//! - [`kubernetes`] reaches an API server, for core as well as for providers.
//! - [`layer`] wraps one provider in another: [`metrics`] measures it from outside, [`overlay`] shows it as NodeOverlays
//!   leave it.
//! - [`fake`] is a provider for tests, and [`conformance`] the tests that every provider passes.

pub mod background;
pub mod batch;
pub mod cache;
pub mod clock;
pub mod conformance;
pub mod credentials;
pub mod diagnosis;
pub mod error;
pub mod events;
pub mod fake;
pub mod garbage_collection;
pub mod http;
pub mod instance;
pub mod kubernetes;
pub mod layer;
pub mod metrics;
pub mod node_class;
pub mod overlay;
pub mod ownership;
pub mod pricing;
pub mod provider;
pub mod registration;
pub mod repair;
pub mod selection;
pub mod unavailable;
pub mod user_data;
pub mod webhook;

pub use background::BackgroundTask;
pub use diagnosis::{Diagnosis, Verdict};
pub use error::{CloudError, ErrorKind, LaunchEffect, RebootEffect};
pub use instance::{ClaimMark, Instance, InstancePhase};
pub use karpenter_engine::model::{InstanceType, Offering, OfferingOverrides, Overhead};
pub use layer::Layer;
pub use node_class::{NodeClassKind, NodeClassState, Readiness};
pub use provider::{
    AnnotationNames, CloudProvider, Deletion, DriftReason, Finding, InstanceTypes, LaunchHints, RebootOperation,
    UnregisteredTaint, VolumeRequirements,
};
pub use registration::{HookOutcome, HookVerdict, RegistrationHook};
pub use repair::{RepairAction, RepairPolicies, RepairPolicy};
