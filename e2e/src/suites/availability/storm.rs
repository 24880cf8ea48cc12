//! Leaders killed, paused and cut off at random moments while the cluster grows and shrinks.
//!
//! The moments follow from `KARPENTER_E2E_SEED` (1 if unset), so that a failure can be looked for again.

use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;

use super::{LIMIT, check_one_writer, holder, must_end, stop, wait_for_holder};
use crate::installation::{Installation, NAMESPACE, Replica};
use crate::runner::{Case, Environment};
use crate::suites::manifests::{Pool, deployment};
use crate::world::World;

const ROUNDS: u64 = 6;

const POLICY: &str =
    "{consolidationPolicy: WhenEmptyOrUnderutilized, consolidateAfter: 2s, budgets: [{nodes: \"100%\"}]}";

pub(super) fn case() -> Case {
    Case {
        name: "leaders_that_fail_at_random_moments_lose_and_double_nothing".into(),
        run: Box::new(|environment| Box::pin(run(environment))),
        limit: Duration::from_secs(3_000),
    }
}

#[derive(Debug, Clone, Copy)]
enum Trouble {
    Kill,
    Pause,
    Cut,
}

async fn run(environment: &mut Environment) -> Result<()> {
    let seed = match std::env::var("KARPENTER_E2E_SEED") {
        Ok(text) => text.parse().context("KARPENTER_E2E_SEED is not a number")?,
        Err(_) => 1,
    };
    let mut random = Random(seed);
    let installation = Installation::install(environment).await?;
    let client = environment.control_plane.admin().await?;
    let leases: Api<Lease> = Api::namespaced(client.clone(), NAMESPACE);
    let world = World::watch(client).await?;
    let mut replicas = vec![
        installation.start(environment, &[]).await?,
        installation.start(environment, &[]).await?,
    ];
    let mut credentials: Vec<String> = replicas.iter().map(|replica| replica.credential.clone()).collect();
    world.apply_pool(&Pool::new("default").disruption(POLICY)).await?;
    world.apply(&deployment("web", 0, "500m", "512Mi", "")).await?;

    for round in 1..=ROUNDS {
        let grows = round % 2 == 1;
        let pods = if grows {
            80 + random.below(60)
        } else {
            5 + random.below(20)
        };
        let moment = Duration::from_millis(random.below(if grows { 4_000 } else { 9_000 }));
        let trouble = [Trouble::Kill, Trouble::Cut, Trouble::Pause][usize::try_from(random.below(3))?];
        println!("       round {round}: to {pods} pods; {trouble:?} after {moment:?}");
        let pods = usize::try_from(pods)?;
        wait_for_holder(&leases, |holder| replicas.iter().any(|replica| replica.leads(holder))).await?;
        world.scale("web", i32::try_from(pods)?).await?;
        tokio::time::sleep(moment).await;

        let leader = holder(&leases).await?.context("somebody leads")?;
        let index = replicas
            .iter()
            .position(|replica| replica.leads(&leader))
            .context("a replica of ours leads")?;
        let mut victim = replicas.remove(index);
        strike(&mut victim, trouble, &leases, &replicas).await?;
        let successor = installation.start(environment, &[]).await?;
        credentials.push(successor.credential.clone());
        replicas.push(successor);

        world
            .until("all pods run and nothing is on its way", LIMIT, |view| {
                view.all_run(pods) && view.is_settled() && view.idle().is_empty()
            })
            .await
            .with_context(|| format!("round {round} of seed {seed}"))?;
    }

    world.scale("web", 0).await?;
    world
        .until("no node is left", LIMIT, |view| {
            view.nodes.is_empty() && view.claims.is_empty()
        })
        .await?;
    world.clear().await?;
    for mut replica in replicas {
        stop(&mut replica).await;
    }
    let credentials: Vec<&str> = credentials.iter().map(String::as_str).collect();
    check_one_writer(environment, &credentials).with_context(|| format!("seed {seed}"))
}

/// Takes the leader out and returns when another leads and the old one has ended.
async fn strike(victim: &mut Replica, trouble: Trouble, leases: &Api<Lease>, others: &[Replica]) -> Result<()> {
    let followed = || wait_for_holder(leases, |holder| others.iter().any(|replica| replica.leads(holder)));
    match trouble {
        Trouble::Kill => {
            victim.process.kill().await;
            followed().await
        }
        Trouble::Pause => {
            victim.process.signal("STOP").await;
            followed().await?;
            victim.process.signal("CONT").await;
            must_end(victim).await
        }
        Trouble::Cut => {
            victim.proxy.cut();
            followed().await?;
            must_end(victim).await?;
            victim.proxy.mend();
            Ok(())
        }
    }
}

/// Numbers that look random and follow from a seed (splitmix64).
struct Random(u64);

// === impl Random ===

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (value ^ (value >> 31)) % bound
    }
}
