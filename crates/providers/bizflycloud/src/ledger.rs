//! What must outlive the process and fits nowhere else: disks made with servers, memory that nodes really had, and which warm
//! server became whose. Kept in one ConfigMap beside the controller, which has a page on costs too (§5.2, §5.10, §6.5, §7.5).

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use karpenter_cloud::{
    ClaimMark, CloudError,
    clock::{Clock, later},
    error::CloudContext,
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

/// The ledger. What is written into it is known at once and stored with the next [`save`](Ledger::save).
pub(crate) struct Ledger {
    kube: Client,
    clock: Clock,
    namespace: String,
    book: Mutex<Book>,
    /// Held while the ConfigMap is read or written.
    store: tokio::sync::Mutex<Stored>,
}

#[derive(Debug, Default)]
struct Book {
    volumes: BTreeMap<String, RecordedVolume>,
    memory: BTreeMap<String, SeenMemory>,
    warm: BTreeMap<String, WarmClaim>,
    /// Grows with every change.
    generation: u64,
    /// Grows with every change of the memory that was seen.
    memory_version: u64,
}

#[derive(Debug, Default)]
struct Stored {
    is_read: bool,
    /// The generation that the ConfigMap has.
    generation: u64,
}

/// A disk that was made together with a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RecordedVolume {
    pub(crate) account: String,
    pub(crate) server: String,
    pub(crate) at: Timestamp,
}

/// The least memory that a node of a flavor and image had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SeenMemory {
    bytes: i64,
    at: Timestamp,
}

/// The claim that took over a warm server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct WarmClaim {
    name: String,
    uid: String,
}

pub(crate) const NAME: &str = "karpenter-bizflycloud-ledger";
const VOLUMES: &str = "volumes.json";
const MEMORY: &str = "memory.json";
const WARM: &str = "warm.json";
/// What was seen longer ago may be true no more.
const MEMORY_KEPT: Duration = Duration::from_secs(60 * 24 * 3600);
/// A confirmation is noted at most this often.
const MEMORY_RENEWED: Duration = Duration::from_secs(24 * 3600);

impl Ledger {
    pub(crate) fn new(kube: Client, clock: Clock, namespace: String) -> Self {
        Self {
            kube,
            clock,
            namespace,
            book: Mutex::default(),
            store: tokio::sync::Mutex::default(),
        }
    }

    /// Reads what an earlier process wrote, once.
    ///
    /// # Errors
    /// When the cluster could not be asked.
    pub(crate) async fn open(&self) -> Result<(), CloudError> {
        let mut store = self.store.lock().await;
        self.read(&mut store).await
    }

    async fn read(&self, store: &mut Stored) -> Result<(), CloudError> {
        if store.is_read {
            return Ok(());
        }
        let pages = self.stored_pages().await?;
        let now = self.clock.now();
        let mut book = self.book.lock();
        // What this process found out meanwhile is newer.
        for (id, volume) in page::<RecordedVolume>(&pages, VOLUMES) {
            book.volumes.entry(id).or_insert(volume);
        }
        for (key, seen) in page::<SeenMemory>(&pages, MEMORY) {
            if now < later(seen.at, MEMORY_KEPT) {
                book.memory.entry(key).or_insert(seen);
                book.memory_version += 1;
            }
        }
        for (id, claim) in page::<WarmClaim>(&pages, WARM) {
            book.warm.entry(id).or_insert(claim);
        }
        store.is_read = true;
        Ok(())
    }

    /// Stores what changed since the last time.
    ///
    /// # Errors
    /// When the cluster could not be asked; the next save tries again.
    pub(crate) async fn save(&self) -> Result<(), CloudError> {
        let mut store = self.store.lock().await;
        self.read(&mut store).await?;
        let (pages, generation) = {
            let book = self.book.lock();
            if book.generation == store.generation {
                return Ok(());
            }
            let pages = json!({ VOLUMES: text(&book.volumes), MEMORY: text(&book.memory), WARM: text(&book.warm) });
            (pages, book.generation)
        };
        self.write(&pages).await?;
        store.generation = generation;
        Ok(())
    }

    /// A page that somebody else keeps, as it is stored now: what this process read when it did not lead may be old.
    ///
    /// # Errors
    /// When the cluster could not be asked.
    pub(crate) async fn stored_page(&self, name: &str) -> Result<Option<String>, CloudError> {
        Ok(self.stored_pages().await?.remove(name))
    }

    /// Stores a page that somebody else keeps.
    ///
    /// # Errors
    /// When the cluster could not be asked.
    pub(crate) async fn write_page(&self, name: &str, text: &str) -> Result<(), CloudError> {
        let _store = self.store.lock().await;
        self.write(&json!({ name: text })).await
    }

    async fn stored_pages(&self) -> Result<BTreeMap<String, String>, CloudError> {
        let maps: Api<ConfigMap> = Api::namespaced(self.kube.clone(), &self.namespace);
        let context = || format!("reading ConfigMap {}/{NAME}", self.namespace);
        let found = maps.get_opt(NAME).await.cloud_context(context())?;
        Ok(found.and_then(|map| map.data).unwrap_or_default())
    }

    /// Writes these pages and leaves the others as they are.
    async fn write(&self, pages: &Value) -> Result<(), CloudError> {
        let maps: Api<ConfigMap> = Api::namespaced(self.kube.clone(), &self.namespace);
        let patch = json!({ "data": pages });
        let patched = maps.patch(NAME, &PatchParams::default(), &Patch::Merge(&patch)).await;
        let context = || format!("writing ConfigMap {}/{NAME}", self.namespace);
        match patched {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 404 => {
                let map: ConfigMap = serde_json::from_value(json!({"metadata": {"name": NAME}, "data": pages}))
                    .expect("a ConfigMap is plain data");
                maps.create(&PostParams::default(), &map)
                    .await
                    .cloud_context(context())?;
            }
            Err(error) => return Err(error).cloud_context(context()),
        }
        Ok(())
    }

    /// As [`save`](Self::save), where nothing depends on it: what is lost is found again in other ways.
    pub(crate) async fn save_or_warn(&self) {
        if let Err(error) = self.save().await {
            tracing::warn!(%error, "what was noted about servers is not stored yet");
        }
    }

    // --- disks ---

    /// Notes the disks that were made with a server.
    pub(crate) fn record_volumes(&self, account: &str, server: &str, ids: impl IntoIterator<Item = String>) {
        let at = self.clock.now();
        let mut book = self.book.lock();
        for id in ids {
            if book.volumes.contains_key(&id) {
                continue;
            }
            let volume = RecordedVolume {
                account: account.to_owned(),
                server: server.to_owned(),
                at,
            };
            book.volumes.insert(id, volume);
            book.generation += 1;
        }
    }

    pub(crate) fn volumes(&self) -> BTreeMap<String, RecordedVolume> {
        self.book.lock().volumes.clone()
    }

    /// The account that a server was launched in, while any of its disks is remembered.
    pub(crate) fn account_of(&self, server: &str) -> Option<String> {
        let book = self.book.lock();
        let disk = book.volumes.values().find(|own| own.server == server)?;
        Some(disk.account.clone())
    }

    pub(crate) fn is_recorded(&self, volume: &str) -> bool {
        self.book.lock().volumes.contains_key(volume)
    }

    /// Forgets a disk that is gone from an account. What another account has not is not gone.
    pub(crate) fn forget_volume(&self, account: &str, id: &str) {
        let mut book = self.book.lock();
        if book.volumes.get(id).is_some_and(|own| own.account == account) {
            book.volumes.remove(id);
            book.generation += 1;
        }
    }

    // --- memory ---

    /// Notes how much memory a node of a flavor and image has.
    pub(crate) fn learn_memory(&self, flavor: &str, image: &str, bytes: i64) {
        if bytes <= 0 {
            return;
        }
        let now = self.clock.now();
        let key = memory_key(flavor, image);
        let mut book = self.book.lock();
        let known = book.memory.get(&key).copied();
        let least = known.map_or(bytes, |known| known.bytes.min(bytes));
        let is_news = known.is_none_or(|known| known.bytes != least);
        let is_due = known.is_none_or(|known| now >= later(known.at, MEMORY_RENEWED));
        if is_news || is_due {
            book.memory.insert(key, SeenMemory { bytes: least, at: now });
            book.generation += 1;
        }
        if is_news {
            book.memory_version += 1;
        }
    }

    /// Forgets what was seen too long ago.
    pub(crate) fn forget_old_memory(&self) {
        let now = self.clock.now();
        let mut book = self.book.lock();
        let before = book.memory.len();
        book.memory.retain(|_, seen| now < later(seen.at, MEMORY_KEPT));
        if book.memory.len() != before {
            book.generation += 1;
            book.memory_version += 1;
        }
    }

    /// The least memory that nodes with any of these images had, by flavor.
    pub(crate) fn memory(&self, images: &[&str]) -> BTreeMap<String, i64> {
        let book = self.book.lock();
        let mut least: BTreeMap<String, i64> = BTreeMap::new();
        for (key, seen) in &book.memory {
            let Some((flavor, image)) = key.split_once(' ') else {
                continue;
            };
            if images.contains(&image) {
                let entry = least.entry(flavor.to_owned()).or_insert(seen.bytes);
                *entry = (*entry).min(seen.bytes);
            }
        }
        least
    }

    /// Grows with every change of what was seen.
    pub(crate) fn memory_version(&self) -> u64 {
        self.book.lock().memory_version
    }

    // --- warm servers ---

    /// The claim that a warm server was given to.
    pub(crate) fn warm_claim(&self, server: &str) -> Option<ClaimMark> {
        let book = self.book.lock();
        let claim = book.warm.get(server)?;
        Some(ClaimMark {
            name: claim.name.clone(),
            uid: claim.uid.clone(),
        })
    }

    /// Gives a warm server to a claim, unless another claim has it.
    pub(crate) fn take_warm(&self, server: &str, claim: &ClaimMark) -> bool {
        let mut book = self.book.lock();
        if let Some(owner) = book.warm.get(server) {
            return owner.uid == claim.uid;
        }
        let owner = WarmClaim {
            name: claim.name.clone(),
            uid: claim.uid.clone(),
        };
        book.warm.insert(server.to_owned(), owner);
        book.generation += 1;
        true
    }

    pub(crate) fn forget_warm(&self, server: &str) {
        let mut book = self.book.lock();
        if book.warm.remove(server).is_some() {
            book.generation += 1;
        }
    }

    /// Warm servers that were given away.
    pub(crate) fn warm_servers(&self) -> Vec<String> {
        self.book.lock().warm.keys().cloned().collect()
    }
}

fn memory_key(flavor: &str, image: &str) -> String {
    format!("{flavor} {image}")
}

/// A page that can't be read is begun anew: everything on it can be found out again.
fn page<T: DeserializeOwned>(pages: &BTreeMap<String, String>, name: &str) -> BTreeMap<String, T> {
    let Some(text) = pages.get(name) else {
        return BTreeMap::new();
    };
    serde_json::from_str(text).unwrap_or_else(|error| {
        tracing::warn!(page = name, %error, "a page of the ledger cannot be read and is begun anew");
        BTreeMap::new()
    })
}

fn text<T: Serialize>(page: &BTreeMap<String, T>) -> String {
    serde_json::to_string(page).expect("a page is plain data")
}
