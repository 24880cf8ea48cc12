//! Launching: a claim gets exactly one server, whatever crashes, times out or is refused on the way (§5.4).

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use karpenter_api::{NodeClaim, Requirements, labels::CAPACITY_TYPE};
use karpenter_cloud::{
    ClaimMark, CloudError, Deletion, Instance,
    clock::later,
    instance::ADOPT_ANNOTATION,
    ownership::NameRules,
    selection::{self, Candidate},
};
use parking_lot::Mutex;
use rand::Rng;

use super::{Shared, launch_error, mark_of, ready};
use crate::{
    account::Account,
    bootstrap::{NodeFacts, UserParts},
    catalogue::{ClassFacts, CloudCatalogue, Offer, PLAN_SPOT},
    client::{
        ApiError, ErrorClass,
        wire::{BootSource, NewDisk, NewServer, Server, TaskState, Volume},
    },
    instance, labels as own,
    metrics::DeletionReason,
    node_class::{BizflyCloudNodeClass, ResolvedImage, validation},
    resolution,
    settings::ProvisionerCompatibility,
    tags::{self, Ownership, TagFacts},
};

/// An order that was placed, and what is known of its server to be.
#[derive(Clone, Debug)]
pub(super) struct Order {
    name: String,
    /// `None` when the answer to the order was lost, or the task was forgotten by the API.
    task: Option<String>,
    offer: Option<Offer>,
    placed_at: Timestamp,
    answer: OrderAnswer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OrderAnswer {
    Accepted,
    /// The order may or may not have been taken.
    Lost,
}

/// How waiting for a server ended.
enum Wait {
    Found(Box<Server>),
    /// The cloud gave up on it; what it left behind is gone.
    Failed(String),
    /// Nothing came of an order whose answer was lost.
    Nothing,
    /// Not visible yet.
    Pending,
}

/// One lock per claim UID, so that concurrent launches of a claim are one.
#[derive(Default)]
pub(super) struct UidLocks(Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<()>>>>);

const POLL: Duration = Duration::from_secs(3);
/// How long an order whose answer was lost may take to show.
const LOST_ANSWER: Duration = Duration::from_secs(150);
const MOST_CANDIDATES: usize = 3;
const LONGEST_TRY: Duration = Duration::from_secs(20);
/// With more orders than this under way, one list serves them better than a call for each task.
const FEW_ORDERS: usize = 5;
/// A root disk older than this without a server is not a launch under way.
const LAUNCH_EVIDENCE: Duration = Duration::from_secs(10 * 60);
/// A finished root disk whose server does not come within this time will not get one.
const DISK_PATIENCE: Duration = Duration::from_secs(3 * 60);
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
                self.orders.lock().remove(&mark.uid);
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
        if let Some(id) = claim
            .metadata
            .annotations
            .iter()
            .flatten()
            .find(|(key, _)| *key == ADOPT_ANNOTATION)
        {
            return self.adopt(id.1, mark, &account, &facts).await;
        }
        let servers = account.servers().await.map_err(launch_error)?;
        if let Some(server) = self.server_of(&account, &servers, mark).await? {
            if server.has_failed() {
                self.remove(&account, &server, DeletionReason::FailedLaunch).await?;
                return Err(CloudError::insufficient_capacity(format!(
                    "server {} of this claim went into ERROR while it was made",
                    server.id
                )));
            }
            return self.launched(&account, &server, claim, mark, &facts).await;
        }
        ready(&class)?;
        let known = self.orders.lock().get(&mark.uid).cloned();
        let under_way = match known {
            Some(order) => Some(order),
            None => self.evidence(&account, &servers, mark).await.map_err(launch_error)?,
        };
        if let Some(order) = under_way {
            self.orders.lock().insert(mark.uid.clone(), order.clone());
            return self.follow(&account, claim, mark, &facts, order).await;
        }
        self.order(&account, claim, mark, &class, &facts, &servers).await
    }

    /// Orders a server, going on to the next best offer where one is refused.
    async fn order(
        &self,
        account: &Account,
        claim: &NodeClaim,
        mark: &ClaimMark,
        class: &BizflyCloudNodeClass,
        facts: &ClassFacts,
        servers: &[Server],
    ) -> Result<Instance, CloudError> {
        let name = self.free_name(account, servers, mark)?;
        let started = self.clock.now();
        let mut refused: Vec<String> = Vec::new();
        for _ in 0..MOST_CANDIDATES {
            let (candidate, offer, catalogue) = match self.choose(account, claim, class, servers).await? {
                Some(chosen) => chosen,
                None => break,
            };
            let item = self
                .item(
                    account, claim, mark, class, facts, &name, &candidate, &offer, &catalogue,
                )
                .await?;
            let slot = account.slots.acquire().await.expect("the slots are never closed");
            let placed_at = self.clock.now();
            // Remembered before it is sent: a dropped launch that comes back knows that an order may be out.
            let mut order = Order {
                name: name.clone(),
                task: None,
                offer: Some(offer.clone()),
                placed_at,
                answer: OrderAnswer::Lost,
            };
            self.orders.lock().insert(mark.uid.clone(), order.clone());
            let answer = account.order(item).await;
            drop(slot);
            let error = match answer {
                Ok(task) => {
                    order.task = task;
                    order.answer = OrderAnswer::Accepted;
                    self.orders.lock().insert(mark.uid.clone(), order.clone());
                    return self.follow(account, claim, mark, facts, order).await;
                }
                Err(error) if error.class == ErrorClass::Ambiguous => {
                    tracing::warn!(NodeClaim = mark.name, %error, "the answer to an order was lost; looking for the server");
                    return self.follow(account, claim, mark, facts, order).await;
                }
                Err(error) => error,
            };
            self.orders.lock().remove(&mark.uid);
            self.note_refusal(account, &catalogue, &offer, &error)?;
            refused.push(error.to_string());
            if self.clock.now() >= later(started, LONGEST_TRY) {
                break;
            }
        }
        if refused.is_empty() {
            return Err(CloudError::insufficient_capacity(
                "no flavor that can be had now satisfies the claim's requirements and requests",
            ));
        }
        Err(CloudError::insufficient_capacity(refused.join("; ")))
    }

    /// Remembers a refusal; errors that another offer would meet too end the launch.
    fn note_refusal(
        &self,
        account: &Account,
        catalogue: &CloudCatalogue,
        offer: &Offer,
        error: &ApiError,
    ) -> Result<(), CloudError> {
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
                Ok(())
            }
            ErrorClass::Invalid => {
                // It may name an image, network or key that is gone: look again at once.
                account.forget_inventory();
                Err(launch_error(error.clone()))
            }
            _ => Err(launch_error(error.clone())),
        }
    }

    /// The best offer now: the cheapest; of equals in the emptiest zone, then in the preferred one, then on SSD.
    async fn choose(
        &self,
        account: &Account,
        claim: &NodeClaim,
        class: &BizflyCloudNodeClass,
        servers: &[Server],
    ) -> Result<Option<(Candidate, Offer, Arc<CloudCatalogue>)>, CloudError> {
        let plans = self.plans_of_claim(claim).await?;
        let types = self.types_of(class, account, plans).await?;
        let catalogue = account.catalogue().await.map_err(launch_error)?;
        let candidates = selection::candidates(claim, &types, &self.rules);
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
        let offers = candidates
            .into_iter()
            .filter_map(|candidate| Offer::of(&candidate).map(|offer| (candidate, offer)));
        let best = offers.min_by(|(a, x), (b, y)| {
            let order = |offer: &Offer| {
                (
                    population(&offer.zone),
                    zones.iter().position(|zone| *zone == offer.zone),
                    offer.disk_type != "SSD",
                    offer.flavor.clone(),
                )
            };
            a.offering
                .price
                .total_cmp(&b.offering.price)
                .then_with(|| order(x).cmp(&order(y)))
        });
        Ok(best.map(|(candidate, offer)| (candidate, offer, catalogue)))
    }

    /// What is sent for one server.
    #[expect(
        clippy::too_many_arguments,
        reason = "an order is made from everything that is known"
    )]
    async fn item(
        &self,
        account: &Account,
        claim: &NodeClaim,
        mark: &ClaimMark,
        class: &BizflyCloudNodeClass,
        facts: &ClassFacts,
        name: &str,
        candidate: &Candidate,
        offer: &Offer,
        catalogue: &CloudCatalogue,
    ) -> Result<NewServer, CloudError> {
        let invalid = |message: String| CloudError::create("InvalidRequest", message);
        let flavor = catalogue
            .flavor(&offer.flavor)
            .ok_or_else(|| invalid(format!("flavor {} is not listed any more", offer.flavor)))?;
        let volume_type = catalogue
            .volume_type(flavor.category(), &offer.disk_type, &offer.zone)
            .ok_or_else(|| {
                invalid(format!(
                    "there is no {} disk for {} in {}",
                    offer.disk_type, flavor.name, offer.zone
                ))
            })?;
        let asked = Requirements::from_wire(&self.rules, &claim.spec.requirements);
        let image = image_for(&facts.images, &asked).ok_or_else(|| {
            CloudError::insufficient_capacity("no image of the NodeClass satisfies the claim's requirements")
        })?;
        let status = class.status.clone().unwrap_or_default();
        let join = resolution::join(&self.kube, &class.spec, &self.settings, Some(image))
            .await?
            .map_err(|problem| CloudError::node_class_not_ready(&facts.name, problem.message))?;
        let base = account
            .image_config
            .as_ref()
            .and_then(|own| own.user_data_template.as_deref());
        let parts = UserParts {
            base,
            own: class.spec.user_data.as_deref(),
            ssh_keys: &class.spec.ssh_keys,
            kubelet: class.spec.kubelet.as_ref(),
        };
        let user_data = join.user_data(&parts, &NodeFacts { name, claim }).map_err(invalid)?;
        let class_tags = validation::parse_tags(&class.spec, &account.tagging.tag_prefix).unwrap_or_default();
        let capacity_type = candidate
            .offering
            .requirements
            .get(CAPACITY_TYPE)
            .and_then(|own| own.single_value());
        let mut metadata = tags::for_launch(
            &account.tagging,
            &TagFacts {
                cluster: &self.settings.cluster_name,
                claim: mark,
                node_pool: claim.node_pool().unwrap_or_default(),
                node_class: &facts.name,
                capacity_type: capacity_type.unwrap_or_default(),
                class_tags,
            },
        );
        let network = status.vpc_networks.first().map_or("", |vpc| vpc.id.as_str());
        metadata.extend(join.metadata(network));
        let wanted_network = asked.get(own::NETWORK_PLAN);
        let network_plan = facts
            .network_plans()
            .into_iter()
            .find(|plan| wanted_network.is_none_or(|wanted| wanted.has(plan)))
            .unwrap_or_default();
        let billing_plan = if offer.plan == PLAN_SPOT {
            facts.spot_plan(flavor).unwrap_or(PLAN_SPOT)
        } else {
            &offer.plan
        };
        let ssh_key = resolution::ssh_key(&class.spec, account);
        let inherited_ipv6 = account.image_config.as_ref().is_some_and(|own| own.enable_ipv6);
        Ok(NewServer {
            name: name.to_owned(),
            flavor: flavor.name.clone(),
            category: flavor.category().as_str().to_owned(),
            availability_zone: offer.zone.clone(),
            os: BootSource {
                id: image.id.clone(),
                kind: "image",
            },
            rootdisk: NewDisk {
                size: facts.root_disk_gib,
                volume_type: volume_type.name.clone(),
            },
            password: ssh_key.is_none(),
            sshkey: ssh_key.map(str::to_owned),
            quantity: 1,
            vpc_network_ids: status.vpc_networks.iter().map(|vpc| vpc.id.clone()).collect(),
            firewalls: status.security_groups,
            is_created_wan: class.spec.public_ip.unwrap_or(true),
            ipv6: class.spec.enable_ipv6.unwrap_or(inherited_ipv6),
            network_plan,
            billing_plan: billing_plan.to_owned(),
            user_data,
            metadata,
        })
    }

    /// Waits for the server of an order, and answers for the launch.
    async fn follow(
        &self,
        account: &Account,
        claim: &NodeClaim,
        mark: &ClaimMark,
        facts: &ClassFacts,
        order: Order,
    ) -> Result<Instance, CloudError> {
        let took = || {
            Duration::try_from(self.clock.since(order.placed_at))
                .unwrap_or_default()
                .as_secs_f64()
        };
        match self.wait(account, mark, &order).await? {
            Wait::Found(server) => {
                self.metrics.task("success", took());
                let instance = self.launched(account, &server, claim, mark, facts).await?;
                let label = |key: &str| instance.labels.get(key).map_or("", String::as_str);
                self.metrics.created(
                    label(karpenter_api::labels::INSTANCE_TYPE),
                    label(karpenter_api::labels::ZONE),
                    label(CAPACITY_TYPE),
                    took(),
                );
                Ok(instance)
            }
            Wait::Failed(why) => {
                self.metrics.task("failure", took());
                self.orders.lock().remove(&mark.uid);
                if let Some(offer) = &order.offer {
                    let account = account.name.as_str();
                    self.refusals
                        .sold_out(account, &offer.flavor, &offer.zone, &offer.plan, &why);
                }
                Err(CloudError::insufficient_capacity(format!(
                    "the cloud could not make the server: {why}"
                )))
            }
            Wait::Nothing => {
                self.orders.lock().remove(&mark.uid);
                Err(CloudError::create(
                    "APIUnavailable",
                    "the answer to the order was lost, and no server came of it; it will be ordered again",
                ))
            }
            Wait::Pending => Err(CloudError::create(
                "InstanceCreationPending",
                format!("server {} was ordered but is not visible yet", order.name),
            )),
        }
    }

    async fn wait(&self, account: &Account, mark: &ClaimMark, order: &Order) -> Result<Wait, CloudError> {
        let waiting_since = self.clock.now();
        let mut task = order.task.clone();
        let mut seen_disk = order.answer == OrderAnswer::Accepted;
        loop {
            if let Some(id) = &task
                && self.orders.lock().len() <= FEW_ORDERS
            {
                match account.api.task(id).await {
                    Ok(TaskState::Done(server)) if self.is_for(account, &server, mark) => {
                        account.changed();
                        if !server.has_failed() {
                            return Ok(Wait::Found(server));
                        }
                    }
                    // Another claim's server: the order of task ids is not what we took it for. The list decides.
                    Ok(TaskState::Done(_)) => task = None,
                    Ok(TaskState::Failed(why)) => {
                        self.clean_up(account, mark, &order.name).await?;
                        return Ok(Wait::Failed(why));
                    }
                    Ok(TaskState::Running) => {}
                    // Forgotten, or not known everywhere yet.
                    Err(error) if error.is_not_found() => task = None,
                    Err(error) if error.is_about_credentials() => return Err(launch_error(error)),
                    Err(error) => tracing::debug!(NodeClaim = mark.name, %error, "a task could not be read"),
                }
            }
            match account.servers().await {
                Ok(servers) => {
                    if let Some(server) = self.server_of(account, &servers, mark).await? {
                        if server.has_failed() {
                            self.clean_up(account, mark, &order.name).await?;
                            return Ok(Wait::Failed(format!("server {} went into ERROR", server.id)));
                        }
                        return Ok(Wait::Found(Box::new(server)));
                    }
                }
                Err(error) if error.is_about_credentials() => return Err(launch_error(error)),
                Err(error) => tracing::debug!(NodeClaim = mark.name, %error, "servers could not be listed"),
            }
            if !seen_disk && let Ok(volumes) = account.volumes().await {
                seen_disk = volumes
                    .iter()
                    .any(|volume| is_root_disk(volume, &order.name) && !volume.is_attached());
            }
            let now = self.clock.now();
            let patience = if seen_disk {
                self.settings.create_timeout
            } else {
                LOST_ANSWER
            };
            if now >= later(waiting_since.max(order.placed_at), patience) {
                return Ok(if seen_disk { Wait::Pending } else { Wait::Nothing });
            }
            let jitter = rand::rng().random_range(0.85..1.15);
            self.clock.sleep(POLL.mul_f64(jitter)).await;
        }
    }

    /// The live server of a claim. A second one, made by an order whose answer was lost, is deleted.
    async fn server_of(
        &self,
        account: &Account,
        servers: &[Server],
        mark: &ClaimMark,
    ) -> Result<Option<Server>, CloudError> {
        let mut ours: Vec<&Server> = servers
            .iter()
            .filter(|server| !server.is_terminating() && self.is_for(account, server, mark))
            .collect();
        ours.sort_by_key(|server| (server.has_failed(), server.created_at(), server.id.clone()));
        let Some((first, others)) = ours.split_first() else {
            return Ok(None);
        };
        for other in others {
            tracing::warn!(
                NodeClaim = mark.name,
                "server-id" = other.id,
                "a second server of one claim is deleted"
            );
            self.metrics.orphan("server");
            self.remove(account, other, DeletionReason::FailedLaunch).await?;
        }
        Ok(Some((*first).clone()))
    }

    fn all_of(&self, account: &Account, servers: &[Server], mark: &ClaimMark) -> Vec<Server> {
        let ours = servers.iter().filter(|server| self.is_for(account, server, mark));
        ours.cloned().collect()
    }

    fn is_for(&self, account: &Account, server: &Server, mark: &ClaimMark) -> bool {
        self.ownership(account, server)
            .claim()
            .is_some_and(|own| own.uid == mark.uid)
    }

    /// A launch that an earlier process began: its root disk is there before its server is.
    async fn evidence(
        &self,
        account: &Account,
        servers: &[Server],
        mark: &ClaimMark,
    ) -> Result<Option<Order>, ApiError> {
        let volumes = account.volumes().await?;
        let now = self.clock.now();
        for name in names(mark) {
            if servers.iter().any(|server| server.name.eq_ignore_ascii_case(&name)) {
                continue;
            }
            let disk = volumes.iter().find(|volume| {
                let is_young = volume.created_at().is_none_or(|at| now < later(at, LAUNCH_EVIDENCE));
                is_root_disk(volume, &name) && !volume.is_attached() && (volume.is_building() || is_young)
            });
            if let Some(disk) = disk {
                tracing::info!(
                    NodeClaim = mark.name,
                    volume = disk.id,
                    "a launch of this claim is under way already"
                );
                return Ok(Some(Order {
                    name,
                    task: None,
                    offer: None,
                    placed_at: disk.created_at().unwrap_or(now),
                    answer: OrderAnswer::Accepted,
                }));
            }
        }
        Ok(None)
    }

    /// A name that no server has. A server of an earlier claim of that name is told apart by a number; one that is not ours
    /// would confuse the cloud controller manager, which finds servers by name.
    fn free_name(&self, account: &Account, servers: &[Server], mark: &ClaimMark) -> Result<String, CloudError> {
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

    async fn adopt(
        &self,
        id: &str,
        mark: &ClaimMark,
        account: &Account,
        facts: &ClassFacts,
    ) -> Result<Instance, CloudError> {
        let server = instance::server_id(id).ok_or_else(|| CloudError::not_found(id))?;
        let server = account.api.server(server).await.map_err(CloudError::from)?;
        let catalogue = account.catalogue().await.map_err(launch_error)?;
        Ok(instance::instance(
            &server,
            Some(mark),
            Some(facts),
            &catalogue,
            &self.region_label(account),
        ))
    }

    async fn launched(
        &self,
        account: &Account,
        server: &Server,
        claim: &NodeClaim,
        mark: &ClaimMark,
        facts: &ClassFacts,
    ) -> Result<Instance, CloudError> {
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
        if let (ProvisionerCompatibility::On, Some(pool)) = (self.settings.provisioners, claim.node_pool()) {
            made.labels.insert(own::PROVISIONER_NAME.to_owned(), pool.to_owned());
        }
        account.changed();
        Ok(made)
    }

    /// Undoes an unfinished launch: its server if there is one, or else the root disk that was to be its.
    pub(super) async fn abandon(&self, claim: &NodeClaim) -> Result<Deletion, CloudError> {
        let mark = mark_of(claim);
        let lock = self.launching.of(&mark.uid);
        let _one_at_a_time = lock.lock().await;
        let accounts = match self.ground(claim).await {
            Ok((_, account)) => vec![account],
            // The class is gone: the launch may be in any account.
            Err(_) => self.accounts.all().await?,
        };
        let order = self.orders.lock().get(&mark.uid).cloned();
        let mut deletion = Deletion::Gone;
        for account in accounts {
            account.changed();
            let servers = account.servers().await.map_err(CloudError::from)?;
            let ours = self.all_of(&account, &servers, &mark);
            if !ours.is_empty() {
                deletion = Deletion::InProgress;
                for server in ours {
                    if !server.is_terminating() {
                        self.remove(&account, &server, DeletionReason::FailedLaunch).await?;
                    }
                }
                continue;
            }
            if self.root_disks_left(&account, &servers, &mark).await? {
                deletion = Deletion::InProgress;
            }
        }
        let now = self.clock.now();
        if deletion == Deletion::Gone
            && let Some(order) = order
            && order.answer == OrderAnswer::Lost
            && now < later(order.placed_at, LOST_ANSWER)
        {
            // The order may still take effect.
            return Ok(Deletion::InProgress);
        }
        if deletion == Deletion::Gone {
            self.orders.lock().remove(&mark.uid);
            self.launching.forget(&mark.uid);
        }
        Ok(deletion)
    }

    /// Deletes root disks of a claim that will get no server; whether any is left.
    async fn root_disks_left(
        &self,
        account: &Account,
        servers: &[Server],
        mark: &ClaimMark,
    ) -> Result<bool, CloudError> {
        let volumes = account.volumes().await.map_err(CloudError::from)?;
        let now = self.clock.now();
        let mut left = false;
        for name in names(mark) {
            if servers.iter().any(|server| server.name.eq_ignore_ascii_case(&name)) {
                continue;
            }
            for volume in volumes.iter() {
                if !is_root_disk(volume, &name) || volume.is_attached() {
                    continue;
                }
                left = true;
                let is_settled = volume.created_at().is_none_or(|at| now >= later(at, DISK_PATIENCE));
                if !volume.is_building() && is_settled {
                    self.remove_volume(account, &volume.id).await?;
                }
            }
        }
        Ok(left)
    }

    /// Removes what a failed launch left: a server in ERROR, or a root disk alone.
    async fn clean_up(&self, account: &Account, mark: &ClaimMark, name: &str) -> Result<(), CloudError> {
        account.changed();
        let servers = account.servers().await.map_err(CloudError::from)?;
        for server in self.all_of(account, &servers, mark) {
            if !server.is_terminating() {
                self.remove(account, &server, DeletionReason::FailedLaunch).await?;
            }
        }
        let has_server = servers.iter().any(|server| server.name.eq_ignore_ascii_case(name));
        let volumes = account.volumes().await.map_err(CloudError::from)?;
        for volume in volumes.iter() {
            if !has_server && is_root_disk(volume, name) && !volume.is_attached() {
                self.remove_volume(account, &volume.id).await?;
            }
        }
        Ok(())
    }
}

fn names(mark: &ClaimMark) -> impl Iterator<Item = String> + '_ {
    let rules = NameRules::host_name("");
    (1..=NAMES).map(move |attempt| rules.machine_name(mark, attempt))
}

fn is_root_disk(volume: &Volume, server_name: &str) -> bool {
    volume
        .name
        .strip_suffix("_rootdisk")
        .is_some_and(|name| name.eq_ignore_ascii_case(server_name))
}

/// The first image whose labels the claim allows.
fn image_for<'a>(images: &'a [ResolvedImage], asked: &Requirements) -> Option<&'a ResolvedImage> {
    let allows = |key: &str, value: Option<&str>| match (asked.get(key), value) {
        (None, _) => true,
        (Some(requirement), Some(value)) => requirement.has(value),
        (Some(_), None) => false,
    };
    images.iter().find(|image| {
        allows(own::OS_TYPE, Some(&image.os_type))
            && allows(own::KUBERNETES_VERSION, image.kubernetes_version.as_deref())
            && (allows(own::IMAGE_ID, Some(&image.name)) || allows(own::IMAGE_ID, Some(&image.id)))
    })
}

impl UidLocks {
    fn of(&self, uid: &str) -> Arc<tokio::sync::Mutex<()>> {
        self.0.lock().entry(uid.to_owned()).or_default().clone()
    }

    pub(super) fn forget(&self, uid: &str) {
        self.0.lock().remove(uid);
    }
}
