//! What the service does where its documentation is silent, asked of the service itself.
//!
//! Looking changes nothing. Trying makes a node pool of its own, which nobody else uses, and deletes it in the end, whatever
//! happens in between.

mod looking;
mod trying;

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use karpenter_cloud::clock::{Clock, later};
use kube::{Api, Client};
use thiserror::Error;

use crate::{
    catalogue::PriceList,
    client::{ApiError, KubeApi},
    directory::zones,
};

/// A question, and what the service answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub question: &'static str,
    pub outcome: Outcome,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// What was seen.
    Seen(String),
    /// Why nothing was.
    Unknown(String),
}

/// What came of a trial.
#[derive(Clone, Debug)]
pub struct Tried {
    pub answers: Vec<Answer>,
    pub ending: Ending,
    /// What could not be deleted, in sentences.
    pub left: Vec<String>,
}

/// How a trial ended.
#[derive(Clone, Debug)]
pub enum Ending {
    Done,
    /// The machines never came up, so nothing could be tried on them.
    Incomplete,
    Stopped,
    /// It could not go on; what was seen before is told.
    Failed(ApiError),
}

/// Asks one cluster.
#[derive(Debug)]
pub struct Contract {
    api: KubeApi,
    /// The Nodes of the cluster, if it can be reached from here.
    nodes: Option<Api<Node>>,
    clock: Clock,
}

/// A node pool to try things out on.
#[derive(Clone, Debug, PartialEq)]
pub struct Trial {
    pub pool: String,
    pub flavor: String,
    pub zone: Option<String>,
    /// Of one machine, per hour that begins; `None` if the price list does not say.
    pub price: Option<f64>,
    pub currency: String,
    /// A flavor that the cluster lists and cannot have now.
    unavailable: Option<String>,
}

/// Why there is nothing to try things out on.
#[derive(Debug, Error)]
pub enum NoTrial {
    #[error("flavor {flavor:?} is not one that the cluster can have now; it can have {available}")]
    Flavor { flavor: String, available: String },
    #[error("the cluster can have no flavor now")]
    NoFlavor,
    #[error(transparent)]
    Api(#[from] ApiError),
}

/// As many machines are made, one for each thing that is done to machines.
pub const MACHINES: u32 = 3;

impl Contract {
    pub fn new(api: KubeApi, cluster: Option<Client>, clock: Clock) -> Self {
        Self {
            api,
            nodes: cluster.map(Api::all),
            clock,
        }
    }

    /// What would be made to try things out: the cheapest flavor, unless one is named.
    ///
    /// # Errors
    /// When the flavor cannot be had, or the API cannot be asked.
    pub async fn trial(&self, flavor: Option<&str>, zone: Option<&str>, subsidiary: &str) -> Result<Trial, NoTrial> {
        let cluster = self.api.cluster().await?;
        let (flavors, pools) = (self.api.flavors().await?, self.api.pools().await?);
        // Without a price list the order is estimated, and the price not told.
        let prices = self.api.catalog(subsidiary).await;
        let prices = prices.map_or_else(|_| PriceList::unknown(), |catalog| PriceList::of(&catalog));
        let of_region = zones::known(&cluster.region);
        let price = |own: &crate::client::model::Flavor| prices.hourly(own, &cluster.region, of_region.is_some());
        let mut available: Vec<_> = flavors.iter().filter(|own| own.is_available()).collect();
        available.sort_by(|a, b| price(a).hourly.total_cmp(&price(b).hourly).then(a.name.cmp(&b.name)));
        let chosen = match flavor {
            None => available.first().ok_or(NoTrial::NoFlavor)?,
            Some(name) => available.iter().find(|own| own.name == name).ok_or_else(|| {
                let names: Vec<&str> = available.iter().map(|own| own.name.as_str()).collect();
                NoTrial::Flavor {
                    flavor: name.to_owned(),
                    available: names.join(", "),
                }
            })?,
        };
        let seen = pools.iter().find_map(|pool| pool.zone().map(str::to_owned));
        let first = of_region.map(|zones| zones[0].to_owned());
        let cost = price(chosen);
        Ok(Trial {
            pool: format!("probe-{:x}", self.clock.now().as_second()),
            flavor: chosen.name.clone(),
            zone: zone.map(str::to_owned).or(seen).or(first),
            price: (!cost.estimated).then_some(cost.hourly),
            currency: prices.currency.clone(),
            unavailable: flavors
                .iter()
                .find(|own| !own.is_available())
                .map(|own| own.name.clone()),
        })
    }

    /// Looks every `pause` until there is something to see, or until `limit` is over; how long that took.
    async fn wait<T>(
        &self,
        pause: Duration,
        limit: Duration,
        look: impl AsyncFn() -> Result<Option<T>, ApiError>,
    ) -> Result<Option<(T, Duration)>, ApiError> {
        let began = self.clock.now();
        loop {
            if let Some(seen) = look().await? {
                return Ok(Some((seen, self.clock.since(began).unsigned_abs())));
            }
            if later(began, limit) <= self.clock.now() {
                return Ok(None);
            }
            self.clock.sleep(pause).await;
        }
    }
}

impl Answer {
    fn seen(question: &'static str, seen: impl Into<String>) -> Self {
        Self {
            question,
            outcome: Outcome::Seen(seen.into()),
        }
    }

    fn unknown(question: &'static str, why: impl Into<String>) -> Self {
        Self {
            question,
            outcome: Outcome::Unknown(why.into()),
        }
    }
}

/// A refusal with the kind that it is read as: whether that is right is one of the questions.
fn refused(error: &ApiError) -> String {
    format!("refused, which is read as {:?}: {}", error.kind, error.message)
}
