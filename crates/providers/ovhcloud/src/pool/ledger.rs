//! Which claim has a place in which pool, and which machine: kept in the claims' annotations, mirrored here.
//!
//! MKS machines cannot be marked with the claim they were made for, so the claim is marked instead: with its reservation
//! before anything is asked of OVHcloud, and with its machine before that is told to core. A restart reads it all back.

use std::collections::{BTreeMap, BTreeSet};

use futures::StreamExt;
use jiff::Timestamp;
use karpenter_api::{NodeClaim, conditions::StatusConditions, node_claim::condition};
use karpenter_cloud::{ClaimMark, CloudError, error::CloudContext};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions},
    runtime::{WatchStreamExt, watcher},
};
use parking_lot::Mutex;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::plan::Reservation;
use crate::{
    client::model::{Pool, PoolNode},
    names,
};

/// All reservations of the cluster.
#[derive(Debug)]
pub struct Ledger {
    claims: Api<NodeClaim>,
    state: Mutex<State>,
    loading: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    loaded: bool,
    /// By claim UID.
    entries: BTreeMap<String, Entry>,
}

/// A claim's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub claim: ClaimMark,
    pub node_pool: String,
    pub pool: String,
    pub pool_id: Option<String>,
    pub flavor: String,
    pub zone: String,
    pub reserved_at: Timestamp,
    pub node_id: Option<String>,
    pub node_name: Option<String>,
    pub provider_id: Option<String>,
    /// Its machine has joined the cluster.
    pub registered: bool,
    pub deleting: bool,
    /// False until the API server has the reservation: nothing may be asked of OVHcloud before that.
    pub stored: bool,
    version: u64,
}

/// A place for a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub pool: String,
    pub flavor: String,
    pub zone: String,
}

/// Why a reservation was not stored.
#[derive(Debug)]
pub enum NotStored {
    /// The claim is gone or going.
    Unwanted,
    Error(CloudError),
}

const PAGE: u32 = 500;
const CONFLICTS: usize = 5;

impl Ledger {
    pub fn new(client: Client) -> Self {
        Self {
            claims: Api::all(client),
            state: Mutex::default(),
            loading: tokio::sync::Mutex::default(),
        }
    }

    /// Reads all claims, unless that has happened.
    ///
    /// # Errors
    /// When the API server cannot be asked.
    pub async fn load(&self) -> Result<(), CloudError> {
        if self.state.lock().loaded {
            return Ok(());
        }
        let _loading = self.loading.lock().await;
        if self.state.lock().loaded {
            return Ok(());
        }
        let mut params = ListParams::default().limit(PAGE);
        let mut all = Vec::new();
        loop {
            let page = self.claims.list(&params).await.cloud_context("listing NodeClaims")?;
            all.extend(page.items);
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params.continue_token = Some(token),
                None => break,
            }
        }
        let mut state = self.state.lock();
        for claim in &all {
            state.apply(claim);
        }
        state.loaded = true;
        Ok(())
    }

    /// Keeps the mirror current until `stop`; `changed` is told the pool of every claim that went away.
    pub async fn follow(&self, stop: CancellationToken, changed: impl Fn(&str)) {
        let changes = watcher(self.claims.clone(), watcher::Config::default()).default_backoff();
        let mut changes = Box::pin(changes.take_until(stop.cancelled_owned()));
        let mut listed: Option<BTreeSet<String>> = None;
        while let Some(change) = changes.next().await {
            match change {
                Ok(watcher::Event::Init) => listed = Some(BTreeSet::new()),
                Ok(watcher::Event::InitApply(claim)) => {
                    listed.get_or_insert_default().insert(uid(&claim).to_owned());
                    self.state.lock().apply(&claim);
                }
                Ok(watcher::Event::Apply(claim)) => {
                    if self.state.lock().apply(&claim) {
                        self.tell(&claim, &changed);
                    }
                }
                Ok(watcher::Event::InitDone) => {
                    let listed = listed.take().unwrap_or_default();
                    let mut state = self.state.lock();
                    // Tentative places are of claims that were read a moment ago.
                    state.entries.retain(|uid, entry| !entry.stored || listed.contains(uid));
                    state.loaded = true;
                }
                Ok(watcher::Event::Delete(claim)) => {
                    let removed = self.state.lock().entries.remove(uid(&claim));
                    if let Some(entry) = removed {
                        changed(&entry.pool);
                    }
                }
                Err(error) => tracing::warn!(%error, "NodeClaims cannot be watched"),
            }
        }
    }

    fn tell(&self, claim: &NodeClaim, changed: &impl Fn(&str)) {
        let pool = self
            .state
            .lock()
            .entries
            .get(uid(claim))
            .map(|entry| entry.pool.clone());
        if let Some(pool) = pool {
            changed(&pool);
        }
    }

    /// The claim as the API server has it now; `None` if it is gone or another of the same name.
    ///
    /// # Errors
    /// When the API server cannot be asked.
    pub async fn read(&self, mark: &ClaimMark) -> Result<Option<NodeClaim>, CloudError> {
        let found = self
            .claims
            .get_opt(&mark.name)
            .await
            .cloud_context(format!("reading NodeClaim {}", mark.name))?;
        let found = found.filter(|claim| uid(claim) == mark.uid);
        let mut state = self.state.lock();
        match &found {
            Some(claim) => {
                state.apply(claim);
            }
            None => {
                state.entries.remove(&mark.uid);
            }
        }
        Ok(found)
    }

    pub fn get(&self, uid: &str) -> Option<Entry> {
        self.state.lock().entries.get(uid).cloned()
    }

    /// Takes a place in memory, before it is stored.
    pub fn take(&self, claim: &NodeClaim, place: &Place, now: Timestamp) {
        let mark = ClaimMark::of(claim);
        let entry = Entry {
            node_pool: claim.node_pool().unwrap_or_default().to_owned(),
            pool: place.pool.clone(),
            pool_id: None,
            flavor: place.flavor.clone(),
            zone: place.zone.clone(),
            reserved_at: now,
            node_id: None,
            node_name: None,
            provider_id: None,
            registered: false,
            deleting: false,
            stored: false,
            version: 0,
            claim: mark.clone(),
        };
        self.state.lock().entries.insert(mark.uid, entry);
    }

    /// Writes the reservation to the claim. On failure the place is given back.
    ///
    /// # Errors
    /// When the claim is unwanted by now or the API server refuses.
    pub async fn store(&self, claim: &NodeClaim, place: &Place, now: Timestamp) -> Result<(), NotStored> {
        let mark = ClaimMark::of(claim);
        // A dropped future must not leave a place that nobody will use.
        let guard = Unstored {
            ledger: self,
            uid: &mark.uid,
        };
        let mut current = claim.clone();
        for _ in 0..CONFLICTS {
            let patch = json!({"metadata": {
                "resourceVersion": current.metadata.resource_version,
                "annotations": {
                    names::POOL_NAME: place.pool,
                    names::RESERVED_OFFERING: format!("{}/{}", place.flavor, place.zone),
                    names::RESERVED_AT: now.to_string(),
                },
            }});
            let patched = self
                .claims
                .patch(&mark.name, &PatchParams::default(), &Patch::Merge(&patch))
                .await;
            match patched {
                Ok(stored) => {
                    self.state.lock().apply(&stored);
                    drop(guard);
                    return Ok(());
                }
                Err(kube::Error::Api(status)) if status.code == 404 => return Err(NotStored::Unwanted),
                Err(kube::Error::Api(status)) if status.code == 409 => match self.claims.get_opt(&mark.name).await {
                    Ok(Some(found)) if uid(&found) == mark.uid && found.metadata.deletion_timestamp.is_none() => {
                        current = found;
                    }
                    Ok(_) => return Err(NotStored::Unwanted),
                    Err(error) => return Err(NotStored::Error(error.into())),
                },
                Err(error) => return Err(NotStored::Error(error.into())),
            }
        }
        Err(NotStored::Error(CloudError::transient(format!(
            "NodeClaim {} changes too fast to write its reservation",
            mark.name
        ))))
    }

    /// Writes a claim's machine to it. From then on it never changes.
    ///
    /// # Errors
    /// When the API server refuses; not if the claim is gone.
    pub async fn publish(&self, mark: &ClaimMark, pool: &Pool, node: &PoolNode) -> Result<(), CloudError> {
        self.publish_with(mark, machine(pool, node)).await
    }

    /// Writes a machine that MKS had made by itself to the claim that takes it over.
    ///
    /// # Errors
    /// As [`publish`](Self::publish).
    pub async fn adopt(&self, mark: &ClaimMark, pool: &Pool, node: &PoolNode) -> Result<(), CloudError> {
        let mut annotations = machine(pool, node);
        annotations[names::ADOPTED] = json!("true");
        self.publish_with(mark, annotations).await
    }

    async fn publish_with(&self, mark: &ClaimMark, annotations: serde_json::Value) -> Result<(), CloudError> {
        let patch = json!({"metadata": {"uid": mark.uid, "annotations": annotations}});
        self.patch(mark, &patch)
            .await
            .cloud_context("publishing the claim's machine")
    }

    /// Takes a claim's reservation back.
    ///
    /// # Errors
    /// When the API server refuses; not if the claim is gone.
    pub async fn withdraw(&self, mark: &ClaimMark) -> Result<(), CloudError> {
        self.state.lock().entries.remove(&mark.uid);
        let patch = json!({"metadata": {"uid": mark.uid, "annotations": {
            names::POOL_NAME: null, names::RESERVED_OFFERING: null, names::RESERVED_AT: null,
        }}});
        self.patch(mark, &patch)
            .await
            .cloud_context("taking the claim's reservation back")
    }

    /// Deletes a claim whose machine is gone; its finalizers are core's to release.
    ///
    /// # Errors
    /// When the API server refuses; not if the claim is gone or another of that name.
    pub async fn end(&self, mark: &ClaimMark) -> Result<(), CloudError> {
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: Some(mark.uid.clone()),
                ..Preconditions::default()
            }),
            ..DeleteParams::default()
        };
        match self.claims.delete(&mark.name, &params).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
            Err(error) => Err(error).cloud_context("ending a claim whose machine is gone"),
        }
    }

    async fn patch(&self, mark: &ClaimMark, patch: &serde_json::Value) -> Result<(), kube::Error> {
        match self
            .claims
            .patch(&mark.name, &PatchParams::default(), &Patch::Merge(patch))
            .await
        {
            Ok(claim) => {
                self.state.lock().apply(&claim);
                Ok(())
            }
            // Gone, or another claim of that name: nothing to write to.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409 | 422) => {
                self.state.lock().entries.remove(&mark.uid);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// The stored reservations of a pool.
    pub fn of_pool(&self, name: &str, id: Option<&str>) -> Vec<Reservation> {
        let state = self.state.lock();
        let own = state
            .entries
            .values()
            .filter(|entry| entry.stored && entry.is_in(name, id));
        own.map(Entry::reservation).collect()
    }

    /// The reservations of machines in a pool that has the name of an older one.
    pub fn of_twin(&self, id: &str) -> Vec<Reservation> {
        let state = self.state.lock();
        let own = state
            .entries
            .values()
            .filter(|entry| entry.pool_id.as_deref() == Some(id));
        own.map(Entry::reservation).collect()
    }

    /// How many claims have a place in a pool, stored or not.
    pub fn count(&self, pool: &str) -> u32 {
        let state = self.state.lock();
        state.entries.values().filter(|entry| entry.pool == pool).count() as u32
    }

    /// How many claims have a place, by pool and by NodePool and zone.
    pub fn counts(&self) -> (BTreeMap<String, u32>, BTreeMap<(String, String), u32>) {
        let (mut pools, mut zones) = (BTreeMap::new(), BTreeMap::new());
        for entry in self.state.lock().entries.values() {
            *pools.entry(entry.pool.clone()).or_insert(0) += 1;
            *zones.entry((entry.node_pool.clone(), entry.zone.clone())).or_insert(0) += 1;
        }
        (pools, zones)
    }

    /// The claim that holds a machine.
    pub fn holder(&self, node: &PoolNode) -> Option<ClaimMark> {
        let provider_id = node.provider_id();
        let state = self.state.lock();
        let holds = |entry: &&Entry| {
            entry.node_id.as_deref() == Some(&node.id) || (provider_id.is_some() && entry.provider_id == provider_id)
        };
        state.entries.values().find(holds).map(|entry| entry.claim.clone())
    }

    /// All entries, for a picture of the whole.
    pub fn entries(&self) -> Vec<Entry> {
        self.state.lock().entries.values().cloned().collect()
    }
}

/// What a claim says of its machine.
fn machine(pool: &Pool, node: &PoolNode) -> serde_json::Value {
    json!({
        names::POOL_ID: pool.id,
        names::POOL_NAME: pool.name,
        names::NODE_ID: node.id,
        names::NODE_NAME: node.name,
    })
}

/// Gives a place back unless it was stored.
struct Unstored<'a> {
    ledger: &'a Ledger,
    uid: &'a str,
}

impl Drop for Unstored<'_> {
    fn drop(&mut self) {
        let mut state = self.ledger.state.lock();
        if state.entries.get(self.uid).is_some_and(|entry| !entry.stored) {
            state.entries.remove(self.uid);
        }
    }
}

impl State {
    /// Takes a claim in, unless a newer version of it is known. Answers whether it is on its way out and was not before.
    fn apply(&mut self, claim: &NodeClaim) -> bool {
        let uid = uid(claim).to_owned();
        let known = self.entries.get(&uid);
        let version = version(claim);
        if known.is_some_and(|known| known.stored && known.version > version) {
            return false;
        }
        let was_deleting = known.is_some_and(|known| known.deleting);
        match Entry::of(claim) {
            Some(entry) => {
                let news = entry.deleting && !was_deleting;
                self.entries.insert(uid, entry);
                news
            }
            None => {
                // A place that is being stored is not in this version of the claim yet.
                if known.is_some_and(|known| known.stored) {
                    self.entries.remove(&uid);
                }
                false
            }
        }
    }
}

impl Entry {
    /// The place that a claim's annotations tell of.
    fn of(claim: &NodeClaim) -> Option<Self> {
        let annotations = claim.metadata.annotations.as_ref()?;
        let annotation = |key: &str| annotations.get(key).filter(|value| !value.is_empty()).cloned();
        let (pool, pool_id, node_id) = (
            annotation(names::POOL_NAME),
            annotation(names::POOL_ID),
            annotation(names::NODE_ID),
        );
        if pool.is_none() && node_id.is_none() {
            return None;
        }
        let offering = annotation(names::RESERVED_OFFERING).unwrap_or_default();
        let (flavor, zone) = offering.split_once('/').unwrap_or_default();
        let created = claim.metadata.creation_timestamp.as_ref().map(|time| time.0);
        let reserved_at = annotation(names::RESERVED_AT).and_then(|at| at.parse().ok());
        Some(Self {
            claim: ClaimMark::of(claim),
            node_pool: claim.node_pool().unwrap_or_default().to_owned(),
            pool: pool.unwrap_or_default(),
            pool_id,
            flavor: flavor.to_owned(),
            zone: zone.to_owned(),
            reserved_at: reserved_at.or(created).unwrap_or(Timestamp::UNIX_EPOCH),
            node_id,
            node_name: annotation(names::NODE_NAME),
            provider_id: claim.provider_id().map(str::to_owned),
            registered: claim.is_true(condition::REGISTERED),
            deleting: claim.metadata.deletion_timestamp.is_some(),
            stored: true,
            version: version(claim),
        })
    }

    /// A claim with a machine is in that machine's pool, whichever pools have that name.
    fn is_in(&self, name: &str, id: Option<&str>) -> bool {
        match (self.pool_id.as_deref(), id) {
            (Some(own), Some(id)) => own == id,
            _ => self.pool == name,
        }
    }

    fn reservation(&self) -> Reservation {
        Reservation {
            uid: self.claim.uid.clone(),
            claim: self.claim.name.clone(),
            reserved_at: self.reserved_at,
            node_id: self.node_id.clone(),
            registered: self.registered,
            deleting: self.deleting,
        }
    }
}

fn uid(claim: &NodeClaim) -> &str {
    claim.metadata.uid.as_deref().unwrap_or_default()
}

/// API servers count versions up; one that does not is followed as it comes.
fn version(claim: &NodeClaim) -> u64 {
    let version = claim.metadata.resource_version.as_deref().unwrap_or_default();
    version.parse().unwrap_or_default()
}
