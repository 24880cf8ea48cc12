//! Giving up on NodeClaims that do not become nodes in time.

use jiff::{SignedDuration, Timestamp};
use karpenter_api::NodeClaim;
use karpenter_api::conditions::StatusConditions;
use karpenter_api::node_claim::condition::{LAUNCHED, REGISTERED};
use karpenter_cloud::provider::LaunchHints;

/// Whether a claim is still worth waiting for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It has become a node; nothing here applies any more.
    Settled,
    /// Time is left, until this moment.
    Until(Timestamp),
    /// Its machine did not come into being in time.
    LaunchTimedOut,
    /// Its machine did not become a node in time.
    RegistrationTimedOut,
}

/// Judges `claim`, measuring from the last transition of the condition that is not true yet (that is, from creation,
/// unless something happened in between).
pub fn verdict(claim: &NodeClaim, hints: &LaunchHints, now: Timestamp) -> Verdict {
    if claim.is_true(REGISTERED) {
        return Verdict::Settled;
    }
    let registration = deadline(claim, REGISTERED, hints.registration_timeout, now);
    if !claim.is_true(LAUNCHED) {
        let launch = launch_deadline(claim, hints, now);
        if launch <= now {
            return Verdict::LaunchTimedOut;
        }
        if registration > now {
            return Verdict::Until(launch.min(registration));
        }
    }
    if registration <= now {
        Verdict::RegistrationTimedOut
    } else {
        Verdict::Until(registration)
    }
}

/// When a claim that has not launched is given up.
pub fn launch_deadline(claim: &NodeClaim, hints: &LaunchHints, now: Timestamp) -> Timestamp {
    deadline(claim, LAUNCHED, hints.launch_timeout, now)
}

fn deadline(claim: &NodeClaim, condition: &str, timeout: std::time::Duration, now: Timestamp) -> Timestamp {
    let created = claim
        .metadata
        .creation_timestamp
        .as_ref()
        .map_or(now, |created| created.0);
    let since = claim
        .condition(condition)
        .map_or(created, |condition| condition.transitioned_at());
    let timeout = SignedDuration::try_from(timeout).unwrap_or(SignedDuration::MAX);
    since.checked_add(timeout).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn at(text: &str) -> Timestamp {
        format!("2026-01-01T{text}Z").parse().unwrap()
    }

    /// A claim created at midnight with conditions `Type=Status@time …`.
    fn claim(conditions: &str) -> NodeClaim {
        let one = |item: &str| {
            let (type_, rest) = item.split_once('=').unwrap();
            let (status, time) = rest.split_once('@').unwrap();
            format!(
                "{{type: {type_}, status: '{status}', lastTransitionTime: '{}'}}",
                at(time)
            )
        };
        let conditions: Vec<String> = conditions.split_whitespace().map(one).collect();
        serde_norway::from_str(&format!(
            "{{apiVersion: karpenter.sh/v1, kind: NodeClaim, metadata: {{name: c, creationTimestamp: '{}'}}, \
             spec: {{requirements: [], nodeClassRef: {{group: g, kind: K, name: n}}}}, status: {{conditions: [{}]}}}}",
            at("00:00:00"),
            conditions.join(", ")
        ))
        .unwrap()
    }

    fn check(conditions: &str, now: &str, expected: Verdict) {
        assert_eq!(
            verdict(&claim(conditions), &LaunchHints::default(), at(now)),
            expected,
            "{conditions} at {now}"
        );
    }

    #[test]
    fn a_claim_has_five_minutes_to_launch() {
        check("", "00:04:59", Verdict::Until(at("00:05:00")));
        check("Launched=Unknown@00:00:00", "00:05:00", Verdict::LaunchTimedOut);
        check("", "00:20:00", Verdict::LaunchTimedOut);
    }

    #[test]
    fn the_launch_timeout_counts_from_the_last_transition() {
        check("Launched=Unknown@00:03:00", "00:05:00", Verdict::Until(at("00:08:00")));
    }

    #[test]
    fn a_launched_claim_has_fifteen_minutes_to_register() {
        check("Launched=True@00:04:00", "00:14:59", Verdict::Until(at("00:15:00")));
        check(
            "Launched=True@00:04:00 Registered=Unknown@00:00:00",
            "00:15:00",
            Verdict::RegistrationTimedOut,
        );
        check(
            "Launched=True@00:04:00 Registered=False@00:10:00",
            "00:15:00",
            Verdict::Until(at("00:25:00")),
        );
    }

    #[test]
    fn a_registered_claim_is_kept_for_ever() {
        check(
            "Launched=True@00:01:00 Registered=True@00:14:00",
            "23:00:00",
            Verdict::Settled,
        );
    }

    #[test]
    fn a_slow_cloud_may_ask_for_more_time() {
        let hints = LaunchHints {
            launch_timeout: Duration::from_secs(20 * 60),
            registration_timeout: Duration::from_secs(30 * 60),
            ..LaunchHints::default()
        };
        assert_eq!(
            verdict(&claim(""), &hints, at("00:19:59")),
            Verdict::Until(at("00:20:00"))
        );
        assert_eq!(
            verdict(&claim("Launched=True@00:19:00"), &hints, at("00:30:00")),
            Verdict::RegistrationTimedOut
        );
    }
}
