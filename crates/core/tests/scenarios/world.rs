//! What every scenario stands on: the sandbox and its time.

use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::Timestamp;
use karpenter_core::clock::{Clock, TimeSource};
use karpenter_sandbox::Sandbox;

/// The sandbox's time as core's.
#[derive(Debug)]
struct SandboxTime(karpenter_sandbox::Clock);

impl TimeSource for SandboxTime {
    fn now(&self) -> Timestamp {
        self.0.now()
    }

    fn sleep_until(&self, deadline: Timestamp) -> BoxFuture<'static, ()> {
        self.0.sleep_until(deadline).boxed()
    }
}

/// The clock to give to core, moved together with the sandbox.
pub(crate) fn clock(sandbox: &Sandbox) -> Clock {
    Clock::from_source(SandboxTime(sandbox.clock().clone()))
}
