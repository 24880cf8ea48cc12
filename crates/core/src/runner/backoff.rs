//! How long a failing item waits, and how fast a whole controller may retry (lifecycle.md §0.1).

use std::time::Duration;

/// The waiting time of one item: doubles with each failure in a row, from `first` up to `most`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// After the first failure.
    pub first: Duration,
    /// Never longer than this.
    pub most: Duration,
}

/// The rate at which a controller as a whole takes items back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bucket {
    /// Items per second.
    pub per_second: f64,
    /// Items that may come at once.
    pub burst: f64,
}

/// Both together; an item waits for the longer of the two.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateLimit {
    /// Per item.
    pub backoff: Backoff,
    /// Per controller.
    pub bucket: Bucket,
}

impl Backoff {
    /// The wait after `failures` failures in a row (at least one), before jitter.
    pub fn delay(self, failures: u32) -> Duration {
        let factor = 1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
        self.first.saturating_mul(factor).min(self.most)
    }

    /// The wait after `failures` failures, up to a tenth longer. `seed` spreads items that failed together, so that
    /// they do not come back together; the same item gets the same wait every time.
    pub fn jittered(self, failures: u32, seed: u64) -> Duration {
        let delay = self.delay(failures);
        let fraction = (mix(seed ^ u64::from(failures)) >> 11) as f64 / (1_u64 << 53) as f64;
        delay + delay.mul_f64(fraction * 0.1)
    }
}

/// Spreads the bits of a seed (the finaliser of splitmix64).
fn mix(seed: u64) -> u64 {
    let seed = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let seed = (seed ^ (seed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    seed ^ (seed >> 31)
}

impl Bucket {
    /// A bucket that grows with the controller's concurrency: `minimum` per second at `at_concurrency`.
    pub fn scaled(minimum: u32, at_concurrency: u32, concurrency: usize) -> Self {
        let per_second = (concurrency as f64 * f64::from(minimum) / f64::from(at_concurrency)).ceil();
        Self {
            per_second,
            burst: 10.0 * per_second,
        }
    }
}

impl RateLimit {
    /// What controllers use that do not say otherwise.
    pub const fn standard() -> Self {
        Self::new(Duration::from_millis(5), Duration::from_secs(1000), 10.0, 100.0)
    }

    /// For controllers whose failures are usually a cloud or a user that needs a moment.
    pub const fn reasonable() -> Self {
        Self::new(Duration::from_millis(100), Duration::from_secs(60), 10.0, 100.0)
    }

    /// For the NodeClaim lifecycle.
    pub fn lifecycle(concurrency: usize) -> Self {
        let backoff = Backoff {
            first: Duration::from_secs(1),
            most: Duration::from_secs(60),
        };
        Self {
            backoff,
            bucket: Bucket::scaled(10, 1000, concurrency),
        }
    }

    /// For node termination.
    pub fn termination(concurrency: usize) -> Self {
        let backoff = Backoff {
            first: Duration::from_millis(100),
            most: Duration::from_secs(10),
        };
        Self {
            backoff,
            bucket: Bucket::scaled(10, 100, concurrency),
        }
    }

    /// For the eviction and pod-deletion-cost queues.
    pub fn eviction(concurrency: usize) -> Self {
        let backoff = Backoff {
            first: Duration::from_millis(100),
            most: Duration::from_secs(10),
        };
        Self {
            backoff,
            bucket: Bucket::scaled(100, 100, concurrency),
        }
    }

    const fn new(first: Duration, most: Duration, per_second: f64, burst: f64) -> Self {
        Self {
            backoff: Backoff { first, most },
            bucket: Bucket { per_second, burst },
        }
    }
}

/// A worker count that grows with the CPU that the process was given: `least` at one core, `most` at sixty.
pub fn linear(cores: u32, least: usize, most: usize) -> usize {
    let slope = (most as f64 - least as f64) / 59.0;
    let grown = (slope * (f64::from(cores) - 1.0)).trunc() + least as f64;
    (grown.max(0.0) as usize).clamp(least, most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_up_to_its_cap() {
        let backoff = RateLimit::reasonable().backoff;
        let delays = [1, 2, 3, 10, 11, 200].map(|failures| backoff.delay(failures).as_millis());
        assert_eq!(delays, [100, 200, 400, 51_200, 60_000, 60_000]);
    }

    #[test]
    fn jitter_adds_at_most_a_tenth_and_differs_between_items() {
        let backoff = RateLimit::reasonable().backoff;
        let waits: Vec<_> = (0..50).map(|seed| backoff.jittered(4, seed)).collect();
        assert!(
            waits.iter().all(|wait| (800..=880).contains(&wait.as_millis())),
            "{waits:?}"
        );
        assert!(waits.iter().any(|wait| wait != &waits[0]));
    }

    #[test]
    fn worker_counts_follow_the_cores() {
        assert_eq!(
            [1, 2, 60, 100].map(|cores| linear(cores, 10, 1000)),
            [10, 26, 1000, 1000]
        );
        assert_eq!(linear(0, 10, 1000), 10);
    }

    #[test]
    fn the_bucket_scales_with_concurrency() {
        assert_eq!(
            RateLimit::lifecycle(1000).bucket,
            Bucket {
                per_second: 10.0,
                burst: 100.0
            }
        );
        assert_eq!(
            RateLimit::lifecycle(10).bucket,
            Bucket {
                per_second: 1.0,
                burst: 10.0
            }
        );
        assert_eq!(
            RateLimit::termination(100).bucket,
            Bucket {
                per_second: 10.0,
                burst: 100.0
            }
        );
    }
}
