//! Warm pools: servers that are made before they are needed, and given to the claim that they fit (§7.5).
//!
//! A server's tags can't be changed, so the ledger says which claim a warm server was given to.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use karpenter_api::{
    NodeClaim, Requirements,
    labels::{INSTANCE_TYPE, ZONE},
};
use karpenter_cloud::{ClaimMark, CloudError, clock::later, ownership::short_hash, selection};
use rand::Rng;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::{
    Shared,
    launch::{Choice, Launch},
    launch_error, ready,
};
use crate::{
    account::Account,
    catalogue::{ClassFacts, CloudCatalogue, Offer},
    client::{ApiError, ErrorClass, wire::Server},
    instance, labels as own,
    metrics::DeletionReason,
    node_class::{BizflyCloudNodeClass, WarmPool},
    tags::{self, Ownership, WarmMark},
};

/// Whether a server was ordered for a pool that lacks one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ordered {
    Yes,
    No,
}

const PAUSE: Duration = Duration::from_secs(60);
/// What a claim can use of a warm pool.
struct Wanted {
    asked: Requirements,
    offers: Vec<Offer>,
    facts: ClassFacts,
    catalogue: Arc<CloudCatalogue>,
}

/// A root disk of a warm server that has no server after this time will not get one.
const DISK_PATIENCE: Duration = Duration::from_secs(10 * 60);
/// So much of a class's name is in the names of its servers, which are host names.
const LONGEST_CLASS: usize = 32;

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
    /// A warm server that a claim can have instead of a new one. Where that fails, a new one is ordered.
    ///
    /// # Errors
    /// When a server that was taken can neither be used nor removed: it stays the claim's, and the next attempt goes on with it.
    pub(super) async fn take_warm(
        &self,
        launch: &Launch<'_>,
        servers: &[Server],
    ) -> Result<Option<Server>, CloudError> {
        let (account, class) = (launch.account(), launch.class());
        let Some(pool) = &class.spec.warm_pool else {
            return Ok(None);
        };
        let Ok(name) = self.free_name(account, servers, launch.mark()) else {
            // Told where a new one is ordered.
            return Ok(None);
        };
        let hash = self.warm_hash(class, pool);
        let wanted = self.wanted(launch, pool).await?;
        let is_ready = |server: &&Server| {
            let status = if pool.state == "Stopped" { "SHUTOFF" } else { "ACTIVE" };
            server.status == status && !server.is_busy() && !server.is_terminating()
        };
        for server in servers.iter().filter(is_ready) {
            let Ownership::Warm(mark) = self.ownership(account, server) else {
                continue;
            };
            if mark.hash != hash || !wanted.has(server) || !self.ledger.take_warm(&server.id, launch.mark()) {
                continue;
            }
            // Before anything is done to the server: after a crash it is known to be the claim's.
            if let Err(error) = self.ledger.save().await {
                tracing::warn!("server-id" = server.id, %error, "a warm server is not used, because that can't be noted");
                self.ledger.forget_warm(&server.id);
                return Ok(None);
            }
            if let Some(server) = self.hand_over(launch, server, name.clone()).await? {
                return Ok(Some(server));
            }
        }
        Ok(None)
    }

    /// Goes on with a warm server that the ledger says is the claim's; any other server is as it should be.
    pub(super) async fn complete_hand_over(
        &self,
        launch: &Launch<'_>,
        server: Server,
        servers: &[Server],
    ) -> Result<Option<Server>, CloudError> {
        let account = launch.account();
        if tags::warm_mark(&server, &self.settings.cluster_name, &account.tag_prefixes).is_none() {
            return Ok(Some(server));
        }
        let is_renamed = super::launch::names(launch.mark()).any(|name| name == server.name);
        let name = if is_renamed {
            server.name.clone()
        } else {
            self.free_name(account, servers, launch.mark())?
        };
        self.hand_over(launch, &server, name).await
    }

    /// Renames and starts a warm server of the ledger's; what was done already is not done again. `None` if that failed and
    /// the server is removed: it may run under a name that the cloud controller manager does not find.
    async fn hand_over(
        &self,
        launch: &Launch<'_>,
        server: &Server,
        name: String,
    ) -> Result<Option<Server>, CloudError> {
        let account = launch.account();
        let handed = self.rename_and_start(account, server, &name).await;
        account.changed();
        if let Err(error) = handed {
            tracing::warn!("server-id" = server.id, %error, "a warm server could not be used and is removed");
            self.remove(account, server, DeletionReason::WarmPool).await?;
            self.ledger.forget_warm(&server.id);
            self.ledger.save_or_warn().await;
            return Ok(None);
        }
        tracing::info!(
            NodeClaim = launch.mark().name,
            "server-id" = server.id,
            "a warm server is given to the claim"
        );
        // Not read again: whatever a read said, the server is the claim's.
        Ok(Some(Server { name, ..server.clone() }))
    }

    /// Renamed first, so that it boots under the name of its Node.
    async fn rename_and_start(&self, account: &Account, server: &Server, name: &str) -> Result<(), ApiError> {
        if server.name != name {
            account.api.rename_server(&server.id, name).await?;
        }
        // One that is busy is being started already.
        if server.status == "SHUTOFF" && !server.is_busy() {
            account.api.act_on_server(&server.id, "start").await?;
        }
        Ok(())
    }

    /// What a warm server must be to be of use to a claim.
    async fn wanted(&self, launch: &Launch<'_>, pool: &WarmPool) -> Result<Wanted, CloudError> {
        let (account, class) = (launch.account(), launch.class());
        let plans = self.plans_of_claim(launch.claim()).await?;
        let types = self.types_regardless(class, account, plans).await?;
        let offers = selection::candidates(launch.claim(), &types, &self.rules)
            .iter()
            .filter_map(Offer::of)
            .filter(|offer| offer.flavor == pool.flavor)
            .collect();
        Ok(Wanted {
            asked: Requirements::from_wire(&self.rules, &launch.claim().spec.requirements),
            offers,
            facts: self.facts(class, account),
            catalogue: account.catalogue().await.map_err(CloudError::from)?,
        })
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
    ///
    /// # Errors
    /// The first of what went wrong, after everything was tried: one server that is locked holds no other pool back.
    pub(super) async fn keep_warm(&self) -> Result<(), CloudError> {
        let classes = self.classes().await?;
        let mut outcome = Ok(());
        let mut known = BTreeSet::new();
        for account in self.accounts.all().await? {
            let servers = match account.servers().await {
                Ok(servers) => servers,
                Err(error) => {
                    outcome = outcome.and(Err(error.into()));
                    continue;
                }
            };
            known.extend(servers.iter().map(|server| server.id.clone()));
            self.open_ledger_for(&account, &servers).await?;
            let warm = |server: &&Server| matches!(self.ownership(&account, server), Ownership::Warm(_));
            for server in servers.iter().filter(warm).filter(|server| !server.is_terminating()) {
                let Ownership::Warm(mark) = self.ownership(&account, server) else {
                    continue;
                };
                if !self.is_wanted(&classes, &mark) || server.has_failed() {
                    outcome = outcome.and(self.remove(&account, server, DeletionReason::WarmPool).await);
                }
            }
            for class in classes.values() {
                if class.spec.warm_pool.is_some()
                    && class.spec.provider_config() == account.name
                    && ready(class).is_ok()
                {
                    outcome = outcome.and(self.fill(&account, class, &servers).await);
                }
            }
        }
        if !self.ledger.warm_servers().is_empty() {
            outcome = outcome.and(self.forget_gone(&known).await);
        }
        outcome
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
        let mut outcome = Ok(());
        for server in waiting.iter().skip(size) {
            outcome = outcome.and(self.remove(account, server, DeletionReason::WarmPool).await);
        }
        for server in waiting.iter().take(size) {
            if pool.state == "Stopped" && server.status == "ACTIVE" && !server.is_busy() {
                let stopped = account.api.act_on_server(&server.id, "stop").await;
                outcome = outcome.and(stopped.map_err(CloudError::from));
                account.changed();
            }
        }
        let (coming, cleared) = self.coming(account, &mark, servers).await?;
        outcome = outcome.and(cleared);
        for _ in (waiting.len() + coming)..size {
            let ordered = self.order_warm(account, class, pool, &mark, servers).await;
            let is_over = !matches!(ordered, Ok(Ordered::Yes));
            outcome = outcome.and(ordered.map(drop));
            if is_over {
                break;
            }
        }
        outcome
    }

    /// How many warm servers are being made: their root disks are there before they are. Disks that got no server go; one that
    /// can't be deleted is no reason not to fill the pool.
    async fn coming(
        &self,
        account: &Account,
        mark: &WarmMark,
        servers: &[Server],
    ) -> Result<(usize, Result<(), CloudError>), CloudError> {
        let volumes = account.volumes().await.map_err(CloudError::from)?;
        let now = self.clock.now();
        let prefix = self.prefix_of(mark);
        let mut coming = 0;
        let mut cleared = Ok(());
        for volume in volumes.iter().filter(|volume| !volume.is_attached()) {
            let Some((name, kind)) = volume.name.rsplit_once('_') else {
                continue;
            };
            let is_pools = name.starts_with(&prefix) && matches!(kind, "rootdisk" | "datadisk");
            if !is_pools || servers.iter().any(|server| server.ordered_name() == name) {
                continue;
            }
            let is_late = volume.created_at().is_some_and(|at| now >= later(at, DISK_PATIENCE));
            if is_late && !volume.is_building() {
                self.metrics.orphan("volume");
                cleared = cleared.and(self.remove_volume(account, &volume.id).await);
            } else if kind == "rootdisk" {
                coming += 1;
            }
        }
        Ok((coming, cleared))
    }

    /// What names of a class's warm servers begin with. The hash tells clusters of one project apart, and classes whose names
    /// begin alike: disks are known by their names alone.
    fn prefix_of(&self, mark: &WarmMark) -> String {
        let whose = short_hash(&format!("{}/{}", self.settings.cluster_name, mark.node_class));
        let class: String = mark.node_class.chars().take(LONGEST_CLASS).collect();
        format!("warm-{}-{}-", class.replace('.', "-"), whose)
    }

    async fn order_warm(
        &self,
        account: &Arc<Account>,
        class: &BizflyCloudNodeClass,
        pool: &WarmPool,
        mark: &WarmMark,
        servers: &[Server],
    ) -> Result<Ordered, CloudError> {
        let name = format!("{}{:08x}", self.prefix_of(mark), rand::rng().random::<u32>());
        let claim = stand_in(&name, &mark.node_class, &pool.flavor);
        let launch = Launch::new(
            &claim,
            ClaimMark::of(&claim),
            class.clone(),
            account.clone(),
            self.facts(class, account),
        );
        let (candidate, offer, catalogue) = match self.choose(&launch, servers, &name).await? {
            Choice::Of(candidate, offer, catalogue) => (candidate, offer, catalogue),
            Choice::Nothing => {
                let (class, flavor) = (&mark.node_class, &pool.flavor);
                tracing::info!(NodeClass = class, flavor, "a warm server cannot be had now");
                return Ok(Ordered::No);
            }
            // Nodes come first: a pool that must wait is not a reason to plan no pods for its flavor.
            Choice::OverQuota { why, .. } => {
                tracing::info!(
                    NodeClass = mark.node_class,
                    why,
                    "the quota has no room for a warm server"
                );
                return Ok(Ordered::No);
            }
        };
        let ordered = match self.item(&launch, &name, &candidate, &offer, &catalogue).await {
            Ok(mut item) => {
                item.metadata = tags::for_warm_pool(item.metadata, &account.tagging.tag_prefix, mark, &name);
                account.order(item).await
            }
            Err(error) => {
                self.reservations.release(&account.name, &name);
                return Err(error);
            }
        };
        if let Err(error) = ordered {
            // One whose answer was lost may come all the same.
            if error.class != ErrorClass::Ambiguous {
                self.reservations.release(&account.name, &name);
            }
            return Err(launch_error(error));
        }
        tracing::info!(
            NodeClass = mark.node_class,
            server = name,
            event = "scaling",
            "a warm server is ordered"
        );
        Ok(Ordered::Yes)
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

impl Wanted {
    fn has(&self, server: &Server) -> bool {
        let made = instance::instance(
            server,
            None,
            Some(&self.facts),
            &self.catalogue,
            &self.facts.region_label,
        );
        let label = |key: &str| made.labels.get(key).map_or("", String::as_str);
        let is_offered = self.offers.iter().any(|offer| {
            let own = [&offer.flavor, &offer.zone, &offer.plan, &offer.disk_type];
            own == [INSTANCE_TYPE, ZONE, own::BILLING_PLAN, own::DISK_TYPE].map(label)
        });
        let allows = |key: &str, value: &str| self.asked.get(key).is_none_or(|asked| asked.has(value));
        let image = made.image_id.as_deref().unwrap_or_default();
        let is_its_image = allows(own::IMAGE_ID, label(own::IMAGE_ID)) || allows(own::IMAGE_ID, image);
        let fixed = [own::OS_TYPE, own::KUBERNETES_VERSION, own::NETWORK_PLAN];
        is_offered && is_its_image && fixed.into_iter().all(|key| allows(key, label(key)))
    }
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
