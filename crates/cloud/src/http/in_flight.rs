//! Counts the requests that are on the wire, so that a simulation can tell when nothing is under way.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// How many requests wait for their answer. Cheap to clone; clones count together.
#[derive(Clone, Debug, Default)]
pub struct InFlight(Arc<AtomicUsize>);

/// A request on the wire, until this is dropped.
#[derive(Debug)]
pub(super) struct OnTheWire(InFlight);

impl InFlight {
    pub fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    pub(super) fn enter(&self) -> OnTheWire {
        self.0.fetch_add(1, Ordering::SeqCst);
        OnTheWire(self.clone())
    }
}

impl Drop for OnTheWire {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_counts_until_it_is_dropped() {
        let in_flight = InFlight::default();
        let one = in_flight.clone().enter();
        assert_eq!(in_flight.count(), 1);
        drop(one);
        assert_eq!(in_flight.count(), 0);
    }
}
