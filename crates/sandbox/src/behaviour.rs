//! What a Kubernetes API server does, as tests that run on the sandbox and, unchanged, on a real one.
//!
//! Each test is given a [`Cluster`]: a client, a namespace of its own and names that nobody else uses. It talks to the API
//! only, waits for conditions instead of sleeping, and names the section of `sandbox.md` that it proves. A test fails by
//! panicking, as tests do.

mod budgets;
mod client;
mod cluster;
mod controllers;
mod custom;
mod deletion;
mod lists;
mod nodes;
mod objects;
mod patches;
mod protocol;
mod silence;
mod watches;
mod workloads;

use std::future::Future;
use std::pin::Pin;

use kube::Client;

pub use cluster::{Answer, Cluster, Lines};

/// Where the suite runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    Sandbox,
    /// A kube-apiserver with kube-controller-manager.
    Real,
}

/// The ways into the cluster.
///
/// Neither client may retry by itself (kube's default for clients made from a configuration): the suite checks refusals.
#[derive(Clone)]
pub struct Access {
    /// May do everything.
    pub client: Client,
    /// Brings no credentials but those that a test puts into its request.
    pub stranger: Client,
}

impl std::fmt::Debug for Access {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Access").finish_non_exhaustive()
    }
}

/// One behaviour.
#[derive(Clone, Copy, Debug)]
pub struct Behaviour {
    /// A sentence with underscores.
    pub name: &'static str,
    /// The section of `sandbox.md` that says so.
    pub section: &'static str,
    run: fn(Cluster) -> Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// A list of behaviours from functions of one module.
macro_rules! behaviours {
    ($($section:literal => $name:ident),* $(,)?) => {
        pub(super) const ALL: &[$crate::behaviour::Behaviour] = &[
            $($crate::behaviour::Behaviour::new(stringify!($name), $section, |cluster| Box::pin($name(cluster)))),*
        ];
    };
}
use behaviours;

impl Behaviour {
    const fn new(
        name: &'static str,
        section: &'static str,
        run: fn(Cluster) -> Pin<Box<dyn Future<Output = ()> + Send>>,
    ) -> Self {
        Self { name, section, run }
    }

    /// Runs it in a namespace of its own, which is deleted afterwards.
    ///
    /// # Errors
    /// The text of the panic by which it failed.
    pub async fn check(&self, access: Access, target: Target) -> Result<(), String> {
        let cluster = Cluster::prepare(access, target, self.name).await;
        let keep = cluster.clone();
        let outcome = tokio::spawn((self.run)(cluster)).await;
        keep.clean_up().await;
        outcome.map_err(|error| match error.try_into_panic() {
            Ok(panic) => panic_text(&*panic),
            Err(error) => error.to_string(),
        })
    }
}

/// Every behaviour of the suite that shows within seconds.
pub fn all() -> Vec<Behaviour> {
    [
        protocol::ALL,
        objects::ALL,
        patches::ALL,
        deletion::ALL,
        lists::ALL,
        watches::ALL,
        custom::ALL,
        controllers::ALL,
        nodes::ALL,
        workloads::ALL,
        budgets::ALL,
        client::ALL,
    ]
    .concat()
}

/// The behaviours that take a real cluster a minute or more; they may run beside each other.
pub fn slow() -> Vec<Behaviour> {
    silence::ALL.to_vec()
}

/// Runs the behaviours whose name contains `filter`; the names of those that failed, with their panics.
pub async fn run(access: Access, target: Target, filter: &str) -> Vec<String> {
    let mut failures = Vec::new();
    for behaviour in all().into_iter().filter(|behaviour| behaviour.name.contains(filter)) {
        if let Err(reason) = behaviour.check(access.clone(), target).await {
            failures.push(format!("{} (§{}): {reason}", behaviour.name, behaviour.section));
        }
    }
    failures
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    if let Some(text) = panic.downcast_ref::<String>() {
        return text.clone();
    }
    panic
        .downcast_ref::<&str>()
        .map_or_else(|| "it panicked".to_owned(), ToString::to_string)
}
