//! The OVHcloud API without the cloud: on a real socket, with signatures, states, delays, limits and faults.
//!
//! For tests and the demo. The provider talks to it as to the real one and cannot tell. Time is that of a [`Clock`]; what
//! happens is a function of the requests and the time they come at.

pub mod answers;
pub mod faults;
pub mod joining;
mod manifests;
mod mks;
mod pools;
mod shown;
pub mod state;
mod world;

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use axum::{Router, body::Bytes, extract::State as AxumState};
use http::{HeaderMap, Method, Uri};
use karpenter_cloud::{clock::Clock, credentials::Credentials};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

pub use faults::{Cut, Effect, HttpFault, Loses};
pub use joining::join_nodes;
pub use manifests::manifests;
use state::Wire;
pub use state::{PoolState, Recorded, SimNode, SimState};
pub use world::{Delays, InstanceTypeLabel, ReservedMemory, World};

/// A simulated OVHcloud. It ends when it is dropped. Cheap to clone; clones are the same cloud.
#[derive(Clone, Debug)]
pub struct SimulatedOvh {
    shared: Arc<Shared>,
    address: SocketAddr,
    _server: Arc<AbortOnDropHandle<()>>,
}

pub(crate) struct Shared {
    pub(crate) clock: Clock,
    pub(crate) state: Mutex<SimState>,
    listener: Mutex<Option<Listener>>,
    /// Told of everything that may have changed what happens next.
    touched: Notify,
}

/// Told of machines that joined the cluster or left it.
type Listener = Arc<dyn Fn(Happening) + Send + Sync>;

/// What happened to a machine.
#[derive(Clone, Debug)]
pub enum Happening {
    /// It booted; its Node would join now.
    Booted(Box<SimNode>, Box<PoolState>),
    Gone(Box<SimNode>),
}

/// The public test keys of OVHcloud's own clients, long revoked.
pub const APPLICATION_KEY: &str = "TDPKJdwZwAQPwKX2";
pub const APPLICATION_SECRET: &str = "9ufkBmLaTQ9nz5yMUlg79taH0GNnzDjk";
pub const CONSUMER_KEY: &str = "5mBuy6SUQcRw2ZUxg0cG68BoDKpED4KY";
pub const CLIENT_ID: &str = "EU.0123456789abcdef";
pub const CLIENT_SECRET: &str = "3f5a7c9e1b2d4f6a8c0e";
pub const SERVICE_NAME: &str = "0123456789abcdef0123456789abcdef";
pub const KUBE_ID: &str = "7b2f6c1e-5d0a-4b3f-9c8d-2e1a0f9b8c7d";

impl SimulatedOvh {
    /// Starts a cloud with one cluster.
    ///
    /// # Errors
    /// When no socket can be had.
    pub async fn start(clock: Clock, world: World) -> std::io::Result<Self> {
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let now = clock.now();
        let shared = Arc::new(Shared {
            clock,
            state: Mutex::new(SimState::new(world, now)),
            listener: Mutex::new(None),
            touched: Notify::new(),
        });
        let app = Router::new().fallback(handle).with_state(shared.clone());
        let server = tokio::spawn(async move {
            // The socket is ours until the task is aborted.
            let _ = axum::serve(listener, app).await;
        });
        Ok(Self {
            shared,
            address,
            _server: Arc::new(AbortOnDropHandle::new(server)),
        })
    }

    /// What `OVH_ENDPOINT` has to be.
    pub fn endpoint(&self) -> String {
        format!("http://{}/1.0", self.address)
    }

    /// What `OVH_OAUTH2_TOKEN_URL` has to be.
    pub fn token_url(&self) -> String {
        format!("http://{}/auth/oauth2/token", self.address)
    }

    /// Keys that it accepts.
    pub fn keys() -> Credentials {
        let values = [
            ("applicationKey", APPLICATION_KEY),
            ("applicationSecret", APPLICATION_SECRET),
            ("consumerKey", CONSUMER_KEY),
        ];
        Credentials::new(values.map(|(key, value)| (key.to_owned(), value.to_owned())))
    }

    /// Looks at the cloud, or changes it, behind everybody's back.
    pub fn with<T>(&self, act: impl FnOnce(&mut SimState) -> T) -> T {
        let now = self.shared.clock.now();
        let (answer, happenings) = {
            let mut state = self.shared.state.lock();
            let mut happenings = state.advance(now);
            let answer = act(&mut state);
            happenings.extend(state.advance(now));
            (answer, happenings)
        };
        self.shared.touched.notify_one();
        self.shared.tell(happenings);
        answer
    }

    /// The time that it lives in.
    pub fn clock(&self) -> &Clock {
        &self.shared.clock
    }

    /// Tells `listener` of machines that boot and end.
    pub fn on_change(&self, listener: impl Fn(Happening) + Send + Sync + 'static) {
        *self.shared.listener.lock() = Some(Arc::new(listener));
    }

    /// Lets things happen when they are due, while nobody asks, until `stop`.
    pub async fn run(&self, stop: CancellationToken) {
        let work = async {
            loop {
                let (happenings, due) = {
                    let mut state = self.shared.state.lock();
                    (state.advance(self.shared.clock.now()), state.next_due())
                };
                self.shared.tell(happenings);
                let passed = async {
                    match due {
                        Some(at) => self.shared.clock.sleep_until(at).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    () = passed => {}
                    () = self.shared.touched.notified() => {}
                }
            }
        };
        stop.run_until_cancelled(work).await;
    }
}

impl Shared {
    fn tell(&self, happenings: Vec<Happening>) {
        if happenings.is_empty() {
            return;
        }
        let Some(listener) = self.listener.lock().clone() else {
            return;
        };
        for happening in happenings {
            listener(happening);
        }
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

async fn handle(
    AxumState(shared): AxumState<Arc<Shared>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> axum::response::Response {
    let request = answers::Request {
        method,
        uri,
        headers,
        body,
    };
    let now = shared.clock.now();
    let (reply, happenings) = {
        let mut state = shared.state.lock();
        let mut happenings = state.advance(now);
        let wire = state.reach();
        let reply = (wire != Wire::Lost(Loses::TheRequest)).then(|| answers::answer(&mut state, &request, now));
        happenings.extend(state.advance(now));
        (reply.filter(|_| wire == Wire::Whole), happenings)
    };
    shared.touched.notify_one();
    shared.tell(happenings);
    match reply {
        Some(reply) => reply.into_response(),
        // Whoever asked waits until it gives up.
        None => std::future::pending().await,
    }
}
