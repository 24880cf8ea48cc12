//! One try to place one pod: existing nodes, then planned ones, then a new one (scheduling.md §3.8–§3.10).

mod nodes;
mod topology;

pub(crate) use topology::TopologyRefusal;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use smallvec::SmallVec;

use super::claims::Added;
use super::demand::Demand;
use super::ports;
use super::reserved::Verdict;
use super::run::{Outcome, Run};
use super::templates::intersect;
use super::volumes::{Attachment, exceeds};
use crate::model::{MinValuesPolicy, tolerates};
use crate::tables::{Amounts, Req, ReqId, SetId};

/// Buffers that attempts reuse.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    rows: Vec<u64>,
    requests: Amounts,
    /// Per requirement set, the outcome of combining it with the current pod; valid where the stamp is current.
    narrowed: Vec<(u64, Option<SetId>)>,
    stamp: u64,
    /// Per template, whether the current pod tolerates its taints.
    tolerated: Vec<bool>,
    /// Per (kind, step) with hostname rules, the claims that these rules have not ruled out for good.
    open_hosts: rustc_hash::FxHashMap<(u32, u32), OpenHosts>,
}

#[derive(Debug, Default)]
struct OpenHosts {
    claims: Vec<u32>,
    seen: u32,
}

/// A claim or template that would take the pod, as it would be afterwards; the rows are in the scratch buffer.
struct Fit {
    set: SetId,
    reservations: Vec<u32>,
}

enum Refused {
    Plainly,
    /// By a reservation that others hold.
    Reserved,
}

/// The pod and step at hand.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    pub(crate) pod: u32,
    pub(crate) kind: u32,
    pub(crate) step: u32,
    pub(crate) requests: u32,
}

impl Run<'_> {
    pub(crate) fn place(&mut self, pod: u32, step: u32) -> Outcome {
        let key = self.entries[pod as usize].key;
        let asked = Asked {
            pod,
            kind: key.kind,
            step,
            requests: key.requests,
        };
        if self.world.nodes.active > 0
            && let Some(node) = self.find_node(asked)
        {
            self.put_on_node(asked, node);
            return Outcome::OnNode { node, step };
        }
        self.scratch.stamp += 1;
        let tolerations = &self.world.kinds[asked.kind as usize].steps[step as usize].tolerations;
        let templates = self.world.templates.iter();
        self.scratch.tolerated.clear();
        self.scratch
            .tolerated
            .extend(templates.map(|template| tolerates(tolerations, &template.pool.taints)));
        if let Some(claim) = self.find_claim(asked) {
            return Outcome::OnClaim { claim, step };
        }
        match self.open_claim(asked) {
            Ok(claim) => Outcome::OnClaim { claim, step },
            Err(Refused::Plainly) => Outcome::Refused { step },
            Err(Refused::Reserved) => Outcome::Waiting { step },
        }
    }

    /// Puts the pod on the first planned node that takes it.
    fn find_claim(&mut self, asked: Asked) -> Option<u32> {
        let step = &self.world.kinds[asked.kind as usize].steps[asked.step as usize];
        if self.claims.len() == 0 || !step.full.allows_new_host(&self.world.tables) {
            return None;
        }
        let host_rules = self.host_rules(asked);
        if !host_rules.is_empty() {
            let open = self.open_hosts(asked, &host_rules);
            // Few are left: look at them alone. Otherwise walking all in order finds one sooner.
            if open.len() * 4 < self.claims.len() {
                let ranked = open
                    .iter()
                    .map(|claim| Reverse((self.claims.briefs[*claim as usize].rank, *claim)));
                let mut heap: BinaryHeap<_> = ranked.collect();
                while let Some(Reverse((_, claim))) = heap.pop() {
                    let brief = &self.claims.briefs[claim as usize];
                    if brief.has_room(self.world.requests(asked.requests)) && self.try_claim(asked, claim) {
                        return Some(claim);
                    }
                }
                return None;
            }
        }
        // The order does not change while it is walked: only the claim that takes the pod moves.
        for bucket in 0..self.claims.buckets() {
            for place in 0..self.claims.bucket_len(bucket) {
                let claim = self.claims.at(bucket, place);
                if self.claims.briefs[claim as usize].has_room(self.world.requests(asked.requests))
                    && self.host_rules_allow(&host_rules, claim)
                    && self.try_claim(asked, claim)
                {
                    return Some(claim);
                }
            }
        }
        None
    }

    fn try_claim(&mut self, asked: Asked, id: u32) -> bool {
        let brief = self.claims.briefs[id as usize];
        if !self.scratch.tolerated[brief.template as usize] {
            return false;
        }
        let volumes = self.entries[asked.pod as usize].volumes.is_some();
        if !volumes && self.narrowed(asked, brief.set, None).is_none() {
            return false;
        }
        let Ok(fit) = self.fit(asked, brief.template as usize, Some(id)) else {
            return false;
        };
        self.commit(asked, brief.template as usize, Some(id), fit, false);
        true
    }

    /// Opens a planned node from the first template that takes the pod. A reservation that is taken stops the search:
    /// pools of less weight must not be used instead.
    fn open_claim(&mut self, asked: Asked) -> Result<u32, Refused> {
        let step = &self.world.kinds[asked.kind as usize].steps[asked.step as usize];
        if !step.full.allows_new_host(&self.world.tables) {
            return Err(Refused::Plainly);
        }
        for template in 0..self.world.templates.len() {
            let out_of_nodes = self.limits[template].nodes.is_some_and(|left| left <= 0);
            if out_of_nodes || !self.scratch.tolerated[template] {
                continue;
            }
            let fit = match self.fit(asked, template, None) {
                Ok(fit) => fit,
                Err(Refused::Plainly) => continue,
                Err(Refused::Reserved) => return Err(Refused::Reserved),
            };
            let relaxed = self.relaxes_min_values(template, &fit);
            let id = self.claims.len() as u32;
            self.commit(asked, template, None, fit, relaxed);
            if !self.limits[template].is_unlimited() {
                let claim = &self.claims.all[id as usize];
                let capacity = self.world.templates[template].largest_capacity(&claim.rows);
                self.limits[template].charge(&capacity);
            }
            return Ok(id);
        }
        Err(Refused::Plainly)
    }

    /// Whether a planned node (or a new one from a template) takes the pod, and what it is then.
    fn fit(&mut self, asked: Asked, template: usize, claim: Option<u32>) -> Result<Fit, Refused> {
        let kind = &self.world.kinds[asked.kind as usize];
        let own = &self.world.templates[template];
        let scratch = &mut self.scratch;
        scratch.rows.clear();
        scratch.requests.clear();
        match claim {
            Some(id) => {
                let claim = &self.claims.all[id as usize];
                if !kind.ports.is_empty() && ports::conflict(&claim.ports, &kind.ports).is_some() {
                    return Err(Refused::Plainly);
                }
                scratch.rows.extend_from_slice(&claim.rows);
                scratch.requests.extend_from_slice(&claim.requests);
            }
            None => {
                scratch.rows.extend_from_slice(&own.live);
                own.within_limits(&mut scratch.rows, &self.limits[template]);
            }
        }
        super::daemons::add(&mut scratch.requests, self.world.requests(asked.requests));
        own.without_port_conflicts(&mut scratch.rows, &kind.ports);
        let volumes = self.entries[asked.pod as usize].volumes.as_deref();
        if let Some(volumes) = volumes.filter(|volumes| !volumes.attachments.is_empty()) {
            drop_by_volume_limits(self, template, claim, &volumes.attachments.clone());
        }
        // Resources do not depend on the alternative that is taken.
        if !self.world.templates[template].fit(&mut self.scratch.rows, &self.scratch.requests) {
            return Err(Refused::Plainly);
        }
        let base = claim.map_or(self.world.templates[template].set, |id| {
            self.claims.all[id as usize].set
        });
        let volumes = self.entries[asked.pod as usize].volumes.as_deref();
        let alternatives: SmallVec<[Demand; 4]> = volumes
            .map(|volumes| volumes.alternatives.iter().copied().collect())
            .unwrap_or_default();
        if alternatives.is_empty() {
            return self.fit_alternative(asked, template, claim, base, None);
        }
        let rows = self.scratch.rows.clone();
        let mut last = Refused::Plainly;
        for alternative in alternatives {
            self.scratch.rows.copy_from_slice(&rows);
            match self.fit_alternative(asked, template, claim, base, Some(alternative)) {
                Ok(fit) => return Ok(fit),
                Err(refused) => last = refused,
            }
        }
        Err(last)
    }

    fn fit_alternative(
        &mut self,
        asked: Asked,
        template: usize,
        claim: Option<u32>,
        base: SetId,
        alternative: Option<Demand>,
    ) -> Result<Fit, Refused> {
        let host = self.world.nodes.hosts + claim.map_or(self.claims.len(), |id| id as usize);
        if !self.host_allows(asked, host) {
            return Err(Refused::Plainly);
        }
        let mut set = self.narrowed(asked, base, alternative).ok_or(Refused::Plainly)?;
        if claim.is_none() || set != base {
            let own = &mut self.world.templates[template];
            own.prepare(&mut self.world.tables, set);
            intersect(&mut self.scratch.rows, own.rows_of(set));
            if self.scratch.rows.iter().all(|word| *word == 0) {
                return Err(Refused::Plainly);
            }
        }
        if self.world.tables.has_min_values(set) {
            set = self.settle_min_values(template, claim, set).ok_or(Refused::Plainly)?;
        }
        let held = claim.map_or(&[][..], |id| &self.claims.all[id as usize].reservations);
        let own = &self.world.templates[template];
        match self
            .book
            .judge(&mut self.world.tables, own, set, &self.scratch.rows, held)
        {
            Verdict::Hold(reservations) => Ok(Fit { set, reservations }),
            Verdict::Wait => Err(Refused::Reserved),
            Verdict::Refuse => Err(Refused::Plainly),
        }
    }

    /// Unmet minValues refuse the pod, except that BestEffort lowers them when a claim is opened (scheduling.md §4.5).
    fn settle_min_values(&mut self, template: usize, claim: Option<u32>, mut set: SetId) -> Option<SetId> {
        let own = &self.world.templates[template];
        let best_effort = self.world.snapshot.options.min_values_policy == MinValuesPolicy::BestEffort;
        while let Some((key, _, have)) = own.unmet_min_values(&mut self.world.tables, set, &self.scratch.rows) {
            if claim.is_some() || !best_effort {
                return None;
            }
            let req: ReqId = self.world.tables.get(set, key).expect("an unmet key is in the set");
            let lowered = Req {
                min_values: Some(have),
                ..self.world.tables.req(req).clone()
            };
            let lowered = self.world.tables.intern(key, lowered);
            set = self.world.tables.replace(set, key, lowered);
        }
        Some(set)
    }

    /// Some minValues of the template came out lower on the claim.
    fn relaxes_min_values(&mut self, template: usize, fit: &Fit) -> bool {
        let tables = &self.world.tables;
        let own = self.world.templates[template].set;
        tables.has_min_values(own)
            && tables.entries(own).iter().any(|(key, req)| {
                let after = tables.get(fit.set, *key).and_then(|req| tables.req(req).min_values);
                tables.req(*req).min_values > after
            })
    }

    fn commit(&mut self, asked: Asked, template: usize, claim: Option<u32>, fit: Fit, min_values_relaxed: bool) {
        let kind = &self.world.kinds[asked.kind as usize];
        let id = claim.unwrap_or(self.claims.len() as u32);
        let old = claim.map_or(&[][..], |id| &self.claims.all[id as usize].reservations);
        self.book.swap(old, &fit.reservations);
        let volumes = self.entries[asked.pod as usize].volumes.as_deref();
        let attachments: &[Attachment] = volumes.map_or(&[], |volumes| &volumes.attachments);
        let added = Added {
            pod: asked.pod,
            requests: self.world.requests(asked.requests),
            ports: &kind.ports,
            attachments,
            set: fit.set,
            rows: &self.scratch.rows,
            reservations: fit.reservations,
        };
        let own = &self.world.templates[template];
        match claim {
            Some(id) => self.claims.grow(id, own, added),
            None => self.claims.open(template, own, min_values_relaxed, added),
        }
        self.record_on_claim(asked, template, id, fit.set);
    }
}

/// Types that could not attach all volumes of the claim and the pod drop out.
fn drop_by_volume_limits(run: &mut Run<'_>, template: usize, claim: Option<u32>, added: &[Attachment]) {
    let none = super::volumes::Usage::default();
    let usage = claim.map_or(&none, |id| &run.claims.all[id as usize].volumes);
    let own = &run.world.templates[template];
    let volumes = &run.world.volumes;
    own.retain(&mut run.scratch.rows, |rows, row| {
        let limits = &rows.types[rows.type_of[row] as usize].volume_limits;
        !exceeds(usage, added, |driver| {
            limits.get(&**volumes.driver_name(driver)).copied()
        })
    });
}
