//! The memory that nodes really have, learned from those that run (cloudstack.md §7.3).

use std::{collections::HashMap, time::Duration};

use jiff::Timestamp;
use karpenter_cloud::clock::{Clock, later};
use parking_lot::Mutex;

/// What machines are alike in memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Kind {
    pub offering: String,
    pub template: String,
    /// MiB that the machine was given; custom offerings come in several.
    pub given: i64,
}

/// Bytes of memory that kubelets reported, by kind of machine.
#[derive(Debug)]
pub struct DiscoveredMemory {
    clock: Clock,
    known: Mutex<HashMap<Kind, Known>>,
}

#[derive(Clone, Debug)]
struct Known {
    bytes: i64,
    at: Timestamp,
    /// Nodes that reported the same larger amount.
    larger: Option<(i64, Vec<String>)>,
}

const KEPT: Duration = Duration::from_secs(60 * 24 * 3600);
/// So many nodes must agree before more memory is believed.
const AGREEING: usize = 3;

impl DiscoveredMemory {
    pub fn new(clock: Clock) -> Self {
        Self {
            clock,
            known: Mutex::default(),
        }
    }

    pub fn get(&self, kind: &Kind) -> Option<i64> {
        let known = self.known.lock();
        let found = known.get(kind)?;
        (later(found.at, KEPT) > self.clock.now()).then_some(found.bytes)
    }

    /// A node of this kind reports so much: less counts at once, more only when several agree.
    ///
    /// Promising too much leaves pods pending on new nodes; promising too little only wastes a little.
    pub fn note(&self, kind: Kind, node: &str, bytes: i64) {
        let now = self.clock.now();
        let mut known = self.known.lock();
        let Some(own) = known.get_mut(&kind) else {
            let first = Known {
                bytes,
                at: now,
                larger: None,
            };
            known.insert(kind, first);
            return;
        };
        own.at = now;
        if bytes <= own.bytes {
            own.bytes = bytes;
            own.larger = None;
            return;
        }
        let agreeing = match &mut own.larger {
            Some((amount, nodes)) if *amount == bytes => nodes,
            other => &mut other.insert((bytes, Vec::new())).1,
        };
        if !agreeing.iter().any(|known| known == node) {
            agreeing.push(node.to_owned());
        }
        if agreeing.len() >= AGREEING {
            own.bytes = bytes;
            own.larger = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use karpenter_cloud::clock::ManualClock;

    use super::*;

    fn kind() -> Kind {
        Kind {
            offering: "o".to_owned(),
            template: "t".to_owned(),
            given: 4096,
        }
    }

    #[test]
    fn less_memory_counts_at_once_and_more_only_when_three_nodes_agree() {
        let clock = ManualClock::starting_at(Timestamp::UNIX_EPOCH);
        let known = DiscoveredMemory::new(clock.clock());
        assert_eq!(known.get(&kind()), None);
        known.note(kind(), "a", 1000);
        known.note(kind(), "b", 900);
        assert_eq!(known.get(&kind()), Some(900));
        for node in ["c", "d", "d"] {
            known.note(kind(), node, 950);
        }
        assert_eq!(known.get(&kind()), Some(900), "two nodes are not enough");
        known.note(kind(), "e", 950);
        assert_eq!(known.get(&kind()), Some(950));
        clock.advance(KEPT);
        assert_eq!(known.get(&kind()), None, "what is old is forgotten");
    }
}
