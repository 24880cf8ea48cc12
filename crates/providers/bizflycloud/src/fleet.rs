//! Looks at all running servers once a minute: how healthy they are, whether their firewalls are in place, what they cost.
//!
//! Besides the NodeClass's status this is where the provider writes to the cluster: one condition of its own on each Node (§5.9).

mod costs;
mod firewalls;
mod health;
mod report;
mod savings;
mod usage;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use karpenter_api::{
    NodeClaim, Quantity,
    conditions::StatusConditions,
    labels::{CAPACITY_TYPE, CAPACITY_TYPE_SPOT, INSTANCE_TYPE, ZONE},
    node_claim::condition::{DISRUPTION_REASON, INITIALIZED, LAUNCHED, REGISTERED},
};
use karpenter_cloud::{CloudError, NodeClassKind, clock::later, error::CloudContext};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams},
    runtime::{WatchStreamExt, watcher},
};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

pub(crate) use costs::Costs;
pub(crate) use firewalls::Firewalls;
pub(crate) use usage::Usage;

use crate::{
    account::Account, client::wire::Server, instance, metrics::DeletionReason, node_class::BizflyCloudNodeClass,
    provider::Shared,
};
use health::{Health, Looks, Market};

/// What earlier looks saw.
#[derive(Debug, Default)]
pub(crate) struct FleetMemory(Mutex<Remembered>);

#[derive(Debug, Default)]
struct Remembered {
    looks: BTreeMap<String, Looks>,
    /// Claims whose consolidation was counted, by UID.
    consolidated: BTreeSet<String>,
    /// Spot servers whose loss was counted.
    interrupted: BTreeSet<String>,
}

/// A claim of ours with its server and its Node, as far as they are there.
struct Member<'a> {
    claim: &'a NodeClaim,
    /// Where the server is.
    account: Option<&'a Arc<Account>>,
    /// Where the claim's class launches, whether or not the server is there.
    home: Option<&'a Arc<Account>>,
    server: Option<&'a Server>,
    node: Option<&'a Node>,
}

const PAUSE: Duration = Duration::from_secs(60);
/// A running server that is no Node after this time has a problem that somebody should look at.
const REGISTRATION: Duration = Duration::from_secs(5 * 60);

/// Looks once a minute, and follows pods in between.
pub(crate) async fn keep(shared: Arc<Shared>, stop: CancellationToken) {
    let pods: Api<Pod> = Api::all(shared.kube.clone());
    let bound = watcher::Config::default().fields("spec.nodeName!=");
    let mut pods = watcher(pods, bound).default_backoff().boxed();
    let mut usage = Usage::default();
    let mut next = shared.clock.now();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = shared.clock.sleep_until(next) => {
                look(&shared, &usage).await;
                next = later(shared.clock.now(), PAUSE);
            }
            event = pods.next() => match event {
                Some(Ok(event)) => usage.take(event),
                Some(Err(error)) => tracing::debug!(%error, "pods cannot be watched"),
                None => return,
            }
        }
    }
}

async fn look(shared: &Shared, usage: &Usage) {
    if let Err(error) = round(shared, usage).await {
        let error = shared.accounts.redactor().redact(&error.to_string());
        tracing::warn!(error, "the servers' health could not be looked at");
    }
}

/// One look at everything.
pub(crate) async fn round(shared: &Shared, usage: &Usage) -> Result<(), CloudError> {
    shared.ledger.open().await?;
    let everything = ListParams::default();
    let claims: Api<NodeClaim> = Api::all(shared.kube.clone());
    let claims = claims
        .list(&everything)
        .await
        .cloud_context("listing NodeClaims")?
        .items;
    let kind = NodeClassKind::of::<BizflyCloudNodeClass>();
    let claims: Vec<NodeClaim> = claims
        .into_iter()
        .filter(|claim| {
            let reference = &claim.spec.node_class_ref;
            kind.is_meant_by(&reference.group, &reference.kind)
        })
        .collect();
    let nodes: Api<Node> = Api::all(shared.kube.clone());
    let nodes = nodes.list(&everything).await.cloud_context("listing Nodes")?.items;
    let classes = shared.classes().await?;
    let accounts = shared.accounts.all().await?;
    let mut servers: BTreeMap<String, (Arc<Account>, Server)> = BTreeMap::new();
    let mut shown = BTreeSet::new();
    for account in &accounts {
        for server in account.servers().await.map_err(CloudError::from)?.iter() {
            shown.insert((account.name.clone(), server.id.clone()));
            servers.insert(server.id.clone(), (account.clone(), server.clone()));
        }
    }
    // A list may lag behind: what it lacks is asked for by itself before it counts as missing.
    for id in claims
        .iter()
        .filter_map(|claim| instance::server_id(claim.provider_id()?))
    {
        if !servers.contains_key(id)
            && let Some(found) = shared.find_server(id).await?
        {
            servers.insert(id.to_owned(), found);
        }
    }
    let by_provider_id: BTreeMap<&str, &Node> = nodes
        .iter()
        .filter_map(|node| Some((node.spec.as_ref()?.provider_id.as_deref()?, node)))
        .collect();
    let members: Vec<Member<'_>> = claims
        .iter()
        .filter_map(|claim| {
            let provider_id = claim.provider_id()?;
            let (id, found) = servers.get_key_value(instance::server_id(provider_id)?).unzip();
            let class = classes.get(&claim.spec.node_class_ref.name);
            let home = class.and_then(|class| {
                let name = class.spec.provider_config();
                accounts.iter().find(|account| account.name == name)
            });
            // ProviderConfigs of one project show the same servers; the claim's own has its prices.
            let own = home.filter(|home| id.is_some_and(|id| shown.contains(&(home.name.clone(), id.clone()))));
            Some(Member {
                claim,
                account: own.or(found.map(|(account, _)| account)),
                home,
                server: found.map(|(_, server)| server),
                node: by_provider_id.get(provider_id).copied(),
            })
        })
        .collect();
    for member in &members {
        member.learn(shared);
        member.count_consolidation(shared);
        if claim_is_leaving(member) {
            continue;
        }
        member.check_spot(shared);
        member.check_health(shared).await;
        member.check_registration(shared).await;
    }
    firewalls::repair(shared, &accounts, &members, &classes).await?;
    let mut report = report::of(shared, &members, &classes, usage).await;
    costs::keep(shared, &members, &classes, &accounts, &mut report).await;
    shared.metrics.fleet(&report);
    shared.fleet.forget_others(&claims);
    shared.firewalls.forget_others(&members);
    shared.forget_types_of_others(&classes);
    shared.ledger.forget_old_memory();
    shared.ledger.save().await
}

/// What is on its way out is nobody's to repair.
fn claim_is_leaving(member: &Member<'_>) -> bool {
    member.claim.is_terminating() || member.server.is_some_and(Server::is_terminating)
}

impl Member<'_> {
    fn server_id(&self) -> &str {
        let provider_id = self.claim.provider_id().unwrap_or_default();
        instance::server_id(provider_id).unwrap_or_default()
    }

    fn label(&self, key: &str) -> &str {
        let labels = self.claim.metadata.labels.as_ref();
        labels.and_then(|labels| labels.get(key)).map_or("", String::as_str)
    }

    /// The memory that a Node really has is what the next one of its kind will have.
    fn learn(&self, shared: &Shared) {
        let image = self.claim.status.as_ref().and_then(|status| status.image_id.as_deref());
        let (Some(node), Some(image), true) = (self.node, image, self.claim.is_true(INITIALIZED)) else {
            return;
        };
        let memory = node
            .status
            .as_ref()
            .and_then(|status| status.capacity.as_ref()?.get("memory"))
            .and_then(|memory| memory.0.parse::<Quantity>().ok());
        if let Some(memory) = memory {
            shared
                .ledger
                .learn_memory(self.label(INSTANCE_TYPE), image, memory.value());
        }
    }

    /// Core says on the claim why it removes it; each is counted once.
    fn count_consolidation(&self, shared: &Shared) {
        let chosen = self
            .claim
            .condition(DISRUPTION_REASON)
            .is_some_and(|own| own.is_true() && matches!(own.reason.as_str(), "Underutilized" | "Empty"));
        let uid = self.claim.metadata.uid.clone().unwrap_or_default();
        if chosen && shared.fleet.0.lock().consolidated.insert(uid) {
            shared.metrics.consolidated();
        }
    }

    /// A spot server that stopped or went without our doing was taken away: its offer is left alone for a while.
    fn check_spot(&self, shared: &Shared) {
        if self.label(CAPACITY_TYPE) != CAPACITY_TYPE_SPOT {
            return;
        }
        // One that is busy is being started.
        let is_lost = self
            .server
            .is_none_or(|server| server.status == "SHUTOFF" && !server.is_busy());
        if !is_lost || !shared.fleet.0.lock().interrupted.insert(self.server_id().to_owned()) {
            return;
        }
        let (flavor, zone) = (self.label(INSTANCE_TYPE), self.label(ZONE));
        if let Some(account) = self.account.or(self.home) {
            shared.refusals.interrupted(&account.name, flavor, zone);
        }
        shared.metrics.deleted(flavor, zone, DeletionReason::SpotInterrupted);
        tracing::info!(
            NodeClaim = self.claim.metadata.name,
            "server-id" = self.server_id(),
            event = "instance_lifecycle",
            "spot server was taken away"
        );
    }

    /// Writes the condition of the Node where it differs from what the server is.
    async fn check_health(&self, shared: &Shared) {
        let Some(node) = self.node else { return };
        let now = shared.clock.now();
        let market = if self.label(CAPACITY_TYPE) == CAPACITY_TYPE_SPOT {
            Market::Spot
        } else {
            Market::OnDemand
        };
        let health = {
            let mut memory = shared.fleet.0.lock();
            let looks = memory.looks.entry(self.server_id().to_owned()).or_default();
            looks.judge(self.server, market, now)
        };
        let Some(condition) = health.condition(node, now) else {
            return;
        };
        if let Health::Unhealthy { reason, message } = &health {
            shared.events.warn(self.claim, reason, message).await;
        }
        let name = node.metadata.name.clone().unwrap_or_default();
        let nodes: Api<Node> = Api::all(shared.kube.clone());
        let patch = serde_json::json!({"status": {"conditions": [condition]}});
        let patched = nodes
            .patch_status(&name, &PatchParams::default(), &Patch::Strategic(&patch))
            .await;
        match patched {
            Ok(_) => tracing::info!(Node = name, condition = %condition, "the server's health is told on its Node"),
            Err(error) => tracing::warn!(Node = name, %error, "the server's health cannot be told on its Node"),
        }
    }

    /// A server that runs but is no Node: what to look at is told once.
    async fn check_registration(&self, shared: &Shared) {
        let Some(server) = self.server.filter(|server| server.status == "ACTIVE") else {
            return;
        };
        let launched = self.claim.condition(LAUNCHED).filter(|own| own.is_true());
        let is_late = launched.is_some_and(|own| shared.clock.now() >= later(own.transitioned_at(), REGISTRATION));
        if self.node.is_some() || self.claim.is_true(REGISTERED) || !is_late {
            return;
        }
        shared
            .events
            .warn(self.claim, "NodeNotRegistered", &unregistered(server))
            .await;
    }
}

/// What to look at when a server does not become a Node.
fn unregistered(server: &Server) -> String {
    let addresses: Vec<&str> = server
        .ip_addresses
        .lan
        .iter()
        .chain(&server.ip_addresses.wan_v4)
        .map(|own| own.addr.as_str())
        .collect();
    let mode = if server.metadata.contains_key(crate::tags::BKE_CLUSTER_ID) {
        "BKE"
    } else {
        "UserData"
    };
    let image = server
        .root_volume()
        .map_or("unknown", |root| root.volume_image_metadata.image_id.as_str());
    format!(
        "server {} runs but is no Node yet (addresses {}; image {image}; mode {mode}). Look at its console; check that the join endpoint can \
         be reached from its network (public IP or internet gateway), that its host name is {}, and that the cloud controller manager runs",
        server.id,
        if addresses.is_empty() {
            "none".to_owned()
        } else {
            addresses.join(", ")
        },
        server.name
    )
}

impl FleetMemory {
    /// Whether the loss of a spot server was counted.
    pub(crate) fn was_interrupted(&self, server: &str) -> bool {
        self.0.lock().interrupted.contains(server)
    }

    /// Claims that are gone need no memory.
    fn forget_others(&self, claims: &[NodeClaim]) {
        let uids: BTreeSet<&str> = claims
            .iter()
            .filter_map(|claim| claim.metadata.uid.as_deref())
            .collect();
        let servers: BTreeSet<&str> = claims
            .iter()
            .filter_map(|claim| instance::server_id(claim.provider_id()?))
            .collect();
        let mut memory = self.0.lock();
        memory.looks.retain(|id, _| servers.contains(id.as_str()));
        memory.interrupted.retain(|id| servers.contains(id.as_str()));
        memory.consolidated.retain(|uid| uids.contains(uid.as_str()));
    }
}

/// Since when something has been so.
fn since(known: &mut Option<Timestamp>, holds: bool, now: Timestamp) -> Option<Timestamp> {
    *known = holds.then(|| known.unwrap_or(now));
    *known
}
