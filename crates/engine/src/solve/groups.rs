//! Topology groups: one rule about where matching pods may be, shared by all pods that state it (scheduling.md §5.1).

use std::collections::BTreeSet;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::demand::Demand;
use crate::model::{LabelSelector, Labels, NamespaceScope, SelectorOperator, Toleration};
use crate::tables::{KeyId, ValueSet};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct GroupId(pub(crate) u32);

/// What makes two rules the same rule.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Group {
    pub(crate) key: KeyId,
    pub(crate) rule: Rule,
    pub(crate) namespaces: Namespaces,
    pub(crate) selector: LabelSelector,
    /// Domains that new nodes could be in, as far as the rule counts them.
    pub(crate) universe: ValueSet,
    /// Which nodes count at all; spread only.
    pub(crate) filter: Option<NodeFilter>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Rule {
    Spread {
        max_skew: i64,
        min_domains: Option<usize>,
    },
    Affinity,
    AntiAffinity,
    /// Pods that the selector matches must keep away from where pods with this term are or could be.
    Inverse,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Namespaces {
    All,
    These(Arc<BTreeSet<Arc<str>>>),
}

impl Namespaces {
    pub(crate) fn own(namespace: &Arc<str>) -> Namespaces {
        Namespaces::These(Arc::new(BTreeSet::from([namespace.clone()])))
    }

    /// The namespaces of an affinity term (scheduling.md §5.2).
    pub(crate) fn of(
        scope: &NamespaceScope,
        own: &Arc<str>,
        cluster: &std::collections::BTreeMap<String, Labels>,
    ) -> Namespaces {
        match scope {
            NamespaceScope::Own => Namespaces::own(own),
            NamespaceScope::Listed(listed) => {
                Namespaces::These(Arc::new(listed.iter().map(|name| name.as_str().into()).collect()))
            }
            NamespaceScope::Selected { selector, .. } if *selector == LabelSelector::everything() => Namespaces::All,
            NamespaceScope::Selected { selector, listed } => {
                let selected = cluster
                    .iter()
                    .filter(|(_, labels)| selector.matches(labels))
                    .map(|(name, _)| name);
                Namespaces::These(Arc::new(
                    selected.chain(listed).map(|name| name.as_str().into()).collect(),
                ))
            }
        }
    }

    fn contains(&self, namespace: &str) -> bool {
        match self {
            Namespaces::All => true,
            Namespaces::These(names) => names.contains(namespace),
        }
    }
}

/// The nodes that a spread constraint counts (scheduling.md §5.3).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct NodeFilter {
    /// One of these must hold, strictly. `None` ignores node affinity.
    pub(crate) terms: Option<Vec<Demand>>,
    /// These must cover the node's taints. `None` ignores taints.
    pub(crate) tolerations: Option<Arc<[Toleration]>>,
}

impl Group {
    pub(crate) fn selects(&self, namespace: &str, labels: &Labels) -> bool {
        self.namespaces.contains(namespace) && self.selector.matches(labels)
    }
}

/// All groups, found by identity and by the labels they select.
#[derive(Debug, Clone, Default)]
pub(crate) struct Groups {
    all: Vec<Arc<Group>>,
    ids: FxHashMap<Arc<Group>, GroupId>,
    /// Groups whose selector demands one exact value of a label.
    by_label: FxHashMap<(String, String), Vec<GroupId>>,
    /// The others.
    unindexed: Vec<GroupId>,
}

impl Groups {
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn get(&self, id: GroupId) -> &Arc<Group> {
        &self.all[id.0 as usize]
    }

    pub(crate) fn intern(&mut self, group: Group) -> GroupId {
        if let Some(id) = self.ids.get(&group) {
            return *id;
        }
        let id = GroupId(self.all.len() as u32);
        match exact_label(&group.selector) {
            Some((key, value)) => self
                .by_label
                .entry((key.to_owned(), value.to_owned()))
                .or_default()
                .push(id),
            None => self.unindexed.push(id),
        }
        let group = Arc::new(group);
        self.all.push(group.clone());
        self.ids.insert(group, id);
        id
    }

    /// The groups that select a pod, by ascending id.
    pub(crate) fn selecting(&self, namespace: &str, labels: &Labels) -> Vec<GroupId> {
        let mut found: Vec<GroupId> = self.unindexed.clone();
        if !self.by_label.is_empty() {
            for (key, value) in labels {
                // The map is keyed by owned pairs; labels that any selector looks at are few.
                found.extend(self.by_label.get(&(key.clone(), value.clone())).into_iter().flatten());
            }
        }
        found.retain(|id| self.get(*id).selects(namespace, labels));
        found.sort_unstable();
        found
    }
}

/// A label that everything selected must carry with exactly this value.
pub(crate) fn exact_label(selector: &LabelSelector) -> Option<(&str, &str)> {
    let LabelSelector::All(requirements) = selector else {
        return None;
    };
    requirements
        .iter()
        .find(|requirement| requirement.operator == SelectorOperator::In && requirement.values.len() == 1)
        .map(|requirement| (requirement.key.as_str(), requirement.values[0].as_str()))
}
