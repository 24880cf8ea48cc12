//! Two replicas while things break: nothing is lost, nothing is doubled, one writes at a time.

mod storm;

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;

use super::manifests::{Pool, deployment};
use crate::audit;
use crate::installation::{Installation, NAMESPACE, Replica};
use crate::runner::{Case, Environment, Runs, Suite};
use crate::world::World;

const LIMIT: Duration = Duration::from_secs(300);

/// How long a lease of 15 s may be without its new holder, or with one that has lost it, on a machine that is busy.
const TAKEOVER: Duration = Duration::from_secs(120);
const PODS: usize = 120;

pub(crate) fn suite() -> Suite {
    let case = |name: &'static str, trouble: Trouble| Case {
        name: name.into(),
        run: Box::new(move |environment| Box::pin(run(environment, trouble))),
        limit: Duration::from_secs(1_500),
    };
    Suite {
        name: "availability",
        runs: Runs::BesideOthers,
        cases: vec![
            case(
                "a_killed_leader_is_followed_up_in_the_middle_of_a_scale_up",
                Trouble::Kill,
            ),
            case(
                "a_leader_that_was_paused_past_its_lease_writes_nothing_more",
                Trouble::Pause,
            ),
            case(
                "a_leader_that_was_cut_off_from_the_api_server_writes_nothing_more",
                Trouble::Cut,
            ),
            case("a_restarted_api_server_is_survived", Trouble::RestartApiServer),
            case("a_restarted_etcd_is_survived", Trouble::RestartEtcd),
            storm::case(),
        ],
    }
}

#[derive(Debug, Clone, Copy)]
enum Trouble {
    Kill,
    Pause,
    Cut,
    RestartApiServer,
    RestartEtcd,
}

async fn run(environment: &mut Environment, trouble: Trouble) -> Result<()> {
    let installation = Installation::install(environment).await?;
    let client = environment.control_plane.admin().await?;
    let leases: Api<Lease> = Api::namespaced(client.clone(), NAMESPACE);
    let mut first = installation.start(environment, &[]).await?;
    wait_for_holder(&leases, |holder| first.leads(holder)).await?;
    let mut second = installation.start(environment, &[]).await?;
    let world = World::watch(client).await?;
    world.apply_pool(&Pool::new("default")).await?;
    world.apply(&deployment("web", PODS, "500m", "512Mi", "")).await?;
    world
        .until("claims appear", LIMIT, |view| !view.claims.is_empty())
        .await?;

    match trouble {
        Trouble::Kill => {
            first.process.kill().await;
            wait_for_holder(&leases, |holder| second.leads(holder)).await?;
        }
        Trouble::Pause => {
            first.process.signal("STOP").await;
            wait_for_holder(&leases, |holder| second.leads(holder)).await?;
            first.process.signal("CONT").await;
            must_end(&first).await?;
        }
        Trouble::Cut => {
            first.proxy.cut();
            wait_for_holder(&leases, |holder| second.leads(holder)).await?;
            must_end(&first).await?;
            first.proxy.mend();
        }
        Trouble::RestartApiServer => environment.control_plane.restart_apiserver().await?,
        Trouble::RestartEtcd => environment.control_plane.restart_etcd().await?,
    }
    world.until("all pods run", LIMIT, |view| view.all_run(PODS)).await?;
    let view = world.now().await?;
    ensure!(
        view.nodes.len() == view.claims.len(),
        "every node has one claim, and every claim one node: {}",
        view.summary()
    );
    ensure!(
        view.idle().is_empty(),
        "nodes without pods were bought: {:?}",
        view.idle()
    );

    world.scale("web", 0).await?;
    world
        .until("no node is left", LIMIT, |view| {
            view.nodes.is_empty() && view.claims.is_empty()
        })
        .await?;
    world.clear().await?;
    stop(&mut first).await;
    stop(&mut second).await;
    check_one_writer(environment, &[&first.credential, &second.credential])
}

/// Who writes, writes alone: once a replica's successor has written, the replica never writes again.
fn check_one_writer(environment: &Environment, credentials: &[&str]) -> Result<()> {
    let mut writes: Vec<audit::Record> = audit::read(&environment.control_plane.audit_log())?
        .into_iter()
        .filter(|record| {
            record.is_write()
                && record
                    .credential()
                    .is_some_and(|credential| credentials.contains(&credential))
        })
        .collect();
    ensure!(!writes.is_empty(), "the audit log names no write of the replicas");
    writes.sort_by_key(|record| record.request_received_timestamp);
    let mut past: Vec<&str> = Vec::new();
    for record in &writes {
        let writer = record.credential().unwrap_or_default();
        if past.last() == Some(&writer) {
            continue;
        }
        if past.contains(&writer) {
            bail!("a former leader wrote again: {}", record.describe());
        }
        past.push(writer);
    }
    Ok(())
}

async fn stop(replica: &mut Replica) {
    if replica.process.is_alive() {
        replica.process.stop().await;
    }
}

/// Waits until a process that lost its lease ends itself.
async fn must_end(replica: &Replica) -> Result<()> {
    let ended = async {
        while replica.process.is_alive() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(TAKEOVER, ended)
        .await
        .with_context(|| format!("{} lost its lease and did not end", replica.name))
}

async fn holder(leases: &Api<Lease>) -> Result<Option<String>> {
    let lease = leases.get_opt("karpenter-leader-election").await?;
    Ok(lease
        .and_then(|lease| lease.spec?.holder_identity)
        .filter(|holder| !holder.is_empty()))
}

/// Waits until the one that `expected` means leads.
async fn wait_for_holder(leases: &Api<Lease>, expected: impl Fn(&str) -> bool) -> Result<()> {
    let wait = async {
        loop {
            if let Ok(Some(now)) = holder(leases).await
                && expected(&now)
            {
                return;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    tokio::time::timeout(TAKEOVER, wait)
        .await
        .with_context(|| format!("nobody took the lease within {TAKEOVER:?}"))
}

// === impl Replica ===

impl Replica {
    /// Whether the Lease's holder is this replica.
    fn leads(&self, holder: &str) -> bool {
        holder.split_once('_').is_some_and(|(host, _)| host == self.name)
    }
}
