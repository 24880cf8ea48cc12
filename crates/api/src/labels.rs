//! Every label, annotation, taint key and finalizer that Karpenter reads or writes, and the rules about label keys.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// The API group, which is also the restricted label domain.
pub const GROUP: &str = "karpenter.sh";

pub const NODEPOOL: &str = "karpenter.sh/nodepool";
pub const CAPACITY_TYPE: &str = "karpenter.sh/capacity-type";
pub const REGISTERED: &str = "karpenter.sh/registered";
pub const INITIALIZED: &str = "karpenter.sh/initialized";
pub const DO_NOT_SYNC_TAINTS: &str = "karpenter.sh/do-not-sync-taints";

pub const ZONE: &str = "topology.kubernetes.io/zone";
pub const REGION: &str = "topology.kubernetes.io/region";
pub const INSTANCE_TYPE: &str = "node.kubernetes.io/instance-type";
pub const ARCH: &str = "kubernetes.io/arch";
pub const OS: &str = "kubernetes.io/os";
pub const WINDOWS_BUILD: &str = "node.kubernetes.io/windows-build";
pub const HOSTNAME: &str = "kubernetes.io/hostname";

pub const ARCH_AMD64: &str = "amd64";
pub const ARCH_ARM64: &str = "arm64";

pub const CAPACITY_TYPE_ON_DEMAND: &str = "on-demand";
pub const CAPACITY_TYPE_SPOT: &str = "spot";
pub const CAPACITY_TYPE_RESERVED: &str = "reserved";

/// Annotation keys.
pub mod annotations {
    pub const DO_NOT_DISRUPT: &str = "karpenter.sh/do-not-disrupt";
    /// On a pod, in `karpenter.sh/v1alpha5`: what [`DO_NOT_DISRUPT`] is now.
    pub const DO_NOT_EVICT: &str = "karpenter.sh/do-not-evict";
    /// On a Node, in `karpenter.sh/v1alpha5`: what [`DO_NOT_DISRUPT`] is now.
    pub const DO_NOT_CONSOLIDATE: &str = "karpenter.sh/do-not-consolidate";
    pub const DO_NOT_REPAIR: &str = "karpenter.sh/do-not-repair";
    pub const DISRUPTION_COST: &str = "karpenter.sh/disruption-cost";
    /// On a NodePool: none of its nodes is disrupted voluntarily while this is `"true"`. On the Namespace that Karpenter runs
    /// in: no node at all.
    pub const PAUSE_DISRUPTION: &str = "karpenter.sh/pause-disruption";
    /// On a NodePool: into how many cheaper nodes consolidation may split one.
    pub const CONSOLIDATION_MAX_REPLACEMENTS: &str = "karpenter.sh/consolidation-max-replacements";
    /// On a NodePool: what a consolidation must save, per hour (`0.05`) or of what the nodes cost (`10%`).
    pub const CONSOLIDATION_MINIMUM_SAVING: &str = "karpenter.sh/consolidation-minimum-saving";
    /// On a NodePool: what moving one pod counts for, in money per hour, when a saving is judged.
    pub const CONSOLIDATION_POD_COST: &str = "karpenter.sh/consolidation-pod-cost";
    /// On a NodePool: how old a node must be before consolidation touches it.
    pub const CONSOLIDATION_COOLDOWN: &str = "karpenter.sh/consolidation-cooldown";
    /// On a NodePool: after so many nodes in a row failed to register, drift stops until the NodePool or its NodeClass changes.
    pub const DRIFT_HALT_AFTER: &str = "karpenter.sh/drift-halt-after";
    /// On a NodePool, by Karpenter: how many nodes in a row failed to register, and what they were made from.
    pub const FAILED_REGISTRATIONS: &str = "karpenter.sh/failed-registrations";
    pub const POD_DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
    pub const NODEPOOL_HASH: &str = "karpenter.sh/nodepool-hash";
    pub const NODEPOOL_HASH_VERSION: &str = "karpenter.sh/nodepool-hash-version";
    pub const TERMINATION_TIMESTAMP: &str = "karpenter.sh/nodeclaim-termination-timestamp";
    pub const MIN_VALUES_RELAXED: &str = "karpenter.sh/nodeclaim-min-values-relaxed";
    pub const REBOOT_PRE_BOOT_ID: &str = "karpenter.sh/reboot-pre-boot-id";
    pub const REBOOT_TERMINATION_GRACE_PERIOD: &str = "karpenter.sh/reboot-termination-grace-period";
    pub const REQUESTED_DRA_DRIVERS: &str = "karpenter.sh/requested-dra-drivers";
    pub const PRICE_OVERLAY_APPLIED: &str = "karpenter.sh/price-overlay-applied";
    pub const CAPACITY_OVERLAY_APPLIED: &str = "karpenter.sh/capacity-overlay-applied";
    pub const CAPACITY_BUFFER_FAKE_POD: &str = "karpenter.sh/capacity-buffer-fake-pod";
    pub const CAPACITY_BUFFER_NAME: &str = "karpenter.sh/capacity-buffer-name";
    pub const CAPACITY_BUFFER_NAMESPACE: &str = "karpenter.sh/capacity-buffer-namespace";
}

/// Keeps a NodeClaim or Node until its instance is gone.
pub const TERMINATION_FINALIZER: &str = "karpenter.sh/termination";

const ALIASES: [(&str, &str); 5] = [
    ("failure-domain.beta.kubernetes.io/zone", ZONE),
    ("failure-domain.beta.kubernetes.io/region", REGION),
    ("beta.kubernetes.io/arch", ARCH),
    ("beta.kubernetes.io/os", OS),
    ("beta.kubernetes.io/instance-type", INSTANCE_TYPE),
];

const WELL_KNOWN: [&str; 8] = [
    NODEPOOL,
    CAPACITY_TYPE,
    ZONE,
    REGION,
    INSTANCE_TYPE,
    ARCH,
    OS,
    WINDOWS_BUILD,
];

/// Which label keys mean something to Karpenter and its provider, which are off limits, and which are other names for one.
///
/// [`LabelRules::default`] is the base set; the operator extends it once at start-up with what its provider declares and
/// passes it on by reference. It is a value and not a global, so that two providers can be reasoned about side by side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelRules {
    well_known: BTreeSet<String>,
    restricted_domains: BTreeSet<String>,
    aliases: BTreeMap<String, String>,
    value_aliases: BTreeMap<String, BTreeMap<String, String>>,
    known_values: BTreeMap<String, BTreeSet<String>>,
}

impl Default for LabelRules {
    fn default() -> Self {
        let capacity_types = [CAPACITY_TYPE_ON_DEMAND, CAPACITY_TYPE_SPOT, CAPACITY_TYPE_RESERVED];
        Self {
            well_known: WELL_KNOWN.map(str::to_owned).into(),
            restricted_domains: [GROUP.to_owned()].into(),
            aliases: ALIASES.map(|(alias, key)| (alias.to_owned(), key.to_owned())).into(),
            value_aliases: BTreeMap::new(),
            known_values: [(CAPACITY_TYPE.to_owned(), capacity_types.map(str::to_owned).into())].into(),
        }
    }
}

impl LabelRules {
    /// Declares a label that instance types supply, so that pods may ask for it without the NodePool naming it.
    pub fn with_well_known(mut self, key: impl Into<String>) -> Self {
        self.well_known.insert(key.into());
        self
    }

    /// Reserves a label domain (and its sub-domains) for the provider.
    pub fn with_restricted_domain(mut self, domain: impl Into<String>) -> Self {
        self.restricted_domains.insert(domain.into());
        self
    }

    /// Declares another name for a key, such as a CSI driver's own zone label.
    pub fn with_alias(mut self, alias: impl Into<String>, key: impl Into<String>) -> Self {
        self.aliases.insert(alias.into(), key.into());
        self
    }

    /// Declares another spelling of a value of a canonical key.
    pub fn with_value_alias(
        mut self,
        key: impl Into<String>,
        alias: impl Into<String>,
        value: impl Into<String>,
    ) -> Self {
        self.value_aliases
            .entry(key.into())
            .or_default()
            .insert(alias.into(), value.into());
        self
    }

    pub fn is_well_known(&self, key: &str) -> bool {
        self.well_known.contains(key)
    }

    pub fn well_known(&self) -> impl Iterator<Item = &str> {
        self.well_known.iter().map(String::as_str)
    }

    pub fn restricted_domains(&self) -> impl Iterator<Item = &str> {
        self.restricted_domains.iter().map(String::as_str)
    }

    /// Whether users may not set or require the key: it is the hostname, or lies in a reserved domain and is not well known.
    pub fn is_restricted(&self, key: &str) -> bool {
        if self.is_well_known(key) {
            return false;
        }
        key == HOSTNAME || self.restricted_domain_of(key).is_some()
    }

    /// The reserved domain that the key lies in, if any.
    pub fn restricted_domain_of(&self, key: &str) -> Option<&str> {
        let domain = domain(key);
        self.restricted_domains.iter().map(String::as_str).find(|restricted| {
            domain == *restricted || domain.strip_suffix(restricted).is_some_and(|sub| sub.ends_with('.'))
        })
    }

    /// The canonical name of a key.
    pub fn canonical_key<'a>(&'a self, key: &'a str) -> &'a str {
        self.aliases.get(key).map_or(key, String::as_str)
    }

    /// The canonical spelling of a value of a canonical key.
    pub fn canonical_value<'a>(&'a self, key: &str, value: &'a str) -> &'a str {
        self.value_aliases
            .get(key)
            .and_then(|aliases| aliases.get(value))
            .map_or(value, String::as_str)
    }

    /// The values that a well-known key can have, where they are a closed set.
    pub fn known_values(&self, key: &str) -> Option<&BTreeSet<String>> {
        self.known_values.get(key)
    }
}

/// The text before the first slash of a label key; empty when there is none.
pub fn domain(key: &str) -> &str {
    key.split_once('/').map_or("", |(domain, _)| domain)
}

/// The canonical name of a key by the base aliases alone.
pub fn canonical_key(key: &str) -> Cow<'_, str> {
    ALIASES
        .iter()
        .find(|(alias, _)| *alias == key)
        .map_or(Cow::Borrowed(key), |(_, canonical)| Cow::Borrowed(*canonical))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restricted_is_what_lies_in_a_reserved_domain_and_is_not_well_known() {
        let rules = LabelRules::default()
            .with_restricted_domain("karpenter.kwok.sh")
            .with_well_known("karpenter.kwok.sh/instance-cpu");
        for key in [
            "karpenter.sh/foo",
            "sub.karpenter.sh/foo",
            "karpenter.kwok.sh/foo",
            HOSTNAME,
        ] {
            assert!(rules.is_restricted(key), "{key}");
        }
        for key in [
            NODEPOOL,
            CAPACITY_TYPE,
            "karpenter.kwok.sh/instance-cpu",
            "notkarpenter.sh/x",
            "karpenter.sh",
            "kubernetes.io/x",
            "a",
        ] {
            assert!(!rules.is_restricted(key), "{key}");
        }
    }

    #[test]
    fn old_names_and_the_providers_aliases_are_normalised() {
        let rules = LabelRules::default()
            .with_alias("topology.csi.example.com/zone", ZONE)
            .with_value_alias(ZONE, "Zone A", "zone-a");
        assert_eq!(rules.canonical_key("failure-domain.beta.kubernetes.io/zone"), ZONE);
        assert_eq!(rules.canonical_key("topology.csi.example.com/zone"), ZONE);
        assert_eq!(rules.canonical_value(ZONE, "Zone A"), "zone-a");
        assert_eq!(canonical_key("beta.kubernetes.io/arch"), ARCH);
        assert_eq!(canonical_key("team"), "team");
    }
}
