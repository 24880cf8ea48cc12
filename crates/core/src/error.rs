//! What can go wrong while a controller works, and what the runner does about it.

use crate::gate::NotLeading;

/// The result of a reconcile and of everything it calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a controller. The runner logs it and tries the same item again with backoff.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The Kubernetes API refused or could not be reached.
    #[error("Kubernetes API: {}", api_text(.0))]
    Kube(#[from] kube::Error),
    /// An object could not be written as JSON.
    #[error("encoding a patch: {0}")]
    Encode(#[from] serde_json::Error),
    /// This process does not lead, so it must not write.
    #[error(transparent)]
    NotLeading(#[from] NotLeading),
    /// Anything a controller wants to say in its own words; the sentence names the object and what failed.
    #[error("{0}")]
    Failed(String),
    /// Several independent attempts failed.
    #[error("{}", join(.0))]
    Many(Vec<Error>),
}

impl Error {
    /// A sentence as an error.
    pub fn failed(sentence: impl Into<String>) -> Self {
        Self::Failed(sentence.into())
    }

    /// `Ok` when nothing failed, the one error, or all of them together.
    pub fn all(mut errors: Vec<Error>) -> Result<()> {
        match errors.len() {
            0 => Ok(()),
            1 => Err(errors.remove(0)),
            _ => Err(Self::Many(errors)),
        }
    }

    /// Somebody else wrote the object first: read it again, nothing is broken (lifecycle.md §0.3).
    pub fn is_conflict(&self) -> bool {
        match self {
            Self::Kube(kube::Error::Api(status)) => status.is_conflict(),
            Self::Many(errors) => errors.iter().all(Self::is_conflict),
            _ => false,
        }
    }

    /// The API server will not do it, however often it is asked: forbidden, invalid, or denied by admission.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Kube(kube::Error::Api(status)) if matches!(status.code, 400 | 403 | 405 | 422))
    }

    /// The write was held back because another process leads.
    pub fn is_not_leading(&self) -> bool {
        match self {
            Self::NotLeading(_) => true,
            Self::Kube(kube::Error::Service(error)) => error.is::<NotLeading>(),
            _ => false,
        }
    }

    /// The object is gone; a write to it counts as done (lifecycle.md §0.3).
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Kube(kube::Error::Api(status)) if status.is_not_found())
    }
}

/// What the API server said, without the client's dump of the whole answer.
fn api_text(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        error => error.to_string(),
    }
}

fn join(errors: &[Error]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Treats "not found" as success: the object that the write was for is gone.
pub fn ignore_not_found<T>(result: std::result::Result<T, kube::Error>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(None),
        Err(error) => Err(error.into()),
    }
}
