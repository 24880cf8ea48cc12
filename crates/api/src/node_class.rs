//! References from NodePools and NodeClaims to the provider's own configuration object.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema;

/// The provider's NodeClass object that says how machines are made.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct NodeClassReference {
    /// API group of the NodeClass.
    #[schemars(regex(pattern = schema::NO_SLASH))]
    #[schemars(extend("x-kubernetes-validations" = [schema::rule("self != ''", "group may not be empty")]))]
    pub group: String,
    /// Kind of the NodeClass.
    #[schemars(extend("x-kubernetes-validations" = [schema::rule("self != ''", "kind may not be empty")]))]
    pub kind: String,
    /// Name of the NodeClass.
    #[schemars(extend("x-kubernetes-validations" = [schema::rule("self != ''", "name may not be empty")]))]
    pub name: String,
}

impl NodeClassReference {
    /// The label that nodes made from this NodeClass carry; its value is the NodeClass's name.
    pub fn label_key(&self) -> String {
        format!("{}/{}", self.group, self.kind.to_ascii_lowercase())
    }
}
