//! What could be saved, said so that somebody can decide: nothing of it is done by itself.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A way to save, and how much.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Recommendation {
    /// `saving-plan`, `category`, `generation`, `stopped-server`, `orphan-volume` or `spot`.
    pub kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_pool: Option<String>,
    /// The server or volume, where it is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    pub sentence: String,
    /// In 720 hours, estimated.
    pub per_month: f64,
    pub currency: String,
}

/// What could be saved on one node or disk.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Saving {
    /// Empty where no NodePool has it.
    pub(crate) node_pool: String,
    pub(crate) way: Way,
    pub(crate) currency: String,
    pub(crate) hourly: f64,
}

/// How something could be saved.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Way {
    /// Pay by subscription what runs for long.
    SavingPlan,
    /// A flavor of another category and the same size.
    Category { from: String, to: String },
    /// A flavor of another generation or vendor, of the same category and size.
    Generation { from: String, to: String },
    /// End a server that is stopped.
    StoppedServer { server: String },
    /// Delete a root disk that no server has.
    OrphanVolume {
        volume: String,
        name: String,
        size_gb: u64,
        provider_config: String,
    },
    /// Allow spot in the NodeClass.
    Spot,
}

/// More than this nobody reads.
const MOST: usize = 20;
/// As the vendor counts.
const HOURS_PER_MONTH: f64 = 720.0;
/// Names that others gave may be of any length; the page may not.
const LONGEST_NAME: usize = 100;

/// The largest savings, those of a NodePool that are alike as one.
pub(crate) fn recommendations(savings: &[Saving]) -> Vec<Recommendation> {
    let mut alike: BTreeMap<(&str, &Way, &str), (usize, f64)> = BTreeMap::new();
    for saving in savings {
        let key = (saving.node_pool.as_str(), &saving.way, saving.currency.as_str());
        let (count, hourly) = alike.entry(key).or_default();
        *count += 1;
        *hourly += saving.hourly;
    }
    let mut all: Vec<Recommendation> = alike
        .into_iter()
        .filter(|(_, (_, hourly))| hourly.is_finite() && *hourly > 0.0)
        .map(|((node_pool, way, currency), (count, hourly))| Recommendation {
            kind: way.kind().to_owned(),
            node_pool: (!node_pool.is_empty()).then(|| node_pool.to_owned()),
            resource: way.resource().map(shortened),
            sentence: way.sentence(count),
            per_month: hourly * HOURS_PER_MONTH,
            currency: currency.to_owned(),
        })
        .collect();
    // Stable: equal amounts stay in the order of their names.
    all.sort_by(|a, b| b.per_month.total_cmp(&a.per_month));
    all.truncate(MOST);
    all
}

impl Way {
    /// As metrics and recommendations name it.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::SavingPlan => "saving-plan",
            Self::Category { .. } => "category",
            Self::Generation { .. } => "generation",
            Self::StoppedServer { .. } => "stopped-server",
            Self::OrphanVolume { .. } => "orphan-volume",
            Self::Spot => "spot",
        }
    }

    fn resource(&self) -> Option<&str> {
        match self {
            Self::StoppedServer { server } => Some(server),
            Self::OrphanVolume { volume, .. } => Some(volume),
            Self::SavingPlan | Self::Category { .. } | Self::Generation { .. } | Self::Spot => None,
        }
    }

    fn sentence(&self, nodes: usize) -> String {
        match self {
            Self::SavingPlan => format!(
                "{} on demand for more than 20 days: by subscription (billing plan saving_plan) the same costs less, if it is charged by the month",
                have_run(nodes)
            ),
            Self::Category { from, to } => format!(
                "{} of flavor {} could be {}: another category, the same size, and allowed",
                count(nodes),
                shortened(from),
                shortened(to)
            ),
            Self::Generation { from, to } => format!(
                "{} of flavor {} could be {}: another generation or vendor, the same size, and allowed",
                count(nodes),
                shortened(from),
                shortened(to)
            ),
            Self::StoppedServer { .. } => {
                "the server is stopped and goes on costing a part of its price: start it, or delete its NodeClaim"
                    .to_owned()
            }
            Self::OrphanVolume {
                name,
                size_gb,
                provider_config,
                ..
            } => format!(
                "root disk {} ({size_gb} GB, ProviderConfig {}) has no server: if it is nobody's, delete it with karpenter doctor \
                 --provider bizflycloud --orphan-volumes",
                shortened(name),
                shortened(provider_config)
            ),
            Self::Spot => format!(
                "{} of flavors that are sold as spot too, and the NodePool allows it: spot is off in the BizflyCloudNodeClass (spot.enabled)",
                count(nodes)
            ),
        }
    }
}

fn count(nodes: usize) -> String {
    match nodes {
        1 => "1 node".to_owned(),
        nodes => format!("{nodes} nodes"),
    }
}

fn have_run(nodes: usize) -> String {
    match nodes {
        1 => "1 node has run".to_owned(),
        nodes => format!("{nodes} nodes have run"),
    }
}

fn shortened(name: &str) -> String {
    if name.chars().count() <= LONGEST_NAME {
        return name.to_owned();
    }
    let begin: String = name.chars().take(LONGEST_NAME - 1).collect();
    format!("{begin}…")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saving(pool: &str, way: Way, hourly: f64) -> Saving {
        Saving {
            node_pool: pool.to_owned(),
            way,
            currency: "VND".to_owned(),
            hourly,
        }
    }

    #[test]
    fn nodes_of_a_pool_that_could_save_alike_are_one_recommendation() {
        let flavors = || Way::Category {
            from: "nix.4c_8g".to_owned(),
            to: "4c_8g_basic".to_owned(),
        };
        let found = recommendations(&[
            saving("web", flavors(), 10.0),
            saving("web", flavors(), 5.0),
            saving("db", flavors(), 20.0),
            saving("db", Way::SavingPlan, 0.0),
        ]);
        let told: Vec<(&str, Option<&str>, f64)> = found
            .iter()
            .map(|own| (own.kind.as_str(), own.node_pool.as_deref(), own.per_month))
            .collect();
        assert_eq!(
            told,
            [("category", Some("db"), 14_400.0), ("category", Some("web"), 10_800.0)]
        );
        assert!(
            found[1]
                .sentence
                .starts_with("2 nodes of flavor nix.4c_8g could be 4c_8g_basic"),
            "{found:?}"
        );
    }

    #[test]
    fn at_most_twenty_are_told_the_largest_first_and_none_at_any_length() {
        let disk = |number: u32| Way::OrphanVolume {
            volume: format!("disk-{number:02}"),
            name: "n".repeat(10_000),
            size_gb: 20,
            provider_config: "default".to_owned(),
        };
        let many: Vec<Saving> = (1..=30)
            .map(|number| saving("", disk(number), f64::from(number)))
            .collect();
        let found = recommendations(&many);
        assert_eq!(found.len(), 20);
        assert_eq!(found[0].resource.as_deref(), Some("disk-30"));
        assert_eq!(found[19].resource.as_deref(), Some("disk-11"));
        assert_eq!(found[0].node_pool, None);
        let page = serde_json::to_string(&found).expect("plain data");
        assert!(page.len() < 10_000, "{}", page.len());
    }

    #[test]
    fn what_is_no_number_or_no_saving_is_not_told() {
        let found = recommendations(&[
            saving("web", Way::Spot, f64::NAN),
            saving("db", Way::Spot, -1.0),
            saving("queue", Way::Spot, f64::INFINITY),
        ]);
        assert_eq!(found, []);
    }
}
