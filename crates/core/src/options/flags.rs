//! The flags as clap parses them, and the environment variables that stand in for flags that were not given.

use std::str::FromStr;

use clap::Args;
use karpenter_api::duration::GoDuration;

/// Flags of the controller. Every flag can also be set through the environment variable of the same name in capitals
/// with underscores.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Controller options (also as environment variables, e.g. METRICS_PORT)")]
pub struct OptionFlags {
    /// Accepted for compatibility; nothing reads it.
    #[arg(long, value_name = "NAME")]
    pub karpenter_service: Option<String>,
    /// Port of the Prometheus endpoint [default: 8080].
    #[arg(long, value_name = "PORT", alias = "metrics-addr", value_parser = port)]
    pub metrics_port: Option<u16>,
    /// Port of /healthz and /readyz [default: 8081].
    #[arg(long, value_name = "PORT", alias = "health-probe-addr", value_parser = port)]
    pub health_probe_port: Option<u16>,
    /// Sustained requests per second to the Kubernetes API [default: 200].
    #[arg(long, value_name = "N")]
    pub kube_client_qps: Option<u32>,
    /// Requests to the Kubernetes API that may come at once [default: 300].
    #[arg(long, value_name = "N")]
    pub kube_client_burst: Option<u32>,
    /// Serve /debug/pprof/ on the metrics port [default: false].
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub enable_profiling: Option<bool>,
    /// Start watching only once this replica leads [default: true].
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub disable_controller_warmup: Option<bool>,
    /// Run without a Lease; only safe with one replica [default: false].
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub disable_leader_election: Option<bool>,
    /// The opposite, as Deployments of the earlier BizFly provider spell it.
    #[arg(long, hide = true, conflicts_with = "disable_leader_election", value_name = "BOOL")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub leader_elect: Option<bool>,
    /// Leave out pod, node and NodePool gauges, status condition metrics and events [default: false].
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub disable_cluster_state_observability: Option<bool>,
    /// Name of the Lease [default: karpenter-leader-election].
    #[arg(long, value_name = "NAME")]
    pub leader_election_name: Option<String>,
    /// Namespace of the Lease [default: the pod's own].
    #[arg(long, value_name = "NAMESPACE")]
    pub leader_election_namespace: Option<String>,
    /// Memory limit in bytes; accepted for compatibility [default: -1].
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true)]
    pub memory_limit: Option<i64>,
    /// CPU request in millicores; worker counts follow it [default: 1000].
    #[arg(long, value_name = "MILLICORES", allow_negative_numbers = true)]
    pub cpu_requests: Option<i64>,
    /// debug, info or error [default: info].
    #[arg(long, value_name = "LEVEL", alias = "loglevel")]
    pub log_level: Option<String>,
    /// Where to log: stdout, stderr or files, separated by commas [default: stdout].
    #[arg(long, value_name = "PATHS")]
    pub log_output_paths: Option<String>,
    /// Where errors of the logger itself go [default: stderr].
    #[arg(long, value_name = "PATHS")]
    pub log_error_output_paths: Option<String>,
    /// Plan nodes for a batch of pods at the latest this long after its first pod [default: 10s].
    #[arg(long, value_name = "DURATION")]
    pub batch_max_duration: Option<GoDuration>,
    /// Plan nodes for a batch of pods once no pod has come for this long [default: 1s].
    #[arg(long, value_name = "DURATION")]
    pub batch_idle_duration: Option<GoDuration>,
    /// Respect or Ignore pods' preferences when planning nodes [default: Respect].
    #[arg(long, value_name = "POLICY")]
    pub preference_policy: Option<String>,
    /// Strict or BestEffort treatment of minValues [default: Strict].
    #[arg(long, value_name = "POLICY")]
    pub min_values_policy: Option<String>,
    /// Refuse pods with resource claims (DRA) instead of planning for them [default: true].
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub ignore_dra_requests: Option<bool>,
    /// Repair nodes with the older controller (needs the NodeRepair gate) [default: false].
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub legacy_node_repair: Option<bool>,
    /// Features to switch: Name=bool,Name=bool.
    #[arg(long, value_name = "GATES")]
    pub feature_gates: Option<String>,
    /// YAML or JSON with podTopologySpread.defaultConstraints as kube-scheduler has them.
    #[arg(long, value_name = "YAML")]
    pub scheduler_config: Option<String>,
}

impl OptionFlags {
    /// These flags, with what was not given taken from the environment where that can be read.
    pub(super) fn over(self, env: impl Fn(&str) -> Option<String>) -> Self {
        let env = |name: &str| env(name).filter(|value| !value.is_empty());
        Self {
            karpenter_service: self.karpenter_service.or_else(|| env("KARPENTER_SERVICE")),
            metrics_port: self.metrics_port.or_else(|| parsed(env("METRICS_PORT"))),
            health_probe_port: self.health_probe_port.or_else(|| parsed(env("HEALTH_PROBE_PORT"))),
            kube_client_qps: self.kube_client_qps.or_else(|| parsed(env("KUBE_CLIENT_QPS"))),
            kube_client_burst: self.kube_client_burst.or_else(|| parsed(env("KUBE_CLIENT_BURST"))),
            enable_profiling: self.enable_profiling.or_else(|| go_bool(env("ENABLE_PROFILING"))),
            disable_controller_warmup: self
                .disable_controller_warmup
                .or_else(|| go_bool(env("DISABLE_CONTROLLER_WARMUP"))),
            leader_elect: self.leader_elect,
            disable_leader_election: self
                .disable_leader_election
                .or_else(|| self.leader_elect.map(|elect| !elect))
                .or_else(|| go_bool(env("DISABLE_LEADER_ELECTION"))),
            disable_cluster_state_observability: self
                .disable_cluster_state_observability
                .or_else(|| go_bool(env("DISABLE_CLUSTER_STATE_OBSERVABILITY"))),
            leader_election_name: self.leader_election_name.or_else(|| env("LEADER_ELECTION_NAME")),
            leader_election_namespace: self
                .leader_election_namespace
                .or_else(|| env("LEADER_ELECTION_NAMESPACE")),
            memory_limit: self.memory_limit.or_else(|| parsed(env("MEMORY_LIMIT"))),
            cpu_requests: self.cpu_requests.or_else(|| parsed(env("CPU_REQUESTS"))),
            log_level: self.log_level.or_else(|| env("LOG_LEVEL")),
            log_output_paths: self.log_output_paths.or_else(|| env("LOG_OUTPUT_PATHS")),
            log_error_output_paths: self.log_error_output_paths.or_else(|| env("LOG_ERROR_OUTPUT_PATHS")),
            batch_max_duration: self.batch_max_duration.or_else(|| parsed(env("BATCH_MAX_DURATION"))),
            batch_idle_duration: self.batch_idle_duration.or_else(|| parsed(env("BATCH_IDLE_DURATION"))),
            preference_policy: self.preference_policy.or_else(|| env("PREFERENCE_POLICY")),
            min_values_policy: self.min_values_policy.or_else(|| env("MIN_VALUES_POLICY")),
            ignore_dra_requests: self.ignore_dra_requests.or_else(|| go_bool(env("IGNORE_DRA_REQUESTS"))),
            legacy_node_repair: self.legacy_node_repair.or_else(|| go_bool(env("LEGACY_NODE_REPAIR"))),
            feature_gates: self.feature_gates.or_else(|| env("FEATURE_GATES")),
            scheduler_config: self.scheduler_config.or_else(|| env("SCHEDULER_CONFIG")),
        }
    }
}

/// A port, alone or as the address of every interface (`:8080`), as some Deployments give it.
fn port(text: &str) -> Result<u16, String> {
    let number = ["0.0.0.0:", "[::]:", ":"]
        .iter()
        .find_map(|prefix| text.strip_prefix(prefix))
        .unwrap_or(text);
    number
        .parse()
        .map_err(|_| "a port is a number up to 65535, such as 8080; it is open on every interface".to_owned())
}

fn parsed<T: FromStr>(text: Option<String>) -> Option<T> {
    text?.parse().ok()
}

fn go_bool(text: Option<String>) -> Option<bool> {
    parse_go_bool(&text?)
}

/// The spellings of a boolean that Go's `strconv.ParseBool` accepts.
pub(super) fn parse_go_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}
