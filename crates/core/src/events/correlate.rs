//! Keeps events from flooding the API server: repetitions count up one object, and chatty objects are throttled.

use std::time::Duration;

use jiff::Timestamp;
use rustc_hash::FxHashMap;

use super::{Event, Regarding, Severity};
use crate::clock::later;
use crate::limit::TokenBucket;

const BURST_PER_OBJECT: f64 = 25.0;
const REFILL_PER_SECOND: f64 = 1.0 / 300.0;
const SIMILAR_BEFORE_AGGREGATION: usize = 10;
const SIMILARITY_WINDOW: Duration = Duration::from_secs(600);
const MOST_REMEMBERED: usize = 4096;

/// What to do with an event.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Correlated {
    /// Write a new Event object.
    Create { message: String },
    /// Count up one that exists.
    Repeat {
        namespace: String,
        name: String,
        count: i32,
        message: String,
    },
    /// Say nothing: this object has used up its budget.
    Drop,
}

/// What was written about which object. Forgets what is old when it grows beyond its size.
#[derive(Debug, Default)]
pub(super) struct Correlator {
    spam: FxHashMap<Regarding, TokenBucket>,
    similar: FxHashMap<Similar, Messages>,
    written: FxHashMap<(Similar, String), Written>,
}

/// Events that differ only in their text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Similar {
    regarding: Regarding,
    severity: Severity,
    reason: String,
}

#[derive(Debug)]
struct Messages {
    texts: Vec<String>,
    last: Timestamp,
}

#[derive(Debug)]
struct Written {
    namespace: String,
    name: String,
    count: i32,
    last: Timestamp,
}

impl Correlator {
    pub(super) fn correlate(&mut self, event: &Event, at: Timestamp) -> Correlated {
        self.forget_old(at);
        let (similar, message) = self.aggregated(event, at);
        let bucket = self
            .spam
            .entry(event.regarding.clone())
            .or_insert_with(|| TokenBucket::new(REFILL_PER_SECOND, BURST_PER_OBJECT));
        if !bucket.try_take(at) {
            return Correlated::Drop;
        }
        match self.written.get(&(similar, dedupe_text(&message))) {
            Some(written) => Correlated::Repeat {
                namespace: written.namespace.clone(),
                name: written.name.clone(),
                count: written.count + 1,
                message,
            },
            None => Correlated::Create { message },
        }
    }

    /// Remembers the object that now holds the event.
    pub(super) fn written(&mut self, event: &Event, namespace: &str, name: &str, at: Timestamp) {
        let (similar, message) = self.aggregated(event, at);
        let known = self
            .written
            .entry((similar, dedupe_text(&message)))
            .or_insert_with(|| Written {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                count: 0,
                last: at,
            });
        if known.name != name {
            (known.name, known.count) = (name.to_owned(), 0);
        }
        known.count += 1;
        known.last = at;
    }

    /// After ten different texts about the same thing, the rest becomes one combined event.
    fn aggregated(&mut self, event: &Event, at: Timestamp) -> (Similar, String) {
        let similar = Similar {
            regarding: event.regarding.clone(),
            severity: event.severity,
            reason: event.reason.clone(),
        };
        let messages = self.similar.entry(similar.clone()).or_insert_with(|| Messages {
            texts: Vec::new(),
            last: at,
        });
        if at.duration_since(messages.last).unsigned_abs() > SIMILARITY_WINDOW {
            messages.texts.clear();
        }
        messages.last = at;
        if messages.texts.contains(&event.message) {
            return (similar, event.message.clone());
        }
        if messages.texts.len() >= SIMILAR_BEFORE_AGGREGATION {
            return (similar, format!("{COMBINED}{}", event.message));
        }
        messages.texts.push(event.message.clone());
        (similar, event.message.clone())
    }

    fn forget_old(&mut self, now: Timestamp) {
        if self.spam.len() > MOST_REMEMBERED {
            self.spam.retain(|_, bucket| !bucket.is_full(now));
        }
        let fresh = |last: Timestamp| later(last, SIMILARITY_WINDOW) > now;
        if self.similar.len() > MOST_REMEMBERED {
            self.similar.retain(|_, messages| fresh(messages.last));
        }
        if self.written.len() > MOST_REMEMBERED {
            self.written.retain(|_, written| fresh(written.last));
        }
    }
}

const COMBINED: &str = "(combined from similar events): ";

/// All combined events count up the same object, whatever their text.
fn dedupe_text(message: &str) -> String {
    if message.starts_with(COMBINED) {
        COMBINED.to_owned()
    } else {
        message.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(message: &str) -> Event {
        Event::new(Regarding::pod("ns", "web", "1"), Severity::Normal, "Reason", message)
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_repetition_counts_up_the_event_that_exists() {
        let mut correlator = Correlator::default();
        assert_eq!(
            correlator.correlate(&event("a"), at(0)),
            Correlated::Create { message: "a".into() }
        );
        correlator.written(&event("a"), "ns", "web.1", at(0));
        let repeat = correlator.correlate(&event("a"), at(1));
        assert_eq!(
            repeat,
            Correlated::Repeat {
                namespace: "ns".into(),
                name: "web.1".into(),
                count: 2,
                message: "a".into()
            }
        );
    }

    #[test]
    fn the_eleventh_text_about_the_same_thing_is_combined() {
        let mut correlator = Correlator::default();
        for number in 0..10 {
            correlator.correlate(&event(&number.to_string()), at(0));
        }
        let Correlated::Create { message } = correlator.correlate(&event("ten"), at(0)) else {
            panic!()
        };
        assert_eq!(message, "(combined from similar events): ten");
    }

    #[test]
    fn an_object_has_a_budget_of_twenty_five_events() {
        let mut correlator = Correlator::default();
        let sent = (0..40)
            .filter(|_| correlator.correlate(&event("a"), at(0)) != Correlated::Drop)
            .count();
        assert_eq!(sent, 25);
        assert_ne!(correlator.correlate(&event("a"), at(300)), Correlated::Drop);
    }
}
