//! Warm pools: servers that are made before they are needed, and given to the claim that they fit (§7.5).
//!
//! A server's tags can't be changed, so the ledger says which claim a warm server was given to.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use karpenter_api::NodeClaim;
use karpenter_cloud::{ClaimMark, CloudError, clock::later, ownership::short_hash, selection};
use rand::Rng;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::{Shared, launch::Launch, launch_error, ready};
use crate::{
    account::Account,
    catalogue::Offer,
    client::wire::Server,
    metrics::DeletionReason,
    node_class::{BizflyCloudNodeClass, WarmPool},
    tags::{self, Ownership, WarmMark},
};

const PAUSE: Duration = Duration::from_secs(60);
/// A root disk of a warm server that has no server after this time will not get one.
const DISK_PATIENCE: Duration = Duration::from_secs(10 * 60);

/// Keeps every warm pool at its size.
pub(super) async fn keep(shared: Arc<Shared>, stop: CancellationToken) {
    loop {
        if let Err(error) = shared.keep_warm().await {
            let error = shared.accounts.redactor().redact(&error.to_string());
            tracing::warn!(error, "warm pools could not be looked after");
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = shared.clock.sleep(PAUSE) => {}
        }
    }
}

impl Shared {
    /// A warm server that a claim can have instead of a new one. Whatever goes wrong, a new one is ordered.
    pub(super) async fn take_warm(
        &self,
        launch: &Launch<'_>,
        servers: &[Server],
    ) -> Result<Option<Server>, CloudError> {
        let (account, class) = (launch.account(), launch.class());
        let Some(pool) = &class.spec.warm_pool else {
            return Ok(None);
        };
        let hash = self.warm_hash(class, pool);
        let types = self.types_of(class, account, None).await?;
        let offers: Vec<Offer> = selection::candidates(launch.claim(), &types, &self.rules)
            .iter()
            .filter_map(Offer::of)
            .filter(|offer| offer.flavor == pool.flavor)
            .collect();
        let fits = |server: &&Server| {
            let is_ready = server.status == if pool.state == "Stopped" { "SHUTOFF" } else { "ACTIVE" };
            let is_offered = offers
                .iter()
                .any(|offer| offer.zone == server.zone() && offer.plan == server.billing_plan);
            is_ready && is_offered && !server.is_terminating()
        };
        for server in servers.iter().filter(fits) {
            let Ownership::Warm(mark) = self.ownership(account, server) else {
                continue;
            };
            if mark.hash != hash || !self.ledger.take_warm(&server.id, launch.mark()) {
                continue;
            }
            match self.hand_over(launch, server).await {
                Ok(server) => return Ok(Some(server)),
                Err(error) => {
                    tracing::warn!("server-id" = server.id, %error, "a warm server could not be used; another is ordered");
                    self.ledger.forget_warm(&server.id);
                    self.ledger.save_or_warn().await;
                }
            }
        }
        Ok(None)
    }

    /// Starts and renames a warm server. The ledger is written first: after a crash the server is known to be the claim's.
    async fn hand_over(&self, launch: &Launch<'_>, server: &Server) -> Result<Server, CloudError> {
        let account = launch.account();
        self.ledger.save().await?;
        if server.status == "SHUTOFF" {
            account
                .api
                .act_on_server(&server.id, "start")
                .await
                .map_err(CloudError::from)?;
        }
        let name = &launch.mark().name;
        if let Err(error) = account.api.rename_server(&server.id, name).await {
            // It runs under a name that the cloud controller manager would not find.
            self.remove(account, server, DeletionReason::WarmPool).await?;
            return Err(error.into());
        }
        account.changed();
        let renamed = account.api.server(&server.id).await.map_err(CloudError::from)?;
        tracing::info!(
            NodeClaim = name,
            "server-id" = server.id,
            "a warm server is given to the claim"
        );
        Ok(renamed)
    }

    /// Forgets whose a warm server was once it is gone.
    async fn forget_gone(&self, known: &BTreeSet<String>) -> Result<(), CloudError> {
        for id in self.ledger.warm_servers() {
            if !known.contains(&id) && self.find_server(&id).await?.is_none() {
                self.ledger.forget_warm(&id);
            }
        }
        self.ledger.save().await
    }

    /// Orders what warm pools lack, stops what should wait stopped, and removes what they have too much of.
    pub(super) async fn keep_warm(&self) -> Result<(), CloudError> {
        let classes = self.classes().await?;
        let mut known = BTreeSet::new();
        for account in self.accounts.all().await? {
            let servers = account.servers().await.map_err(CloudError::from)?;
            known.extend(servers.iter().map(|server| server.id.clone()));
            self.open_ledger_for(&account, &servers).await?;
            let warm = |server: &&Server| matches!(self.ownership(&account, server), Ownership::Warm(_));
            for server in servers.iter().filter(warm).filter(|server| !server.is_terminating()) {
                let Ownership::Warm(mark) = self.ownership(&account, server) else {
                    continue;
                };
                if !self.is_wanted(&classes, &mark) || server.has_failed() {
                    self.remove(&account, server, DeletionReason::WarmPool).await?;
                }
            }
            for class in classes.values() {
                if class.spec.warm_pool.is_some()
                    && class.spec.provider_config() == account.name
                    && ready(class).is_ok()
                {
                    self.fill(&account, class, &servers).await?;
                }
            }
        }
        if self.ledger.warm_servers().is_empty() {
            return Ok(());
        }
        self.forget_gone(&known).await
    }

    fn is_wanted(&self, classes: &BTreeMap<String, BizflyCloudNodeClass>, mark: &WarmMark) -> bool {
        let class = classes
            .get(&mark.node_class)
            .filter(|class| class.metadata.deletion_timestamp.is_none());
        let pool = class.and_then(|class| Some((class, class.spec.warm_pool.as_ref()?)));
        pool.is_some_and(|(class, pool)| self.warm_hash(class, pool) == mark.hash)
    }

    async fn fill(
        &self,
        account: &Arc<Account>,
        class: &BizflyCloudNodeClass,
        servers: &[Server],
    ) -> Result<(), CloudError> {
        let Some(pool) = &class.spec.warm_pool else {
            return Ok(());
        };
        let mark = WarmMark {
            node_class: class.metadata.name.clone().unwrap_or_default(),
            hash: self.warm_hash(class, pool),
        };
        let waiting: Vec<&Server> = servers
            .iter()
            .filter(|server| !server.is_terminating() && !server.has_failed())
            .filter(|server| self.ownership(account, server) == Ownership::Warm(mark.clone()))
            .collect();
        let size = usize::try_from(pool.size).unwrap_or_default();
        for server in waiting.iter().skip(size) {
            self.remove(account, server, DeletionReason::WarmPool).await?;
        }
        for server in waiting.iter().take(size) {
            if pool.state == "Stopped" && server.status == "ACTIVE" {
                account
                    .api
                    .act_on_server(&server.id, "stop")
                    .await
                    .map_err(CloudError::from)?;
                account.changed();
            }
        }
        let coming = self.coming(account, &mark, servers).await?;
        for _ in (waiting.len() + coming)..size {
            self.order_warm(account, class, pool, &mark, servers).await?;
        }
        Ok(())
    }

    /// How many warm servers are being made: their root disks are there before they are. Disks that got no server go.
    async fn coming(&self, account: &Account, mark: &WarmMark, servers: &[Server]) -> Result<usize, CloudError> {
        let volumes = account.volumes().await.map_err(CloudError::from)?;
        let now = self.clock.now();
        let mut coming = 0;
        for volume in volumes.iter().filter(|volume| !volume.is_attached()) {
            let Some(name) = volume.name.strip_suffix("_rootdisk") else {
                continue;
            };
            let is_pools = name.starts_with(&prefix_of(mark));
            if !is_pools || servers.iter().any(|server| server.name == name) {
                continue;
            }
            let is_late = volume.created_at().is_some_and(|at| now >= later(at, DISK_PATIENCE));
            if is_late && !volume.is_building() {
                self.metrics.orphan("volume");
                self.remove_volume(account, &volume.id).await?;
            } else {
                coming += 1;
            }
        }
        Ok(coming)
    }

    async fn order_warm(
        &self,
        account: &Arc<Account>,
        class: &BizflyCloudNodeClass,
        pool: &WarmPool,
        mark: &WarmMark,
        servers: &[Server],
    ) -> Result<(), CloudError> {
        let name = format!("{}{:08x}", prefix_of(mark), rand::rng().random::<u32>());
        let claim = stand_in(&name, &mark.node_class, &pool.flavor);
        let launch = Launch::new(
            &claim,
            ClaimMark::of(&claim),
            class.clone(),
            account.clone(),
            self.facts(class, account),
        );
        let Some((candidate, offer, catalogue)) = self.choose(&launch, servers).await? else {
            tracing::info!(
                NodeClass = mark.node_class,
                flavor = pool.flavor,
                "a warm server cannot be had now"
            );
            return Ok(());
        };
        let mut item = self.item(&launch, &name, &candidate, &offer, &catalogue).await?;
        item.metadata = tags::for_warm_pool(item.metadata, &account.tagging.tag_prefix, mark);
        account.order(item).await.map_err(launch_error)?;
        tracing::info!(NodeClass = mark.node_class, server = name, "a warm server is ordered");
        Ok(())
    }

    /// Changes with everything that a warm server can't follow.
    fn warm_hash(&self, class: &BizflyCloudNodeClass, pool: &WarmPool) -> String {
        let images = class.status.as_ref().map(|status| &status.images);
        let parts = json!([class.spec.static_hash(), images, pool.flavor]);
        short_hash(&parts.to_string())
    }

    /// Which warm server is whose is in the ledger; without it a claim's server would look like nobody's.
    pub(crate) async fn open_ledger_for(&self, account: &Account, servers: &[Server]) -> Result<(), CloudError> {
        let cluster = &self.settings.cluster_name;
        let has_warm = servers
            .iter()
            .any(|server| tags::warm_mark(server, cluster, &account.tag_prefixes).is_some());
        if has_warm { self.ledger.open().await } else { Ok(()) }
    }
}

/// What names of a class's warm servers begin with.
fn prefix_of(mark: &WarmMark) -> String {
    format!("warm-{}-", mark.node_class)
}

/// What a warm server is ordered for: a claim that asks for its flavor and nothing else.
fn stand_in(name: &str, class: &str, flavor: &str) -> NodeClaim {
    serde_json::from_value(json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": {"name": name},
        "spec": {
            "requirements": [{"key": karpenter_api::labels::INSTANCE_TYPE, "operator": "In", "values": [flavor]}],
            "nodeClassRef": {"group": "karpenter.bizflycloud.com", "kind": "BizflyCloudNodeClass", "name": class},
        },
    }))
    .expect("a NodeClaim is plain data")
}
