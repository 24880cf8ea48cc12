//! What a test wants to go wrong at the fake cloud, and when.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    time::Duration,
};

use crate::error::CloudError;

/// The calls that can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Method {
    Create,
    Abandon,
    Delete,
    Get,
    List,
    InstanceTypes,
    IsDrifted,
    Reboot,
}

/// When a failing call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Nothing happened.
    Before,
    /// It happened, but the answer was lost.
    After,
}

/// Decides, per call, whether it fails.
type Judge = Box<dyn FnMut(Method) -> Option<(Moment, CloudError)> + Send>;

#[derive(Default)]
pub(super) struct Faults {
    next: BTreeMap<Method, VecDeque<(Moment, CloudError)>>,
    judge: Option<Judge>,
    latency: BTreeMap<Method, Duration>,
}

impl Faults {
    pub(super) fn push(&mut self, method: Method, moment: Moment, error: CloudError) {
        self.next.entry(method).or_default().push_back((moment, error));
    }

    pub(super) fn set_judge(&mut self, judge: Option<Judge>) {
        self.judge = judge;
    }

    pub(super) fn set_latency(&mut self, method: Method, latency: Duration) {
        self.latency.insert(method, latency);
    }

    pub(super) fn latency(&self, method: Method) -> Duration {
        self.latency.get(&method).copied().unwrap_or_default()
    }

    /// The fault of this call, if any.
    pub(super) fn take(&mut self, method: Method) -> Option<(Moment, CloudError)> {
        let queued = self.next.get_mut(&method).and_then(VecDeque::pop_front);
        queued.or_else(|| self.judge.as_mut().and_then(|judge| judge(method)))
    }
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faults")
            .field("next", &self.next)
            .field("latency", &self.latency)
            .finish_non_exhaustive()
    }
}
