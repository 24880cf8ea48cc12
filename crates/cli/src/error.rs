//! Why a command ended without success, and the exit code that says so.

use std::io;
use std::process::ExitCode;

use crate::manifests::ManifestError;

/// The ways in which a command fails; each has its exit code (cli.md, "Common rules"): 1 a negative answer, 2 unusable
/// input or arguments, 3 a cluster or cloud that can't be reached.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    /// The command ran and the answer is no. Everything worth saying has been printed.
    #[error("the answer is negative")]
    Negative,
    /// The arguments, or a file that they name, can't be used.
    #[error("{0}")]
    Usage(String),
    /// A file can't be read or understood.
    #[error(transparent)]
    Input(#[from] ManifestError),
    /// The command ran and went wrong.
    #[error("{0}")]
    Failed(String),
    /// The cluster or the cloud does not answer.
    #[error("{0}")]
    Unreachable(String),
    /// Output could not be written.
    #[error("writing the output failed: {0}")]
    Output(#[from] io::Error),
}

impl CliError {
    pub(crate) fn usage(sentence: impl Into<String>) -> Self {
        Self::Usage(sentence.into())
    }

    pub(crate) fn failed(sentence: impl Into<String>) -> Self {
        Self::Failed(sentence.into())
    }

    pub(crate) fn unreachable(sentence: impl Into<String>) -> Self {
        Self::Unreachable(sentence.into())
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            // Whoever reads our output had enough (`karpenter crds | head`); that is no failure.
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
            Self::Negative | Self::Failed(_) | Self::Output(_) => ExitCode::from(1),
            Self::Input(_) | Self::Usage(_) => ExitCode::from(2),
            Self::Unreachable(_) => ExitCode::from(3),
        }
    }

    /// Whether there is a sentence left to print.
    pub(crate) fn is_silent(&self) -> bool {
        match self {
            Self::Negative => true,
            Self::Output(error) => error.kind() == io::ErrorKind::BrokenPipe,
            Self::Input(_) | Self::Usage(_) | Self::Failed(_) | Self::Unreachable(_) => false,
        }
    }
}
