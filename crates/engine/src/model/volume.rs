//! What scheduling knows of volumes: the driver that attaches each claim, and where it can be attached.

use std::collections::BTreeMap;
use std::sync::Arc;

use karpenter_api::requirement::Requirement;
use rustc_hash::FxHashMap;

/// PersistentVolumeClaims by namespace and name, as resolved from PVC, PV and StorageClass (scheduling.md §2.7, §2.8).
#[derive(Debug, Clone, Default)]
pub struct VolumeFacts {
    claims: BTreeMap<Arc<str>, FxHashMap<Box<str>, Arc<ClaimFacts>>>,
}

impl VolumeFacts {
    pub fn insert(&mut self, namespace: impl Into<Arc<str>>, name: impl Into<Box<str>>, facts: ClaimFacts) {
        self.claims
            .entry(namespace.into())
            .or_default()
            .insert(name.into(), Arc::new(facts));
    }

    pub fn remove(&mut self, namespace: &str, name: &str) {
        if let Some(claims) = self.claims.get_mut(namespace) {
            claims.remove(name);
        }
    }

    pub fn get(&self, namespace: &str, name: &str) -> Option<&Arc<ClaimFacts>> {
        self.claims.get(namespace)?.get(name)
    }

    pub fn is_empty(&self) -> bool {
        self.claims.values().all(FxHashMap::is_empty)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimFacts {
    /// The CSI driver whose attachment limit this claim counts against; `None` is untracked.
    pub driver: Option<Arc<str>>,
    pub topology: ClaimTopology,
}

/// Where a claim's volume can be attached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimTopology {
    Anywhere,
    /// One of these alternatives, each a conjunction; an empty conjunction is unconstrained.
    AnyOf(Vec<Vec<Requirement>>),
    /// The lookup failed; pods that use the claim are left out with this sentence (scheduling.md Q-1).
    Unresolved(String),
}

impl ClaimTopology {
    /// The same places, as far as they satisfy these requirements too.
    #[must_use]
    pub fn and(self, requirements: &[Requirement]) -> Self {
        match self {
            topology if requirements.is_empty() => topology,
            Self::Anywhere => Self::AnyOf(vec![requirements.to_vec()]),
            Self::AnyOf(mut alternatives) => {
                for alternative in &mut alternatives {
                    alternative.extend(requirements.iter().cloned());
                }
                Self::AnyOf(alternatives)
            }
            Self::Unresolved(problem) => Self::Unresolved(problem),
        }
    }
}
