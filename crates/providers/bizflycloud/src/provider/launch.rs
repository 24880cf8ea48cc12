//! Launching: a claim gets exactly one server, whatever crashes, times out or is refused on the way (§5.4).

mod item;
mod undo;
mod wait;

use wait::Followed;
pub(super) use wait::LOST_ANSWER;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use karpenter_api::{NodeClaim, Requirements};
use karpenter_cloud::{
    ClaimMark, CloudError, Instance,
    clock::later,
    instance::ADOPT_ANNOTATION,
    ownership::NameRules,
    selection::{self, Candidate},
};
use parking_lot::Mutex;

use super::{Shared, launch_error, mark_of, ready};
use crate::{
    account::Account,
    catalogue::{ClassFacts, CloudCatalogue, Offer, PLAN_SPOT},
    client::{
        ApiError, ErrorClass,
        wire::{self, Flavor, Server, Volume},
    },
    instance,
    labels::{self as own, annotations},
    metrics::DeletionReason,
    node_class::BizflyCloudNodeClass,
    quota::{self, Listed, Wanted},
    settings::ProvisionerCompatibility,
    tags::{self, Ownership},
};

/// A claim that is to get a server, with all that its launch depends on.
pub(super) struct Launch<'a> {
    claim: &'a NodeClaim,
    mark: ClaimMark,
    class: BizflyCloudNodeClass,
    account: Arc<Account>,
    facts: ClassFacts,
}

impl<'a> Launch<'a> {
    pub(super) fn new(
        claim: &'a NodeClaim,
        mark: ClaimMark,
        class: BizflyCloudNodeClass,
        account: Arc<Account>,
        facts: ClassFacts,
    ) -> Self {
        Self {
            claim,
            mark,
            class,
            account,
            facts,
        }
    }

    pub(super) fn claim(&self) -> &NodeClaim {
        self.claim
    }

    pub(super) fn mark(&self) -> &ClaimMark {
        &self.mark
    }

    pub(super) fn class(&self) -> &BizflyCloudNodeClass {
        &self.class
    }

    pub(super) fn account(&self) -> &Arc<Account> {
        &self.account
    }

    /// What a server of a flavor takes of the quota.
    fn wanted<'f>(&self, flavor: &'f Flavor) -> Wanted<'f> {
        Wanted {
            flavor,
            disks_gib: self.facts.disk_gib(),
        }
    }
}

/// An order that was placed, and what is known of its server to be.
#[derive(Clone, Debug)]
pub(super) struct Order {
    account: String,
    name: String,
    /// `None` when the answer to the order was lost, or the task was forgotten by the API.
    task: Option<String>,
    offer: Option<Offer>,
    placed_at: Timestamp,
    answer: OrderAnswer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OrderAnswer {
    /// Not sent yet.
    Planned,
    Accepted,
    /// The order may or may not have been taken.
    Lost,
    /// Its server was seen.
    Fulfilled,
}

impl Order {
    pub(super) fn placed_at(&self) -> Timestamp {
        self.placed_at
    }
}

/// What to order.
pub(super) enum Choice {
    Of(Candidate, Offer, Arc<CloudCatalogue>),
    Nothing,
    /// Something would satisfy the claim, but for the project's quota; the best of what does not fit, and why.
    OverQuota {
        flavor: Box<Flavor>,
        plan: String,
        why: String,
    },
}

/// How an order ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OrderEnd {
    /// Its server is known.
    Made,
    Nothing,
}

/// One lock per claim UID, so that concurrent launches of a claim are one.
#[derive(Default)]
pub(super) struct UidLocks(Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<()>>>>);

const MOST_CANDIDATES: usize = 3;
const LONGEST_TRY: Duration = Duration::from_secs(20);
/// Names tried for a claim whose name a server of an earlier claim has.
const NAMES: u32 = 5;

impl Shared {
    pub(super) async fn create(&self, claim: &NodeClaim) -> Result<Instance, CloudError> {
        let mark = mark_of(claim);
        let lock = self.launching.of(&mark.uid);
        let _one_at_a_time = lock.lock().await;
        let answer = self.launch(claim, &mark).await;
        match &answer {
            Ok(instance) => {
                self.end_order(&mark.uid, OrderEnd::Made);
                self.reservations.serve(&mark.name);
                tracing::info!(
                    NodeClaim = mark.name,
                    "provider-id" = instance.provider_id,
                    event = "node_creation",
                    "server launched"
                );
            }
            Err(error) => {
                let error = self.accounts.redactor().redact(&error.to_string());
                tracing::info!(
                    NodeClaim = mark.name,
                    error,
                    event = "node_creation",
                    "server not launched"
                );
            }
        }
        answer
    }

    async fn launch(&self, claim: &NodeClaim, mark: &ClaimMark) -> Result<Instance, CloudError> {
        let (class, account) = self.ground(claim).await?;
        let facts = self.facts(&class, &account);
        let launch = Launch::new(claim, mark.clone(), class, account, facts);
        let account = &launch.account;
        if let Some(id) = note_on(claim, ADOPT_ANNOTATION) {
            return self.adopt(id, &launch).await;
        }
        let servers = account.servers().await.map_err(launch_error)?;
        self.open_ledger_for(account, &servers).await?;
        if let Some(server) = self.server_of(account, &servers, mark).await? {
            if server.has_failed() {
                self.remove(account, &server, DeletionReason::FailedLaunch).await?;
                return Err(CloudError::insufficient_capacity(format!(
                    "server {} of this claim went into ERROR while it was made",
                    server.id
                )));
            }
            // A warm one may have been taken and not been renamed or started yet.
            let Some(server) = self.complete_hand_over(&launch, server, &servers).await? else {
                return Err(CloudError::create(
                    "APIUnavailable",
                    "a warm server could not be used; another is ordered",
                ));
            };
            let message = format!("server {} of an earlier launch is this claim's", server.id);
            self.events.tell(claim, "ServerAdopted", &message).await;
            return self.launched(&launch, &server).await;
        }
        ready(&launch.class)?;
        let known = self.orders.lock().get(&mark.uid).cloned();
        let known = known.filter(|order| order.answer != OrderAnswer::Planned);
        let under_way = match known.or_else(|| self.noted(account, claim, mark)) {
            Some(order) => Some(order),
            None => self.evidence(account, &servers, mark).await.map_err(launch_error)?,
        };
        if let Some(order) = under_way {
            self.orders.lock().insert(mark.uid.clone(), order.clone());
            return match self.follow(&launch, order).await? {
                Followed::Launched(instance) => Ok(*instance),
                Followed::Failed(why) => Err(CloudError::insufficient_capacity(why)),
            };
        }
        if let Some(server) = self.take_warm(&launch, &servers).await? {
            self.reservations.ask(&account.name, claim, &server.name);
            return self.launched(&launch, &server).await;
        }
        self.order(&launch, &servers).await
    }

    /// An order is over.
    fn end_order(&self, uid: &str, end: OrderEnd) {
        let Some(order) = self.orders.lock().remove(uid) else {
            return;
        };
        match end {
            OrderEnd::Made => self.reservations.settle(&order.account, &order.name, self.clock.now()),
            OrderEnd::Nothing => self.reservations.release(&order.account, &order.name),
        }
    }

    /// Orders a server, going on to the next best offer where one is refused or its server fails while it is made.
    async fn order(&self, launch: &Launch<'_>, servers: &Arc<Vec<Server>>) -> Result<Instance, CloudError> {
        let Launch {
            account, claim, mark, ..
        } = launch;
        let mut servers = servers.clone();
        let began = self.clock.now();
        let mut trying_since = began;
        let mut refused: Vec<String> = Vec::new();
        for _ in 0..MOST_CANDIDATES {
            let name = match self.free_name(account, &servers, mark) {
                Ok(name) => name,
                Err(error) => {
                    self.events.warn(*claim, "NameCollision", &error.to_string()).await;
                    return Err(error);
                }
            };
            let (candidate, offer, catalogue) = match self.choose(launch, &servers, &name).await? {
                Choice::Of(candidate, offer, catalogue) => (candidate, offer, catalogue),
                Choice::Nothing => {
                    self.deny_what_a_quota_holds_back(launch).await?;
                    break;
                }
                Choice::OverQuota { flavor, plan, why } => {
                    let wanted = launch.wanted(&flavor);
                    self.reservations.deny(&account.name, claim, &wanted, self.clock.now());
                    // As if the cloud had said so: pods are not planned for it meanwhile.
                    self.refusals.over_quota(&account.name, &flavor, &plan, &why);
                    self.events.warn(*claim, "QuotaExceeded", &why).await;
                    refused.push(format!("QuotaExceeded: {why}"));
                    break;
                }
            };
            self.reservations.ask(&account.name, claim, &name);
            let mut order = Order {
                account: account.name.clone(),
                name: name.clone(),
                task: None,
                offer: Some(offer.clone()),
                placed_at: self.clock.now(),
                answer: OrderAnswer::Planned,
            };
            self.orders.lock().insert(mark.uid.clone(), order.clone());
            let item = match self.item(launch, &name, &candidate, &offer, &catalogue).await {
                Ok(item) => item,
                Err(error) => {
                    self.end_order(&mark.uid, OrderEnd::Nothing);
                    return Err(error);
                }
            };
            let slot = account.slots.acquire().await.expect("the slots are never closed");
            // Remembered before it is sent: a dropped launch that comes back knows that an order may be out.
            order.placed_at = self.clock.now();
            order.answer = OrderAnswer::Lost;
            self.orders.lock().insert(mark.uid.clone(), order.clone());
            let answer = account.order(item).await;
            drop(slot);
            let taken = match answer {
                Ok(task) => {
                    order.task = task;
                    order.answer = OrderAnswer::Accepted;
                    self.orders.lock().insert(mark.uid.clone(), order.clone());
                    self.note_task(claim, &order).await;
                    Ok(order)
                }
                Err(error) if error.class == ErrorClass::Ambiguous => {
                    tracing::warn!(NodeClaim = mark.name, %error, "the answer to an order was lost; looking for the server");
                    Ok(order)
                }
                Err(error) => Err(error),
            };
            match taken {
                Ok(order) => match self.follow(launch, order).await? {
                    Followed::Launched(instance) => return Ok(*instance),
                    Followed::Failed(why) => {
                        refused.push(why);
                        // Core waits for a launch so long and no longer.
                        if self.clock.now() >= later(began, self.settings.create_timeout / 2) {
                            break;
                        }
                        trying_since = self.clock.now();
                        servers = account.servers().await.map_err(launch_error)?;
                    }
                },
                Err(error) => {
                    self.end_order(&mark.uid, OrderEnd::Nothing);
                    if let (ErrorClass::Quota, Some(flavor)) = (error.class, catalogue.flavor(&offer.flavor)) {
                        let wanted = launch.wanted(flavor);
                        if !quota::is_about_disks_alone(&error.message) {
                            self.reservations.deny(&account.name, claim, &wanted, self.clock.now());
                        }
                        if quota::may_be_about_size(&error.message) {
                            let listed = self.listed(account, &servers, &[], &catalogue);
                            self.reservations.learn(&listed, &name, &wanted);
                        }
                    }
                    self.note_refusal(launch, &catalogue, &offer, &error).await?;
                    refused.push(error.to_string());
                    if self.clock.now() >= later(trying_since, LONGEST_TRY) {
                        break;
                    }
                }
            }
        }
        if refused.is_empty() {
            return Err(CloudError::insufficient_capacity(self.why_nothing_fits(launch)));
        }
        Err(CloudError::insufficient_capacity(refused.join("; ")))
    }

    /// A claim that finds nothing because another was refused for the quota a moment ago wants as much as that one: other
    /// clusters are told.
    async fn deny_what_a_quota_holds_back(&self, launch: &Launch<'_>) -> Result<(), CloudError> {
        let Launch {
            account, claim, class, ..
        } = launch;
        if account.coordination.is_none() {
            return Ok(());
        }
        let plans = self.plans_of_claim(claim).await?;
        let types = self.types_regardless(class, account, plans).await?;
        let catalogue = account.catalogue().await.map_err(launch_error)?;
        let refusals = self.refusals.of(&account.name);
        let mut offers = selection::candidates(claim, &types, &self.rules)
            .into_iter()
            .filter_map(|candidate| Offer::of(&candidate));
        let wanted = offers.find_map(|offer| {
            let flavor = catalogue.flavor(&offer.flavor)?;
            refusals.is_over_quota(flavor, &offer.plan).then_some(flavor)
        });
        if let Some(flavor) = wanted {
            let wanted = launch.wanted(flavor);
            self.reservations.deny(&account.name, claim, &wanted, self.clock.now());
        }
        Ok(())
    }

    /// Why a claim finds no offer at all, as far as one cause can be named.
    fn why_nothing_fits(&self, launch: &Launch<'_>) -> String {
        let asked = Requirements::from_wire(&self.rules, &launch.claim.spec.requirements);
        let only_spot = asked
            .get(karpenter_api::labels::CAPACITY_TYPE)
            .is_some_and(|own| own.has("spot") && !own.has("on-demand"));
        if only_spot && !launch.class.spec.allows_spot() {
            return format!("spot is not enabled for NodeClass {}", launch.facts.name);
        }
        "no flavor that can be had now satisfies the claim's requirements and requests".to_owned()
    }

    /// Remembers a refusal; errors that another offer would meet too end the launch.
    async fn note_refusal(
        &self,
        launch: &Launch<'_>,
        catalogue: &CloudCatalogue,
        offer: &Offer,
        error: &ApiError,
    ) -> Result<(), CloudError> {
        let account = &launch.account;
        let why = error.message.as_str();
        match error.class {
            ErrorClass::Stock => {
                self.refusals
                    .sold_out(&account.name, &offer.flavor, &offer.zone, &offer.plan, why);
                Ok(())
            }
            ErrorClass::Quota => {
                if let Some(flavor) = catalogue.flavor(&offer.flavor) {
                    self.refusals.over_quota(&account.name, flavor, &offer.plan, why);
                }
                let message = format!("the account's quota does not allow {}: {why}", offer.flavor);
                self.events.warn(launch.claim, "QuotaExceeded", &message).await;
                Ok(())
            }
            // How spot is ordered is not documented: a refusal as such means that it can't be had this way.
            ErrorClass::Invalid if offer.plan == PLAN_SPOT => {
                self.refusals.no_spot(&account.name, why);
                let message = format!("spot servers are not ordered for an hour: {why}");
                self.events.warn(launch.claim, "SpotRefused", &message).await;
                Ok(())
            }
            ErrorClass::Invalid => {
                // It may name an image, network or key that is gone: look again at once.
                account.forget_inventory();
                self.events.warn(launch.claim, "LaunchFailed", &error.to_string()).await;
                Err(launch_error(error.clone()))
            }
            ErrorClass::Payment => {
                self.accounts.must_pay(&account.name, error.to_string());
                self.events.warn(launch.claim, "LaunchFailed", &error.to_string()).await;
                Err(launch_error(error.clone()))
            }
            ErrorClass::Transient
            | ErrorClass::Unreachable
            | ErrorClass::Ambiguous
            | ErrorClass::Auth
            | ErrorClass::Forbidden
            | ErrorClass::ProjectMismatch
            | ErrorClass::NotFound
            | ErrorClass::RateLimited
            | ErrorClass::Conflict
            | ErrorClass::ServiceNotInCatalog => {
                self.events.warn(launch.claim, "LaunchFailed", &error.to_string()).await;
                Err(launch_error(error.clone()))
            }
        }
    }

    /// The best offer now that there is room for: the cheapest; of equals in the emptiest zone, then in the preferred one, then on
    /// SSD. What it takes of the quota is set aside for a server of this name.
    pub(super) async fn choose(
        &self,
        launch: &Launch<'_>,
        servers: &[Server],
        name: &str,
    ) -> Result<Choice, CloudError> {
        let Launch {
            account, claim, class, ..
        } = launch;
        let plans = self.plans_of_claim(claim).await?;
        let types = self.types_of(class, account, plans).await?;
        let catalogue = account.catalogue().await.map_err(launch_error)?;
        let volumes = match account.quota.volumes_gib {
            Some(_) => account.volumes().await.map_err(launch_error)?,
            None => Arc::default(),
        };
        let zones = class.status.clone().unwrap_or_default().zones;
        let pool = claim.node_pool().unwrap_or_default();
        let population = |zone: &str| {
            let in_zone = servers
                .iter()
                .filter(|server| server.zone() == zone && !server.is_terminating());
            in_zone
                .filter(|server| tags::node_pool(server, &account.tag_prefixes) == Some(pool))
                .count()
        };
        let populations: BTreeMap<&str, usize> = zones.iter().map(|zone| (zone.as_str(), population(zone))).collect();
        let candidates = selection::candidates(claim, &types, &self.rules);
        let mut offers: Vec<(Candidate, Offer)> = candidates
            .into_iter()
            .filter_map(|candidate| Offer::of(&candidate).map(|offer| (candidate, offer)))
            .collect();
        let order = |offer: &Offer| {
            (
                populations.get(offer.zone.as_str()).copied(),
                zones.iter().position(|zone| *zone == offer.zone),
                offer.disk_type != "SSD",
                offer.flavor.clone(),
            )
        };
        offers.sort_by(|(a, x), (b, y)| {
            let by_price = a.offering.price.total_cmp(&b.offering.price);
            by_price.then_with(|| order(x).cmp(&order(y)))
        });
        let listed = self.listed(account, servers, &volumes, &catalogue);
        let sharing = self.sharing(account, &listed);
        let listed = Listed {
            sharing: sharing.as_ref(),
            ..listed
        };
        let mut over_quota = None;
        for (candidate, offer) in offers {
            let Some(flavor) = catalogue.flavor(&offer.flavor) else {
                continue;
            };
            match self.reservations.reserve(&listed, name, &launch.wanted(flavor)) {
                Ok(()) => return Ok(Choice::Of(candidate, offer, catalogue)),
                Err(why) => {
                    over_quota.get_or_insert_with(|| Choice::OverQuota {
                        flavor: Box::new(flavor.clone()),
                        plan: offer.plan,
                        why,
                    });
                }
            }
        }
        Ok(over_quota.unwrap_or(Choice::Nothing))
    }

    fn listed<'a>(
        &self,
        account: &'a Account,
        servers: &'a [Server],
        volumes: &'a [Volume],
        catalogue: &'a CloudCatalogue,
    ) -> Listed<'a> {
        Listed {
            account: &account.name,
            quota: &account.quota,
            servers,
            volumes,
            catalogue,
            sharing: None,
            now: self.clock.now(),
        }
    }

    /// A name that no server has. A server of an earlier claim of that name is told apart by a number; one that is not ours
    /// would confuse the cloud controller manager, which finds servers by name.
    pub(super) fn free_name(
        &self,
        account: &Account,
        servers: &[Server],
        mark: &ClaimMark,
    ) -> Result<String, CloudError> {
        for name in names(mark) {
            let Some(other) = servers.iter().find(|server| server.name.eq_ignore_ascii_case(&name)) else {
                return Ok(name);
            };
            if !matches!(self.ownership(account, other), Ownership::Ours(_)) {
                return Err(CloudError::create(
                    "NameCollision",
                    format!(
                        "a server named {name} ({}) exists and is not this cluster's; it is left alone",
                        other.id
                    ),
                ));
            }
        }
        Err(CloudError::create(
            "NameCollision",
            format!("servers of earlier claims named {} still exist", mark.name),
        ))
    }

    /// Writes the task of an order on its claim, so that a restarted controller waits for it instead of searching. Where that
    /// fails, the server's marks and its root disk tell the same.
    async fn note_task(&self, claim: &NodeClaim, order: &Order) {
        if let Some(task) = &order.task {
            self.note(claim, annotations::TASK_ID, task).await;
        }
    }

    /// The order that an earlier process noted on the claim.
    fn noted(&self, account: &Account, claim: &NodeClaim, mark: &ClaimMark) -> Option<Order> {
        let task = note_on(claim, annotations::TASK_ID)?;
        Some(Order {
            account: account.name.clone(),
            name: names(mark).next()?,
            task: Some(task.to_owned()),
            offer: None,
            placed_at: self.clock.now(),
            answer: OrderAnswer::Accepted,
        })
    }

    async fn adopt(&self, id: &str, launch: &Launch<'_>) -> Result<Instance, CloudError> {
        let account = &launch.account;
        let server = instance::server_id(id).ok_or_else(|| CloudError::not_found(id))?;
        let server = account.api.server(server).await.map_err(CloudError::from)?;
        let catalogue = account.catalogue().await.map_err(launch_error)?;
        Ok(instance::instance(
            &server,
            Some(&launch.mark),
            Some(&launch.facts),
            &catalogue,
            &self.region_label(account),
        ))
    }

    /// What core is told of a server that was made for a claim.
    pub(super) async fn launched(&self, launch: &Launch<'_>, server: &Server) -> Result<Instance, CloudError> {
        let Launch {
            claim,
            mark,
            class,
            account,
            facts,
        } = launch;
        let catalogue = account.catalogue().await.map_err(launch_error)?;
        let mut made = instance::instance(server, Some(mark), Some(facts), &catalogue, &self.region_label(account));
        // The image goes by several names; the label has the one that was asked for.
        let asked = Requirements::from_wire(&self.rules, &claim.spec.requirements);
        if let (Some(wanted), Some(id)) = (asked.get(own::IMAGE_ID), &made.image_id)
            && !made.labels.get(own::IMAGE_ID).is_some_and(|name| wanted.has(name))
            && wanted.has(id)
        {
            made.labels.insert(own::IMAGE_ID.to_owned(), id.clone());
        }
        // A pool's pods may select by the old spelling that the pool has: the scheduler knows no other.
        let plan = made.labels.get(own::BILLING_PLAN).map_or("", String::as_str);
        if let Some(spelling) = self.capacity_type_of(claim, plan).await? {
            made.labels
                .insert(karpenter_api::labels::CAPACITY_TYPE.to_owned(), spelling);
        }
        if let (ProvisionerCompatibility::On, Some(pool)) = (self.settings.provisioners, claim.node_pool()) {
            made.labels.insert(own::PROVISIONER_NAME.to_owned(), pool.to_owned());
        }
        account.changed();
        let disks = self.own_disks(account, server);
        self.ledger.record_volumes(&account.name, &server.id, disks);
        self.ledger.save_or_warn().await;
        let price = instance::hourly_price(server, &catalogue, facts, &*account.prices().await);
        if let Some(price) = price {
            made.annotations.extend([
                (annotations::HOURLY_PRICE.to_owned(), price.to_string()),
                (annotations::HOURLY_CURRENCY.to_owned(), account.currency.clone()),
            ]);
        }
        let label = |key: &str| made.labels.get(key).map_or("", String::as_str);
        let message = format!(
            "server {} of flavor {} in {} by {} for {} {} an hour, NodeClass {}",
            server.id,
            label(karpenter_api::labels::INSTANCE_TYPE),
            label(karpenter_api::labels::ZONE),
            label(own::BILLING_PLAN),
            price.map_or_else(|| "an unknown price of".to_owned(), |price| format!("{price:.0}")),
            account.currency,
            class.metadata.name.as_deref().unwrap_or_default(),
        );
        self.events.tell(*claim, "ServerCreated", &message).await;
        Ok(made)
    }
}

fn note_on<'a>(claim: &'a NodeClaim, key: &str) -> Option<&'a str> {
    claim.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

pub(super) fn names(mark: &ClaimMark) -> impl Iterator<Item = String> + '_ {
    let rules = NameRules::host_name("");
    (1..=NAMES).map(move |attempt| rules.machine_name(mark, attempt))
}

/// Whether a disk was made for a server of this name.
fn is_disk_of(volume: &Volume, server_name: &str) -> bool {
    volume.name.eq_ignore_ascii_case(&wire::root_disk_name(server_name))
        || volume.name.eq_ignore_ascii_case(&wire::data_disk_name(server_name))
}

impl UidLocks {
    fn of(&self, uid: &str) -> Arc<tokio::sync::Mutex<()>> {
        self.0.lock().entry(uid.to_owned()).or_default().clone()
    }

    pub(super) fn forget(&self, uid: &str) {
        self.0.lock().remove(uid);
    }
}
