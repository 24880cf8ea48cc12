//! Counts and times of API calls, and of what launches and terminations came to (cloudstack.md §14).

use jiff::SignedDuration;
use karpenter_cloud::{
    InstanceType,
    http::{Attempt, HttpObserver, Lane},
    selection,
};
use prometheus::{
    CounterVec, Gauge, GaugeVec, HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry, core::Collector,
};

use super::{ApiError, Class, Content, model::Account};

/// Everything that this provider measures itself. Cheap to clone; clones share.
#[derive(Clone, Debug)]
pub struct ApiMetrics {
    requests: IntCounterVec,
    duration: HistogramVec,
    throttled: CounterVec,
    pub job_duration: HistogramVec,
    pub created: IntCounterVec,
    pub deleted: IntCounterVec,
    pub launch_duration: HistogramVec,
    pub launch_failures: IntCounterVec,
    pub orphans: IntCounterVec,
    quota_available: GaugeVec,
    offering_unavailable: GaugeVec,
    pub up: Gauge,
}

const REQUEST_BUCKETS: [f64; 10] = [0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
const JOB_BUCKETS: [f64; 11] = [1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0];
const MACHINE: [&str; 4] = ["nodepool", "zone", "instance_type", "capacity_type"];

impl ApiMetrics {
    pub fn new() -> Self {
        let opts = |name: &str, help: &str| Opts::new(format!("karpenter_cloudstack_{name}"), help);
        let counter = |name: &str, help: &str, labels: &[&str]| {
            IntCounterVec::new(opts(name, help), labels).expect("names and labels are valid")
        };
        let histogram = |name: &str, help: &str, labels: &[&str], buckets: &[f64]| {
            let options = HistogramOpts::from(opts(name, help)).buckets(buckets.to_vec());
            HistogramVec::new(options, labels).expect("names and labels are valid")
        };
        Self {
            requests: counter(
                "api_requests_total",
                "Requests to the CloudStack API, by command, code and class of the answer.",
                &["command", "code", "class"],
            ),
            duration: histogram(
                "api_request_duration_seconds",
                "Duration of requests to the CloudStack API, waiting for the rate limit included.",
                &["command"],
                &REQUEST_BUCKETS,
            ),
            throttled: CounterVec::new(
                opts(
                    "api_throttled_seconds_total",
                    "Time that requests waited for the rate limit, by who goes first.",
                ),
                &["priority"],
            )
            .expect("names and labels are valid"),
            job_duration: histogram(
                "async_job_duration_seconds",
                "Duration of asynchronous jobs.",
                &["command", "status"],
                &JOB_BUCKETS,
            ),
            created: counter(
                "instances_created_total",
                "Virtual machines that were created.",
                &MACHINE,
            ),
            deleted: counter(
                "instances_deleted_total",
                "Virtual machines that were destroyed.",
                &MACHINE,
            ),
            launch_duration: histogram(
                "instance_launch_duration_seconds",
                "From the request to a running virtual machine, or to its failure.",
                &["zone", "result"],
                &JOB_BUCKETS,
            ),
            launch_failures: counter(
                "launch_failures_total",
                "Launches that failed, by class.",
                &["class", "zone", "instance_type"],
            ),
            orphans: counter(
                "orphans_collected_total",
                "Things without an owner that were deleted.",
                &["kind"],
            ),
            quota_available: GaugeVec::new(
                opts("quota_available", "What the account may still use; -1 is unlimited."),
                &["resource"],
            )
            .expect("names and labels are valid"),
            offering_unavailable: GaugeVec::new(
                opts(
                    "offering_unavailable",
                    "1 for offerings that are not asked for now: refused lately, or above the quota.",
                ),
                &MACHINE[1..],
            )
            .expect("names and labels are valid"),
            up: Gauge::with_opts(opts("up", "Whether the CloudStack API answers.")).expect("the name is valid"),
        }
    }

    /// # Errors
    /// When they are registered already.
    pub fn register(&self, registry: &Registry) -> Result<(), prometheus::Error> {
        let all: [Box<dyn Collector>; 12] = [
            Box::new(self.requests.clone()),
            Box::new(self.duration.clone()),
            Box::new(self.throttled.clone()),
            Box::new(self.job_duration.clone()),
            Box::new(self.created.clone()),
            Box::new(self.deleted.clone()),
            Box::new(self.launch_duration.clone()),
            Box::new(self.launch_failures.clone()),
            Box::new(self.orphans.clone()),
            Box::new(self.quota_available.clone()),
            Box::new(self.offering_unavailable.clone()),
            Box::new(self.up.clone()),
        ];
        for collector in all {
            registry.register(collector)?;
        }
        Ok(())
    }

    /// Which offerings are not asked for now.
    pub fn show_offerings<'a>(&self, types: impl Iterator<Item = &'a InstanceType>) {
        for own in types {
            for offering in &own.offerings {
                let zone = selection::zone(offering).unwrap_or_default();
                let kind = selection::capacity_type(offering).unwrap_or_default();
                let labels = [zone, own.name.as_str(), kind];
                let shown = if offering.available { 0.0 } else { 1.0 };
                self.offering_unavailable.with_label_values(&labels).set(shown);
            }
        }
    }

    /// What an account may still use; -1 is unlimited.
    pub fn show_quota(&self, account: &Account) {
        let left = [
            ("vm", account.vmavailable),
            ("cpu", account.cpuavailable),
            ("memory", account.memoryavailable),
            ("volume", account.volumeavailable),
            ("gpu", account.gpuavailable),
        ];
        for (resource, left) in left {
            // A resource that this version of CloudStack does not count has no series.
            if let Some(left) = left {
                let shown = if left == i64::MAX { -1.0 } else { left as f64 };
                self.quota_available.with_label_values(&[resource]).set(shown);
            }
        }
    }

    pub(super) fn answered(&self, command: &str, result: &Result<Content, ApiError>, took: SignedDuration) {
        let (code, class) = match result {
            Ok(_) => ("200".to_owned(), "ok"),
            Err(ApiError::Refused(failure)) => (failure.code.to_string(), failure.class.name()),
            Err(ApiError::NotSent(_)) => ("0".to_owned(), "unreachable"),
            Err(ApiError::Unknown(_)) => ("0".to_owned(), "unanswered"),
            Err(ApiError::Unreadable { .. }) => ("0".to_owned(), "unreadable"),
            Err(ApiError::Local(_)) => ("0".to_owned(), "local"),
        };
        self.requests.with_label_values(&[command, &code, class]).inc();
        self.duration.with_label_values(&[command]).observe(took.as_secs_f64());
        let is_up = !matches!(
            result,
            Err(ApiError::NotSent(_) | ApiError::Unknown(_) | ApiError::Unreadable { .. })
        );
        self.up.set(if is_up { 1.0 } else { 0.0 });
    }
}

impl Default for ApiMetrics {
    fn default() -> Self {
        Self::new()
    }
}

impl HttpObserver for ApiMetrics {
    fn attempted(&self, attempt: &Attempt<'_>) {
        let waited = attempt.throttled.as_secs_f64();
        if waited > 0.0 {
            let priority = match attempt.lane {
                Lane::Release => "termination",
                Lane::Urgent => "launch",
                Lane::Background => "discovery",
            };
            self.throttled.with_label_values(&[priority]).inc_by(waited);
        }
    }
}

impl Class {
    /// For metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Auth => "auth",
            Self::Forbidden => "forbidden",
            Self::Unsupported => "unsupported",
            Self::Throttled(_) => "throttled",
            Self::Internal => "internal",
            Self::NotFound => "not_found",
            Self::NameTaken => "name_taken",
            Self::PageSize(_) => "page_size",
            Self::Protected => "protected",
            Self::UserDataTooLong => "user_data_too_long",
            Self::Invalid => "invalid",
            Self::Capacity => "capacity",
            Self::StartFailed => "start_failed",
            Self::Network => "network",
            Self::Quota(_) => "quota",
            Self::Conflict => "conflict",
            Self::Transient => "transient",
            Self::NeedsPost => "needs_post",
            Self::Ambiguous => "ambiguous",
            Self::ExpungeDenied => "expunge_denied",
            Self::Generic => "generic",
        }
    }
}
