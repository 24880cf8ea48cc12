//! What is kept up to date about NodePools: their resources, hash, readiness, health and validity.

pub mod counter;
pub mod hash;
pub mod health;
pub mod readiness;
pub mod registration_health;
pub mod validation;
