//! Flags of the BizFly Cloud provider. Each wins over the environment variable of its name, and loses to what a ProviderConfig or
//! NodeClass says (bizflycloud.md §8.2).

use std::time::Duration;

use clap::Args;
use karpenter_api::duration::GoDuration;
use karpenter_bizflycloud::Settings;
use karpenter_bizflycloud::client::words::Words;
use karpenter_bizflycloud::settings::{ProvisionerCompatibility, VolumePlanRule};

#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "BizFly Cloud (also as environment variables, e.g. BIZFLY_CREATE_TIMEOUT)")]
pub(crate) struct BizflyFlags {
    /// The part of a flavor's memory that a machine does not see [default: 0.05].
    #[arg(long, value_name = "PART", value_parser = part)]
    bizfly_vm_memory_overhead_percent: Option<f64>,
    /// The region label of nodes, if the cloud controller manager writes another than HN or HCM.
    #[arg(long, value_name = "REGION")]
    bizfly_region_label: Option<String>,
    /// How long a launch waits for its server to be visible [default: 4m].
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    bizfly_create_timeout: Option<Duration>,
    /// Orders under way at once per account [default: 20].
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    bizfly_max_inflight_creates: Option<usize>,
    /// Billing plans of flavors that mean spot, separated by commas [default: spot,spot_instance].
    #[arg(long, value_name = "PLANS", value_delimiter = ',')]
    bizfly_spot_plan_names: Option<Vec<String>>,
    /// Place pods only on nodes whose billing plan their volumes can be attached to [default: false].
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    bizfly_enforce_volume_billing_plan: Option<bool>,
    /// Carry out v1alpha5 Provisioners [default: false].
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    bizfly_provisioner_compatibility: Option<bool>,
    /// With more nodes than this, metrics have no series per node [default: 500].
    #[arg(long, value_name = "N")]
    bizfly_max_node_metrics: Option<usize>,
    /// More words by which the cloud's refusals tell that a quota is used up, separated by commas.
    #[arg(long, value_name = "WORDS", value_delimiter = ',')]
    bizfly_quota_words: Option<Vec<String>>,
    /// More words by which they tell that something is sold out, separated by commas.
    #[arg(long, value_name = "WORDS", value_delimiter = ',')]
    bizfly_stock_words: Option<Vec<String>>,
    /// More words by which they tell that the account must be paid up, separated by commas.
    #[arg(long, value_name = "WORDS", value_delimiter = ',')]
    bizfly_balance_words: Option<Vec<String>>,
}

impl BizflyFlags {
    /// The settings of the environment, with what the command line says in their place.
    pub(crate) fn over(&self, settings: Settings) -> Settings {
        let flags = self.clone();
        let words = settings.words;
        Settings {
            vm_memory_overhead: flags
                .bizfly_vm_memory_overhead_percent
                .unwrap_or(settings.vm_memory_overhead),
            region_label: flags.bizfly_region_label.or(settings.region_label),
            create_timeout: flags.bizfly_create_timeout.unwrap_or(settings.create_timeout),
            max_inflight_creates: flags
                .bizfly_max_inflight_creates
                .unwrap_or(settings.max_inflight_creates),
            spot_plan_names: flags
                .bizfly_spot_plan_names
                .map_or(settings.spot_plan_names, |names| trimmed(&names)),
            volume_plans: match flags.bizfly_enforce_volume_billing_plan {
                Some(true) => VolumePlanRule::Enforced,
                Some(false) => VolumePlanRule::Told,
                None => settings.volume_plans,
            },
            provisioners: match flags.bizfly_provisioner_compatibility {
                Some(true) => ProvisionerCompatibility::On,
                Some(false) => ProvisionerCompatibility::Off,
                None => settings.provisioners,
            },
            most_node_series: flags.bizfly_max_node_metrics.unwrap_or(settings.most_node_series),
            words: Words {
                quota: flags.bizfly_quota_words.unwrap_or(words.quota),
                stock: flags.bizfly_stock_words.unwrap_or(words.stock),
                balance: flags.bizfly_balance_words.unwrap_or(words.balance),
            },
            ..settings
        }
    }
}

fn trimmed(names: &[String]) -> Vec<String> {
    names.iter().map(|name| name.trim().to_owned()).collect()
}

fn part(text: &str) -> Result<f64, String> {
    let part = text.parse().ok().filter(|part| (0.0..1.0).contains(part));
    part.ok_or_else(|| "a part is at least 0 and less than 1, such as 0.05".to_owned())
}

fn duration(text: &str) -> Result<Duration, String> {
    let duration: GoDuration = text.parse().map_err(|error| format!("{error}"))?;
    let duration = Duration::try_from(duration.as_signed()).ok();
    duration
        .filter(|own| !own.is_zero())
        .ok_or_else(|| "a duration is longer than nothing, such as 4m".to_owned())
}

fn at_least_one(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| "at least 1 is needed".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        flags: BizflyFlags,
    }

    fn settings(arguments: &[&str], variables: &[(&str, &str)]) -> Result<Settings, String> {
        let environment = Settings::from_lookup(|name| {
            let found = variables.iter().find(|(own, _)| *own == name);
            found.map(|(_, value)| (*value).to_owned())
        });
        let command = Command::try_parse_from([&["karpenter"], arguments].concat());
        let command = command.map_err(|error| error.to_string())?;
        Ok(command.flags.over(environment))
    }

    #[test]
    fn every_flag_sets_what_it_names() {
        let own = settings(
            &[
                "--bizfly-vm-memory-overhead-percent=0.1",
                "--bizfly-region-label=HaNoi",
                "--bizfly-create-timeout=5m",
                "--bizfly-max-inflight-creates=3",
                "--bizfly-spot-plan-names=cheap, cheaper",
                "--bizfly-enforce-volume-billing-plan",
                "--bizfly-provisioner-compatibility",
                "--bizfly-max-node-metrics=7",
                "--bizfly-quota-words=too many",
                "--bizfly-stock-words=gone",
                "--bizfly-balance-words=owed,unpaid",
            ],
            &[],
        )
        .unwrap();
        assert_eq!(
            (own.vm_memory_overhead, own.max_inflight_creates, own.most_node_series),
            (0.1, 3, 7)
        );
        assert_eq!(own.region_label.as_deref(), Some("HaNoi"));
        assert_eq!(own.create_timeout, Duration::from_secs(300));
        assert_eq!(own.spot_plan_names, ["cheap", "cheaper"]);
        assert_eq!(own.volume_plans, VolumePlanRule::Enforced);
        assert_eq!(own.provisioners, ProvisionerCompatibility::On);
        assert_eq!(own.words.quota, ["too many"]);
        assert_eq!(own.words.stock, ["gone"]);
        assert_eq!(own.words.balance, ["owed", "unpaid"]);
    }

    #[test]
    fn a_flag_wins_over_its_variable_and_a_variable_over_the_default() {
        let variables = [
            ("BIZFLY_CREATE_TIMEOUT", "7m"),
            ("BIZFLY_ENFORCE_VOLUME_BILLING_PLAN", "true"),
        ];
        let own = settings(&["--bizfly-enforce-volume-billing-plan=false"], &variables).unwrap();
        assert_eq!(own.create_timeout, Duration::from_secs(7 * 60));
        assert_eq!(own.volume_plans, VolumePlanRule::Told);
        assert_eq!(own.max_inflight_creates, 20);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for nonsense in [
            "--bizfly-vm-memory-overhead-percent=5",
            "--bizfly-create-timeout=soon",
            "--bizfly-create-timeout=0s",
            "--bizfly-max-inflight-creates=0",
        ] {
            let error = settings(&[nonsense], &[]).unwrap_err();
            let flag = nonsense.split('=').next().unwrap();
            assert!(error.contains(flag), "{error}");
        }
    }
}
