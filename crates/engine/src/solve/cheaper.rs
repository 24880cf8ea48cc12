//! `packing: cost`: packs the pods that may go anywhere again, by price, and keeps the result only if it is cheaper.
//!
//! The first fit decides by feasibility alone. Here pods without topology rules, volumes or host ports are taken off their
//! planned nodes and packed anew within their NodePool: first into room that is paid for anyway, then onto the node that
//! holds most for its price, again and again. What the others decided stays as it is, so every hard constraint that held
//! still holds. Work is counted in steps, not in time, so that the answer never depends on the machine.

mod fill;

use rustc_hash::FxHashMap;

use super::claims::{Claim, Claims};
use super::finish::{Ranked, ranked};
use super::run::{Outcome, Run};
use super::templates::intersect;
use crate::tables::{Amounts, SetId};
use fill::{Filling, Pile, Worth};

/// How many comparisons of a kind of pod with a node one pass may make.
const STEPS: u64 = 40_000_000;

/// How many instance types are tried for each node that is opened.
const CANDIDATES: usize = 48;

/// Prices of a template's rows under a requirement set, cheapest first.
type Prices = FxHashMap<(usize, SetId), Vec<Ranked>>;

impl Run<'_> {
    /// Replaces the planned nodes by cheaper ones where that is possible.
    pub(crate) fn make_cheaper(&mut self) {
        if self.book.is_active() || self.claims.len() == 0 {
            return;
        }
        let mut prices = Prices::default();
        let Some(before) = self.price(&self.claims.all.clone(), &mut prices) else {
            return;
        };
        let mut packed = self.without_movable_pods();
        let mut steps = STEPS;
        for template in 0..self.world.templates.len() {
            if self.pack(template, &mut packed, &mut prices, &mut steps).is_none() {
                return;
            }
        }
        let claims: Vec<Claim> = packed
            .claims
            .into_iter()
            .filter(|claim| !claim.pods.is_empty())
            .collect();
        let Some(claims) = self.within_limits_again(claims) else {
            return;
        };
        match self.price(&claims, &mut prices) {
            Some(after) if after < before - 1e-9 => self.adopt(claims),
            _ => {}
        }
    }

    /// What claims cost together; `None` if one has nothing to launch.
    fn price(&mut self, claims: &[Claim], prices: &mut Prices) -> Option<f64> {
        let mut sum = 0.0;
        for claim in claims {
            sum += self.cheapest(claim.template, claim.set, &claim.rows, prices)?;
        }
        Some(sum)
    }

    fn cheapest(&mut self, template: usize, set: SetId, rows: &[u64], prices: &mut Prices) -> Option<f64> {
        let own = &self.world.templates[template];
        let ranked = prices
            .entry((template, set))
            .or_insert_with(|| ranked(&mut self.world.tables, own, set));
        let left = |ranked: &&Ranked| rows[ranked.row / 64] >> (ranked.row % 64) & 1 == 1;
        ranked
            .iter()
            .find(left)
            .filter(|ranked| ranked.offer.is_some())
            .map(|ranked| ranked.price)
    }

    /// Nothing but resources, labels and taints decides where the pod may be.
    fn is_movable(&self, pod: u32) -> bool {
        let entry = &self.entries[pod as usize];
        let Outcome::OnClaim { step, .. } = entry.outcome else {
            return false;
        };
        let kind = &self.world.kinds[entry.key.kind as usize];
        entry.volumes.is_none()
            && kind.ports.is_empty()
            && kind.steps[step as usize].owned.is_empty()
            && kind.counted_by.is_empty()
            && kind.inverse.is_empty()
            && kind
                .kept_away_by
                .iter()
                .all(|group| !self.inverse_active[group.0 as usize])
    }

    /// The claims with what cannot be moved, and the rest as piles of equal pods.
    fn without_movable_pods(&mut self) -> Packed {
        let mut packed = Packed {
            claims: Vec::new(),
            piles: vec![Vec::new(); self.world.templates.len()],
        };
        let mut piles: FxHashMap<(usize, SetId, u32), usize> = FxHashMap::default();
        for claim in self.claims.all.clone() {
            let untouched =
                self.world.tables.has_min_values(claim.set) || !claim.ports.is_empty() || !claim.volumes.is_empty();
            let mut rest = Claim {
                pods: Vec::new(),
                requests: Amounts::new(),
                ..claim.clone()
            };
            for pod in &claim.pods {
                let entry = &self.entries[*pod as usize];
                let requests = self.world.requests(entry.key.requests);
                if untouched || !self.is_movable(*pod) {
                    rest.pods.push(*pod);
                    super::daemons::add(&mut rest.requests, requests);
                    continue;
                }
                let (Outcome::OnClaim { step, .. } | Outcome::OnNode { step, .. }) = entry.outcome else {
                    continue;
                };
                let demand = self.world.kinds[entry.key.kind as usize].steps[step as usize].full.set;
                let list = &mut packed.piles[claim.template];
                let at = *piles
                    .entry((claim.template, demand, entry.key.requests))
                    .or_insert_with(|| {
                        list.push(Pile {
                            demand,
                            requests: requests.to_vec(),
                            pods: Vec::new(),
                        });
                        list.len() - 1
                    });
                list[at].pods.push(*pod);
            }
            if rest.pods.is_empty() {
                continue;
            }
            if rest.pods.len() < claim.pods.len() {
                rest.rows = self.rows_for(claim.template, claim.set, &rest.requests).into();
            }
            packed.claims.push(rest);
        }
        for pile in packed.piles.iter_mut().flatten() {
            // Taken from the end: the order of the first fit comes out again.
            pile.pods.sort_unstable_by(|a, b| b.cmp(a));
        }
        packed
    }

    /// Rows of a template that go with a set and have room for the requests.
    fn rows_for(&mut self, template: usize, set: SetId, requests: &[i64]) -> Vec<u64> {
        let own = &mut self.world.templates[template];
        own.prepare(&mut self.world.tables, set);
        let mut rows = own.live.to_vec();
        intersect(&mut rows, own.rows_of(set));
        if !own.fit(&mut rows, requests) {
            rows.fill(0);
        }
        rows
    }

    /// Packs the piles of one template; `None` when the steps ran out or something found no place.
    fn pack(&mut self, template: usize, packed: &mut Packed, prices: &mut Prices, steps: &mut u64) -> Option<()> {
        let mut piles = std::mem::take(&mut packed.piles[template]);
        if piles.is_empty() {
            return Some(());
        }
        let priced = self.priced_rows(template, prices);
        let worth = Worth::of(&self.world.templates[template], &priced, &piles);
        for at in 0..packed.claims.len() {
            if packed.claims[at].template == template {
                self.top_up(&mut packed.claims[at], &mut piles, &worth, prices, steps)?;
            }
        }
        while piles.iter().any(|pile| !pile.pods.is_empty()) {
            let worth = Worth::of(&self.world.templates[template], &priced, &piles);
            let claim = self.best_node(template, &mut piles, &worth, prices, steps)?;
            packed.claims.push(claim);
        }
        Some(())
    }

    fn priced_rows(&mut self, template: usize, prices: &mut Prices) -> Vec<(usize, f64)> {
        let set = self.world.templates[template].set;
        let own = &self.world.templates[template];
        let ranked = prices
            .entry((template, set))
            .or_insert_with(|| ranked(&mut self.world.tables, own, set));
        let live = |row: usize| own.live[row / 64] >> (row % 64) & 1 == 1;
        ranked
            .iter()
            .filter(|r| r.offer.is_some() && live(r.row))
            .map(|r| (r.row, r.price))
            .collect()
    }

    /// Fills the room on a node that has to be bought anyway.
    fn top_up(
        &mut self,
        claim: &mut Claim,
        piles: &mut [Pile],
        worth: &Worth,
        prices: &mut Prices,
        steps: &mut u64,
    ) -> Option<()> {
        let own = &self.world.templates[claim.template];
        let ranked = prices
            .entry((claim.template, claim.set))
            .or_insert_with(|| ranked(&mut self.world.tables, own, claim.set));
        let left = |ranked: &&Ranked| claim.rows[ranked.row / 64] >> (ranked.row % 64) & 1 == 1;
        let Some(row) = ranked.iter().find(left).map(|ranked| ranked.row) else {
            return Some(());
        };
        let mut filling = Filling::new(own, row, claim.set, &claim.requests);
        filling.fill(
            &mut self.world.tables,
            &mut self.world.templates[claim.template],
            piles,
            worth,
            steps,
        )?;
        if filling.taken.is_empty() {
            return Some(());
        }
        self.take(claim, &filling, piles);
        Some(())
    }

    /// The node that holds most for its price, among a sample of the types.
    fn best_node(
        &mut self,
        template: usize,
        piles: &mut [Pile],
        worth: &Worth,
        prices: &mut Prices,
        steps: &mut u64,
    ) -> Option<Claim> {
        let rows = self.priced_rows(template, prices);
        let stride = rows.len().div_ceil(CANDIDATES).max(1);
        let sample = rows.iter().rev().step_by(stride).map(|(row, _)| *row);
        let set = self.world.templates[template].set;
        let mut best: Option<(f64, Filling)> = None;
        for row in sample.collect::<Vec<_>>() {
            let mut filling = Filling::new(&self.world.templates[template], row, set, &[]);
            filling.fill(
                &mut self.world.tables,
                &mut self.world.templates[template],
                piles,
                worth,
                steps,
            )?;
            if filling.taken.is_empty() {
                continue;
            }
            // Another type may hold the same for less.
            let fitting = self.rows_for(template, filling.set, &filling.requests);
            let Some(price) = self.cheapest(template, filling.set, &fitting, prices) else {
                continue;
            };
            let rate = price / worth.of_requests(&filling.requests).max(f64::MIN_POSITIVE);
            if best.as_ref().is_none_or(|(least, _)| rate < *least) {
                best = Some((rate, filling));
            }
        }
        let (_, filling) = best?;
        let mut claim = Claim {
            template,
            set: filling.set,
            rows: Box::default(),
            requests: Amounts::new(),
            pods: Vec::new(),
            ports: Vec::new(),
            volumes: Default::default(),
            reservations: Vec::new(),
            min_values_relaxed: false,
        };
        self.take(&mut claim, &filling, piles);
        Some(claim)
    }

    fn take(&mut self, claim: &mut Claim, filling: &Filling, piles: &mut [Pile]) {
        for (pile, count) in &filling.taken {
            let pods = &mut piles[*pile].pods;
            claim.pods.extend(pods.drain(pods.len() - count..).rev());
        }
        claim.set = filling.set;
        claim.requests.clone_from(&filling.requests);
        claim.rows = self.rows_for(claim.template, claim.set, &claim.requests).into();
    }

    /// Charges the pools' limits from the start, as if the claims had been opened in this order.
    fn within_limits_again(&self, mut claims: Vec<Claim>) -> Option<Vec<Claim>> {
        let mut left = self.limits_before_claims();
        for claim in &mut claims {
            let limits = &mut left[claim.template];
            if limits.is_unlimited() {
                continue;
            }
            let own = &self.world.templates[claim.template];
            own.within_limits(&mut claim.rows, limits);
            if limits.nodes.is_some_and(|nodes| nodes <= 0) || claim.rows.iter().all(|word| *word == 0) {
                return None;
            }
            limits.charge(&own.largest_capacity(&claim.rows));
        }
        Some(claims)
    }

    fn adopt(&mut self, claims: Vec<Claim>) {
        for (at, claim) in claims.iter().enumerate() {
            for pod in &claim.pods {
                if let Outcome::OnClaim { claim, .. } = &mut self.entries[*pod as usize].outcome {
                    *claim = at as u32;
                }
            }
        }
        self.claims = Claims::default();
        self.claims.all = claims;
    }
}

/// Claims under construction, and per template the pods that are yet to be packed.
struct Packed {
    claims: Vec<Claim>,
    piles: Vec<Vec<Pile>>,
}
