//! Two replicas while things break: nothing is lost, nothing is doubled, one writes at a time.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;

use super::manifests::{Pool, deployment};
use crate::installation::{Installation, NAMESPACE, Replica};
use crate::runner::{Case, Environment, Runs, Suite};
use crate::world::World;

const LIMIT: Duration = Duration::from_secs(120);
const PODS: usize = 120;

pub(crate) fn suite() -> Suite {
    let case = |name: &'static str, trouble: Trouble| Case {
        name: name.into(),
        run: Box::new(move |environment| Box::pin(run(environment, trouble))),
        limit: Duration::from_secs(420),
    };
    Suite {
        name: "availability",
        runs: Runs::Always,
        cases: vec![
            case(
                "a_killed_leader_is_followed_up_in_the_middle_of_a_scale_up",
                Trouble::Kill,
            ),
            case(
                "a_leader_that_was_paused_past_its_lease_writes_nothing_more",
                Trouble::Pause,
            ),
            case("a_restarted_api_server_is_survived", Trouble::RestartApiServer),
            case("a_restarted_etcd_is_survived", Trouble::RestartEtcd),
        ],
    }
}

#[derive(Debug, Clone, Copy)]
enum Trouble {
    Kill,
    Pause,
    RestartApiServer,
    RestartEtcd,
}

async fn run(environment: &mut Environment, trouble: Trouble) -> Result<()> {
    let mut installation = Installation::install(environment).await?;
    let mut first = installation.start(&[]).await?;
    let client = environment.control_plane.admin().await?;
    let leases: Api<Lease> = Api::namespaced(client.clone(), NAMESPACE);
    wait_for_holder(&leases, None).await?;
    let mut second = installation.start(&[]).await?;
    let world = World::watch(client).await?;
    world.apply(&Pool::new("default").yaml()).await?;
    world.apply(&deployment("web", PODS, "500m", "512Mi", "")).await?;
    world
        .until("claims appear", LIMIT, |view| !view.claims.is_empty())
        .await?;

    let holder = holder(&leases).await?;
    match trouble {
        Trouble::Kill => first.process.kill().await,
        Trouble::Pause => {
            first.process.signal("STOP").await;
            wait_for_holder(&leases, holder.as_deref()).await?;
            first.process.signal("CONT").await;
        }
        Trouble::RestartApiServer => environment.control_plane.restart_apiserver().await?,
        Trouble::RestartEtcd => environment.control_plane.restart_etcd().await?,
    }
    world.until("all pods run", LIMIT, |view| view.all_run(PODS)).await?;
    if matches!(trouble, Trouble::Kill | Trouble::Pause) {
        wait_for_holder(&leases, holder.as_deref()).await?;
    }
    if matches!(trouble, Trouble::Pause) {
        world
            .until("the old leader ended itself", LIMIT, |_| !first.process.is_alive())
            .await
            .context("a process that lost its lease must end")?;
    }
    check_nothing_doubled(&world)?;

    world.scale("web", 0).await?;
    world
        .until("no node is left", LIMIT, |view| {
            view.nodes.is_empty() && view.claims.is_empty()
        })
        .await?;
    world.clear().await?;
    stop(&mut first).await;
    stop(&mut second).await;
    Ok(())
}

/// Every node has one claim, every claim one node, and together they are no more than the pods need.
fn check_nothing_doubled(world: &World) -> Result<()> {
    let view = world.view();
    ensure!(view.nodes.len() == view.claims.len(), "{}", view.summary());
    let idle = view.nodes.iter().filter(|node| {
        view.pods_on(node.metadata.name.as_deref().unwrap_or_default())
            .is_empty()
    });
    ensure!(idle.count() == 0, "nodes without pods were bought: {}", view.summary());
    Ok(())
}

async fn stop(replica: &mut Replica) {
    if replica.process.is_alive() {
        replica.process.stop().await;
    }
}

async fn holder(leases: &Api<Lease>) -> Result<Option<String>> {
    let lease = leases.get_opt("karpenter-leader-election").await?;
    Ok(lease
        .and_then(|lease| lease.spec?.holder_identity)
        .filter(|holder| !holder.is_empty()))
}

/// Waits until someone other than `before` leads.
async fn wait_for_holder(leases: &Api<Lease>, before: Option<&str>) -> Result<()> {
    let wait = async {
        loop {
            if let Ok(Some(now)) = holder(leases).await
                && Some(now.as_str()) != before
            {
                return;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), wait)
        .await
        .context("nobody took the lease within a minute")
}
