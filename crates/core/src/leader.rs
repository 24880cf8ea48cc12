//! Leader election by a `coordination.k8s.io` Lease: one replica works, the others wait (api.md §4.4).
//!
//! Whoever holds the Lease renews it every two seconds. Others may take it once it has not changed for its fifteen
//! seconds, by their own clock. The holder stops writing (see [`WriteGate`]) when it could not renew for ten, so there
//! are five seconds in which nobody writes rather than a moment in which two do.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::Client;
use kube::api::{Api, PostParams};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::clock::{Clock, later};
use crate::gate::WriteGate;
use crate::metrics::{Counter, Gauge, Registry};

/// Which Lease, who we are, and the three times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElectionConfig {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease.
    pub name: String,
    /// Unique for this process.
    pub identity: String,
    /// How long others respect a Lease that does not change.
    pub lease: Duration,
    /// How long the holder tries to renew before it gives up.
    pub renew_deadline: Duration,
    /// How often to try.
    pub retry: Duration,
}

impl ElectionConfig {
    /// The times that Kubernetes' own components use: 15 s, 10 s, 2 s.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>, identity: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
            identity: identity.into(),
            lease: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry: Duration::from_secs(2),
        }
    }
}

/// `<hostname>_<uuid>`, as client-go names candidates.
pub fn identity() -> String {
    let hostname = std::env::var("HOSTNAME")
        .ok()
        .filter(|name| !name.is_empty())
        .or_else(|| std::fs::read_to_string("/proc/sys/kernel/hostname").ok())
        .unwrap_or_else(|| "karpenter".to_owned());
    format!("{}_{}", hostname.trim(), uuid::Uuid::new_v4())
}

/// How a leadership ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The Lease could not be renewed in time, or somebody else has it.
    Lost,
    /// We were asked to stop; the Lease is given back by [`Elector::release`].
    Stopped,
}

/// Metrics of the election.
#[derive(Clone, Debug)]
pub struct ElectionMetrics {
    leading: Gauge<1>,
    slow: Counter<1>,
}

impl ElectionMetrics {
    /// Registers them.
    pub fn register(registry: &Registry) -> Self {
        Self {
            leading: registry.gauge("leader_election_master_status", "1 while this process leads.", ["name"]),
            slow: registry.counter(
                "leader_election_slowpath_total",
                "Renewals that had to read the Lease before writing it.",
                ["name"],
            ),
        }
    }
}

/// A candidate for the Lease.
#[derive(Debug)]
pub struct Elector {
    leases: Api<Lease>,
    clock: Clock,
    config: ElectionConfig,
    gate: WriteGate,
    metrics: ElectionMetrics,
    seen: Mutex<Option<Seen>>,
}

/// The Lease as we last saw it change, and when that was by our own clock: clocks of others are not to be trusted.
#[derive(Clone, Debug)]
struct Seen {
    lease: Lease,
    at: Timestamp,
}

impl Elector {
    /// A candidate. `client` must not be the rate limited one: a busy controller must not lose its Lease over that.
    pub fn new(
        client: Client,
        clock: Clock,
        config: ElectionConfig,
        gate: WriteGate,
        metrics: ElectionMetrics,
    ) -> Self {
        let leases = Api::namespaced(client, &config.namespace);
        metrics.leading.set([&config.name], 0.0);
        Self {
            leases,
            clock,
            config,
            gate,
            metrics,
            seen: Mutex::new(None),
        }
    }

    /// Resolves once this process leads; `false` if it was stopped first.
    pub async fn acquire(&self, stop: &CancellationToken) -> bool {
        tracing::info!(lease = %self.lease_name(), identity = self.config.identity, "waiting for leadership");
        loop {
            let started = self.clock.now();
            match self.attempt(self.take_or_renew()).await {
                Ok(true) => {
                    self.lead_from(started);
                    tracing::info!(lease = %self.lease_name(), "became leader");
                    return true;
                }
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(lease = %self.lease_name(), %error, "leader election failed, trying again");
                }
            }
            tokio::select! {
                () = stop.cancelled() => return false,
                () = self.clock.sleep(self.config.retry) => {}
            }
        }
    }

    /// Renews the Lease until it is lost or `stop` is cancelled. When it returns `Lost`, the gate is shut.
    pub async fn keep(&self, stop: &CancellationToken) -> Ended {
        let mut renewed = self.clock.now();
        loop {
            tokio::select! {
                () = stop.cancelled() => return Ended::Stopped,
                () = self.clock.sleep(self.config.retry) => {}
            }
            let started = self.clock.now();
            let held = match self.attempt(self.take_or_renew()).await {
                Ok(held) => held,
                Err(error) => {
                    tracing::warn!(lease = %self.lease_name(), %error, "could not renew the lease");
                    true
                }
            };
            if held && self.seen_renewal_since(started) {
                renewed = started;
                self.lead_from(started);
            }
            let too_late = self.clock.now().duration_since(renewed).unsigned_abs() >= self.config.renew_deadline;
            if !held || too_late {
                self.gate.close();
                self.metrics.leading.set([&self.config.name], 0.0);
                tracing::error!(lease = %self.lease_name(), "leadership lost");
                return Ended::Lost;
            }
        }
    }

    /// Gives the Lease back so that the next candidate need not wait. Call it when nothing writes any more.
    pub async fn release(&self) {
        self.gate.close();
        self.metrics.leading.set([&self.config.name], 0.0);
        let Some(Seen { lease, .. }) = self.seen.lock().clone() else {
            return;
        };
        if holder(&lease) != self.config.identity {
            return;
        }
        let now = MicroTime(self.clock.now());
        let mut released = lease;
        let spec = released.spec.get_or_insert_default();
        spec.holder_identity = Some(String::new());
        spec.lease_duration_seconds = Some(1);
        spec.renew_time = Some(now.clone());
        spec.acquire_time = Some(now);
        match self.attempt(self.replace(&released)).await {
            Ok(_) => tracing::info!(lease = %self.lease_name(), "released the lease"),
            Err(error) => tracing::warn!(lease = %self.lease_name(), %error, "could not release the lease"),
        }
    }

    fn lead_from(&self, renewed: Timestamp) {
        self.gate.open_until(later(renewed, self.config.renew_deadline));
        self.metrics.leading.set([&self.config.name], 1.0);
    }

    /// Whether the renewal that began at `started` succeeded.
    fn seen_renewal_since(&self, started: Timestamp) -> bool {
        self.seen
            .lock()
            .as_ref()
            .is_some_and(|seen| seen.at >= started && holder(&seen.lease) == self.config.identity)
    }

    /// One try to hold the Lease for another term; whether we now hold it.
    async fn take_or_renew(&self) -> Result<bool, kube::Error> {
        let seen = self.seen.lock().clone();
        // As long as nobody interferes, what we wrote last is what is there: write without reading first.
        if let Some(Seen { lease, .. }) = &seen
            && holder(lease) == self.config.identity
        {
            match self.replace(&self.renewed(lease)).await {
                Ok(_) => return Ok(true),
                Err(kube::Error::Api(status)) if status.is_conflict() || status.is_not_found() => {
                    self.metrics.slow.inc([&self.config.name]);
                }
                Err(error) => return Err(error),
            }
        }
        let Some(current) = self.leases.get_opt(&self.config.name).await? else {
            let created = self.leases.create(&PostParams::default(), &self.first()).await;
            return self.settle(created);
        };
        self.observe(&current);
        if !self.may_take(&current) {
            return Ok(false);
        }
        let written = self.replace(&self.renewed(&current)).await;
        self.settle(written)
    }

    /// Somebody was faster: not an error, just not ours.
    fn settle(&self, written: Result<Lease, kube::Error>) -> Result<bool, kube::Error> {
        match written {
            Ok(lease) => {
                self.observe(&lease);
                Ok(true)
            }
            Err(kube::Error::Api(status)) if status.is_conflict() || status.is_already_exists() => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn replace(&self, lease: &Lease) -> Result<Lease, kube::Error> {
        let written = self
            .leases
            .replace(&self.config.name, &PostParams::default(), lease)
            .await?;
        *self.seen.lock() = Some(Seen {
            lease: written.clone(),
            at: self.clock.now(),
        });
        Ok(written)
    }

    /// Starts the clock of a Lease that changed.
    fn observe(&self, lease: &Lease) {
        let mut seen = self.seen.lock();
        if seen.as_ref().is_none_or(|seen| seen.lease.spec != lease.spec) {
            *seen = Some(Seen {
                lease: lease.clone(),
                at: self.clock.now(),
            });
        } else if let Some(seen) = seen.as_mut() {
            seen.lease.metadata = lease.metadata.clone();
        }
    }

    fn may_take(&self, lease: &Lease) -> bool {
        let holder = holder(lease);
        if holder.is_empty() || holder == self.config.identity {
            return true;
        }
        let term = lease
            .spec
            .as_ref()
            .and_then(|spec| spec.lease_duration_seconds)
            .unwrap_or(0);
        let term = Duration::from_secs(u64::try_from(term).unwrap_or(0));
        self.seen
            .lock()
            .as_ref()
            .is_some_and(|seen| later(seen.at, term) <= self.clock.now())
    }

    fn first(&self) -> Lease {
        let metadata = ObjectMeta {
            name: Some(self.config.name.clone()),
            namespace: Some(self.config.namespace.clone()),
            ..ObjectMeta::default()
        };
        let mut lease = self.renewed(&Lease {
            metadata,
            ..Lease::default()
        });
        lease.spec.get_or_insert_default().lease_transitions = Some(0);
        lease
    }

    /// The Lease as we would write it now.
    fn renewed(&self, lease: &Lease) -> Lease {
        let now = MicroTime(self.clock.now());
        let old = lease.spec.clone().unwrap_or_default();
        let (acquired, transitions) = if holder(lease) == self.config.identity {
            (old.acquire_time, old.lease_transitions)
        } else {
            (Some(now.clone()), Some(old.lease_transitions.unwrap_or(0) + 1))
        };
        let spec = LeaseSpec {
            holder_identity: Some(self.config.identity.clone()),
            lease_duration_seconds: Some(self.config.lease.as_secs() as i32),
            acquire_time: acquired,
            renew_time: Some(now),
            lease_transitions: transitions,
            ..old
        };
        Lease {
            metadata: lease.metadata.clone(),
            spec: Some(spec),
        }
    }

    /// Bounds one exchange with the API server by half the time that there is to renew: one that hangs leaves time for another try.
    async fn attempt<T>(&self, exchange: impl Future<Output = Result<T, kube::Error>>) -> Result<T, AttemptError> {
        let limit = self.config.renew_deadline / 2;
        tokio::select! {
            outcome = exchange => Ok(outcome?),
            () = self.clock.sleep(limit) => Err(AttemptError::TooSlow(limit)),
        }
    }

    fn lease_name(&self) -> String {
        format!("{}/{}", self.config.namespace, self.config.name)
    }
}

#[derive(Debug, thiserror::Error)]
enum AttemptError {
    #[error(transparent)]
    Kube(#[from] kube::Error),
    #[error("the API server did not answer within {0:?}")]
    TooSlow(Duration),
}

fn holder(lease: &Lease) -> &str {
    lease
        .spec
        .as_ref()
        .and_then(|spec| spec.holder_identity.as_deref())
        .unwrap_or_default()
}
