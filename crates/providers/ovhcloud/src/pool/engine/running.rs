//! Keeps one actor running for every pool that somebody wants something of.

use std::sync::Arc;

use karpenter_cloud::kubernetes::inherited;

use super::{Shared, stopped};
use crate::{
    client::model::Pool,
    pool::actor::{Actor, Next},
};

impl Shared {
    /// The actor of a pool, started if need be; `ask` happens before it can end.
    pub(in crate::pool) fn actor<T>(self: &Arc<Self>, pool: &str, ask: impl FnOnce(&Arc<Actor>) -> T) -> T {
        self.started(Actor::new(pool), ask)
    }

    /// The actor of a pool that exists.
    pub(super) fn actor_of<T>(self: &Arc<Self>, pool: &Pool, ask: impl FnOnce(&Arc<Actor>) -> T) -> T {
        let actor = match self.is_twin(&pool.id) {
            true => Actor::of_twin(pool),
            false => Actor::new(&pool.name),
        };
        self.started(actor, ask)
    }

    fn started<T>(self: &Arc<Self>, mut actor: Actor, ask: impl FnOnce(&Arc<Actor>) -> T) -> T {
        let mut actors = self.actors.lock();
        if let Some(beside) = actors.values().find(|other| other.name == actor.name) {
            actor.alone = beside.alone.clone();
        }
        let actor = actors.entry(actor.key().to_owned()).or_insert_with(|| {
            let actor = Arc::new(actor);
            let (shared, run) = (self.clone(), actor.clone());
            let work = async move {
                let stop = shared.stop.clone();
                stop.run_until_cancelled(shared.run(&run)).await;
                // Whoever waits for a stopped actor must not wait for ever.
                run.fail(&stopped());
            };
            tokio::spawn(inherited(work));
            actor
        });
        let answer = ask(actor);
        actor.kick.notify_one();
        answer
    }

    async fn run(self: &Arc<Self>, actor: &Arc<Actor>) {
        let cadence = &self.settings.cadence;
        actor.kick.notified().await;
        loop {
            self.collect(actor).await;
            let next = match self.turn(actor).await {
                Ok(next) => next,
                Err(error) => {
                    tracing::warn!(pool = actor.name, %error, "node pool cannot be looked after");
                    actor.fail(&error);
                    Next::Soon
                }
            };
            let pause = match next {
                Next::Soon => cadence.poll_soon,
                Next::Later => cadence.poll_later,
                Next::Never => {
                    let mut actors = self.actors.lock();
                    if actor.is_idle() {
                        actors.remove(actor.key());
                        self.metrics.forget_pool(actor.key());
                        return;
                    }
                    cadence.poll_soon
                }
            };
            tokio::select! {
                () = actor.kick.notified() => {}
                () = self.clock.sleep(pause) => {}
            }
        }
    }

    /// Lets requests that arrive together become one write.
    async fn collect(&self, actor: &Actor) {
        let longest = self.clock.sleep(self.settings.cadence.batch_longest);
        let idle = async {
            loop {
                tokio::select! {
                    () = actor.kick.notified() => {}
                    () = self.clock.sleep(self.settings.cadence.batch_idle) => return,
                }
            }
        };
        tokio::select! {
            () = longest => {}
            () = idle => {}
        }
    }

    pub(in crate::pool) async fn writing(&self) -> tokio::sync::SemaphorePermit<'_> {
        self.writers.acquire().await.expect("the semaphore is never closed")
    }
}
