//! Holds back every write unless this process leads.
//!
//! The gate is open *until* a moment, not simply open: the elector extends it with each renewal of the Lease. If the
//! process stalls, or loses the API server, the gate closes by itself before anyone else may take the Lease, and no
//! code path has to notice for that to happen.

use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use karpenter_api::NodeClaim;
use karpenter_cloud::kubernetes::LastWord;
use karpenter_cloud::{CloudError, CloudProvider, Deletion, DriftReason, Instance, Layer, RebootOperation};
use parking_lot::RwLock;

use crate::clock::Clock;

/// Shared by everything that writes: the Kubernetes client and the cloud provider's decorator.
#[derive(Clone, Debug)]
pub struct WriteGate {
    clock: Clock,
    open_until: Arc<RwLock<Timestamp>>,
}

/// The write was held back because this process does not lead (any more).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this process is not the leader, so it must not write")]
pub struct NotLeading;

impl WriteGate {
    /// A gate that stays shut until leadership is won.
    pub fn shut(clock: Clock) -> Self {
        Self {
            clock,
            open_until: Arc::new(RwLock::new(Timestamp::MIN)),
        }
    }

    /// A gate that is always open: leader election is off, or a test has a single controller.
    pub fn always_open(clock: Clock) -> Self {
        Self {
            clock,
            open_until: Arc::new(RwLock::new(Timestamp::MAX)),
        }
    }

    /// Lets writes pass until `moment`.
    pub(crate) fn open_until(&self, moment: Timestamp) {
        *self.open_until.write() = moment;
    }

    /// Holds back writes from now on.
    pub fn close(&self) {
        self.open_until(Timestamp::MIN);
    }

    /// This gate, for the last moment before a write leaves: a process may be paused between its check and its connection.
    pub(crate) fn last_word(&self) -> LastWord {
        let gate = self.clone();
        LastWord::new(move || gate.check())
    }

    /// Whether a write may be sent now.
    pub fn check(&self) -> Result<(), NotLeading> {
        if self.clock.now() < *self.open_until.read() {
            Ok(())
        } else {
            Err(NotLeading)
        }
    }
}

/// A cloud that launches, restarts and terminates nothing unless this process leads.
#[derive(Debug)]
pub struct GatedProvider {
    inner: Arc<dyn CloudProvider>,
    gate: WriteGate,
}

impl GatedProvider {
    /// `inner` behind `gate`.
    pub fn new(inner: Arc<dyn CloudProvider>, gate: WriteGate) -> Self {
        Self { inner, gate }
    }

    /// Has `work` done if the gate is open, which stays asked while the work goes on.
    async fn pass<T>(&self, work: impl Future<Output = Result<T, CloudError>>) -> Result<T, CloudError> {
        self.gate.check().map_err(|error| CloudError::Other(Box::new(error)))?;
        self.gate.last_word().over(work).await
    }
}

#[async_trait]
impl Layer for GatedProvider {
    fn inner(&self) -> &dyn CloudProvider {
        self.inner.as_ref()
    }

    async fn on_create(&self, claim: &NodeClaim) -> Result<Instance, CloudError> {
        self.pass(self.inner.create(claim)).await
    }

    async fn on_abandon(&self, claim: &NodeClaim) -> Result<Deletion, CloudError> {
        self.pass(self.inner.abandon(claim)).await
    }

    async fn on_delete(&self, claim: &NodeClaim) -> Result<Deletion, CloudError> {
        self.pass(self.inner.delete(claim)).await
    }

    /// A question, of which a provider may write down what it found.
    async fn on_is_drifted(&self, claim: &NodeClaim) -> Result<Option<DriftReason>, CloudError> {
        self.gate.last_word().over(self.inner.is_drifted(claim)).await
    }

    async fn on_reboot(&self, claim: &NodeClaim, operation: &RebootOperation) -> Result<(), CloudError> {
        self.pass(self.inner.reboot(claim, operation)).await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use karpenter_cloud::fake::FakeProvider;
    use parking_lot::Mutex;

    use super::*;
    use crate::clock::{ManualClock, later};

    /// Notes for each call whether somebody has the last word on what it writes.
    struct Witness {
        inner: FakeProvider,
        heard: Arc<Mutex<Vec<bool>>>,
    }

    impl Witness {
        fn note(&self) {
            self.heard.lock().push(LastWord::current().is_some());
        }
    }

    #[async_trait]
    impl Layer for Witness {
        fn inner(&self) -> &dyn CloudProvider {
            &self.inner
        }

        async fn on_create(&self, claim: &NodeClaim) -> Result<Instance, CloudError> {
            self.note();
            self.inner.create(claim).await
        }

        async fn on_abandon(&self, claim: &NodeClaim) -> Result<Deletion, CloudError> {
            self.note();
            self.inner.abandon(claim).await
        }

        async fn on_delete(&self, claim: &NodeClaim) -> Result<Deletion, CloudError> {
            self.note();
            self.inner.delete(claim).await
        }

        async fn on_is_drifted(&self, claim: &NodeClaim) -> Result<Option<DriftReason>, CloudError> {
            self.note();
            self.inner.is_drifted(claim).await
        }

        async fn on_reboot(&self, claim: &NodeClaim, operation: &RebootOperation) -> Result<(), CloudError> {
            self.note();
            self.inner.reboot(claim, operation).await
        }
    }

    #[tokio::test]
    async fn a_cloud_is_told_who_has_the_last_word_and_not_called_while_the_gate_is_shut() {
        let manual = ManualClock::starting_at(Timestamp::UNIX_EPOCH);
        let gate = WriteGate::shut(manual.clock());
        let heard = Arc::<Mutex<Vec<bool>>>::default();
        let inner = Witness {
            inner: FakeProvider::new(manual.clock()),
            heard: heard.clone(),
        };
        let cloud = GatedProvider::new(Arc::new(inner), gate.clone());
        let claim: NodeClaim = serde_norway::from_str(
            "{apiVersion: karpenter.sh/v1, kind: NodeClaim, metadata: {name: c}, \
             spec: {requirements: [], nodeClassRef: {group: g, kind: K, name: n}}}",
        )
        .unwrap();
        let operation = RebootOperation("once".to_owned());
        assert!(cloud.create(&claim).await.is_err());
        assert!(cloud.abandon(&claim).await.is_err());
        assert!(cloud.delete(&claim).await.is_err());
        assert!(cloud.reboot(&claim, &operation).await.is_err());
        assert!(heard.lock().is_empty());

        gate.open_until(later(Timestamp::UNIX_EPOCH, Duration::from_secs(10)));
        // What the cloud answers is not the question here.
        let _ = cloud.create(&claim).await;
        let _ = cloud.abandon(&claim).await;
        let _ = cloud.delete(&claim).await;
        let _ = cloud.is_drifted(&claim).await;
        let _ = cloud.reboot(&claim, &operation).await;
        assert_eq!(*heard.lock(), [true; 5]);
    }

    #[test]
    fn the_gate_shuts_by_itself_when_it_is_not_extended() {
        let manual = ManualClock::starting_at(Timestamp::UNIX_EPOCH);
        let gate = WriteGate::shut(manual.clock());
        assert_eq!(gate.check(), Err(NotLeading));
        gate.open_until(later(Timestamp::UNIX_EPOCH, Duration::from_secs(10)));
        assert_eq!(gate.check(), Ok(()));
        manual.advance(Duration::from_secs(10));
        assert_eq!(gate.check(), Err(NotLeading));
    }
}
