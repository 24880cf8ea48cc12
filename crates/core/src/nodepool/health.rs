//! Whether a NodePool's machines become nodes: a memory of the last four launches per pool.

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

/// How many launches are remembered.
const REMEMBERED: usize = 4;
/// This many failures among them make a pool unhealthy.
const TOO_MANY: usize = 2;

/// How one launch ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The node registered.
    Registered,
    /// Launch or registration timed out.
    TimedOut,
}

/// What the memory says about a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// Nothing is remembered.
    Unknown,
    /// Fewer than two of the last four launches failed.
    Healthy,
    /// Two or more of the last four launches failed.
    Unhealthy,
}

/// The memory of all pools, by UID: a pool that was made anew under its old name starts afresh.
#[derive(Debug, Default)]
pub struct PoolHealth(Mutex<FxHashMap<String, Vec<Outcome>>>);

impl PoolHealth {
    /// What is remembered of a pool.
    pub fn health(&self, uid: &str) -> Health {
        self.0.lock().get(uid).map_or(Health::Unknown, |ring| health(ring))
    }

    /// What the pool's health would be after one more outcome.
    pub fn after(&self, uid: &str, outcome: Outcome) -> Health {
        let mut ring = self.0.lock().get(uid).cloned().unwrap_or_default();
        push(&mut ring, outcome);
        health(&ring)
    }

    /// Remembers an outcome.
    pub fn record(&self, uid: &str, outcome: Outcome) {
        push(self.0.lock().entry(uid.to_owned()).or_default(), outcome);
    }

    /// Replaces the memory by one that says `health`: after a restart, or when the pool has changed.
    pub fn seed(&self, uid: &str, health: Health) {
        let ring = match health {
            Health::Unknown => {
                self.0.lock().remove(uid);
                return;
            }
            Health::Healthy => vec![Outcome::Registered],
            Health::Unhealthy => vec![Outcome::TimedOut; TOO_MANY],
        };
        self.0.lock().insert(uid.to_owned(), ring);
    }
}

fn push(ring: &mut Vec<Outcome>, outcome: Outcome) {
    if ring.len() == REMEMBERED {
        ring.remove(0);
    }
    ring.push(outcome);
}

fn health(ring: &[Outcome]) -> Health {
    let failures = ring.iter().filter(|outcome| **outcome == Outcome::TimedOut).count();
    match (ring.is_empty(), failures >= TOO_MANY) {
        (true, _) => Health::Unknown,
        (false, true) => Health::Unhealthy,
        (false, false) => Health::Healthy,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `+` registered, `-` timed out, in order.
    fn check(history: &str, expected: Health) {
        let pools = PoolHealth::default();
        for outcome in history.chars() {
            pools.record(
                "uid",
                if outcome == '+' {
                    Outcome::Registered
                } else {
                    Outcome::TimedOut
                },
            );
        }
        assert_eq!(pools.health("uid"), expected, "{history}");
        assert_eq!(pools.health("another pool of the same name"), Health::Unknown);
    }

    #[test]
    fn two_failures_among_the_last_four_launches_make_a_pool_unhealthy() {
        check("", Health::Unknown);
        check("+", Health::Healthy);
        check("-", Health::Healthy);
        check("--", Health::Unhealthy);
        check("--+", Health::Unhealthy);
        check("--++", Health::Unhealthy);
        check("--+++", Health::Healthy);
        check("-+++-", Health::Healthy);
    }

    #[test]
    fn a_seeded_memory_says_what_it_was_told() {
        let pools = PoolHealth::default();
        for health in [Health::Unhealthy, Health::Healthy, Health::Unknown] {
            pools.seed("uid", health);
            assert_eq!(pools.health("uid"), health);
        }
    }

    #[test]
    fn trying_an_outcome_does_not_record_it() {
        let pools = PoolHealth::default();
        pools.record("uid", Outcome::TimedOut);
        assert_eq!(pools.after("uid", Outcome::TimedOut), Health::Unhealthy);
        assert_eq!(pools.health("uid"), Health::Healthy);
    }
}
