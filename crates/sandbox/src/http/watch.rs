//! Watches: a stream of lines, each an event.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use futures::stream;
use rand::Rng;
use serde_json::json;
use tokio::time::Instant;

use super::query::{ListQuery, VersionMatch, bad_option};
use super::render::{Bookmark, Columns, Renderer};
use super::{Answer, AnswerBody, Call, Http};
use crate::object::Object;
use crate::selector::Selector;
use crate::status::{ApiError, FieldError};
use crate::store::{Backlog, Change, Event, Watch};

const BOOKMARK_PERIOD: Duration = Duration::from_secs(60);
/// The last bookmark comes this long before the timeout.
const LAST_BOOKMARK: Duration = Duration::from_secs(2);

impl Http {
    pub(super) fn watch(&self, call: &Call) -> Result<Answer, ApiError> {
        let query = call.query.list(&call.resource)?;
        check_watch_options(&query)?;
        let version: u64 = match query.resource_version.as_str() {
            "" => 0,
            text => text
                .parse()
                .map_err(|_| ApiError::internal(format!("strconv.ParseUint: parsing {text:?}: invalid syntax")))?,
        };
        let store = &self.server.store;
        let mut renderer = self.renderer(call);
        renderer.resource = Arc::clone(&call.resource);
        let namespace = call.path.namespace.clone().unwrap_or_default();
        let mut stream = WatchStream {
            watch: None,
            queue: VecDeque::new(),
            renderer,
            selector: query.selector.clone(),
            namespace: namespace.clone(),
            columns: Columns::Shown,
            bookmarks: query.bookmarks,
            next_bookmark: Instant::now() + BOOKMARK_PERIOD,
            deadline: Instant::now() + self.timeout(&query),
            http: self.clone(),
            cut: self.faults.watch_cuts(),
        };
        stream.next_bookmark = stream
            .next_bookmark
            .min(stream.deadline - LAST_BOOKMARK.min(self.timeout(&query)));

        let replay = match query.send_initial_events {
            Some(wanted) => wanted,
            None => version == 0,
        };
        let start = if replay {
            let snapshot = store.list(&call.resource.collection, &namespace);
            let mut out = BytesMut::new();
            for object in snapshot.objects.iter().filter(|object| query.selector.matches(object)) {
                stream.write("ADDED", object, &mut out);
            }
            stream.queue.push_back(out.freeze());
            if query.send_initial_events == Some(true) && query.bookmarks {
                stream
                    .queue
                    .push_back(stream.renderer.bookmark(snapshot.revision, Bookmark::InitialEventsEnd));
            }
            snapshot.revision
        } else if version == 0 {
            store.revision()
        } else {
            version
        };
        match store.watch(&call.resource.collection, start, Backlog::Drop) {
            Ok(watch) => stream.watch = Some(watch),
            Err(too_old) => {
                // kube-rs relists only on an event in the stream, never on a failed request (sandbox.md §1.10).
                let message = format!("too old resource version: {} ({})", too_old.requested, too_old.current);
                let line = json!({"type": "ERROR", "object": ApiError::expired(message).to_value()});
                stream.queue.push_back(format!("{line}\n").into());
            }
        }
        let body = Body::from_stream(stream::unfold(stream, |mut stream| async move {
            let chunk = stream.next().await?;
            Some((Ok::<_, std::convert::Infallible>(chunk), stream))
        }));
        Ok(Answer {
            code: 200,
            body: AnswerBody::Stream(body),
            warnings: Vec::new(),
            content_type: None,
        })
    }

    fn timeout(&self, query: &ListQuery) -> Duration {
        match query.timeout_seconds {
            Some(seconds) if seconds > 0 => Duration::from_secs(seconds),
            _ => Duration::from_secs(rand::rng().random_range(1800..3600)),
        }
    }
}

struct WatchStream {
    /// `None` once only the queue is left to send.
    watch: Option<Watch>,
    queue: VecDeque<Bytes>,
    renderer: Renderer,
    selector: Selector,
    namespace: String,
    columns: Columns,
    bookmarks: bool,
    next_bookmark: Instant,
    deadline: Instant,
    http: Http,
    cut: crate::bell::Listener,
}

impl WatchStream {
    /// The next chunk of lines; `None` ends the stream.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            while let Some(chunk) = self.queue.pop_front() {
                if !chunk.is_empty() {
                    return Some(chunk);
                }
            }
            let watch = self.watch.as_mut()?;
            let mut out = BytesMut::new();
            tokio::select! {
                biased;
                _ = self.cut.next() => return None,
                event = watch.next() => {
                    // A reader that fell behind is cut off and resumes from its last version.
                    let first = event?.ok()?;
                    let mut events = vec![first];
                    while events.len() < 256 && let Some(event) = watch.try_next() {
                        events.push(event);
                    }
                    for event in &events {
                        self.translate(event, &mut out);
                    }
                }
                () = tokio::time::sleep_until(self.deadline) => return None,
                () = tokio::time::sleep_until(self.next_bookmark), if self.bookmarks => {
                    self.schedule_bookmark();
                    return Some(self.bookmark());
                }
            }
            if !out.is_empty() {
                return Some(out.freeze());
            }
        }
    }

    fn schedule_bookmark(&mut self) {
        let last = self.deadline.checked_sub(LAST_BOOKMARK).unwrap_or(self.deadline);
        let now = Instant::now();
        let next = now + BOOKMARK_PERIOD;
        self.next_bookmark = if last > now {
            next.min(last)
        } else {
            self.deadline + BOOKMARK_PERIOD
        };
    }

    /// The store's revision, unless events up to it are still unread.
    fn bookmark(&self) -> Bytes {
        let read = self.watch.as_ref().map_or(0, Watch::revision);
        let revision = self
            .http
            .server
            .store
            .revision_read_by(&self.renderer.resource.collection, read);
        self.renderer.bookmark(revision, Bookmark::Progress)
    }

    /// Writes an event as this watch sees it: objects come and go as they start and stop matching.
    fn translate(&mut self, event: &Event, out: &mut BytesMut) {
        let object = &event.object;
        if !self.namespace.is_empty() && *object.namespace != *self.namespace {
            return;
        }
        let matched = event
            .previous
            .as_ref()
            .is_some_and(|previous| self.selector.matches(previous));
        let matches = event.change != Change::Deleted && self.selector.matches(object);
        match (matched, matches) {
            (false, false) => {}
            (false, true) => self.write("ADDED", object, out),
            (true, true) => self.write("MODIFIED", object, out),
            (true, false) if event.change == Change::Deleted => self.write("DELETED", object, out),
            (true, false) => {
                let previous = event.previous.as_ref().expect("what matched before was there before");
                self.write("DELETED", &previous.at_version(event.revision), out);
            }
        }
    }

    fn write(&mut self, kind: &str, object: &Object, out: &mut BytesMut) {
        self.renderer.watch_line(kind, object, self.columns, out);
        self.columns = Columns::Omitted;
    }
}

fn check_watch_options(query: &ListQuery) -> Result<(), ApiError> {
    let forbid = |field: &str, why: &str| Err(bad_option("ListOptions", FieldError::forbidden(field, why)));
    match (query.send_initial_events, query.version_match) {
        (Some(_), Some(VersionMatch::NotOlderThan)) | (None, None) => Ok(()),
        (Some(_), _) => forbid(
            "resourceVersionMatch",
            "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        ),
        (None, Some(_)) => forbid(
            "resourceVersionMatch",
            "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
        ),
    }
}
