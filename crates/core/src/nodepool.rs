//! What is kept up to date about NodePools: their resources, hash, readiness, health and validity.

pub mod counter;
pub mod hash;
pub mod health;
pub mod pause;
pub mod readiness;
pub mod registration_health;
pub(crate) mod rollout;
pub mod validation;
