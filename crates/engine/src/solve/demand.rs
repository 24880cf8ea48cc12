//! What a pod or volume demands of a node's labels, as an interned set with the hostname kept apart.
//!
//! Every node and planned node has its own hostname, so sets that named it would never be shared.

use karpenter_api::requirement::Requirement;

use crate::model::Labels;
use crate::tables::{KeyId, ReqId, SetId, Tables, ValueId};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Demand {
    pub(crate) set: SetId,
    pub(crate) host: Option<ReqId>,
}

impl Demand {
    pub(crate) const NONE: Demand = Demand {
        set: Tables::EMPTY,
        host: None,
    };

    pub(crate) fn new<'a>(
        tables: &mut Tables,
        selector: &Labels,
        expressions: impl IntoIterator<Item = &'a Requirement>,
    ) -> Demand {
        let mut entries: Vec<(KeyId, ReqId)> = Vec::new();
        for (key, value) in selector {
            let (key, value) = canonical(tables, key, value);
            entries.push(tables.label(&key, &value));
        }
        entries.extend(expressions.into_iter().map(|expression| tables.requirement(expression)));
        Demand::of(tables, entries)
    }

    fn of(tables: &mut Tables, entries: Vec<(KeyId, ReqId)>) -> Demand {
        let hostname = tables.hostname;
        let mut host = None;
        for (key, req) in &entries {
            if *key == hostname {
                host = Some(host.map_or(*req, |present| tables.intersection(present, *req)));
            }
        }
        let set = tables.set_of(entries.into_iter().filter(|(key, _)| *key != hostname));
        Demand { set, host }
    }

    /// A planned node has a hostname of its own that nobody can know yet.
    pub(crate) fn allows_new_host(self, tables: &Tables) -> bool {
        self.host.is_none_or(|req| {
            let req = tables.req(req);
            req.complement && !req.is_bounded()
        })
    }

    pub(crate) fn allows_host(self, tables: &Tables, host: ValueId) -> bool {
        self.host.is_none_or(|req| tables.has(tables.hostname, req, host))
    }

    /// A node with exactly these labels satisfies the demand.
    pub(crate) fn allows_node(self, tables: &Tables, labels: &NodeLabels, host: ValueId) -> bool {
        self.allows_host(tables, host)
            && tables
                .entries(self.set)
                .iter()
                .all(|(key, req)| match labels.get(*key) {
                    Some(value) => tables.has(*key, *req, value),
                    None => tables.req(*req).is_negative(),
                })
    }
}

/// A node's labels, interned and sorted by key, hostname apart.
#[derive(Debug, Clone, Default)]
pub(crate) struct NodeLabels(Box<[(KeyId, ValueId)]>);

impl NodeLabels {
    pub(crate) fn new(tables: &mut Tables, labels: &Labels) -> NodeLabels {
        let mut interned: Vec<(KeyId, ValueId)> = Vec::with_capacity(labels.len());
        for (key, value) in labels {
            let is_alias = tables.rules().canonical_key(key) != key;
            let (canonical_key, value) = canonical(tables, key, value);
            if is_alias && labels.contains_key(&canonical_key) {
                continue;
            }
            let key = tables.names.key(&canonical_key);
            interned.push((key, tables.names.value(key, &value)));
        }
        interned.sort_unstable();
        interned.dedup_by_key(|(key, _)| *key);
        NodeLabels(interned.into())
    }

    pub(crate) fn get(&self, key: KeyId) -> Option<ValueId> {
        self.0
            .binary_search_by_key(&key, |(key, _)| *key)
            .ok()
            .map(|at| self.0[at].1)
    }
}

fn canonical(tables: &Tables, key: &str, value: &str) -> (String, String) {
    let key = tables.rules().canonical_key(key);
    (key.to_owned(), tables.rules().canonical_value(key, value).to_owned())
}
