//! What can go wrong at a cloud, in the classes that core and the kit act upon.
//!
//! A provider may wrap an error as often as it likes ([`CloudError::context`], or any error type with a `source()`):
//! [`CloudError::kind`] and [`CloudError::recognise`] find the class again through the wrapping.

use std::{error::Error, fmt, time::Duration};

use thiserror::Error;

/// A cause kept for the log; its text is part of the message only where the variant says so.
pub type Cause = Box<dyn Error + Send + Sync + 'static>;

/// The error of every [`CloudProvider`](crate::CloudProvider) call.
#[derive(Debug, Error)]
pub enum CloudError {
    /// The instance does not exist (any more). Only ever answered after a complete, successful read.
    #[error("instance {what} does not exist")]
    NotFound { what: String },
    /// No offering that the claim allows can be launched now.
    #[error("insufficient capacity: {message}")]
    InsufficientCapacity { message: String },
    /// The NodeClass of the claim is missing, being deleted or not ready.
    #[error("node class {name} is not ready: {message}")]
    NodeClassNotReady { name: String, message: String },
    /// A limit of the account is reached; other types may still fit.
    #[error("quota exceeded: {message}")]
    Quota { message: String },
    /// The cloud asked us to slow down.
    #[error("throttled by the cloud: {message}")]
    Throttled {
        message: String,
        retry_after: Option<Duration>,
    },
    /// The credentials are missing, wrong, expired, or lack a right.
    #[error("not authorised: {message}")]
    Auth { message: String },
    /// Nothing is known to be wrong with the request: network, 5xx, timeouts.
    #[error("temporary failure: {message}")]
    Transient {
        message: String,
        #[source]
        source: Option<Cause>,
    },
    /// The cloud refused the request as such; repeating it unchanged is pointless.
    #[error("refused as invalid: {message}")]
    Invalid { message: String },
    /// A launch failed, or is not finished, for a reason that users shall read on the claim's `Launched` condition.
    #[error("{message}")]
    Create {
        reason: String,
        message: String,
        #[source]
        source: Option<Cause>,
    },
    /// This provider cannot restart an instance in place.
    #[error("this provider does not implement reboots")]
    RebootNotImplemented,
    /// The cloud refused the reboot for good.
    #[error("reboot failed: {message}")]
    RebootFailed { message: String },
    /// NodeOverlays were not evaluated for this NodePool yet.
    #[error("node overlays are not evaluated yet for node pool {node_pool}")]
    Unevaluated { node_pool: String },
    /// Another error with a sentence on what was being done.
    #[error("{context}: {source}")]
    Context {
        context: String,
        #[source]
        source: Box<CloudError>,
    },
    /// Any error of a foreign type; its source chain may still hold a `CloudError`.
    #[error("{0}")]
    Other(#[source] Cause),
}

/// The class of a [`CloudError`] without its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ErrorKind {
    NotFound,
    InsufficientCapacity,
    NodeClassNotReady,
    Quota,
    Throttled,
    Auth,
    Transient,
    Invalid,
    Create,
    RebootNotImplemented,
    RebootFailed,
    Unevaluated,
    Other,
}

/// What core does with a claim whose launch failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LaunchEffect {
    /// Delete the claim now, tell its pods, and let them be planned anew.
    DeleteForCapacity,
    /// Delete the claim now; the NodePool is not ready anyway.
    DeleteForNodeClass,
    /// Keep the claim, show this on its `Launched` condition, and try again with backoff.
    Retry {
        reason: String,
        message: String,
        after: Option<Duration>,
    },
}

/// What core does with a claim whose reboot failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RebootEffect {
    /// Replace the node.
    GiveUp,
    /// Try again until the reboot's own deadline.
    Retry,
}

/// The reason on `Launched` for errors that bring none of their own.
pub const LAUNCH_FAILED: &str = "LaunchFailed";

// === impl CloudError ===

impl CloudError {
    pub fn not_found(what: impl Into<String>) -> Self {
        Self::NotFound { what: what.into() }
    }

    pub fn insufficient_capacity(message: impl Into<String>) -> Self {
        Self::InsufficientCapacity {
            message: message.into(),
        }
    }

    pub fn node_class_not_ready(name: impl Into<String>, message: impl Into<String>) -> Self {
        Self::NodeClassNotReady {
            name: name.into(),
            message: message.into(),
        }
    }

    pub fn quota(message: impl Into<String>) -> Self {
        Self::Quota {
            message: message.into(),
        }
    }

    pub fn throttled(message: impl Into<String>, retry_after: Option<Duration>) -> Self {
        Self::Throttled {
            message: message.into(),
            retry_after,
        }
    }

    pub fn auth(message: impl Into<String>) -> Self {
        Self::Auth {
            message: message.into(),
        }
    }

    pub fn transient(message: impl Into<String>) -> Self {
        Self::Transient {
            message: message.into(),
            source: None,
        }
    }

    pub fn invalid(message: impl Into<String>) -> Self {
        Self::Invalid {
            message: message.into(),
        }
    }

    pub fn create(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Create {
            reason: reason.into(),
            message: message.into(),
            source: None,
        }
    }

    pub fn reboot_failed(message: impl Into<String>) -> Self {
        Self::RebootFailed {
            message: message.into(),
        }
    }

    pub fn other(error: impl Into<Cause>) -> Self {
        Self::Other(error.into())
    }

    /// Says what was being done, and keeps the class.
    #[must_use]
    pub fn context(self, context: impl fmt::Display) -> Self {
        Self::Context {
            context: context.to_string(),
            source: Box::new(self),
        }
    }

    /// Takes any error in: a `CloudError` comes out as it was, everything else is wrapped.
    pub fn from_any(error: impl Into<Cause>) -> Self {
        match error.into().downcast::<CloudError>() {
            Ok(own) => *own,
            Err(foreign) => Self::Other(foreign),
        }
    }

    /// The class core acts upon, found through any amount of wrapping.
    ///
    /// Where several classes are wrapped into each other, capacity wins over NodeClass over [`CloudError::Create`]
    /// (api.md §7.4); otherwise the outermost class counts.
    pub fn kind(&self) -> ErrorKind {
        const FIRST: [ErrorKind; 3] = [
            ErrorKind::InsufficientCapacity,
            ErrorKind::NodeClassNotReady,
            ErrorKind::Create,
        ];
        let mut outermost = None;
        let mut preferred = FIRST.len();
        for error in Self::chain(self) {
            let kind = error.own_kind();
            if kind == ErrorKind::Other {
                continue;
            }
            outermost.get_or_insert(kind);
            if let Some(rank) = FIRST.iter().position(|first| *first == kind) {
                preferred = preferred.min(rank);
            }
        }
        FIRST.get(preferred).copied().or(outermost).unwrap_or(ErrorKind::Other)
    }

    /// The first `CloudError` with a class of its own in `error`'s source chain.
    pub fn recognise<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a CloudError> {
        Self::chain(error).find(|own| own.own_kind() != ErrorKind::Other)
    }

    pub fn is_not_found(&self) -> bool {
        self.kind() == ErrorKind::NotFound
    }

    pub fn is_insufficient_capacity(&self) -> bool {
        self.kind() == ErrorKind::InsufficientCapacity
    }

    /// True when the same call may succeed later without anybody changing anything.
    pub fn is_temporary(&self) -> bool {
        matches!(self.kind(), ErrorKind::Transient | ErrorKind::Throttled)
    }

    /// How long the cloud asked us to wait, if it did.
    pub fn retry_after(&self) -> Option<Duration> {
        Self::chain(self).find_map(|error| match error {
            Self::Throttled { retry_after, .. } => *retry_after,
            _ => None,
        })
    }

    /// What a failed `create` means for the claim.
    ///
    /// A quota counts as missing capacity: waiting on the claim would hold back its pods although smaller or other
    /// types may fit, and the unavailable-offerings cache keeps the next plan away from what was refused.
    pub fn launch_effect(&self) -> LaunchEffect {
        match self.kind() {
            ErrorKind::InsufficientCapacity | ErrorKind::Quota => LaunchEffect::DeleteForCapacity,
            ErrorKind::NodeClassNotReady => LaunchEffect::DeleteForNodeClass,
            ErrorKind::Create => {
                let (reason, message) = Self::chain(self)
                    .find_map(|error| match error {
                        Self::Create { reason, message, .. } => Some((reason.clone(), message.clone())),
                        _ => None,
                    })
                    .expect("the kind Create was found in this chain");
                LaunchEffect::Retry {
                    reason,
                    message,
                    after: self.retry_after(),
                }
            }
            ErrorKind::NotFound
            | ErrorKind::Throttled
            | ErrorKind::Auth
            | ErrorKind::Transient
            | ErrorKind::Invalid
            | ErrorKind::RebootNotImplemented
            | ErrorKind::RebootFailed
            | ErrorKind::Unevaluated
            | ErrorKind::Other => LaunchEffect::Retry {
                reason: LAUNCH_FAILED.to_owned(),
                message: self.to_string(),
                after: self.retry_after(),
            },
        }
    }

    /// What a failed `reboot` means for the node.
    pub fn reboot_effect(&self) -> RebootEffect {
        match self.kind() {
            ErrorKind::RebootNotImplemented | ErrorKind::RebootFailed | ErrorKind::NotFound => RebootEffect::GiveUp,
            ErrorKind::InsufficientCapacity
            | ErrorKind::NodeClassNotReady
            | ErrorKind::Quota
            | ErrorKind::Throttled
            | ErrorKind::Auth
            | ErrorKind::Transient
            | ErrorKind::Invalid
            | ErrorKind::Create
            | ErrorKind::Unevaluated
            | ErrorKind::Other => RebootEffect::Retry,
        }
    }

    /// The `error` label of `karpenter_cloudprovider_errors_total`: upstream's four values and no more.
    pub fn metric_label(&self) -> &'static str {
        match self.kind() {
            ErrorKind::InsufficientCapacity | ErrorKind::Quota => "InsufficientCapacityError",
            ErrorKind::NotFound => "NodeClaimNotFoundError",
            ErrorKind::NodeClassNotReady => "NodeClassNotReadyError",
            ErrorKind::Throttled
            | ErrorKind::Auth
            | ErrorKind::Transient
            | ErrorKind::Invalid
            | ErrorKind::Create
            | ErrorKind::RebootNotImplemented
            | ErrorKind::RebootFailed
            | ErrorKind::Unevaluated
            | ErrorKind::Other => "unknown",
        }
    }

    fn own_kind(&self) -> ErrorKind {
        match self {
            Self::NotFound { .. } => ErrorKind::NotFound,
            Self::InsufficientCapacity { .. } => ErrorKind::InsufficientCapacity,
            Self::NodeClassNotReady { .. } => ErrorKind::NodeClassNotReady,
            Self::Quota { .. } => ErrorKind::Quota,
            Self::Throttled { .. } => ErrorKind::Throttled,
            Self::Auth { .. } => ErrorKind::Auth,
            Self::Transient { .. } => ErrorKind::Transient,
            Self::Invalid { .. } => ErrorKind::Invalid,
            Self::Create { .. } => ErrorKind::Create,
            Self::RebootNotImplemented => ErrorKind::RebootNotImplemented,
            Self::RebootFailed { .. } => ErrorKind::RebootFailed,
            Self::Unevaluated { .. } => ErrorKind::Unevaluated,
            Self::Context { .. } | Self::Other(_) => ErrorKind::Other,
        }
    }

    fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a CloudError> {
        // `Box<CloudError>` as a source is seen as the box itself, hence the second downcast.
        std::iter::successors(Some(error), |error: &&'a (dyn Error + 'static)| (*error).source()).filter_map(|error| {
            error
                .downcast_ref::<CloudError>()
                .or_else(|| error.downcast_ref::<Box<CloudError>>().map(|own| &**own))
        })
    }
}

/// A failed read or write of a Kubernetes object. Never [`CloudError::NotFound`]: that something is missing from the API
/// server (a NodeClass, a CRD) does not mean that an instance is gone.
impl From<kube::Error> for CloudError {
    fn from(error: kube::Error) -> Self {
        let kube::Error::Api(status) = &error else {
            return Self::Transient {
                message: "the Kubernetes API did not answer".to_owned(),
                source: Some(error.into()),
            };
        };
        let message = format!("Kubernetes API: {}", status.message);
        match status.code {
            401 | 403 => Self::auth(message),
            429 => Self::throttled(message, None),
            400 | 404 | 405 | 410 | 422 => Self::invalid(message),
            _ => Self::Transient {
                message,
                source: Some(error.into()),
            },
        }
    }
}

/// Adds a sentence to the error of a result without losing its class.
pub trait CloudContext<T> {
    /// # Errors
    /// The error of `self`, wrapped.
    fn cloud_context(self, context: impl fmt::Display) -> Result<T, CloudError>;
}

impl<T, E: Into<Cause>> CloudContext<T> for Result<T, E> {
    fn cloud_context(self, context: impl fmt::Display) -> Result<T, CloudError> {
        self.map_err(|error| CloudError::from_any(error).context(context))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Error)]
    #[error("a foreign wrapper")]
    struct Foreign(#[source] CloudError);

    #[test]
    fn the_class_is_found_through_any_amount_of_wrapping() {
        let error = CloudError::other(Foreign(CloudError::not_found("i-1").context("reading it"))).context("deleting");
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.is_not_found());
        assert_eq!(error.to_string(), "deleting: a foreign wrapper");
    }

    #[test]
    fn capacity_wins_over_node_class_wins_over_create_error() {
        let inner = CloudError::insufficient_capacity("none left");
        let error = CloudError::Create {
            reason: "X".into(),
            message: "y".into(),
            source: Some(Box::new(inner)),
        };
        assert_eq!(error.launch_effect(), LaunchEffect::DeleteForCapacity);

        let inner = CloudError::node_class_not_ready("default", "no image");
        let error = CloudError::Create {
            reason: "X".into(),
            message: "y".into(),
            source: Some(Box::new(inner)),
        };
        assert_eq!(error.launch_effect(), LaunchEffect::DeleteForNodeClass);
    }

    #[test]
    fn a_create_error_surfaces_its_own_reason_and_message() {
        let error = CloudError::create("InstancePending", "the machine is being built").context("launching claim a");
        assert_eq!(
            error.launch_effect(),
            LaunchEffect::Retry {
                reason: "InstancePending".into(),
                message: "the machine is being built".into(),
                after: None
            }
        );
    }

    #[test]
    fn an_unclassified_error_is_retried_as_launch_failed() {
        let error = CloudError::other("socket closed");
        assert_eq!(error.kind(), ErrorKind::Other);
        assert_eq!(
            error.launch_effect(),
            LaunchEffect::Retry {
                reason: LAUNCH_FAILED.into(),
                message: "socket closed".into(),
                after: None
            }
        );
        assert_eq!(error.metric_label(), "unknown");
    }

    #[test]
    fn a_quota_counts_as_missing_capacity() {
        let error = CloudError::quota("20 of 20 vCPU used");
        assert_eq!(error.launch_effect(), LaunchEffect::DeleteForCapacity);
        assert_eq!(error.metric_label(), "InsufficientCapacityError");
    }

    #[test]
    fn the_wait_that_a_throttling_cloud_asked_for_survives_wrapping() {
        let error = CloudError::throttled("429", Some(Duration::from_secs(7))).context("listing");
        assert_eq!(error.retry_after(), Some(Duration::from_secs(7)));
        assert!(error.is_temporary());
    }

    #[test]
    fn only_final_reboot_errors_give_up() {
        assert_eq!(CloudError::RebootNotImplemented.reboot_effect(), RebootEffect::GiveUp);
        assert_eq!(
            CloudError::reboot_failed("no power").reboot_effect(),
            RebootEffect::GiveUp
        );
        assert_eq!(CloudError::not_found("i").reboot_effect(), RebootEffect::GiveUp);
        assert_eq!(CloudError::transient("502").reboot_effect(), RebootEffect::Retry);
    }

    #[test]
    fn taking_in_a_boxed_cloud_error_keeps_it() {
        let boxed: Cause = Box::new(CloudError::auth("key expired"));
        assert_eq!(CloudError::from_any(boxed).kind(), ErrorKind::Auth);
        let result: Result<(), CloudError> = Err(CloudError::auth("key expired"));
        assert_eq!(
            result.cloud_context("signing").expect_err("an error").kind(),
            ErrorKind::Auth
        );
    }
}
