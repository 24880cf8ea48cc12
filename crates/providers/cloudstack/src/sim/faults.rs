//! What can be made to go wrong.

use std::time::Duration;

use serde_json::{Value, json};

/// Something that goes wrong with requests of a command.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// Every command if `None`.
    pub command: Option<String>,
    /// So many matching requests pass before.
    pub after: usize,
    /// So many requests are hit; until [`Simulator::heal`](super::Simulator::heal) if `None`.
    pub times: Option<usize>,
    /// Only some of the requests are hit.
    pub odds: Option<Odds>,
    pub kind: FaultKind,
}

/// A chance that is the same in every run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Odds {
    one_in: u64,
    state: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub enum FaultKind {
    /// The connection is reset before anything happened.
    ResetBefore,
    /// The request is carried out, its answer is lost.
    LoseAnswer,
    /// Neither carried out nor answered, ever.
    HangBefore,
    /// Carried out, but never answered.
    HangAfter,
    /// A page of a proxy.
    Page(u16),
    /// An error of the API, with code and text.
    Refuse(u16, String),
    /// The request is accepted, its job fails.
    FailJob(u16, String),
    /// The job of the request never ends: its machine stays Starting, or Stopping.
    StickJob,
    /// The request is accepted and its job done, but the server does not know the job any more.
    ForgetJob,
    /// The request is accepted, its job cancelled.
    CancelJob,
    /// The answer takes this much longer.
    Slow(Duration),
    /// The answer begins at once, and ends so much later.
    SlowBody(Duration),
    /// The last entry of a list is not told; the first is told twice instead.
    RepeatEntry,
    /// A list counts so many more, or fewer, than there are.
    Miscount(i64),
    /// A text of the answer has a raw control character, as the server un-escapes them.
    ControlCharacter,
    /// No object of the answer has this field.
    Omit(&'static str),
}

impl Fault {
    pub fn new(command: impl Into<String>, kind: FaultKind) -> Self {
        Self {
            command: Some(command.into()),
            after: 0,
            times: None,
            odds: None,
            kind,
        }
    }

    pub fn everything(kind: FaultKind) -> Self {
        Self {
            command: None,
            after: 0,
            times: None,
            odds: None,
            kind,
        }
    }

    /// Hits one request in so many, by chance; the same seed hits the same ones.
    #[must_use]
    pub fn one_in(mut self, one_in: u64, seed: u64) -> Self {
        self.odds = Some(Odds {
            one_in: one_in.max(1),
            state: seed,
        });
        self
    }

    #[must_use]
    pub fn times(mut self, times: usize) -> Self {
        self.times = Some(times);
        self
    }

    #[must_use]
    pub fn after(mut self, after: usize) -> Self {
        self.after = after;
        self
    }

    /// Whether it hits this request; counts it.
    pub(super) fn hits(&mut self, command: &str) -> bool {
        if self.command.as_deref().is_some_and(|own| own != command) || self.times == Some(0) {
            return false;
        }
        if self.after > 0 {
            self.after -= 1;
            return false;
        }
        if self.odds.as_mut().is_some_and(|odds| !odds.hit()) {
            return false;
        }
        if let Some(times) = &mut self.times {
            *times -= 1;
        }
        true
    }
}

impl Odds {
    fn hit(&mut self) -> bool {
        // Knuth's generator for 64 bits; its upper half is random enough to fail by.
        self.state = self
            .state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 33).is_multiple_of(self.one_in)
    }
}

/// Spoils the content of an answer as the fault says.
pub(super) fn spoil(kind: &FaultKind, content: &mut Value) {
    let Some(fields) = content.as_object_mut() else { return };
    match kind {
        FaultKind::RepeatEntry => {
            if let Some(Value::Array(items)) = fields.values_mut().find(|own| own.is_array())
                && let (Some(first), true) = (items.first().cloned(), items.len() > 1)
            {
                *items.last_mut().expect("there are two") = first;
            }
        }
        FaultKind::Miscount(by) => {
            if let Some(count) = fields.get("count").and_then(Value::as_i64) {
                fields.insert("count".to_owned(), json!(count + by));
            }
        }
        FaultKind::Omit(field) => omit(content, field),
        _ => {}
    }
}

fn omit(value: &mut Value, field: &str) {
    match value {
        Value::Object(fields) => {
            fields.remove(field);
            fields.values_mut().for_each(|own| omit(own, field));
        }
        Value::Array(items) => items.iter_mut().for_each(|own| omit(own, field)),
        _ => {}
    }
}

/// The text with a raw control character in the first name of it.
pub(super) fn with_control_character(text: &str) -> String {
    text.replacen("\"name\":\"", "\"note\":\"a\u{1}b\",\"name\":\"", 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chance_hits_its_share_and_the_same_requests_in_every_run() {
        let hits = || -> Vec<bool> {
            let mut fault = Fault::everything(FaultKind::ResetBefore).one_in(3, 7);
            (0..300).map(|_| fault.hits("listZones")).collect()
        };
        let share = hits().into_iter().filter(|hit| *hit).count();
        assert!((70..130).contains(&share), "{share} of 300");
        assert_eq!(hits(), hits());
    }
}
