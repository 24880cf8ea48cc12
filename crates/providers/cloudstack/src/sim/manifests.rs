//! What a user of the simulated cloud applies.

/// A CloudStackNodeClass for the zones `zone-1` to `zone-3` of [`Seed::of_zones`](super::Seed::of_zones) and the NodePool
/// `default`.
pub const MANIFESTS: &str = include_str!("manifests.yaml");
