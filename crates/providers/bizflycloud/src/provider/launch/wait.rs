//! Waiting for the server of an order: its task and the server list tell, whichever knows first (§5.4).

use std::time::Duration;

use karpenter_api::labels::{CAPACITY_TYPE, INSTANCE_TYPE, ZONE};
use karpenter_cloud::{ClaimMark, CloudError, Instance, clock::later};
use rand::Rng;

use super::{Launch, Order, OrderAnswer, OrderEnd, is_disk_of, names};
use crate::{
    account::Account,
    client::{
        ApiError,
        wire::{Server, TaskState},
    },
    metrics::DeletionReason,
    provider::{Shared, launch_error},
};

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

/// What came of an order.
pub(super) enum Followed {
    Launched(Box<Instance>),
    /// The cloud could not make the server, in a sentence; what it left behind is gone.
    Failed(String),
}

const POLL: Duration = Duration::from_secs(3);
/// How long an order whose answer was lost may take to show.
pub(in crate::provider) const LOST_ANSWER: Duration = Duration::from_secs(150);
/// With more orders than this under way, one list serves them better than a call for each task.
const FEW_ORDERS: usize = 5;
/// A root disk older than this without a server is not a launch under way.
const LAUNCH_EVIDENCE: Duration = Duration::from_secs(10 * 60);

impl Shared {
    /// Waits for the server of an order, and answers for the launch.
    pub(super) async fn follow(&self, launch: &Launch<'_>, order: Order) -> Result<Followed, CloudError> {
        let (account, mark) = (&launch.account, &launch.mark);
        let took = || {
            Duration::try_from(self.clock.since(order.placed_at))
                .unwrap_or_default()
                .as_secs_f64()
        };
        match self.wait(account, mark, &order).await? {
            Wait::Found(server) => {
                self.metrics.task("success", took());
                let instance = self.launched(launch, &server).await?;
                let label = |key: &str| instance.labels.get(key).map_or("", String::as_str);
                self.metrics
                    .created(label(INSTANCE_TYPE), label(ZONE), label(CAPACITY_TYPE), took());
                Ok(Followed::Launched(Box::new(instance)))
            }
            Wait::Failed(why) => {
                self.metrics.task("failure", took());
                self.end_order(&mark.uid, OrderEnd::Nothing);
                if let Some(offer) = &order.offer {
                    let account = account.name.as_str();
                    self.refusals
                        .sold_out(account, &offer.flavor, &offer.zone, &offer.plan, &why);
                }
                let message = format!("the cloud could not make the server: {why}");
                self.events.warn(launch.claim, "ServerError", &message).await;
                Ok(Followed::Failed(message))
            }
            Wait::Nothing => {
                self.end_order(&mark.uid, OrderEnd::Nothing);
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
                    .any(|volume| is_disk_of(volume, &order.name) && !volume.is_attached());
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
    pub(super) async fn server_of(
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

    pub(super) fn all_of(&self, account: &Account, servers: &[Server], mark: &ClaimMark) -> Vec<Server> {
        let ours = servers.iter().filter(|server| self.is_for(account, server, mark));
        ours.cloned().collect()
    }

    pub(super) fn is_for(&self, account: &Account, server: &Server, mark: &ClaimMark) -> bool {
        self.ownership(account, server)
            .claim()
            .is_some_and(|own| own.uid == mark.uid)
    }

    /// A launch that an earlier process began: its root disk is there before its server is.
    pub(super) async fn evidence(
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
                is_disk_of(volume, &name) && !volume.is_attached() && (volume.is_building() || is_young)
            });
            if let Some(disk) = disk {
                tracing::info!(
                    NodeClaim = mark.name,
                    volume = disk.id,
                    "a launch of this claim is under way already"
                );
                return Ok(Some(Order {
                    account: account.name.clone(),
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
}
