//! What a user of the simulated cloud applies.

use super::{EMAIL, PASSWORD, SimulatedBizfly};

impl SimulatedBizfly {
    /// The password as a Secret in `namespace`, a ProviderConfig for it, a BizflyCloudNodeClass and the NodePool `default`.
    pub fn manifests(&self, namespace: &str) -> String {
        include_str!("manifests.yaml")
            .replace("{namespace}", namespace)
            .replace("{url}", &self.url())
            .replace("{email}", EMAIL)
            .replace("{password}", PASSWORD)
    }
}
