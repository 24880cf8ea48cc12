//! Filling one machine with pods so that no resource is left over.

use crate::solve::templates::Template;
use crate::tables::{Amounts, Dims, SetId, Tables};

/// Equal pods that wait to be packed.
#[derive(Debug, Clone)]
pub(super) struct Pile {
    pub(super) demand: SetId,
    pub(super) requests: Amounts,
    pub(super) pods: Vec<u32>,
}

/// What a thousandth of a core and of a byte are worth: the prices at which the remaining pods would be worth most while no
/// machine holds more than it costs. (The dual of buying machines by the fraction, so no plan can cost less than that.)
#[derive(Debug)]
pub(super) struct Worth {
    cpu: f64,
    memory: f64,
}

impl Worth {
    /// `priced` are rows with their price.
    pub(super) fn of(template: &Template, priced: &[(usize, f64)], piles: &[Pile]) -> Worth {
        /// Ratios of the two prices that are tried, in half powers of two around machines of average shape.
        const RATIOS: std::ops::RangeInclusive<i32> = -24..=24;
        let amount = |list: &[i64], dim: usize| list.get(dim).copied().unwrap_or(0) as f64;
        let (mut cpu, mut memory) = (0.0, 0.0);
        for pile in piles {
            cpu += amount(&pile.requests, Dims::CPU) * pile.pods.len() as f64;
            memory += amount(&pile.requests, Dims::MEMORY) * pile.pods.len() as f64;
        }
        let mut machines: Vec<(f64, f64, f64)> = Vec::with_capacity(priced.len());
        for (row, price) in priced.iter().filter(|(_, price)| *price > 0.0) {
            let free = template.free_on(*row);
            machines.push((amount(&free, Dims::CPU), amount(&free, Dims::MEMORY), *price));
        }
        let (all_cpu, all_memory) = machines.iter().fold((0.0, 0.0), |sum, m| (sum.0 + m.0, sum.1 + m.1));
        let unit = if all_memory > 0.0 { all_cpu / all_memory } else { 0.0 };
        let halves = RATIOS.map(|half| (1.0, unit * 2f64.powf(f64::from(half) / 2.0)));
        let mut best = (0.0, Worth { cpu: 0.0, memory: 0.0 });
        for (per_cpu, per_byte) in halves.chain([(1.0, 0.0), (0.0, 1.0)]) {
            let held = |(cpu, memory, _): &(f64, f64, f64)| per_cpu * cpu + per_byte * memory;
            let scale = machines
                .iter()
                .filter(|m| held(m) > 0.0)
                .map(|m| m.2 / held(m))
                .fold(f64::INFINITY, f64::min);
            if !scale.is_finite() {
                continue;
            }
            let worth = Worth {
                cpu: scale * per_cpu,
                memory: scale * per_byte,
            };
            let total = worth.cpu * cpu + worth.memory * memory;
            if total > best.0 {
                best = (total, worth);
            }
        }
        best.1
    }

    pub(super) fn of_requests(&self, requests: &[i64]) -> f64 {
        let amount = |dim: usize| requests.get(dim).copied().unwrap_or(0) as f64;
        self.cpu * amount(Dims::CPU) + self.memory * amount(Dims::MEMORY)
    }
}

/// A machine of one type as it fills up.
#[derive(Debug)]
pub(super) struct Filling {
    row: usize,
    pub(super) set: SetId,
    pub(super) requests: Amounts,
    /// How many were taken of which pile.
    pub(super) taken: Vec<(usize, usize)>,
    capacity: Amounts,
    left: Amounts,
}

impl Filling {
    pub(super) fn new(template: &Template, row: usize, set: SetId, requests: &[i64]) -> Filling {
        let capacity = template.free_on(row);
        let mut left = capacity.clone();
        for (left, used) in left.iter_mut().zip(requests) {
            *left -= used;
        }
        Filling {
            row,
            set,
            requests: requests.to_vec(),
            taken: Vec::new(),
            capacity,
            left,
        }
    }

    /// Adds pods while any fits, each time the one that goes best with the room that is left; `None` when steps run out.
    pub(super) fn fill(
        &mut self,
        tables: &mut Tables,
        template: &mut Template,
        piles: &[Pile],
        worth: &Worth,
        steps: &mut u64,
    ) -> Option<()> {
        let mut left_over: Vec<usize> = piles.iter().map(|pile| pile.pods.len()).collect();
        let mut sets = self.compatible(tables, template, piles);
        loop {
            *steps = steps.checked_sub(piles.len() as u64)?;
            let mut best: Option<(f64, usize)> = None;
            for (at, pile) in piles.iter().enumerate() {
                if left_over[at] == 0 || sets[at].is_none() || !self.holds(&pile.requests) {
                    continue;
                }
                let score = self.score(pile, worth);
                if best.is_none_or(|(most, _)| score > most) {
                    best = Some((score, at));
                }
            }
            let Some((_, at)) = best else { return Some(()) };
            left_over[at] -= 1;
            super::super::daemons::add(&mut self.requests, &piles[at].requests);
            for (left, used) in self.left.iter_mut().zip(&piles[at].requests) {
                *left -= used;
            }
            match self.taken.iter_mut().find(|(pile, _)| *pile == at) {
                Some((_, count)) => *count += 1,
                None => self.taken.push((at, 1)),
            }
            if sets[at] != Some(self.set) {
                self.set = sets[at].expect("only compatible piles are taken");
                sets = self.compatible(tables, template, piles);
            }
        }
    }

    /// Per pile, what the requirements become when one of it is added; `None` where it cannot be.
    fn compatible(&self, tables: &mut Tables, template: &mut Template, piles: &[Pile]) -> Vec<Option<SetId>> {
        let row = self.row;
        let mut judge = |pile: &Pile| {
            let set = tables.accept(self.set, pile.demand).ok()?;
            template.prepare(tables, set);
            (template.rows_of(set)[row / 64] >> (row % 64) & 1 == 1).then_some(set)
        };
        piles.iter().map(&mut judge).collect()
    }

    fn holds(&self, requests: &[i64]) -> bool {
        requests.iter().zip(&self.left).all(|(request, left)| request <= left)
    }

    /// Large pods first, and those that ask for what there is most of.
    fn score(&self, pile: &Pile, worth: &Worth) -> f64 {
        let share = |amount: i64, dim: usize| match self.capacity[dim] {
            0 => 0.0,
            capacity => amount as f64 / capacity as f64,
        };
        let balance: f64 = [Dims::CPU, Dims::MEMORY]
            .into_iter()
            .map(|dim| share(pile.requests.get(dim).copied().unwrap_or(0), dim) * share(self.left[dim], dim))
            .sum();
        // Pods that ask for neither go last, in a fixed order.
        balance + 1e-12 * worth.of_requests(&pile.requests)
    }
}
