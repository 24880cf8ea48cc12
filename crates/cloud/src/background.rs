//! Work of a provider that runs beside the calls of core, for as long as this process leads.

use std::fmt;

use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;

/// A named loop. It returns when its token is cancelled, or when it has nothing more to do.
pub struct BackgroundTask {
    pub name: &'static str,
    run: Box<dyn FnOnce(CancellationToken) -> BoxFuture<'static, ()> + Send>,
}

impl BackgroundTask {
    pub fn new<F>(name: &'static str, run: impl FnOnce(CancellationToken) -> F + Send + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Self {
            name,
            run: Box::new(|stop| Box::pin(run(stop))),
        }
    }

    /// Runs the task to its end.
    pub async fn run(self, stop: CancellationToken) {
        (self.run)(stop).await;
    }
}

impl fmt::Debug for BackgroundTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BackgroundTask")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
