//! Those who hear of pods that need a node.

use std::fmt;

use parking_lot::Mutex;

/// Gets the pod's UID.
type Observer = Box<dyn Fn(&str) + Send + Sync>;

#[derive(Default)]
pub(super) struct DemandObservers(Mutex<Vec<Observer>>);

impl fmt::Debug for DemandObservers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DemandObservers").field(&self.0.lock().len()).finish()
    }
}

impl DemandObservers {
    /// Adds one, and has it hear of what is `present`.
    pub(super) fn add(&self, hears: impl Fn(&str) + Send + Sync + 'static, present: impl FnOnce() -> Vec<Box<str>>) {
        // Holding the list keeps news back while the present is told.
        let mut observers = self.0.lock();
        present().iter().for_each(|uid| hears(uid));
        observers.push(Box::new(hears));
    }

    pub(super) fn report(&self, uid: &str) {
        self.0.lock().iter().for_each(|hears| hears(uid));
    }
}
