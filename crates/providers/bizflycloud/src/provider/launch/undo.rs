//! Undoing a launch that came to nothing: its server, or the disks that were to be its.

use std::time::Duration;

use karpenter_api::NodeClaim;
use karpenter_cloud::{ClaimMark, CloudError, Deletion, clock::later};

use super::{LOST_ANSWER, Order, OrderAnswer, OrderEnd, is_disk_of, names};
use crate::{
    account::Account,
    client::wire::{Server, TaskState},
    metrics::DeletionReason,
    provider::{Shared, mark_of},
};

/// A finished disk whose server does not come within this time will not get one.
const DISK_PATIENCE: Duration = Duration::from_secs(3 * 60);
/// A task that runs for so long after its claim was given up is not waited for. Should it make a server after all, garbage
/// collection finds it by its marks.
const TASK_PATIENCE: Duration = Duration::from_secs(20 * 60);

impl Shared {
    /// Undoes an unfinished launch: its server if there is one, or else the disks that were to be its.
    pub(in crate::provider) async fn abandon(&self, claim: &NodeClaim) -> Result<Deletion, CloudError> {
        let mark = mark_of(claim);
        let lock = self.launching.of(&mark.uid);
        let _one_at_a_time = lock.lock().await;
        let accounts = match self.ground(claim).await {
            Ok((_, account)) => vec![account],
            // The class is gone: the launch may be in any account.
            Err(_) => self.accounts.all().await?,
        };
        let mut deletion = Deletion::Gone;
        for account in accounts {
            account.changed();
            let servers = account.servers().await.map_err(CloudError::from)?;
            self.open_ledger_for(&account, &servers).await?;
            let ours = self.all_of(&account, &servers, &mark);
            if !ours.is_empty() {
                deletion = Deletion::InProgress;
                self.fulfilled(&account, &mark);
                for server in ours {
                    if !server.is_terminating() {
                        self.remove(&account, &server, DeletionReason::FailedLaunch).await?;
                    }
                }
                continue;
            }
            if self.disks_left(&account, &servers, &mark).await? {
                deletion = Deletion::InProgress;
            }
            if deletion == Deletion::Gone && self.may_come(&account, claim, &mark).await? {
                deletion = Deletion::InProgress;
            }
        }
        if deletion == Deletion::Gone {
            self.end_order(&mark.uid, OrderEnd::Nothing);
            self.reservations.give_up(&mark.name);
            self.launching.forget(&mark.uid);
        }
        Ok(deletion)
    }

    /// The server of an order was seen: nothing else will come of it.
    fn fulfilled(&self, account: &Account, mark: &ClaimMark) {
        let mut orders = self.orders.lock();
        let order = orders.entry(mark.uid.clone()).or_insert_with(|| Order {
            account: account.name.clone(),
            name: mark.name.clone(),
            task: None,
            offer: None,
            placed_at: self.clock.now(),
            answer: OrderAnswer::Fulfilled,
        });
        order.answer = OrderAnswer::Fulfilled;
    }

    /// Whether an order may still make a server of which neither list shows anything: its task tells, or else the time that
    /// passed.
    async fn may_come(&self, account: &Account, claim: &NodeClaim, mark: &ClaimMark) -> Result<bool, CloudError> {
        let known = self.orders.lock().get(&mark.uid).cloned();
        let is_known = known.is_some();
        let Some(order) = known.or_else(|| self.noted(account, claim, mark)) else {
            return Ok(false);
        };
        if matches!(order.answer, OrderAnswer::Fulfilled | OrderAnswer::Planned) {
            return Ok(false);
        }
        if let Some(task) = &order.task {
            match account.api.task(task).await {
                Ok(TaskState::Running) => {
                    let given_up = claim.metadata.deletion_timestamp.as_ref().map(|at| at.0);
                    let since = given_up.unwrap_or(order.placed_at);
                    return Ok(self.clock.now() < later(since, TASK_PATIENCE));
                }
                Ok(TaskState::Failed(_)) => return Ok(false),
                Ok(TaskState::Done(made)) => return self.remove_unlisted(account, &made, mark).await,
                // Forgotten, or not known everywhere yet.
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error.into()),
            }
        }
        // What an earlier process noted is older than its task's memory.
        Ok(is_known && self.clock.now() < later(order.placed_at, LOST_ANSWER))
    }

    /// Removes the server that a task made and that no list shows; whether it is still there.
    async fn remove_unlisted(&self, account: &Account, made: &Server, mark: &ClaimMark) -> Result<bool, CloudError> {
        let server = match account.api.server(&made.id).await {
            Ok(server) => server,
            Err(error) if error.is_not_found() => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        if !self.is_for(account, &server, mark) {
            return Ok(false);
        }
        if !server.is_terminating() {
            self.remove(account, &server, DeletionReason::FailedLaunch).await?;
        }
        Ok(true)
    }

    /// Deletes disks of a claim that will get no server; whether any is left.
    async fn disks_left(&self, account: &Account, servers: &[Server], mark: &ClaimMark) -> Result<bool, CloudError> {
        let volumes = account.volumes().await.map_err(CloudError::from)?;
        let now = self.clock.now();
        let mut left = false;
        for name in names(mark) {
            if servers.iter().any(|server| server.name.eq_ignore_ascii_case(&name)) {
                continue;
            }
            for volume in volumes.iter() {
                if !is_disk_of(volume, &name) || volume.is_attached() {
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

    /// Removes what a failed launch left: a server in ERROR, or disks alone.
    pub(super) async fn clean_up(&self, account: &Account, mark: &ClaimMark, name: &str) -> Result<(), CloudError> {
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
            if !has_server && is_disk_of(volume, name) && !volume.is_attached() {
                self.remove_volume(account, &volume.id).await?;
            }
        }
        Ok(())
    }
}
