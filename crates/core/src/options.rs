//! What an administrator can set: flags, environment variables and their defaults (api.md §4).
//!
//! [`OptionFlags`] is the clap part that the command line flattens into its own; [`Options::resolve`] lays flags over
//! environment over defaults and checks the result. Kubernetes manifests written for upstream set these through the
//! environment, so an unreadable number, boolean or duration *there* silently means the default, as it does upstream.

mod dashes;
mod feature_gates;
mod flags;
mod scheduler_config;

use std::time::Duration;

use karpenter_api::duration::GoDuration;
use karpenter_engine::model::{MinValuesPolicy, PreferencePolicy};

pub use dashes::with_double_dashes;
pub use feature_gates::{FeatureGates, GateError};
pub use flags::OptionFlags;
pub use scheduler_config::{DefaultSpread, SchedulerConfig, SchedulerConfigError};

/// The options in force.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Kept for compatibility with manifests that set it; nothing reads it.
    pub karpenter_service: String,
    /// Port of `/metrics` (and of profiling).
    pub metrics_port: u16,
    /// Port of `/healthz` and `/readyz`.
    pub health_probe_port: u16,
    /// Sustained requests per second to the API server.
    pub kube_client_qps: u32,
    /// Requests that may exceed it for a moment.
    pub kube_client_burst: u32,
    /// Serve `/debug/pprof/` on the metrics port.
    pub enable_profiling: bool,
    /// Start watching only after leadership is won.
    pub disable_controller_warmup: bool,
    /// Run without a Lease; only for a single replica.
    pub disable_leader_election: bool,
    /// Leave out the controllers that only measure.
    pub disable_cluster_state_observability: bool,
    /// Name of the Lease.
    pub leader_election_name: String,
    /// Namespace of the Lease; empty is the pod's own.
    pub leader_election_namespace: String,
    /// Bytes; accepted for compatibility. A Rust program has no collector to tune by it.
    pub memory_limit: i64,
    /// Millicores that the process may use; worker counts follow it.
    pub cpu_requests: u32,
    /// The least severe messages that are logged.
    pub log_level: LogLevel,
    /// Where log lines go.
    pub log_output_paths: Vec<String>,
    /// Where errors of logging itself go.
    pub log_error_output_paths: Vec<String>,
    /// A batch of pods is planned at the latest this long after its first pod.
    pub batch_max_duration: Duration,
    /// A batch of pods is planned once no pod has come for this long.
    pub batch_idle_duration: Duration,
    /// Whether preferences of pods are honoured when planning nodes.
    pub preference_policy: PreferencePolicy,
    /// What to do when `minValues` cannot be met.
    pub min_values_policy: MinValuesPolicy,
    /// Refuse pods with resource claims instead of planning for them.
    pub ignore_dra_requests: bool,
    /// Repair unhealthy nodes by the older controller.
    pub legacy_node_repair: bool,
    /// Features that are on or off.
    pub feature_gates: FeatureGates,
    /// What kube-scheduler's configuration adds to pods.
    pub scheduler_config: SchedulerConfig,
}

/// How much is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    /// Everything, with the source line.
    Debug,
    /// What an administrator wants to read.
    Info,
    /// Only what went wrong.
    Error,
}

/// Why the options cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum OptionsError {
    /// A text that must be one of a few.
    #[error("{flag} is {value:?}; it must be one of {expected}")]
    Unknown {
        /// The flag's name with its dashes.
        flag: &'static str,
        /// What was given.
        value: String,
        /// What would be right.
        expected: &'static str,
    },
    /// A batch that would close before it opens.
    #[error("--{flag} must be a positive duration such as 1s, not {value}")]
    NotPositive {
        /// The flag's name.
        flag: &'static str,
        /// What was given.
        value: String,
    },
    /// Feature gates that cannot be read.
    #[error("--feature-gates: {0}")]
    FeatureGates(#[from] GateError),
    /// A scheduler configuration that cannot be read.
    #[error("--scheduler-config: {0}")]
    SchedulerConfig(#[from] SchedulerConfigError),
}

impl Options {
    /// The namespace that the process runs in: that of the Lease if one is given, else the pod's own. `None` outside of a
    /// cluster.
    pub fn own_namespace(&self) -> Option<String> {
        if !self.leader_election_namespace.is_empty() {
            return Some(self.leader_election_namespace.clone());
        }
        let own = std::fs::read_to_string("/var/run/secrets/kubernetes.io/serviceaccount/namespace");
        own.ok()
            .map(|text| text.trim().to_owned())
            .filter(|text| !text.is_empty())
    }

    /// Flags over environment over defaults, checked.
    ///
    /// # Errors
    /// The first option whose value makes no sense.
    pub fn resolve(flags: OptionFlags, env: impl Fn(&str) -> Option<String>) -> Result<Self, OptionsError> {
        let flags = flags.over(&env);
        let cpu_requests = flags.cpu_requests.unwrap_or(1000);
        Ok(Self {
            karpenter_service: flags.karpenter_service.unwrap_or_default(),
            metrics_port: flags.metrics_port.unwrap_or(8080),
            health_probe_port: flags.health_probe_port.unwrap_or(8081),
            kube_client_qps: flags.kube_client_qps.unwrap_or(200),
            kube_client_burst: flags.kube_client_burst.unwrap_or(300),
            enable_profiling: flags.enable_profiling.unwrap_or(false),
            disable_controller_warmup: flags.disable_controller_warmup.unwrap_or(true),
            disable_leader_election: flags.disable_leader_election.unwrap_or(false),
            disable_cluster_state_observability: flags.disable_cluster_state_observability.unwrap_or(false),
            leader_election_name: flags
                .leader_election_name
                .unwrap_or_else(|| "karpenter-leader-election".to_owned()),
            leader_election_namespace: flags.leader_election_namespace.unwrap_or_default(),
            memory_limit: flags.memory_limit.unwrap_or(-1),
            cpu_requests: u32::try_from(cpu_requests).ok().filter(|cpu| *cpu > 0).unwrap_or(1000),
            log_level: log_level(flags.log_level)?,
            log_output_paths: paths(flags.log_output_paths, "stdout"),
            log_error_output_paths: paths(flags.log_error_output_paths, "stderr"),
            batch_max_duration: positive("batch-max-duration", flags.batch_max_duration, Duration::from_secs(10))?,
            batch_idle_duration: positive("batch-idle-duration", flags.batch_idle_duration, Duration::from_secs(1))?,
            preference_policy: preference_policy(flags.preference_policy)?,
            min_values_policy: min_values_policy(flags.min_values_policy)?,
            ignore_dra_requests: flags.ignore_dra_requests.unwrap_or(true),
            legacy_node_repair: flags.legacy_node_repair.unwrap_or(false),
            feature_gates: flags.feature_gates.as_deref().unwrap_or_default().parse()?,
            scheduler_config: flags.scheduler_config.as_deref().unwrap_or_default().parse()?,
        })
    }

    /// CPU cores that worker counts are scaled by (lifecycle.md §0.1).
    pub fn cores(&self) -> u32 {
        self.cpu_requests.div_ceil(1000)
    }

    /// How long a nominated node is kept from disruption (lifecycle.md §2.2).
    pub fn nomination_period(&self) -> Duration {
        (2 * self.batch_max_duration).max(Duration::from_secs(10))
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::resolve(OptionFlags::default(), |_| None).expect("the defaults are valid")
    }
}

fn log_level(given: Option<String>) -> Result<LogLevel, OptionsError> {
    match given.as_deref().unwrap_or("info") {
        "debug" => Ok(LogLevel::Debug),
        "" | "info" => Ok(LogLevel::Info),
        "error" => Ok(LogLevel::Error),
        other => Err(unknown("--log-level", other, "debug, info, error")),
    }
}

fn preference_policy(given: Option<String>) -> Result<PreferencePolicy, OptionsError> {
    match given.as_deref().unwrap_or("Respect") {
        "Respect" => Ok(PreferencePolicy::Respect),
        "Ignore" => Ok(PreferencePolicy::Ignore),
        other => Err(unknown("--preference-policy", other, "Respect, Ignore")),
    }
}

fn min_values_policy(given: Option<String>) -> Result<MinValuesPolicy, OptionsError> {
    match given.as_deref().unwrap_or("Strict") {
        "Strict" => Ok(MinValuesPolicy::Strict),
        "BestEffort" => Ok(MinValuesPolicy::BestEffort),
        other => Err(unknown("--min-values-policy", other, "Strict, BestEffort")),
    }
}

fn unknown(flag: &'static str, value: &str, expected: &'static str) -> OptionsError {
    OptionsError::Unknown {
        flag,
        value: value.to_owned(),
        expected,
    }
}

fn positive(flag: &'static str, given: Option<GoDuration>, default: Duration) -> Result<Duration, OptionsError> {
    let Some(given) = given else { return Ok(default) };
    match Duration::try_from(given.as_signed()) {
        Ok(duration) if !duration.is_zero() => Ok(duration),
        _ => Err(OptionsError::NotPositive {
            flag,
            value: given.to_string(),
        }),
    }
}

fn paths(given: Option<String>, default: &str) -> Vec<String> {
    let given = given.unwrap_or_else(|| default.to_owned());
    given
        .split(',')
        .map(str::trim)
        .filter(|path| !path.is_empty())
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        options: OptionFlags,
    }

    fn parse(args: &[&str], env: &[(&str, &str)]) -> Result<Options, String> {
        let command = <Cli as clap::CommandFactory>::command();
        let args = with_double_dashes(
            std::iter::once("karpenter").chain(args.iter().copied()).map(Into::into),
            &command,
        );
        let cli = Cli::try_parse_from(args).map_err(|error| error.to_string())?;
        let lookup = |name: &str| {
            env.iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| (*value).to_owned())
        };
        Options::resolve(cli.options, lookup).map_err(|error| error.to_string())
    }

    #[test]
    fn the_command_line_wins_over_the_environment_and_that_over_defaults() {
        let options = parse(
            &["--metrics-port=1"],
            &[("METRICS_PORT", "2"), ("HEALTH_PROBE_PORT", "3")],
        )
        .unwrap();
        assert_eq!(
            (options.metrics_port, options.health_probe_port, options.kube_client_qps),
            (1, 3, 200)
        );
    }

    #[test]
    fn arguments_of_the_earlier_bizfly_deployment_are_understood() {
        let args = [
            "--leader-elect",
            "--metrics-addr=:9090",
            "--health-probe-addr=:9091",
            "--loglevel=debug",
        ];
        let options = parse(&args, &[("DISABLE_LEADER_ELECTION", "true")]).unwrap();
        assert_eq!((options.metrics_port, options.health_probe_port), (9090, 9091));
        assert_eq!(options.log_level, LogLevel::Debug);
        assert!(!options.disable_leader_election);
        assert!(parse(&["--leader-elect=false"], &[]).unwrap().disable_leader_election);
        assert_eq!(parse(&["--metrics-addr=0.0.0.0:1"], &[]).unwrap().metrics_port, 1);
        let error = parse(&["--metrics-addr=127.0.0.1:1"], &[]).unwrap_err();
        assert!(error.contains("every interface"), "{error}");
        assert!(parse(&["--leader-elect", "--disable-leader-election"], &[]).is_err());
    }

    #[test]
    fn an_unreadable_environment_value_means_the_default_but_an_unreadable_flag_aborts() {
        let env = [
            ("METRICS_PORT", "x"),
            ("ENABLE_PROFILING", "maybe"),
            ("BATCH_MAX_DURATION", "soon"),
        ];
        let options = parse(&[], &env).unwrap();
        assert_eq!(options, Options::default());
        assert!(parse(&["--metrics-port=x"], &[]).is_err());
        assert!(parse(&["--no-such-flag"], &[]).is_err());
    }

    #[test]
    fn unknown_words_abort_wherever_they_come_from() {
        let error = parse(&[], &[("LOG_LEVEL", "loud")]).unwrap_err();
        assert_eq!(error, r#"--log-level is "loud"; it must be one of debug, info, error"#);
        assert!(parse(&["--preference-policy=respect"], &[]).is_err());
        assert!(parse(&["--min-values-policy", "Loose"], &[]).is_err());
    }

    #[test]
    fn booleans_on_the_command_line_are_bare_or_spelled_out() {
        assert!(parse(&["--enable-profiling"], &[]).unwrap().enable_profiling);
        assert!(
            !parse(&["--ignore-dra-requests=false"], &[])
                .unwrap()
                .ignore_dra_requests
        );
        assert!(parse(&["--enable-profiling=1"], &[]).is_err());
        assert!(parse(&[], &[("ENABLE_PROFILING", "T")]).unwrap().enable_profiling);
    }

    #[test]
    fn a_single_dash_is_as_good_as_two() {
        let options = parse(
            &["-metrics-port", "9", "-enable-profiling", "-batch-idle-duration=2s"],
            &[],
        )
        .unwrap();
        assert_eq!((options.metrics_port, options.enable_profiling), (9, true));
        assert_eq!(options.batch_idle_duration, Duration::from_secs(2));
    }

    #[test]
    fn cores_are_rounded_up_and_nonsense_means_one() {
        let cores = |text: &str| parse(&["--cpu-requests", text], &[]).unwrap().cores();
        assert_eq!([cores("1000"), cores("1001"), cores("250"), cores("0")], [1, 2, 1, 1]);
        assert_eq!(parse(&["--cpu-requests=-5"], &[]).unwrap().cores(), 1);
    }

    #[test]
    fn nominations_last_twice_the_longest_batch_but_ten_seconds_at_least() {
        assert_eq!(Options::default().nomination_period(), Duration::from_secs(20));
        let short = parse(&["--batch-max-duration=2s"], &[]).unwrap();
        assert_eq!(short.nomination_period(), Duration::from_secs(10));
    }
}
