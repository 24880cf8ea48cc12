//! What a provider can say of its account when somebody asks: for `karpenter doctor`.

/// One thing that was looked at, and what it came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnosis {
    /// A word or two, such as `credentials` or `quota`.
    pub subject: String,
    pub verdict: Verdict,
    /// A sentence without any secret.
    pub message: String,
    /// What to do about it; empty when all is well.
    pub remedy: String,
}

/// How it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// Works, but somebody should look at it.
    Warn,
    /// Does not work.
    Fail,
}

impl Diagnosis {
    pub fn ok(subject: &str, message: impl Into<String>) -> Self {
        Self::new(subject, Verdict::Ok, message.into(), String::new())
    }

    pub fn warn(subject: &str, message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(subject, Verdict::Warn, message.into(), remedy.into())
    }

    pub fn fail(subject: &str, message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(subject, Verdict::Fail, message.into(), remedy.into())
    }

    fn new(subject: &str, verdict: Verdict, message: String, remedy: String) -> Self {
        Self {
            subject: subject.to_owned(),
            verdict,
            message,
            remedy,
        }
    }
}
