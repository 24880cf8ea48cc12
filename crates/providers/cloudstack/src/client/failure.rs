//! What CloudStack's errors mean: codes and texts sorted into the classes that we act upon (cloudstack.md §2.6).

use std::{fmt, sync::LazyLock, time::Duration};

use karpenter_cloud::{CloudError, http::HttpError};
use regex::Regex;
use thiserror::Error;

/// Why a call did not succeed.
#[derive(Debug, Error)]
pub enum ApiError {
    /// CloudStack answered with an error.
    #[error("{0}")]
    Refused(Failure),
    /// The request certainly had no effect.
    #[error("CloudStack cannot be reached: {0}")]
    NotSent(String),
    /// The request may have been acted upon: look before sending it again.
    #[error("CloudStack did not answer: {0}")]
    Unknown(String),
    /// An answer that is not CloudStack's.
    #[error("{command}: the answer cannot be understood: {reason}")]
    Unreadable { command: String, reason: String },
    /// The credentials are incomplete.
    #[error(transparent)]
    Local(#[from] CloudError),
}

/// An error that CloudStack itself told, of a request or of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub command: String,
    pub code: u16,
    /// Empty for a job that ended without a result.
    pub text: String,
    pub class: Class,
    /// Entities that a failed request left behind.
    pub left_behind: Vec<String>,
}

/// What a failure means to us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Class {
    /// Key, secret or clock.
    Auth,
    /// The role may not do this.
    Forbidden,
    /// The server does not know the command, or the feature is off.
    Unsupported,
    Throttled(Duration),
    /// Our request was malformed.
    Internal,
    NotFound,
    NameTaken,
    /// The largest page that the server gives.
    PageSize(u32),
    Protected,
    UserDataTooLong,
    /// A setting that the server refuses.
    Invalid,
    /// No host or storage for the machine.
    Capacity,
    /// The server hides why the machine did not start.
    StartFailed,
    /// No free address, or the network is out of order.
    Network,
    /// A limit of the account, domain or project, on this resource.
    Quota(String),
    Conflict,
    Transient,
    /// A state change was sent by GET although the server wants POST.
    NeedsPost,
    /// A job ended without saying how: its VM must be read.
    Ambiguous,
    ExpungeDenied,
    /// The generic 530 that ordinary users get for many causes.
    Generic,
}

/// Where a failure was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// In the answer to the request; `errorresponse` as the key means that the command was not even dispatched.
    AtOnce {
        undispatched: bool,
    },
    ByJob,
}

static RETRY_AFTER: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"retry after \[(\d+)\] ms").expect("the pattern is valid"));
static PAGE_SIZE: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"page size can't exceed max allowed page size value: (\d+)").expect("the pattern is valid")
});
static QUOTA_TYPE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"type (?:= )?'([a-z_]+)'").expect("the pattern is valid"));
static NO_ADDRESS: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"insufficient address capacity|unable to acquire .*address|no free .*ip|unable to allocate .*ip")
        .expect("the pattern is valid")
});
static NETWORK_DOWN: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"the network for vm .* is unavailable").expect("the pattern is valid"));

const GENERIC: &str = "internal error executing command";

impl Class {
    /// The class of an error code and text.
    pub fn of(code: u16, text: &str, told: Told) -> Self {
        let text = text.to_lowercase();
        let has = |part: &str| text.contains(part);
        match code {
            400 if has("needs to be sent using post") => Self::NeedsPost,
            400 | 405 => Self::Invalid,
            401 => match told {
                Told::AtOnce { undispatched: true } => Self::Unsupported,
                _ if has("is not available for user") => Self::Forbidden,
                Told::AtOnce { undispatched: false } | Told::ByJob => Self::Auth,
            },
            404 | 413 | 414 => Self::UserDataTooLong,
            429 => Self::Throttled(retry_after(&text)),
            430 => Self::Internal,
            431 => Self::of_parameter(&text),
            432 if text.starts_with("the api [") => Self::Forbidden,
            432 => Self::Unsupported,
            511 => Self::Auth,
            530 => Self::of_internal(&text, told),
            531 => Self::Forbidden,
            532 | 535 => Self::Quota(quota_resource(&text)),
            533 | 534 => Self::Capacity,
            536 | 537 => Self::Conflict,
            _ => Self::Transient,
        }
    }

    fn of_parameter(text: &str) -> Self {
        let has = |part: &str| text.contains(part);
        if let Some(found) = PAGE_SIZE.captures(text) {
            return Self::PageSize(found[1].parse().unwrap_or(1));
        }
        if has("already exists in the network domain")
            || has("already exists a vm by the name")
            || has("already exists so can't create/update with custom id")
        {
            return Self::NameTaken;
        }
        if has("entity does not exist") || has("unable to find a virtual machine") {
            return Self::NotFound;
        }
        if has("delete protection") {
            return Self::Protected;
        }
        if has("user data") && (has("long") || has("exceeded")) {
            return Self::UserDataTooLong;
        }
        Self::Invalid
    }

    /// 530 is the server's catch-all; only the text tells.
    fn of_internal(text: &str, told: Told) -> Self {
        let has = |part: &str| text.contains(part);
        if text.is_empty() || has("job cancelled because of management server restart") {
            return Self::Ambiguous;
        }
        if has("permission for expunging") || has("expunging a vm can only be done") {
            return Self::ExpungeDenied;
        }
        if NO_ADDRESS.is_match(text) || NETWORK_DOWN.is_match(text) {
            return Self::Network;
        }
        if has("insufficient capacity")
            || has("unable to create a deployment")
            || has("no destination found")
            || has("no suitable host found")
            || has("unable to create deployment, affinity rules")
            || (has("storage") && (has("unavailable") || has("no suitable") || has("pools in the up state")))
        {
            return Self::Capacity;
        }
        if has("unable to orchestrate the start") || has("unable to start vm on") {
            return Self::StartFailed;
        }
        if has("concurrent operation") {
            return Self::Transient;
        }
        if has("permission denied") || has("does not have permission") {
            return Self::Forbidden;
        }
        match told {
            Told::AtOnce { .. } if has(GENERIC) => Self::Generic,
            Told::AtOnce { .. } | Told::ByJob => Self::Transient,
        }
    }
}

fn retry_after(text: &str) -> Duration {
    let asked = RETRY_AFTER.captures(text).and_then(|found| found[1].parse().ok());
    Duration::from_millis(asked.unwrap_or(1000)).max(Duration::from_millis(100))
}

fn quota_resource(text: &str) -> String {
    QUOTA_TYPE
        .captures(text)
        .map_or_else(|| "unknown".to_owned(), |found| found[1].to_owned())
}

impl Failure {
    pub fn new(command: &str, code: u16, text: &str, told: Told) -> Self {
        Self {
            command: command.to_owned(),
            code,
            text: text.to_owned(),
            class: Class::of(code, text, told),
            left_behind: Vec::new(),
        }
    }

    /// The text, short enough for a condition.
    pub fn short_text(&self) -> String {
        self.text.chars().take(300).collect()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {} (CloudStack error {})",
            self.command,
            self.short_text(),
            self.code
        )
    }
}

impl ApiError {
    /// The class, if CloudStack told one.
    pub fn class(&self) -> Option<&Class> {
        match self {
            Self::Refused(failure) => Some(&failure.class),
            Self::NotSent(_) | Self::Unknown(_) | Self::Unreadable { .. } | Self::Local(_) => None,
        }
    }

    pub fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Refused(failure) => Some(failure),
            Self::NotSent(_) | Self::Unknown(_) | Self::Unreadable { .. } | Self::Local(_) => None,
        }
    }

    /// Whether CloudStack could not be asked at all, so that nothing is known.
    pub fn is_outage(&self) -> bool {
        match self {
            Self::NotSent(_) | Self::Unknown(_) | Self::Unreadable { .. } => true,
            Self::Refused(failure) => matches!(failure.class, Class::Transient | Class::Throttled(_) | Class::Generic),
            Self::Local(_) => false,
        }
    }
}

impl From<HttpError> for ApiError {
    fn from(error: HttpError) -> Self {
        match error {
            HttpError::Build(error) => Self::Local(error),
            HttpError::NotSent { .. } => Self::NotSent(with_advice(error.to_string())),
            HttpError::Unknown { .. } | HttpError::TooLong { .. } => Self::Unknown(error.to_string()),
        }
    }
}

/// What stands between us and the API, and what to do about it; the words are those of TLS and of the operating system.
fn with_advice(told: String) -> String {
    let lower = told.to_lowercase();
    let has = |part: &str| lower.contains(part);
    let advice = if has("certificate expired") {
        "the certificate of the CloudStack API has expired; renew it at the management server or at the proxy before it"
    } else if has("not valid yet") {
        "the certificate of the CloudStack API is not valid yet; check the clocks of this machine and of the server"
    } else if has("not valid for name") || has("notvalidforname") {
        "the certificate of the CloudStack API is for another host; use the name that it was issued for in CLOUDSTACK_API_URL"
    } else if has("invalid peer certificate") || has("unknownissuer") || has("unknown issuer") {
        "the certificate of the CloudStack API is not signed by an authority that is trusted here; put its CA into \
         CLOUDSTACK_CA_BUNDLE"
    } else if has("dns error") || has("failed to lookup address") {
        "the host of CLOUDSTACK_API_URL is not known; check the name and the DNS"
    } else if has("connection refused") {
        "nothing listens there; check host and port of CLOUDSTACK_API_URL"
    } else if has("timed out") {
        "the host does not answer; check the firewall and the proxy between here and CLOUDSTACK_API_URL"
    } else {
        "check CLOUDSTACK_API_URL and the network"
    };
    format!("{advice} ({told})")
}

/// For everything but launches, which treat each class on its own.
impl From<ApiError> for CloudError {
    fn from(error: ApiError) -> Self {
        let failure = match error {
            ApiError::Refused(failure) => failure,
            ApiError::Local(error) => return error,
            ApiError::NotSent(_) | ApiError::Unknown(_) | ApiError::Unreadable { .. } => {
                return Self::transient(error.to_string());
            }
        };
        let message = failure.to_string();
        match failure.class {
            Class::Auth => Self::auth(format!(
                "{message}; check the API key, the secret key and the clock of this machine"
            )),
            Class::Forbidden => Self::auth(format!("{message}; the role of the API key lacks a permission")),
            Class::ExpungeDenied => Self::auth(message),
            Class::Throttled(wait) => Self::throttled(message, Some(wait)),
            Class::Capacity | Class::StartFailed | Class::Network => Self::insufficient_capacity(message),
            Class::Quota(_) => Self::quota(message),
            Class::Unsupported
            | Class::Internal
            | Class::NotFound
            | Class::NameTaken
            | Class::PageSize(_)
            | Class::Protected
            | Class::UserDataTooLong
            | Class::Invalid
            | Class::NeedsPost => Self::invalid(message),
            Class::Conflict | Class::Transient | Class::Ambiguous | Class::Generic => Self::transient(message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT_ONCE: Told = Told::AtOnce { undispatched: false };

    fn check(code: u16, text: &str, told: Told, class: Class) {
        assert_eq!(Class::of(code, text, told), class, "{code} {text}");
    }

    #[test]
    fn an_unknown_command_is_told_from_wrong_credentials_by_the_envelope() {
        let text = "unable to verify user credentials and/or request signature";
        check(401, text, Told::AtOnce { undispatched: true }, Class::Unsupported);
        check(401, text, AT_ONCE, Class::Auth);
    }

    #[test]
    fn capacity_arrives_with_its_own_code_or_as_text() {
        check(
            533,
            "No destination found for a deployment",
            Told::ByJob,
            Class::Capacity,
        );
        let hidden = "Unable to start a VM [x] due to insufficient capacity.";
        check(530, hidden, Told::ByJob, Class::Capacity);
        check(530, "No suitable host found.", Told::ByJob, Class::Capacity);
        check(
            530,
            "Unable to orchestrate the start of VM instance {}.",
            Told::ByJob,
            Class::StartFailed,
        );
        check(530, "Insufficient address capacity", AT_ONCE, Class::Network);
    }

    #[test]
    fn a_quota_names_its_resource() {
        let account = "Maximum amount of resources of Type = 'user_vm', tag = 'null' for Account Name = kuser";
        check(535, account, AT_ONCE, Class::Quota("user_vm".into()));
        let domain = "Maximum domain resource limits of Type 'cpu' for Domain Id = x is exceeded";
        check(535, domain, AT_ONCE, Class::Quota("cpu".into()));
    }

    #[test]
    fn a_throttled_answer_says_how_long_to_wait() {
        let text = "The given user has reached his/her account api limit, please retry after [727] ms.";
        check(429, text, AT_ONCE, Class::Throttled(Duration::from_millis(727)));
        check(
            429,
            "please retry after [3] ms.",
            AT_ONCE,
            Class::Throttled(Duration::from_millis(100)),
        );
    }

    #[test]
    fn parameter_errors_are_told_apart_by_text() {
        check(
            431,
            "x due to incorrect long value format, or entity does not exist",
            AT_ONCE,
            Class::NotFound,
        );
        check(
            431,
            "Page size can't exceed max allowed page size value: 100",
            AT_ONCE,
            Class::PageSize(100),
        );
        check(
            431,
            "User data has exceeded configurable max length: 32768",
            AT_ONCE,
            Class::UserDataTooLong,
        );
        check(431, "Not all specified keypairs exist", AT_ONCE, Class::Invalid);
    }

    #[test]
    fn each_way_of_not_reaching_the_api_has_its_own_advice() {
        let told = [
            (
                "invalid peer certificate: certificate expired: verification time",
                "renew it",
            ),
            ("invalid peer certificate: UnknownIssuer", "CLOUDSTACK_CA_BUNDLE"),
            (
                "invalid peer certificate: certificate not valid for name \"x\"",
                "for another host",
            ),
            ("dns error: failed to lookup address information", "the DNS"),
            ("tcp connect error: Connection refused (os error 111)", "host and port"),
            ("operation timed out", "the firewall"),
        ];
        for (told, advice) in told {
            let sentence = with_advice(told.to_owned());
            assert!(sentence.contains(advice) && sentence.contains(told), "{sentence}");
        }
    }

    #[test]
    fn a_job_that_ended_without_a_word_is_ambiguous() {
        check(530, "", Told::ByJob, Class::Ambiguous);
    }
}
