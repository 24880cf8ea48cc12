//! One stream of everything that happens to all kinds, in order of revision: what the controllers of this process live
//! on.
//!
//! Unlike a watch it spans kinds, so its reader never sees an effect before its cause.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::mpsc;

use super::{Change, CollectionName, Event, Waiting};
use crate::object::Object;
use crate::settle::Progress;

/// The open feeds of a store.
#[derive(Debug, Default)]
pub(super) struct Feeds {
    senders: Vec<FeedSender>,
}

#[derive(Debug)]
struct FeedSender {
    channel: mpsc::UnboundedSender<FeedEvent>,
    state: Arc<FeedState>,
}

#[derive(Debug, Default)]
struct FeedState {
    unread: AtomicU64,
    waiting: AtomicBool,
}

/// One change of one object.
#[derive(Clone, Debug)]
pub struct FeedEvent {
    pub collection: CollectionName,
    pub change: Change,
    /// For a deletion: the last content.
    pub object: Arc<Object>,
}

/// The reader's end.
#[derive(Debug)]
pub struct Feed {
    existing: VecDeque<FeedEvent>,
    channel: mpsc::UnboundedReceiver<FeedEvent>,
    state: Arc<FeedState>,
    progress: Arc<Progress>,
}

impl Feeds {
    pub(super) fn announce(&mut self, collection: CollectionName, event: Arc<Event>) {
        if self.senders.is_empty() {
            return;
        }
        let event = FeedEvent {
            collection,
            change: event.change,
            object: Arc::clone(&event.object),
        };
        self.senders.retain(|sender| {
            sender.state.unread.fetch_add(1, Ordering::SeqCst);
            sender.channel.send(event.clone()).is_ok()
        });
    }

    pub(super) fn open(&mut self, existing: Vec<(CollectionName, Arc<Object>)>, progress: Arc<Progress>) -> Feed {
        let (sender, receiver) = mpsc::unbounded_channel();
        let state = Arc::new(FeedState::default());
        self.senders.push(FeedSender {
            channel: sender,
            state: Arc::clone(&state),
        });
        let added = |(collection, object)| FeedEvent {
            collection,
            change: Change::Added,
            object,
        };
        Feed {
            existing: existing.into_iter().map(added).collect(),
            channel: receiver,
            state,
            progress,
        }
    }

    /// Whether every reader has read all there is and waits for more.
    pub(super) fn are_quiet(&self) -> bool {
        self.senders
            .iter()
            .filter(|sender| !sender.channel.is_closed())
            .all(|sender| {
                sender.state.unread.load(Ordering::SeqCst) == 0 && sender.state.waiting.load(Ordering::SeqCst)
            })
    }
}

impl Feed {
    /// Waits for the next event; `None` when the store is gone.
    pub async fn next(&mut self) -> Option<FeedEvent> {
        if let Some(event) = self.existing.pop_front() {
            return Some(event);
        }
        let waiting = Waiting::start(&self.state.waiting);
        let event = self.channel.recv().await;
        drop(waiting);
        self.read(event)
    }

    /// An event that is already there.
    pub fn try_next(&mut self) -> Option<FeedEvent> {
        if let Some(event) = self.existing.pop_front() {
            return Some(event);
        }
        let event = self.channel.try_recv().ok();
        self.read(event)
    }

    fn read(&self, event: Option<FeedEvent>) -> Option<FeedEvent> {
        if event.is_some() {
            self.state.unread.fetch_sub(1, Ordering::SeqCst);
            self.progress.step();
        }
        event
    }
}
