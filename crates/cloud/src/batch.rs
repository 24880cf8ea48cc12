//! Coalesces requests that arrive at about the same time into one call to the cloud.

use std::{fmt, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::{clock::Clock, error::CloudError};

/// Answers a batch: one result per request, in order.
type Call<Q, A> = dyn Fn(Vec<Q>) -> BoxFuture<'static, Vec<Result<A, CloudError>>> + Send + Sync;

/// Collects requests for a short while and sends them together.
///
/// Cheap to clone; clones share the batch.
pub struct Batcher<Q, A> {
    shared: Arc<Shared<Q, A>>,
}

/// When a batch is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchWindow {
    /// A batch goes out when nothing joined it for this long …
    pub idle: Duration,
    /// … or at the latest this long after its first request …
    pub longest: Duration,
    /// … or when it has this many requests.
    pub most: usize,
}

struct Shared<Q, A> {
    clock: Clock,
    window: BatchWindow,
    call: Box<Call<Q, A>>,
    open: Mutex<Open<Q, A>>,
}

struct Open<Q, A> {
    /// Tells a batch from the one that was open before it.
    number: u64,
    requests: Vec<Waiting<Q, A>>,
}

type Waiting<Q, A> = (Q, oneshot::Sender<Result<A, CloudError>>);

impl<Q: Send + 'static, A: Send + 'static> Batcher<Q, A> {
    pub fn new<F>(clock: Clock, window: BatchWindow, call: impl Fn(Vec<Q>) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Vec<Result<A, CloudError>>> + Send + 'static,
    {
        let call: Box<Call<Q, A>> = Box::new(move |requests| Box::pin(call(requests)));
        let open = Mutex::new(Open {
            number: 0,
            requests: Vec::new(),
        });
        Self {
            shared: Arc::new(Shared {
                clock,
                window,
                call,
                open,
            }),
        }
    }

    /// Adds a request to the open batch and waits for its answer.
    ///
    /// # Errors
    /// What the call answered for this request; [`CloudError::Transient`] if it answered nothing.
    pub async fn ask(&self, request: Q) -> Result<A, CloudError> {
        let (answer, answered) = oneshot::channel();
        match self.shared.join(request, answer) {
            Joined::Opened(number) => {
                let shared = self.shared.clone();
                tokio::spawn(async move { shared.send_when_due(number).await });
            }
            Joined::Filled(batch) => {
                let shared = self.shared.clone();
                tokio::spawn(async move { shared.send(batch).await });
            }
            Joined::Waits => {}
        }
        match answered.await {
            Ok(answer) => answer,
            Err(_) => Err(CloudError::transient(
                "the batch this request was part of ended without an answer to it",
            )),
        }
    }
}

enum Joined<Q, A> {
    /// The request opened a batch; someone must send it when it is due.
    Opened(u64),
    /// The request filled the batch; it is to be sent now.
    Filled(Vec<Waiting<Q, A>>),
    Waits,
}

impl<Q, A> Shared<Q, A> {
    fn join(&self, request: Q, answer: oneshot::Sender<Result<A, CloudError>>) -> Joined<Q, A> {
        let mut open = self.open.lock();
        open.requests.push((request, answer));
        if open.requests.len() >= self.window.most {
            open.number += 1;
            return Joined::Filled(std::mem::take(&mut open.requests));
        }
        if open.requests.len() == 1 {
            Joined::Opened(open.number)
        } else {
            Joined::Waits
        }
    }

    async fn send_when_due(&self, number: u64) {
        let longest = self.clock.sleep(self.window.longest);
        let idle = async {
            let mut seen = 0;
            loop {
                let now = self.joined(number);
                if now == seen {
                    return;
                }
                seen = now;
                self.clock.sleep(self.window.idle).await;
            }
        };
        futures::future::select(longest, Box::pin(idle)).await;
        let batch = {
            let mut open = self.open.lock();
            if open.number != number {
                return;
            }
            open.number += 1;
            std::mem::take(&mut open.requests)
        };
        self.send(batch).await;
    }

    /// How many requests joined the batch so far; stays what it was once the batch is closed.
    fn joined(&self, number: u64) -> usize {
        let open = self.open.lock();
        if open.number == number { open.requests.len() } else { 0 }
    }

    async fn send(&self, batch: Vec<Waiting<Q, A>>) {
        let (requests, waiting): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
        let answers = (self.call)(requests).await;
        for (waiting, answer) in waiting.into_iter().zip(answers) {
            // An asker that went away does not need its answer.
            let _ = waiting.send(answer);
        }
    }
}

impl<Q, A> Clone for Batcher<Q, A> {
    fn clone(&self) -> Self {
        Self {
            shared: self.shared.clone(),
        }
    }
}

impl<Q, A> fmt::Debug for Batcher<Q, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batcher")
            .field("window", &self.shared.window)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use futures::future::join_all;
    use jiff::Timestamp;

    use super::*;
    use crate::clock::ManualClock;

    const WINDOW: BatchWindow = BatchWindow {
        idle: Duration::from_millis(50),
        longest: Duration::from_millis(100),
        most: 3,
    };

    struct Probe {
        clock: ManualClock,
        calls: Arc<Mutex<Vec<Vec<u32>>>>,
        batcher: Batcher<u32, u32>,
    }

    fn probe() -> Probe {
        let clock = ManualClock::starting_at(Timestamp::UNIX_EPOCH);
        let calls: Arc<Mutex<Vec<Vec<u32>>>> = Arc::default();
        let seen = calls.clone();
        let batcher = Batcher::new(clock.clock(), WINDOW, move |requests: Vec<u32>| {
            seen.lock().push(requests.clone());
            async move {
                let answer = |request: u32| {
                    if request == 13 {
                        Err(CloudError::not_found("13"))
                    } else {
                        Ok(request * 10)
                    }
                };
                requests.into_iter().map(answer).collect()
            }
        });
        Probe { clock, calls, batcher }
    }

    async fn settle() {
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn requests_within_the_window_become_one_call() {
        let probe = probe();
        let both = tokio::spawn({
            let batcher = probe.batcher.clone();
            async move { join_all([batcher.ask(1), batcher.ask(13)]).await }
        });
        settle().await;
        assert!(probe.calls.lock().is_empty(), "the window is still open");
        probe.clock.advance(WINDOW.idle);
        let answers = both.await.expect("no panic");
        assert_eq!(*probe.calls.lock(), [vec![1, 13]]);
        assert_eq!(*answers[0].as_ref().expect("an answer"), 10);
        assert!(answers[1].as_ref().expect_err("an error").is_not_found());
    }

    #[tokio::test]
    async fn a_full_batch_goes_out_at_once_and_the_next_opens_another() {
        let probe = probe();
        let answers = join_all((1..=3).map(|request| probe.batcher.ask(request))).await;
        assert_eq!(answers.len(), 3);
        let fourth = tokio::spawn({
            let batcher = probe.batcher.clone();
            async move { batcher.ask(4).await }
        });
        settle().await;
        probe.clock.advance(WINDOW.longest);
        assert_eq!(fourth.await.expect("no panic").expect("an answer"), 40);
        assert_eq!(*probe.calls.lock(), [vec![1, 2, 3], vec![4]]);
    }

    #[tokio::test]
    async fn an_asker_that_gives_up_does_not_disturb_the_others() {
        let probe = probe();
        let gives_up = tokio::spawn({
            let batcher = probe.batcher.clone();
            async move { batcher.ask(1).await }
        });
        let stays = tokio::spawn({
            let batcher = probe.batcher.clone();
            async move { batcher.ask(2).await }
        });
        settle().await;
        gives_up.abort();
        probe.clock.advance(WINDOW.longest);
        assert_eq!(stays.await.expect("no panic").expect("an answer"), 20);
    }

    #[tokio::test]
    async fn a_call_that_answers_too_little_is_a_temporary_failure() {
        let clock = ManualClock::starting_at(Timestamp::UNIX_EPOCH);
        let batcher: Batcher<u32, u32> = Batcher::new(clock.clock(), BatchWindow { most: 1, ..WINDOW }, |_| async {
            Vec::new()
        });
        assert!(batcher.ask(1).await.expect_err("no answer").is_temporary());
    }
}
