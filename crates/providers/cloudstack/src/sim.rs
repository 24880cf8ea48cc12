//! A simulated CloudStack management server on a real socket, with hosts, quotas, jobs, faults and a clock of its own.
//!
//! It checks signatures, speaks the real envelopes and fails with the real texts (recordings of a real server are the
//! judge), so that the provider cannot tell it from one. Nothing behind it is real: machines are records.

mod answer;
mod commands;
mod faults;
mod jobs;
pub mod kubelets;
mod machines;
mod manifests;
mod params;
mod power;
mod render;
pub mod seed;
mod server;
mod state;
mod tags;
mod violations;

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use jiff::Timestamp;
use karpenter_cloud::clock::Clock;
use parking_lot::Mutex;
use secrecy::SecretString;
use tokio::{net::TcpListener, sync::Notify, task::JoinHandle};

use crate::client::{Keys, api_url};

pub use faults::{Fault, FaultKind, Odds};
pub use machines::{Machine, MachineState};
pub use manifests::MANIFESTS;
pub use seed::Seed;
pub use state::{Call, Latency, Role, Settings};

use machines::VolumeFate;
use state::State;

/// The pod and cluster that every host is in.
const POD: &str = "aff5f7c4-5843-4acb-b1e5-d18bafffbb5a";
const CLUSTER: &str = "2b92a035-fad8-45ec-85ac-ae5ff68276d9";

/// A running simulated CloudStack; it ends when the last handle is dropped.
#[derive(Clone, Debug)]
pub struct Simulator {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    clock: Clock,
    address: SocketAddr,
    world: Arc<World>,
    tasks: Vec<JoinHandle<()>>,
}

/// What the connections and the timer share.
#[derive(Debug)]
struct World {
    clock: Clock,
    state: Mutex<State>,
    /// Something was scheduled, or changed.
    changed: Notify,
    /// A request hangs because a fault told it to.
    hung: Notify,
}

impl Simulator {
    /// Listens on a free port of the loopback device.
    ///
    /// # Errors
    /// When no port is free.
    pub async fn start(clock: Clock, seed: Seed) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let world = Arc::new(World {
            clock: clock.clone(),
            state: Mutex::new(State::new(seed, clock.now())),
            changed: Notify::new(),
            hung: Notify::new(),
        });
        let tasks = vec![
            tokio::spawn(server::serve(listener, world.clone())),
            tokio::spawn(run_jobs(world.clone())),
        ];
        Ok(Self {
            shared: Arc::new(Shared {
                clock,
                address,
                world,
                tasks,
            }),
        })
    }

    pub fn url(&self) -> String {
        format!("http://{}/client/api", self.shared.address)
    }

    pub fn address(&self) -> SocketAddr {
        self.shared.address
    }

    /// The keys of an account.
    ///
    /// # Panics
    /// If there is no such account.
    pub fn keys(&self, account: &str) -> Keys {
        let state = self.shared.world.state.lock();
        let account = state
            .accounts
            .iter()
            .find(|own| own.name == account)
            .expect("an account of the seed");
        Keys {
            url: api_url(&self.url()).expect("an address is a URL"),
            api_key: account.api_key.clone(),
            secret_key: SecretString::from(account.secret_key.clone()),
        }
    }

    /// Makes the server misbehave.
    pub fn inject(&self, fault: Fault) {
        self.shared.world.state.lock().faults.push(fault);
    }

    /// Ends all faults.
    pub fn heal(&self) {
        let mut state = self.shared.world.state.lock();
        state.faults.clear();
        state.settings.sold_out = false;
    }

    /// Waits until a request hangs because of a fault.
    pub async fn hung(&self) {
        self.shared.world.hung.notified().await;
    }

    /// Changes settings of the server, limits, or anything else that an operator could.
    pub fn operate<T>(&self, change: impl FnOnce(&mut Operator<'_>) -> T) -> T {
        let now = self.shared.clock.now();
        let mut state = self.shared.world.state.lock();
        state.run_due(now);
        let changed = change(&mut Operator { state: &mut state, now });
        self.shared.world.changed.notify_waiters();
        changed
    }

    /// Every machine that is not expunged.
    pub fn machines(&self) -> Vec<Machine> {
        let now = self.shared.clock.now();
        let mut state = self.shared.world.state.lock();
        state.run_due(now);
        state.machines.iter().filter(|own| !own.removed).cloned().collect()
    }

    /// Every machine there ever was.
    pub fn machines_ever(&self) -> Vec<Machine> {
        self.shared.world.state.lock().machines.clone()
    }

    /// Names of the volumes that exist, with the machine each is attached to.
    pub fn volumes(&self) -> Vec<(String, Option<String>)> {
        let state = self.shared.world.state.lock();
        let volumes = state.volumes.iter().filter(|own| own.fate == VolumeFate::Kept);
        volumes.map(|own| (own.name.clone(), own.machine.clone())).collect()
    }

    /// Names of the affinity groups that exist.
    pub fn affinity_groups(&self) -> Vec<String> {
        let state = self.shared.world.state.lock();
        state.affinity_groups.iter().map(|own| own.name.clone()).collect()
    }

    /// What no provider may ever do, and did all the same (cloudstack.md §15); empty on a good day.
    pub fn violations(&self) -> Vec<String> {
        self.shared.world.state.lock().violations()
    }

    /// Every request that was answered, in order.
    pub fn calls(&self) -> Vec<Call> {
        self.shared.world.state.lock().calls.clone()
    }

    /// Resolves when something changed that a kubelet could notice.
    pub async fn changed(&self) {
        self.shared.world.changed.notified().await;
    }

    pub fn clock(&self) -> &Clock {
        &self.shared.clock
    }
}

/// The hands of an operator in the data centre.
#[derive(Debug)]
pub struct Operator<'a> {
    state: &'a mut State,
    now: Timestamp,
}

impl Operator<'_> {
    pub fn settings(&mut self) -> &mut Settings {
        &mut self.state.settings
    }

    /// Limits a resource of an account, by the server's name of it, such as `user_vm` or `cpu`.
    pub fn limit(&mut self, account: &str, resource: &str, most: i64) {
        if let Some(own) = self.state.accounts.iter_mut().find(|own| own.name == account) {
            own.limits.insert(resource.to_owned(), most);
        }
    }

    /// A machine, to be changed at will.
    pub fn machine(&mut self, id: &str) -> Option<&mut Machine> {
        self.state.machines.iter_mut().find(|own| own.id == id)
    }

    /// Stops a machine as its guest would.
    pub fn power_off(&mut self, id: &str) {
        let now = self.now;
        if let Some(own) = self.machine(id) {
            own.state = MachineState::Stopped;
            own.updated = Some(now);
            own.host = None;
        }
    }

    /// Moves a machine to another host of its zone while it runs; false if none takes it.
    pub fn migrate(&mut self, id: &str) -> bool {
        self.state.migrate(id)
    }

    /// A host fails: machines with high availability start elsewhere, the others stop.
    pub fn fail_host(&mut self, host: &str) {
        self.state.fail_host(host, self.now);
    }

    /// Removes a machine without a trace.
    pub fn expunge(&mut self, id: &str) {
        self.state.expunge(id, self.now);
    }

    /// Gives a machine a further NIC.
    pub fn add_nic(&mut self, id: &str, network: &str) {
        self.state.add_nic(id, network);
    }

    /// Changes an object of the catalogue: `zones`, `offerings`, `templates`, `networks` or `disk_offerings`.
    pub fn catalogue(&mut self) -> &mut seed::Catalogue {
        &mut self.state.catalogue
    }

    /// A machine that nobody asked for through the API.
    pub fn add_machine(&mut self, machine: Machine) {
        self.state.machines.push(machine);
    }

    /// A volume attached to a machine, as a CSI driver leaves it.
    pub fn attach_foreign_volume(&mut self, machine: &str, name: &str) {
        self.state.attach_foreign_volume(machine, name, self.now);
    }

    /// Revokes or replaces the secret of an account.
    pub fn set_secret(&mut self, account: &str, secret: &str) {
        if let Some(own) = self.state.accounts.iter_mut().find(|own| own.name == account) {
            secret.clone_into(&mut own.secret_key);
        }
    }

    /// Locks the user of an account out.
    pub fn disable(&mut self, account: &str) {
        for own in self.state.accounts.iter_mut().filter(|own| own.name == account) {
            own.is_enabled = false;
        }
    }

    /// Lets the user of an account in again.
    pub fn enable(&mut self, account: &str) {
        for own in self.state.accounts.iter_mut().filter(|own| own.name == account) {
            own.is_enabled = true;
        }
    }

    /// Takes back the limits of all domains.
    pub fn lift_domain_limits(&mut self) {
        self.state.domain_limits.clear();
    }

    /// Fails every job that runs, as a restart of the management server does.
    pub fn restart_management_server(&mut self) {
        self.state.fail_running_jobs(self.now);
    }
}

/// Runs jobs when they are due, also while nobody asks.
async fn run_jobs(world: Arc<World>) {
    loop {
        let next = {
            let mut state = world.state.lock();
            state.run_due(world.clock.now());
            state.next_due()
        };
        world.changed.notify_waiters();
        let changed = world.changed.notified();
        match next {
            Some(due) => {
                tokio::select! {
                    () = world.clock.sleep_until(due) => {}
                    () = changed => {}
                }
            }
            None => changed.await,
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// How long things take, if nobody says: as on a small real installation.
impl Default for Latency {
    fn default() -> Self {
        Self {
            answer: Duration::ZERO,
            start: Duration::from_secs(5),
            first_copy: Duration::ZERO,
            destroy: Duration::from_secs(2),
            small: Duration::from_millis(200),
        }
    }
}
