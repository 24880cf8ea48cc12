//! What can be made to go wrong.

use std::time::Duration;

/// Something that goes wrong with requests of a command.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// Every command if `None`.
    pub command: Option<String>,
    /// So many matching requests pass before.
    pub after: usize,
    /// So many requests are hit; until [`Simulator::heal`](super::Simulator::heal) if `None`.
    pub times: Option<usize>,
    pub kind: FaultKind,
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
    /// The job of the request never ends.
    StickJob,
    /// The answer takes this much longer.
    Slow(Duration),
}

impl Fault {
    pub fn new(command: impl Into<String>, kind: FaultKind) -> Self {
        Self {
            command: Some(command.into()),
            after: 0,
            times: None,
            kind,
        }
    }

    pub fn everything(kind: FaultKind) -> Self {
        Self {
            command: None,
            after: 0,
            times: None,
            kind,
        }
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
        if let Some(times) = &mut self.times {
            *times -= 1;
        }
        true
    }
}
