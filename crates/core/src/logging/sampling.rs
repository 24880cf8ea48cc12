//! Thins out messages that repeat: of each message the first hundred per second, then every hundredth.

use jiff::Timestamp;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tracing::Level;

const FIRST: u32 = 100;
const THEREAFTER: u32 = 100;

/// Counts messages of the current second.
#[derive(Debug, Default)]
pub(super) struct Sampler(Mutex<Second>);

#[derive(Debug, Default)]
struct Second {
    number: i64,
    counts: FxHashMap<(Level, String), u32>,
}

impl Sampler {
    /// Whether this repetition of `message` is written.
    pub(super) fn admits(&self, now: Timestamp, level: &Level, message: &str) -> bool {
        let mut second = self.0.lock();
        if second.number != now.as_second() {
            second.number = now.as_second();
            second.counts.clear();
        }
        let count = second.counts.entry((*level, message.to_owned())).or_insert(0);
        *count += 1;
        *count <= FIRST || (*count - FIRST).is_multiple_of(THEREAFTER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_message_is_counted_by_itself_and_each_second_anew() {
        let sampler = Sampler::default();
        let admitted = |second: i64, message: &str| {
            let now = Timestamp::from_second(second).unwrap();
            (0..300).filter(|_| sampler.admits(now, &Level::INFO, message)).count()
        };
        assert_eq!([admitted(1, "a"), admitted(1, "b"), admitted(2, "a")], [102, 102, 102]);
    }
}
