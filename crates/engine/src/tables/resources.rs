//! Resource names as dense dimensions, and amounts as integer thousandths.
//!
//! Kubernetes knows no step finer than a thousandth for what pods may request, so thousandths are exact. Requests are
//! rounded up and capacities down where a provider says something finer, and what exceeds an `i64` saturates.

use std::sync::Arc;

use karpenter_api::quantity::Quantity;
use karpenter_api::resources::{self, ResourceList};
use rustc_hash::FxHashMap;

/// One amount per dimension; missing trailing dimensions are zero.
pub(crate) type Amounts = Vec<i64>;

const NANOS_PER_MILLI: i128 = 1_000_000;

/// A demand in thousandths, rounded up.
pub(crate) fn milli_up(quantity: Quantity) -> i64 {
    let nanos = quantity.nanos();
    saturate(nanos.div_euclid(NANOS_PER_MILLI) + i128::from(nanos.rem_euclid(NANOS_PER_MILLI) != 0))
}

/// A supply in thousandths, rounded down.
pub(crate) fn milli_down(quantity: Quantity) -> i64 {
    saturate(quantity.nanos().div_euclid(NANOS_PER_MILLI))
}

fn saturate(milli: i128) -> i64 {
    // A margin keeps sums of a few saturated amounts from wrapping.
    const LIMIT: i64 = i64::MAX / 4;
    i64::try_from(milli)
        .unwrap_or(if milli < 0 { -LIMIT } else { LIMIT })
        .clamp(-LIMIT, LIMIT)
}

#[derive(Debug, Clone)]
pub(crate) struct Dims {
    ids: FxHashMap<Arc<str>, usize>,
    names: Vec<Arc<str>>,
}

impl Dims {
    pub(crate) const CPU: usize = 0;
    pub(crate) const MEMORY: usize = 1;
    pub(crate) const PODS: usize = 2;

    pub(crate) fn new() -> Dims {
        let mut dims = Dims {
            ids: FxHashMap::default(),
            names: Vec::new(),
        };
        for name in [resources::CPU, resources::MEMORY, resources::PODS] {
            dims.dim(name);
        }
        dims
    }

    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }

    pub(crate) fn name(&self, dim: usize) -> &Arc<str> {
        &self.names[dim]
    }

    pub(crate) fn dim(&mut self, name: &str) -> usize {
        if let Some(dim) = self.ids.get(name) {
            return *dim;
        }
        let dim = self.names.len();
        let name: Arc<str> = name.into();
        self.ids.insert(name.clone(), dim);
        self.names.push(name);
        dim
    }

    pub(crate) fn get(&self, name: &str) -> Option<usize> {
        self.ids.get(name).copied()
    }

    /// What is asked for, rounded up.
    pub(crate) fn demand(&mut self, list: &ResourceList) -> Amounts {
        self.amounts(list, milli_up)
    }

    /// What there is, rounded down.
    pub(crate) fn supply(&mut self, list: &ResourceList) -> Amounts {
        self.amounts(list, milli_down)
    }

    fn amounts(&mut self, list: &ResourceList, milli: impl Fn(Quantity) -> i64) -> Amounts {
        let mut amounts = vec![0; self.names.len()];
        for (name, quantity) in list {
            let dim = self.dim(name);
            if amounts.len() <= dim {
                amounts.resize(dim + 1, 0);
            }
            amounts[dim] = milli(*quantity);
        }
        amounts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demands_round_up_and_supplies_round_down() {
        let fine: Quantity = "1500u".parse().unwrap();
        assert_eq!((milli_up(fine), milli_down(fine)), (2, 1));
        let exact: Quantity = "1m".parse().unwrap();
        assert_eq!((milli_up(exact), milli_down(exact)), (1, 1));
    }

    #[test]
    fn enormous_quantities_saturate() {
        let huge: Quantity = "100000000Ei".parse().unwrap();
        assert!(milli_up(huge).checked_add(milli_up(huge)).is_some());
    }
}
