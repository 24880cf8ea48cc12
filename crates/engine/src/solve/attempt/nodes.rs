//! Existing nodes: the first that accepts, in their fixed order (scheduling.md §3.9).

use karpenter_api::labels;
use smallvec::SmallVec;

use super::Asked;
use crate::solve::ports;
use crate::solve::run::Run;
use crate::solve::volumes::{Attachment, exceeds};

enum Verdict {
    Accept,
    /// Nothing that happens in this run will change it.
    RefuseForGood,
    Refuse,
}

impl Run<'_> {
    pub(super) fn find_node(&mut self, asked: Asked) -> Option<u32> {
        self.world.prepare_eligible(asked.kind, asked.step);
        let entry = &self.entries[asked.pod as usize];
        let (class, has_volumes) = (entry.class as usize, entry.volumes.is_some());
        let start = self.classes[class].cursors[asked.step as usize];
        let skew_limits = self.skew_limits(asked);
        let mut all_for_good = true;
        for node in start..self.world.nodes.active as u32 {
            match self.ask_node(asked, node, &skew_limits) {
                Verdict::Accept => return Some(node),
                Verdict::RefuseForGood => {}
                Verdict::Refuse => all_for_good = false,
            }
            // Volumes are per pod: what one pod's volumes rule out, another's may not.
            if all_for_good && !has_volumes {
                self.classes[class].cursors[asked.step as usize] = node + 1;
            }
        }
        None
    }

    fn ask_node(&mut self, asked: Asked, node: u32, skew_limits: &SmallVec<[i64; 4]>) -> Verdict {
        let at = node as usize;
        let eligible = self.world.eligible(asked.kind, asked.step);
        if eligible[at / 64] >> (at % 64) & 1 == 0 || self.removed[at] {
            return Verdict::RefuseForGood;
        }
        let requests = self.world.requests(asked.requests);
        let dims = self.world.nodes.dims;
        let remaining = &self.remaining[at * dims..(at + 1) * dims];
        // Once anything is negative nothing fits, not even a pod that asks for none of it.
        let unknown = requests.iter().skip(dims).any(|want| *want > 0);
        let short = requests.iter().zip(remaining).any(|(want, left)| want > left);
        if unknown || short || remaining.iter().any(|left| *left < 0) {
            return Verdict::RefuseForGood;
        }
        let entry = &self.entries[asked.pod as usize];
        if entry.moved && self.avoided.get(at).copied().unwrap_or(false) {
            return Verdict::RefuseForGood;
        }
        if !self.world.kinds[asked.kind as usize].ports.is_empty() {
            self.load_ports(node);
            let taken = &self.node_ports[&node];
            if ports::conflict(taken, &self.world.kinds[asked.kind as usize].ports).is_some() {
                return Verdict::RefuseForGood;
            }
        }
        if let Some(volumes) = &self.entries[asked.pod as usize].volumes {
            let existing = &self.world.nodes.all[at];
            let attachable = volumes.alternatives.is_empty()
                || volumes
                    .alternatives
                    .iter()
                    .any(|term| term.allows_node(&self.world.tables, &existing.labels, existing.hostname));
            let attachments = volumes.attachments.clone();
            if !attachable || (!attachments.is_empty() && self.node_is_full_of_volumes(node, &attachments)) {
                return Verdict::Refuse;
            }
        }
        if self.node_topology_allows(asked, at, skew_limits) {
            Verdict::Accept
        } else {
            Verdict::Refuse
        }
    }

    pub(super) fn put_on_node(&mut self, asked: Asked, node: u32) {
        let at = node as usize;
        let dims = self.world.nodes.dims;
        let requests = self.world.requests(asked.requests);
        for (left, want) in self.remaining[at * dims..(at + 1) * dims].iter_mut().zip(requests) {
            *left -= want;
        }
        self.node_pods.entry(node).or_default().push(asked.pod);
        if !self.world.kinds[asked.kind as usize].ports.is_empty() {
            let ports = self.world.kinds[asked.kind as usize].ports.to_vec();
            self.node_ports.entry(node).or_default().extend(ports);
        }
        if let Some(volumes) = &self.entries[asked.pod as usize].volumes {
            let attachments = volumes.attachments.clone();
            self.load_volumes(node);
            self.node_volumes.entry(node).or_default().extend(attachments);
        }
        self.record_on_node(asked, at);
    }

    /// Host ports of the pods bound to a node, read when a pod first asks for ports there.
    fn load_ports(&mut self, node: u32) {
        let existing = &self.world.nodes.all[node as usize];
        self.node_ports.entry(node).or_insert_with(|| {
            existing
                .node
                .pods()
                .iter()
                .flat_map(|pod| pod.spec.host_ports.iter().copied())
                .collect()
        });
    }

    fn load_volumes(&mut self, node: u32) {
        if self.node_volumes.contains_key(&node) {
            return;
        }
        let pods = self.world.nodes.all[node as usize].node.clone();
        let facts = self.world.snapshot.volumes.clone();
        let usage = pods
            .pods()
            .iter()
            .filter(|pod| !pod.volume_claims.is_empty())
            .flat_map(|pod| self.world.volumes.attachments(&facts, pod))
            .collect();
        self.node_volumes.insert(node, usage);
    }

    /// CSINode's limit, or the instance type's while the driver has not published one (scheduling.md §2.7).
    fn node_is_full_of_volumes(&mut self, node: u32, added: &[Attachment]) -> bool {
        self.load_volumes(node);
        let existing = &self.world.nodes.all[node as usize].node;
        let instance_type = existing
            .node_pool
            .as_deref()
            .zip(existing.labels.get(labels::INSTANCE_TYPE));
        let instance_type =
            instance_type.and_then(|(pool, name)| self.world.snapshot.catalog.instance_type(pool, name));
        exceeds(&self.node_volumes[&node], added, |driver| {
            let driver = self.world.volumes.driver_name(driver);
            match existing.volume_limits.get(&**driver) {
                Some(published) => *published,
                None => instance_type.and_then(|t| t.volume_limits.get(&**driver).copied()),
            }
        })
    }
}
