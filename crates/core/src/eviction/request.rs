//! What was asked for a queued pod, and what to do about it now.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use karpenter_api::pods;

use crate::termination::drain::{AtDeadline, needs_force_delete, remaining_grace};

/// How one pod is to leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// When it must be gone. `None`: evict and wait as long as it takes.
    pub deadline: Option<Timestamp>,
    /// What happens if it is not.
    pub at_deadline: AtDeadline,
}

/// What to do with a queued pod now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Nothing more is to be done for it.
    Forget,
    /// Delete it with this grace period in seconds, past budgets and protections.
    ForceDelete { grace_period: u32 },
    /// Ask the eviction API.
    Evict,
    /// It is protected; ask again later.
    Hold,
}

impl Request {
    /// Joins a second request for the same pod: the forceful kind wins, and a deadline tightens but never loosens.
    #[must_use]
    pub fn merge(self, other: Request) -> Request {
        match (self.at_deadline, other.at_deadline) {
            (AtDeadline::ForceDelete, AtDeadline::GiveUp) => self,
            (AtDeadline::GiveUp, AtDeadline::ForceDelete) => other,
            (AtDeadline::ForceDelete, AtDeadline::ForceDelete) | (AtDeadline::GiveUp, AtDeadline::GiveUp) => Request {
                deadline: [self.deadline, other.deadline].into_iter().flatten().min(),
                at_deadline: self.at_deadline,
            },
        }
    }

    /// Decides for `pod`, which is the very pod that the request was made for.
    pub fn step(self, pod: &Pod, now: Timestamp) -> Step {
        if let Some(deadline) = self.deadline {
            match self.at_deadline {
                AtDeadline::GiveUp if now > deadline => return Step::Forget,
                AtDeadline::ForceDelete if needs_force_delete(pod, self.deadline, now) => {
                    return Step::ForceDelete {
                        grace_period: remaining_grace(deadline, now),
                    };
                }
                AtDeadline::GiveUp | AtDeadline::ForceDelete => {}
            }
        }
        if !pods::is_active(pod) {
            return Step::Forget;
        }
        if !pods::is_evictable(pod, now) {
            return Step::Hold;
        }
        Step::Evict
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    fn force(deadline: Option<i64>) -> Request {
        Request {
            deadline: deadline.map(at),
            at_deadline: AtDeadline::ForceDelete,
        }
    }

    fn timeout(deadline: Option<i64>) -> Request {
        Request {
            deadline: deadline.map(at),
            at_deadline: AtDeadline::GiveUp,
        }
    }

    #[test]
    fn the_forceful_request_wins_whichever_came_first() {
        assert_eq!(timeout(Some(1)).merge(force(Some(9))), force(Some(9)));
        assert_eq!(force(Some(9)).merge(timeout(Some(1))), force(Some(9)));
        assert_eq!(force(None).merge(timeout(Some(1))), force(None));
    }

    #[test]
    fn a_deadline_tightens_but_never_loosens() {
        assert_eq!(force(Some(5)).merge(force(Some(9))), force(Some(5)));
        assert_eq!(force(Some(9)).merge(force(Some(5))), force(Some(5)));
        assert_eq!(force(Some(5)).merge(force(None)), force(Some(5)));
        assert_eq!(timeout(None).merge(timeout(Some(5))), timeout(Some(5)));
    }

    fn pod(yaml: &str) -> Pod {
        serde_norway::from_str(yaml).unwrap()
    }

    #[test]
    fn a_plain_pod_is_evicted() {
        let pod = pod("{spec: {containers: []}}");
        assert_eq!(force(None).step(&pod, at(0)), Step::Evict);
        assert_eq!(timeout(None).step(&pod, at(0)), Step::Evict);
    }

    #[test]
    fn a_protected_pod_is_held_until_its_grace_period_only_just_fits() {
        let pod = pod("{metadata: {annotations: {karpenter.sh/do-not-disrupt: 'true'}}, \
                       spec: {containers: [], terminationGracePeriodSeconds: 60}}");
        assert_eq!(force(Some(300)).step(&pod, at(90)), Step::Hold);
        assert_eq!(
            force(Some(300)).step(&pod, at(241)),
            Step::ForceDelete { grace_period: 59 }
        );
        assert_eq!(force(None).step(&pod, at(9_999)), Step::Hold);
    }

    #[test]
    fn a_timeout_leaves_the_pod_where_it_is() {
        let pod = pod("{spec: {containers: [], terminationGracePeriodSeconds: 60}}");
        assert_eq!(timeout(Some(10)).step(&pod, at(10)), Step::Evict);
        assert_eq!(timeout(Some(10)).step(&pod, at(11)), Step::Forget);
    }

    #[test]
    fn a_pod_that_leaves_in_time_is_forgotten() {
        let mut pod = pod("{spec: {containers: []}}");
        pod.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(100)));
        assert_eq!(force(Some(300)).step(&pod, at(50)), Step::Forget);
        assert_eq!(
            force(Some(60)).step(&pod, at(50)),
            Step::ForceDelete { grace_period: 10 }
        );
    }
}
