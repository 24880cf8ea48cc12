//! What is kept up to date about NodePools: their resources, hash, readiness, health and validity.

pub mod health;
