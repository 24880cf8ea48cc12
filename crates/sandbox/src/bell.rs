//! Wakes everybody who waits for something, in the order in which they began to wait.
//!
//! Tokio's `watch` channel wakes its receivers in an order that is drawn anew each time, and with it everything that follows: a run
//! with the same seed would not be the same run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::Notify;

/// Rings for its listeners; they hear it when it is gone, too.
#[derive(Debug, Default)]
pub(crate) struct Bell(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    rung: AtomicU64,
    is_gone: AtomicBool,
    waiting: Notify,
}

impl Bell {
    pub(crate) fn ring(&self) {
        self.0.rung.fetch_add(1, Ordering::SeqCst);
        self.0.waiting.notify_waiters();
    }

    /// Hears every ring from now on.
    pub(crate) fn listen(&self) -> Listener {
        Listener {
            heard: self.0.rung.load(Ordering::SeqCst),
            bell: Arc::clone(&self.0),
        }
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        self.0.is_gone.store(true, Ordering::SeqCst);
        self.0.waiting.notify_waiters();
    }
}

/// One who waits for a [`Bell`].
#[derive(Debug)]
pub(crate) struct Listener {
    bell: Arc<Shared>,
    heard: u64,
}

/// What ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    Ring,
    /// The bell is gone and will not ring again.
    Silence,
}

impl Listener {
    /// Forgets the rings that were not waited for.
    pub(crate) fn catch_up(&mut self) {
        self.heard = self.bell.rung.load(Ordering::SeqCst);
    }

    /// Waits for a ring; returns at once if there was one since the last.
    pub(crate) async fn next(&mut self) -> Heard {
        loop {
            let mut waiting = std::pin::pin!(self.bell.waiting.notified());
            // In line before the look, so that no ring falls in between.
            waiting.as_mut().enable();
            let rung = self.bell.rung.load(Ordering::SeqCst);
            if rung != self.heard {
                self.heard = rung;
                return Heard::Ring;
            }
            if self.bell.is_gone.load(Ordering::SeqCst) {
                return Heard::Silence;
            }
            waiting.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;

    #[tokio::test]
    async fn listeners_are_woken_in_the_order_in_which_they_began_to_wait() {
        let bell = Bell::default();
        let woken = Arc::new(Mutex::new(Vec::new()));
        for number in 0..50 {
            let (mut listener, woken) = (bell.listen(), woken.clone());
            tokio::spawn(async move {
                listener.next().await;
                woken.lock().push(number);
            });
        }
        tokio::task::yield_now().await;
        bell.ring();
        while woken.lock().len() < 50 {
            tokio::task::yield_now().await;
        }
        assert_eq!(*woken.lock(), (0..50).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn a_ring_is_heard_once_even_if_nobody_waited_and_before_the_silence() {
        let bell = Bell::default();
        let mut listener = bell.listen();
        bell.ring();
        assert_eq!(listener.next().await, Heard::Ring);
        bell.ring();
        listener.catch_up();
        bell.ring();
        drop(bell);
        assert_eq!(listener.next().await, Heard::Ring);
        assert_eq!(listener.next().await, Heard::Silence);
    }
}
