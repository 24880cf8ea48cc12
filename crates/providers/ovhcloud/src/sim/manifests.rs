//! What a user of the simulated cloud applies.

use super::{APPLICATION_KEY, APPLICATION_SECRET, CONSUMER_KEY};

/// The keys as a Secret in `namespace`, an OVHNodeClass and the NodePool `default`.
pub fn manifests(namespace: &str) -> String {
    include_str!("manifests.yaml")
        .replace("{namespace}", namespace)
        .replace("{application}", APPLICATION_KEY)
        .replace("{secret}", APPLICATION_SECRET)
        .replace("{consumer}", CONSUMER_KEY)
}
