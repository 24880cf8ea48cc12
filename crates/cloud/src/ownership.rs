//! Marks by which a machine is known to be ours: names and tags made from the cluster and the claim's UID.
//!
//! Both are deterministic, so that after a crash the machine of a claim is found again instead of being made twice.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

use crate::instance::ClaimMark;

/// The marks of one cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ownership {
    cluster: String,
}

/// What clouds let a machine be called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameRules {
    pub prefix: String,
    /// In bytes, suffixes included.
    pub longest: usize,
}

/// The tag that says which cluster a machine belongs to.
pub const CLUSTER_TAG: &str = "karpenter.sh/cluster";
/// The tags that say which claim a machine was made for.
pub const CLAIM_TAG: &str = "karpenter.sh/nodeclaim";
pub const CLAIM_UID_TAG: &str = "karpenter.sh/nodeclaim-uid";
pub const NODE_POOL_TAG: &str = "karpenter.sh/nodepool";

const HASH_CHARS: usize = 8;
/// Room for `-<attempt>` with up to two digits.
const ATTEMPT_CHARS: usize = 3;

/// Whose machine it is, read from its tags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Made by us for this claim.
    Ours(ClaimMark),
    /// It has our cluster's mark but does not say for which claim it was made: never touched automatically.
    Unclear,
    /// Another cluster's, or nobody's.
    Foreign,
}

// === impl Ownership ===

impl Ownership {
    pub fn new(cluster: impl Into<String>) -> Self {
        Self {
            cluster: cluster.into(),
        }
    }

    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// The tags to launch a machine with.
    pub fn tags(&self, claim: &ClaimMark, node_pool: &str) -> BTreeMap<String, String> {
        [
            (CLUSTER_TAG, self.cluster.as_str()),
            (CLAIM_TAG, &claim.name),
            (CLAIM_UID_TAG, &claim.uid),
            (NODE_POOL_TAG, node_pool),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
    }

    /// Reads the owner back from a machine's tags.
    pub fn owner(&self, tags: &BTreeMap<String, String>) -> Owner {
        if tags.get(CLUSTER_TAG).is_none_or(|cluster| *cluster != self.cluster) {
            return Owner::Foreign;
        }
        match (tags.get(CLAIM_TAG), tags.get(CLAIM_UID_TAG)) {
            (name, Some(uid)) if !uid.is_empty() => Owner::Ours(ClaimMark {
                name: name.cloned().unwrap_or_default(),
                uid: uid.clone(),
            }),
            _ => Owner::Unclear,
        }
    }
}

// === impl NameRules ===

impl NameRules {
    /// For clouds whose machine names become host names: at most 63 characters.
    pub fn host_name(prefix: impl Into<String>) -> Self {
        Self {
            prefix: prefix.into(),
            longest: 63,
        }
    }

    /// The name of a claim's machine, for launch attempt 1, 2, ….
    ///
    /// Lower case letters, digits and inner hyphens only; starts with a letter. Names that would be too long are cut
    /// and told apart by a hash of the UID, so that two claims never share a name.
    pub fn machine_name(&self, claim: &ClaimMark, attempt: u32) -> String {
        let mut name: String = format!("{}{}", self.prefix, claim.name)
            .to_lowercase()
            .chars()
            .map(|char| {
                if char.is_ascii_lowercase() || char.is_ascii_digit() {
                    char
                } else {
                    '-'
                }
            })
            .collect();
        if !name.starts_with(|first: char| first.is_ascii_lowercase()) {
            name.insert(0, 'n');
        }
        let longest = self.longest.saturating_sub(ATTEMPT_CHARS);
        if name.len() > longest {
            name.truncate(longest.saturating_sub(HASH_CHARS + 1));
            name = format!("{}-{}", name.trim_end_matches('-'), short_hash(&claim.uid));
        }
        let name = name.trim_end_matches('-');
        if attempt < 2 {
            name.to_owned()
        } else {
            format!("{name}-{attempt}")
        }
    }
}

/// The first characters of the SHA-256 of `text`, in hex.
pub fn short_hash(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    let mut hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    hex.truncate(HASH_CHARS);
    hex
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn claim(name: &str) -> ClaimMark {
        ClaimMark {
            name: name.into(),
            uid: "6f1b0a51-0c3f-4a7e-8f6b-3d9f0c2f7a11".into(),
        }
    }

    #[test]
    fn a_machine_is_named_after_its_claim() {
        let rules = NameRules::host_name("karpenter-");
        assert_eq!(
            rules.machine_name(&claim("default-x7k2p"), 1),
            "karpenter-default-x7k2p"
        );
        assert_eq!(
            rules.machine_name(&claim("default-x7k2p"), 3),
            "karpenter-default-x7k2p-3"
        );
        assert_eq!(NameRules::host_name("").machine_name(&claim("9.lives."), 1), "n9-lives");
    }

    #[test]
    fn long_names_are_told_apart_by_the_uid() {
        let rules = NameRules::host_name("karpenter-");
        let first = claim(&"a".repeat(80));
        let second = ClaimMark {
            uid: "another".into(),
            ..first.clone()
        };
        assert_ne!(rules.machine_name(&first, 1), rules.machine_name(&second, 1));
        assert_eq!(rules.machine_name(&first, 1), rules.machine_name(&first, 1));
    }

    #[test]
    fn tags_lead_back_to_the_claim() {
        let ours = Ownership::new("blue");
        let tags = ours.tags(&claim("a"), "default");
        assert_eq!(ours.owner(&tags), Owner::Ours(claim("a")));
        assert_eq!(Ownership::new("green").owner(&tags), Owner::Foreign);
    }

    #[test]
    fn a_machine_without_a_claim_uid_is_never_surely_ours() {
        let ours = Ownership::new("blue");
        let tags = BTreeMap::from([(CLUSTER_TAG.to_owned(), "blue".to_owned())]);
        assert_eq!(ours.owner(&tags), Owner::Unclear);
        assert_eq!(ours.owner(&BTreeMap::new()), Owner::Foreign);
    }

    proptest! {
        #[test]
        fn every_name_is_a_host_name(prefix in ".{0,20}", name in ".{0,200}", attempt in 1u32..=99) {
            let name = NameRules::host_name(prefix).machine_name(&claim(&name), attempt);
            prop_assert!(!name.is_empty() && name.len() <= 63, "{name:?}");
            prop_assert!(name.starts_with(|c: char| c.is_ascii_lowercase()));
            prop_assert!(!name.ends_with('-'));
            prop_assert!(name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'));
        }
    }
}
