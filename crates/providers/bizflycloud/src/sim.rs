//! A simulated BizFly Cloud: the real wire format on a real socket, with its delays, oddities and faults (§9).
//!
//! What exists follows from the clock alone, so a test that moves the clock moves the cloud. Nothing runs between requests.

mod data;
mod kubelet;
mod machine;
mod manifests;
mod routes;
mod world;

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use karpenter_cloud::clock::Clock;
use parking_lot::Mutex;
use tokio::{net::TcpListener, sync::Notify};
use tokio_util::sync::{CancellationToken, DropGuard};

pub use kubelet::run_nodes;
use world::World;
pub use world::{Leak, Request};

/// A cloud that exists only in this process. Cheap to clone; it ends with the last clone.
#[derive(Clone, Debug)]
pub struct SimulatedBizfly {
    world: Arc<Mutex<World>>,
    clock: Clock,
    address: SocketAddr,
    hangs: Arc<Hangs>,
    _serving: Arc<DropGuard>,
}

/// Requests that are not answered.
#[derive(Debug, Default)]
struct Hangs {
    begun: Notify,
    released: Notify,
}

/// How the cloud behaves.
#[derive(Clone, Debug)]
pub struct SimOptions {
    /// How long a root disk takes; drawn anew for each server from what recordings show, if not said.
    pub volume_delay: Option<Duration>,
    /// How long a server takes once its disk is there.
    pub build_delay: Option<Duration>,
    pub deletion_delay: Duration,
    pub token_lifetime: Duration,
    /// From a running server to a registered Node.
    pub boot_delay: Duration,
    /// Whether new flavors are sold as spot too.
    pub sells_spot: bool,
    pub seed: u64,
}

/// How the cloud misbehaves.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// An operation is answered so instead of being carried out.
    Http {
        operation: Operation,
        status: u16,
        body: String,
        retry_after: Option<u64>,
    },
    /// An operation is carried out, but its answer is lost.
    LoseAnswer(Operation),
    /// The account knows application credentials by one spelling of their fields only: the one that begins so.
    StrictCredentials(&'static str),
    /// The task of the next server fails, and its root disk stays.
    TaskFails(String),
    /// The next server goes into ERROR.
    ServerFails,
    /// Tasks are not known.
    TasksForgotten,
    /// A flavor (or all) is sold out in a zone (or everywhere).
    SoldOut {
        flavor: Option<String>,
        zone: Option<String>,
    },
    /// No more vCPUs than this in total.
    VcpuQuota(u64),
    /// No more memory than this in total, in MB.
    RamQuota(u64),
    /// No more servers than this.
    ServerQuota(u64),
    /// Spot is listed but can't be ordered.
    NoSpot,
    /// The task of the next server never says that it is done.
    TaskNeverReady,
    /// The next server shows so much later.
    VisibleLate(Duration),
    /// Volumes show only once their server does.
    DisksShowLate,
    /// Lists lack the server of this name, although it can be read by its id.
    ListOmits(String),
    /// Servers can't be deleted because somebody locked them.
    Locked,
    /// After this many more requests, one is never answered: it takes effect or not, as `when` says.
    Hang { after: usize, when: HangAt },
    /// The account may not use region HN.
    RegionDisabled,
    /// Servers boot but never join.
    NodesNeverRegister,
    /// Everything is to be paid first.
    PaymentRequired,
}

/// Whether a request that hangs has taken effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HangAt {
    BeforeEffect,
    AfterEffect,
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Token,
    Catalogue,
    CreateServers,
    DeleteServer,
    DeleteVolume,
    ServerAction,
    NetworkInterfaceAction,
    /// The billing API's list of plans.
    Billing,
    /// Telling BKE that a node left.
    LeaveCluster,
    /// Every read of servers, volumes, tasks and lists.
    Read,
    Any,
}

/// How often a fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Often {
    Times(u32),
    Always,
}

/// A running server, as a node's kubelet would know it.
#[derive(Clone, Debug)]
pub struct SimServer {
    pub id: String,
    pub name: String,
    pub flavor: String,
    pub vcpus: u64,
    pub ram: u64,
    pub zone: String,
    pub disk_gib: u64,
    pub image_id: String,
    pub metadata: std::collections::BTreeMap<String, String>,
    pub user_data: String,
    pub root_volume: String,
    /// When it showed.
    pub created_at: jiff::Timestamp,
    /// Since when it runs; `None` while it is being built or after it was stopped.
    pub active_since: Option<jiff::Timestamp>,
    /// How often it was booted after the first time.
    pub reboots: u32,
    pub terminating: bool,
}

/// What the account is.
pub const EMAIL: &str = "ops@example.com";
pub const PASSWORD: &str = "correct-horse-battery";
pub const CREDENTIAL_ID: &str = "app-cred-1";
pub const CREDENTIAL_SECRET: &str = "app-cred-secret-1";
pub const PROJECT: &str = "project-1";
/// The BKE cluster of the account.
pub const BKE_CLUSTER: &str = "bke-cluster-1";
pub const BKE_TOKEN: &str = "bke-join-token-1";
pub use data::{CUSTOM_IMAGE, DEFAULT_VPC, FIREWALL, HN1_VPC};

impl Default for SimOptions {
    fn default() -> Self {
        Self {
            volume_delay: None,
            build_delay: None,
            deletion_delay: Duration::from_secs(10),
            token_lifetime: Duration::from_secs(4 * 3600),
            boot_delay: Duration::from_secs(20),
            sells_spot: false,
            seed: 1,
        }
    }
}

impl SimulatedBizfly {
    /// Starts serving on a free port of this machine.
    ///
    /// # Errors
    /// When no port can be had.
    pub async fn start(clock: Clock, options: SimOptions) -> io::Result<Self> {
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
        let address = listener.local_addr()?;
        let world = Arc::new(Mutex::new(World::new(options, format!("http://{address}"))));
        let stop = CancellationToken::new();
        let hangs = Arc::<Hangs>::default();
        let router = routes::router(world.clone(), clock.clone(), hangs.clone());
        let stopped = stop.clone();
        tokio::spawn(async move {
            let serving = axum::serve(listener, router).with_graceful_shutdown(stopped.cancelled_owned());
            if let Err(error) = serving.await {
                tracing::warn!(%error, "the simulated cloud stopped serving");
            }
        });
        Ok(Self {
            world,
            clock,
            address,
            hangs,
            _serving: Arc::new(stop.drop_guard()),
        })
    }

    /// What to write into `apiEndpoint`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn inject(&self, fault: Fault, often: Often) {
        self.world.lock().inject(fault, often);
    }

    /// Ends all faults; requests that hang are cut off.
    pub fn heal(&self) {
        self.world.lock().heal();
        self.hangs.released.notify_waiters();
    }

    /// Every server that exists, those being deleted included.
    pub fn servers(&self) -> Vec<SimServer> {
        self.world.lock().servers(self.clock.now())
    }

    /// Servers and root disks that cost money; empty when everything was cleaned up.
    pub fn leaks(&self) -> Vec<Leak> {
        self.world.lock().leaks(self.clock.now())
    }

    /// Everything that was asked, without secrets in it.
    pub fn requests(&self) -> Vec<Request> {
        self.world.lock().requests().to_vec()
    }

    /// Takes an order for a server as if somebody had sent it.
    pub fn order(&self, order: &serde_json::Value) {
        // What is refused is not there, as with every order.
        let _ = self.world.lock().order(std::slice::from_ref(order), self.clock.now());
    }

    /// A server that somebody else made; answers its id.
    pub fn add_foreign_server(&self, name: &str) -> String {
        self.world.lock().add_foreign(name, self.clock.now())
    }

    /// A data disk attached to a server, as a CSI driver would; answers its id.
    pub fn attach_data_disk(&self, server: &str) -> String {
        self.world.lock().attach_data_disk(server, self.clock.now())
    }

    /// Switches the billing plan of a data disk.
    pub fn set_volume_plan(&self, id: &str, plan: &'static str) {
        self.world.lock().volume_plans.insert(id.to_owned(), plan);
    }

    pub fn volume_exists(&self, id: &str) -> bool {
        self.world.lock().volume_exists(id, self.clock.now())
    }

    /// Deletes a server behind everybody's back.
    pub fn vanish(&self, id: &str) {
        self.world.lock().vanish(id);
    }

    /// Resizes a server behind everybody's back.
    pub fn resize(&self, id: &str, flavor: &str) {
        self.world.lock().resize(id, flavor);
    }

    pub fn set_status(&self, id: &str, status: &str) {
        self.world.lock().set_status(id, status, self.clock.now());
    }

    /// Switches a server's billing plan behind everybody's back.
    pub fn set_billing_plan(&self, id: &str, plan: &str) {
        self.world.lock().set_billing_plan(id, plan);
    }

    /// Unplugs a server from a network behind everybody's back.
    pub fn unplug(&self, id: &str, network: &str) {
        self.world.lock().unplug(id, network);
    }

    /// The firewalls of a server's network interfaces, by kind of interface.
    pub fn firewalls(&self, server: &str) -> Vec<(String, Vec<String>)> {
        let nics = self.world.lock().nic_list(self.clock.now());
        let own = nics.iter().filter(|nic| nic["device_id"] == server);
        own.map(|nic| {
            let kind = nic["type"].as_str().unwrap_or_default().to_owned();
            let groups = serde_json::from_value(nic["security_groups"].clone()).unwrap_or_default();
            (kind, groups)
        })
        .collect()
    }

    /// Makes a firewall.
    pub fn add_firewall(&self, id: &str) {
        self.world.lock().more_firewalls.push(id.to_owned());
    }

    /// BKE publishes its worker images anew, under other ids.
    pub fn publish_worker_images(&self, edition: &'static str) {
        self.world.lock().image_edition = edition;
    }

    /// A pool of the BKE cluster that BKE scales by itself.
    pub fn add_scaled_pool(&self, name: &str) {
        self.world.lock().scaled_pools.push(name.to_owned());
    }

    /// What has been spent so far.
    pub fn spent(&self) -> f64 {
        self.world.lock().costs(self.clock.now()).values().sum()
    }

    fn nodes_register(&self) -> bool {
        !self.world.lock().has(&Fault::NodesNeverRegister)
    }

    fn boot_delay(&self) -> Duration {
        self.world.lock().options.boot_delay
    }

    /// Resolves once a request hangs.
    pub async fn hung(&self) {
        self.hangs.begun.notified().await;
    }

    /// All tokens end now.
    pub fn expire_tokens(&self) {
        self.world.lock().expire_tokens();
    }

    /// Replaces the password that the account accepts.
    pub fn set_password(&self, password: &str) {
        self.world.lock().password = password.to_owned();
    }

    pub fn set_balance(&self, balance: i64) {
        self.world.lock().balance = balance;
    }

    /// Which key the token's end is told under: `expires_at`, `expire_at`, or none.
    pub fn set_expiry_key(&self, key: Option<&'static str>) {
        self.world.lock().expiry_key = key;
    }

    /// Services that the catalogue leaves out.
    pub fn hide_service(&self, canonical_name: &'static str) {
        self.world.lock().hidden_services.push(canonical_name);
    }
}
