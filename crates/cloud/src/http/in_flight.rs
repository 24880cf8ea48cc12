//! Counts the requests that are on the wire, so that a simulation can tell when nothing is under way.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use tokio::sync::Notify;

/// How many requests wait for their answer. Cheap to clone; clones count together.
#[derive(Clone, Debug, Default)]
pub struct InFlight(Arc<Counter>);

#[derive(Debug, Default)]
struct Counter {
    count: AtomicUsize,
    answered: Notify,
}

/// A request on the wire, until this is dropped.
#[derive(Debug)]
pub struct OnTheWire(InFlight);

impl InFlight {
    pub fn count(&self) -> usize {
        self.0.count.load(Ordering::SeqCst)
    }

    /// Resolves at once if nothing is on the wire, else when the next request is over.
    pub async fn next_answer(&self) {
        let answered = self.0.answered.notified();
        tokio::pin!(answered);
        // Listening before looking: an answer in between is not missed.
        answered.as_mut().enable();
        if self.count() > 0 {
            answered.await;
        }
    }

    /// Counts a request until what is returned is dropped.
    pub fn enter(&self) -> OnTheWire {
        self.0.count.fetch_add(1, Ordering::SeqCst);
        OnTheWire(self.clone())
    }
}

impl Drop for OnTheWire {
    fn drop(&mut self) {
        let counter = &self.0.0;
        counter.count.fetch_sub(1, Ordering::SeqCst);
        counter.answered.notify_waiters();
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

    #[tokio::test]
    async fn whoever_waits_for_an_answer_is_told_of_it() {
        let in_flight = InFlight::default();
        in_flight.next_answer().await;
        let one = in_flight.enter();
        let waiting = in_flight.next_answer();
        tokio::pin!(waiting);
        assert!(futures::poll!(&mut waiting).is_pending());
        drop(one);
        waiting.await;
    }
}
