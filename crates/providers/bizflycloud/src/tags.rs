//! The tags (server metadata) by which servers are known to be ours, and those that are for people (§5.7).

use std::collections::BTreeMap;

use karpenter_cloud::{ClaimMark, ownership::Owner};

use crate::{
    client::wire::{ORDERED_AS, Server},
    provider_config::Tagging,
};

/// The earlier provider's mark; everything that Karpenter made has it.
pub const MANAGED: &str = "karpenter-managed";
pub const BKE_CLUSTER_ID: &str = "bke_cluster_id";

const CLUSTER: &str = "cluster";
const CLAIM_UID: &str = "nodeclaim-uid";
const CLAIM: &str = "nodeclaim";
const NODE_POOL: &str = "nodepool";
const NODE_CLASS: &str = "nodeclass";
const CAPACITY_TYPE: &str = "capacity-type";
const VERSION: &str = "version";
/// How many data disks were ordered with the server.
const DATA_DISKS: &str = "data-disks";
/// The NodeClass whose warm pool the server was made for.
const WARM_POOL: &str = "warm-pool";
/// What the warm server was made from, so that it is not used after that changed.
const WARM_HASH: &str = "warm-pool-hash";
const OWN: [&str; 10] = [
    CLUSTER,
    CLAIM_UID,
    CLAIM,
    NODE_POOL,
    NODE_CLASS,
    CAPACITY_TYPE,
    VERSION,
    DATA_DISKS,
    WARM_POOL,
    WARM_HASH,
];

/// Keys that the platform or BKE's bootstrap use.
const RESERVED: [&str; 8] = [
    MANAGED,
    ORDERED_AS,
    "bizfly_cloud_service",
    "kubernetes_version",
    "category",
    "os_type",
    "network_plan",
    "billing_plan",
];
const LONGEST: usize = 255;

/// What a new server's tags are made from.
#[derive(Debug)]
pub struct TagFacts<'a> {
    pub cluster: &'a str,
    pub claim: &'a ClaimMark,
    pub node_pool: &'a str,
    pub node_class: &'a str,
    pub capacity_type: &'a str,
    /// The NodeClass's own.
    pub class_tags: BTreeMap<String, String>,
    /// How many are ordered with the server.
    pub data_disks: usize,
}

/// A server that waits for a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WarmMark {
    pub node_class: String,
    pub hash: String,
}

/// Whose a server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ownership {
    Ours(ClaimMark),
    /// Of a warm pool, and not given to a claim yet.
    Warm(WarmMark),
    /// Made by the earlier provider for this BKE cluster: known, but never collected.
    Legacy,
    Foreign,
}

/// The key of an additional tag as servers bear it.
pub fn prefixed(key: &str, prefix: &str) -> String {
    match key.contains(['/', '.']) {
        true => key.to_owned(),
        false => format!("{prefix}{key}"),
    }
}

/// Why a user may not use a tag, if so; its key as servers bear it.
pub fn problem_of(key: &str, value: &str, prefix: &str) -> Option<String> {
    let own = key.strip_prefix(prefix);
    if RESERVED.contains(&key) || key.starts_with("bke_") || own.is_some_and(|own| OWN.contains(&own)) {
        return Some(format!("{key} is reserved; use another key"));
    }
    if key.len() > LONGEST || value.len() > LONGEST {
        return Some(format!("{key} is longer than {LONGEST} bytes"));
    }
    if !key.chars().all(|char| char.is_ascii_graphic() || char == ' ') {
        return Some(format!("\"{key}\" has characters other than printable ASCII"));
    }
    None
}

/// The tags of a new server. Those of ownership are always there: without them nothing could be found again.
pub fn for_launch(tagging: &Tagging, facts: &TagFacts<'_>) -> BTreeMap<String, String> {
    let prefixed = |key: &str| format!("{}{key}", tagging.tag_prefix);
    let mut tags = BTreeMap::new();
    if tagging.enable_resource_tags {
        for (key, value) in &tagging.additional_tags {
            tags.insert(self::prefixed(key, &tagging.tag_prefix), value.clone());
        }
        tags.extend(facts.class_tags.clone());
        for (key, value) in [
            (CLAIM, facts.claim.name.as_str()),
            (NODE_POOL, facts.node_pool),
            (NODE_CLASS, facts.node_class),
            (CAPACITY_TYPE, facts.capacity_type),
            (VERSION, env!("CARGO_PKG_VERSION")),
        ] {
            tags.insert(prefixed(key), value.to_owned());
        }
    }
    tags.insert(MANAGED.to_owned(), "true".to_owned());
    tags.insert(prefixed(CLUSTER), facts.cluster.to_owned());
    tags.insert(prefixed(CLAIM_UID), facts.claim.uid.clone());
    if facts.data_disks > 0 {
        tags.insert(prefixed(DATA_DISKS), facts.data_disks.to_string());
    }
    tags
}

/// Turns the tags of a claim's server into those of a warm one, which is nobody's yet and will be renamed.
pub fn for_warm_pool(
    mut tags: BTreeMap<String, String>,
    prefix: &str,
    mark: &WarmMark,
    name: &str,
) -> BTreeMap<String, String> {
    for key in [CLAIM_UID, CLAIM, NODE_POOL] {
        tags.remove(&format!("{prefix}{key}"));
    }
    tags.insert(format!("{prefix}{WARM_POOL}"), mark.node_class.clone());
    tags.insert(format!("{prefix}{WARM_HASH}"), mark.hash.clone());
    tags.insert(ORDERED_AS.to_owned(), name.to_owned());
    tags
}

/// The warm pool that a server of this cluster was made for, if it was.
pub fn warm_mark(server: &Server, cluster: &str, prefixes: &[String]) -> Option<WarmMark> {
    prefixes.iter().find_map(|prefix| {
        let tag = |key: &str| server.metadata.get(&format!("{prefix}{key}"));
        if tag(CLUSTER).is_none_or(|own| own != cluster) {
            return None;
        }
        Some(WarmMark {
            node_class: tag(WARM_POOL)?.clone(),
            hash: tag(WARM_HASH).cloned().unwrap_or_default(),
        })
    })
}

/// How many data disks were ordered with a server.
pub fn data_disks(server: &Server, prefixes: &[String]) -> usize {
    let told = prefixes
        .iter()
        .find_map(|prefix| server.metadata.get(&format!("{prefix}{DATA_DISKS}")));
    told.and_then(|count| count.parse().ok()).unwrap_or_default()
}

/// Reads the owner back, under any of the prefixes that were ever used.
pub fn ownership(server: &Server, cluster: &str, prefixes: &[String], bke_cluster: Option<&str>) -> Ownership {
    for prefix in prefixes {
        let tag = |key: &str| server.metadata.get(&format!("{prefix}{key}"));
        if tag(CLUSTER).is_none_or(|own| own != cluster) {
            continue;
        }
        let Some(uid) = tag(CLAIM_UID).filter(|uid| !uid.is_empty()) else {
            continue;
        };
        return Ownership::Ours(ClaimMark {
            name: tag(CLAIM).cloned().unwrap_or_else(|| server.name.clone()),
            uid: uid.clone(),
        });
    }
    let is_managed = server.metadata.get(MANAGED).is_some_and(|own| own == "true");
    let in_cluster = bke_cluster.is_some_and(|id| server.metadata.get(BKE_CLUSTER_ID).is_some_and(|own| own == id));
    let carries_our_marks = prefixes
        .iter()
        .any(|prefix| server.metadata.contains_key(&format!("{prefix}{CLUSTER}")));
    if is_managed && in_cluster && !carries_our_marks {
        return Ownership::Legacy;
    }
    Ownership::Foreign
}

/// The NodeClass that a server was made from, if its tags tell.
pub fn node_class<'a>(server: &'a Server, prefixes: &[String]) -> Option<&'a str> {
    prefixes
        .iter()
        .find_map(|prefix| server.metadata.get(&format!("{prefix}{NODE_CLASS}")))
        .map(String::as_str)
}

/// The NodePool that a server was made for, if its tags tell.
pub fn node_pool<'a>(server: &'a Server, prefixes: &[String]) -> Option<&'a str> {
    prefixes
        .iter()
        .find_map(|prefix| server.metadata.get(&format!("{prefix}{NODE_POOL}")))
        .map(String::as_str)
}

/// Whether a server carries the tags of the very first provider, which nothing reads any more.
pub fn is_of_first_provider(server: &Server) -> bool {
    [
        "karpenter-node",
        "karpenter-cluster",
        "karpenter-provisioner",
        "karpenter-spot",
    ]
    .iter()
    .any(|key| server.metadata.contains_key(*key))
}

impl Ownership {
    pub fn claim(&self) -> Option<&ClaimMark> {
        match self {
            Self::Ours(claim) => Some(claim),
            Self::Warm(_) | Self::Legacy | Self::Foreign => None,
        }
    }

    /// Whether the server is a node of this cluster, or to become one.
    pub fn is_a_nodes(&self) -> bool {
        match self {
            Self::Ours(_) | Self::Legacy => true,
            Self::Warm(_) | Self::Foreign => false,
        }
    }

    /// As garbage collection sees it: only what is ours beyond doubt may be collected.
    pub fn for_collection(&self) -> Owner {
        match self {
            Self::Ours(claim) => Owner::Ours(claim.clone()),
            Self::Warm(_) | Self::Legacy => Owner::Unclear,
            Self::Foreign => Owner::Foreign,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(tags: BTreeMap<String, String>) -> Server {
        Server {
            name: "n".into(),
            metadata: tags,
            ..Server::default()
        }
    }

    fn tags(tagging: &Tagging) -> BTreeMap<String, String> {
        let claim = ClaimMark {
            name: "pool-1".into(),
            uid: "u1".into(),
        };
        let facts = TagFacts {
            cluster: "prod",
            claim: &claim,
            node_pool: "pool",
            node_class: "class",
            capacity_type: "on-demand",
            class_tags: [("team".to_owned(), "blue".to_owned())].into(),
            data_disks: 0,
        };
        for_launch(tagging, &facts)
    }

    fn owner(server: &Server, cluster: &str) -> Ownership {
        ownership(
            server,
            cluster,
            &["karpenter.bizflycloud.sh/".to_owned()],
            Some("bke-1"),
        )
    }

    #[test]
    fn switching_tags_off_leaves_the_marks_of_ownership() {
        let off = Tagging {
            enable_resource_tags: false,
            ..Tagging::default()
        };
        let tags = tags(&off);
        let keys: Vec<&str> = tags.keys().map(String::as_str).collect();
        let expected = [
            "karpenter-managed",
            "karpenter.bizflycloud.sh/cluster",
            "karpenter.bizflycloud.sh/nodeclaim-uid",
        ];
        assert_eq!(keys, expected);
        assert!(matches!(owner(&server(tags), "prod"), Ownership::Ours(claim) if claim.uid == "u1"));
    }

    #[test]
    fn another_clusters_servers_are_foreign() {
        assert_eq!(owner(&server(tags(&Tagging::default())), "test"), Ownership::Foreign);
        assert_eq!(owner(&server(BTreeMap::new()), "prod"), Ownership::Foreign);
    }

    #[test]
    fn servers_of_the_earlier_provider_are_known_but_not_ours_to_collect() {
        let legacy = |id: &str| {
            server(
                [
                    (MANAGED.to_owned(), "true".to_owned()),
                    (BKE_CLUSTER_ID.to_owned(), id.to_owned()),
                ]
                .into(),
            )
        };
        assert_eq!(owner(&legacy("bke-1"), "prod"), Ownership::Legacy);
        assert_eq!(owner(&legacy("bke-1"), "prod").for_collection(), Owner::Unclear);
        assert_eq!(owner(&legacy("bke-2"), "prod"), Ownership::Foreign);
    }

    #[test]
    fn additional_tags_are_prefixed_and_the_class_wins() {
        let tagging = Tagging {
            additional_tags: [("team".into(), "red".into()), ("example.com/a".into(), "b".into())].into(),
            ..Tagging::default()
        };
        let tags = tags(&tagging);
        assert_eq!(tags["karpenter.bizflycloud.sh/team"], "red");
        assert_eq!(tags["team"], "blue");
        assert_eq!(tags["example.com/a"], "b");
    }
}
