//! What users do, on KWOK nodes: pods arrive and nodes come, pods go and nodes go, and everything in between.

mod capacity;
mod disruption;
mod volumes;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::future::LocalBoxFuture;
use karpenter_api::NodeClaim;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use kube::{Resource, ResourceExt};
use serde_json::json;

use super::manifests::{Pool, deployment};
use crate::installation::{Installation, Replica};
use crate::runner::{Case, Environment, Runs, Suite};
use crate::world::{self, World};

/// How long anything may take that takes seconds on an idle machine, and what takes several steps.
const SOON: Duration = Duration::from_secs(180);
const LATER: Duration = Duration::from_secs(300);

/// How long a whole scenario may take.
pub(super) const LIMIT: Duration = Duration::from_secs(1_500);

/// How long what Karpenter looks at every two or three minutes may take.
const NEXT_LOOK: Duration = Duration::from_secs(480);

pub(crate) fn suite() -> Suite {
    let on_any_machines = growing().into_iter().chain(deleting()).chain(disrupting());
    let mut cases: Vec<Case> = on_any_machines
        .map(|scenario| case_with(scenario.name, scenario.settings, scenario.plays))
        .collect();
    cases.extend([
        case(
            "manifests_written_for_upstreams_kwok_provider_work_unchanged",
            |world| Box::pin(capacity::manifests_for_upstream(world)),
        ),
        // Last: it looks at all that the cases above made the controller ask for.
        Case {
            name: "the_controller_uses_all_its_rights_and_asks_for_no_others".into(),
            run: Box::new(|environment| Box::pin(async { super::rbac::check(environment, "kwok") })),
            limit: LIMIT,
        },
    ]);
    Suite {
        name: "scenarios",
        runs: Runs::BesideOthers,
        cases,
    }
}

/// How nodes come, whoever makes the machines.
pub(super) fn growing() -> Vec<Scenario> {
    vec![
        scenario("pods_come_and_nodes_come_pods_go_and_nodes_go", |world| {
            Box::pin(scale_up_and_down(world))
        }),
        scenario("zone_spread_opens_nodes_in_every_zone", |world| {
            Box::pin(zone_spread(world))
        }),
        scenario("a_pool_never_grows_past_its_limits", |world| Box::pin(limits(world))),
        scenario("the_heavier_pool_is_used_first", |world| Box::pin(weights(world))),
        scenario("new_nodes_have_room_for_daemon_pods", |world| Box::pin(daemons(world))),
        scenario("pods_with_all_kinds_of_wishes_run_where_they_wish", |world| {
            Box::pin(capacity::mixes(world))
        }),
        Scenario {
            name: "a_static_pool_keeps_as_many_nodes_as_it_is_scaled_to",
            settings: &[("FEATURE_GATES", "StaticCapacity=true")],
            plays: |world| Box::pin(capacity::static_pool(world)),
        },
        scenario("a_bound_volume_opens_a_node_in_its_zone", |world| {
            Box::pin(volumes::bound(world))
        }),
        scenario(
            "a_volume_that_waits_for_its_pod_opens_a_node_where_it_may_be",
            |world| Box::pin(volumes::waiting(world)),
        ),
    ]
}

/// How nodes go that have to, and what holds them up.
pub(super) fn deleting() -> Vec<Scenario> {
    vec![
        scenario("a_deleted_claim_drains_its_node_and_pods_run_elsewhere", |world| {
            Box::pin(manual_delete(world))
        }),
        scenario("a_pod_disruption_budget_holds_up_a_drain", |world| {
            Box::pin(blocked_drain(world))
        }),
        scenario("a_grace_period_ends_a_blocked_drain", |world| {
            Box::pin(bounded_drain(world))
        }),
        scenario("an_expired_claim_is_replaced", |world| Box::pin(expiry(world))),
    ]
}

/// How nodes go by choice, and what keeps them.
pub(super) fn disrupting() -> Vec<Scenario> {
    vec![
        scenario("a_drifted_claim_is_replaced", |world| {
            Box::pin(disruption::drift(world))
        }),
        scenario("budgets_hold_back_disruption", |world| {
            Box::pin(disruption::budgets(world))
        }),
        scenario("a_pod_that_must_not_be_disrupted_keeps_its_node", |world| {
            Box::pin(disruption::do_not_disrupt(world))
        }),
        scenario("an_underused_cluster_shrinks", |world| {
            Box::pin(disruption::consolidation(world))
        }),
    ]
}

fn scenario(name: &'static str, plays: Plays) -> Scenario {
    Scenario {
        name,
        settings: &[],
        plays,
    }
}

/// Scenarios that wait for minutes until Karpenter looks by itself: on a control plane of their own, beside the others.
pub(crate) fn periods() -> Suite {
    Suite {
        name: "periods",
        runs: Runs::BesideOthers,
        cases: vec![
            case("a_node_without_a_claim_behind_it_is_removed", |world| {
                Box::pin(garbage_collection(world, &|_| ()))
            }),
            case_with(
                "a_sick_node_is_replaced",
                &[("FEATURE_GATES", "NodeRepair=true")],
                |world| Box::pin(disruption::repair(world)),
            ),
        ],
    }
}

/// Something that users do, and what must come of it.
pub(super) struct Scenario {
    pub(super) name: &'static str,
    pub(super) settings: Settings,
    pub(super) plays: Plays,
}

pub(super) type Plays = for<'a> fn(&'a World) -> LocalBoxFuture<'a, Result<()>>;

/// Settings of the controller, as environment variables.
type Settings = &'static [(&'static str, &'static str)];

/// A case that finds an empty cluster with one replica of the controller running, and leaves it empty again.
fn case(name: &'static str, plays: Plays) -> Case {
    case_with(name, &[], plays)
}

fn case_with(name: &'static str, settings: Settings, plays: Plays) -> Case {
    Case {
        name: name.into(),
        run: Box::new(move |environment| Box::pin(with_controller(environment, settings, plays))),
        limit: LIMIT,
    }
}

async fn with_controller(environment: &mut Environment, settings: Settings, plays: Plays) -> Result<()> {
    let installation = Installation::install(environment).await?;
    let mut replica: Replica = installation.start(environment, settings).await?;
    let world = World::watch(environment.control_plane.admin().await?)
        .await?
        .with_metrics(replica.metrics);
    let outcome = plays(&world).await;
    // Even after a failure: the next case wants an empty cluster, and the controller is needed to empty this one.
    let cleared = world.clear().await.context("clearing up");
    replica.process.stop().await;
    outcome.and(cleared)
}

async fn scale_up_and_down(world: &World) -> Result<()> {
    world.apply_pool(&Pool::new("default")).await?;
    world.apply(&deployment("web", 50, "500m", "512Mi", "")).await?;
    world
        .until("50 pods run, and every claim is Ready", SOON, |view| {
            view.all_run(50) && view.all_initialized()
        })
        .await?;
    let view = world.now().await?;
    ensure!(
        view.nodes.len() == view.claims.len(),
        "every node has its claim: {}",
        view.summary()
    );
    world.scale("web", 0).await?;
    world
        .until("no node is left", SOON, |view| {
            view.nodes.is_empty() && view.claims.is_empty()
        })
        .await
}

async fn zone_spread(world: &World) -> Result<()> {
    world.apply_pool(&Pool::new("default")).await?;
    // Without the least number of domains the scheduler may fill the zones whose nodes come first.
    let zones = world.source.zones.len();
    let spread = format!(
        "
      topologySpreadConstraints:
      - {{maxSkew: 1, minDomains: {zones}, topologyKey: topology.kubernetes.io/zone, whenUnsatisfiable: DoNotSchedule, labelSelector: {{matchLabels: {{app: web}}}}}}"
    );
    let pods = 2 * zones;
    world.apply(&deployment("web", pods, "1", "1Gi", &spread)).await?;
    world
        .until("two pods a zone run", SOON, |view| view.all_run(pods))
        .await?;
    let view = world.now().await?;
    let mut found: BTreeMap<String, usize> = BTreeMap::new();
    for node in &view.nodes {
        let zone = node
            .labels()
            .get("topology.kubernetes.io/zone")
            .context("a node without a zone")?;
        *found.entry(zone.clone()).or_default() += view.pods_on(&node.name_any()).len();
    }
    ensure!(
        found.len() == zones && found.values().all(|pods| *pods == 2),
        "uneven: {found:?}"
    );
    Ok(())
}

async fn limits(world: &World) -> Result<()> {
    world.apply_pool(&Pool::new("small").limits("cpu: 8")).await?;
    world.apply(&deployment("web", 20, "1", "1Gi", "")).await?;
    world.until("some pods run", SOON, |view| view.running() > 0).await?;
    world
        .throughout("at most 8 cpus", Duration::from_secs(15), |view| view.cpus() <= 8)
        .await?;
    ensure!(world.view().running() < 20, "20 pods of one cpu cannot run on 8");
    Ok(())
}

async fn weights(world: &World) -> Result<()> {
    world.apply_pool(&Pool::new("light").weight(1)).await?;
    world.apply_pool(&Pool::new("heavy").weight(90)).await?;
    world.apply(&deployment("web", 10, "1", "1Gi", "")).await?;
    world.until("10 pods run", SOON, |view| view.all_run(10)).await?;
    let view = world.now().await?;
    ensure!(
        view.nodes_of("light").is_empty() && !view.nodes_of("heavy").is_empty(),
        "{}",
        view.summary()
    );
    Ok(())
}

async fn daemons(world: &World) -> Result<()> {
    world
        .apply(
            "
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent, namespace: default}
spec:
  selector: {matchLabels: {app: agent}}
  template:
    metadata: {labels: {app: agent}}
    spec:
      containers: [{name: agent, image: agent, resources: {requests: {cpu: 400m, memory: 256Mi}}}]
",
        )
        .await?;
    world.apply_pool(&Pool::new("default")).await?;
    // Machines of two CPUs would do without the daemon. Each to their own node: a daemon's pod comes a moment after its node, and the
    // scheduler would fill its room with others.
    world
        .apply(&deployment("web", 3, "1700m", "1Gi", disruption::APART))
        .await?;
    world
        .until("3 pods, each on a node with a daemon pod, run", SOON, |view| {
            view.nodes.len() == 3 && view.all_run(6)
        })
        .await
}

async fn manual_delete(world: &World) -> Result<()> {
    world.apply_pool(&Pool::new("default")).await?;
    world.apply(&deployment("web", 6, "1", "1Gi", "")).await?;
    world.until("6 pods run", SOON, |view| view.all_run(6)).await?;
    let first = world.now().await?.claims.first().context("no claim")?.name_any();
    let claims: Api<NodeClaim> = Api::all(world.client.clone());
    claims.delete(&first, &DeleteParams::default()).await?;
    world
        .until("the claim is gone and all pods run elsewhere", SOON, |view| {
            view.all_run(6)
                && view.claims.iter().all(|claim| claim.name_any() != first)
                && view.nodes.len() == view.claims.len()
        })
        .await
}

/// A pool, two pods under a budget that allows no eviction, and one of their nodes' claims deleted.
async fn start_blocked_drain(world: &World, pool: Pool) -> Result<String> {
    world.apply_pool(&pool).await?;
    world
        .apply(
            "
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web, namespace: default}
spec: {maxUnavailable: 0, selector: {matchLabels: {app: web}}}
",
        )
        .await?;
    world.apply(&deployment("web", 2, "1", "1Gi", "")).await?;
    world
        .until("2 pods run", SOON, |view| view.all_run(2) && !view.claims.is_empty())
        .await?;
    let victim = world.view().claims.first().context("no claim")?.name_any();
    let claims: Api<NodeClaim> = Api::all(world.client.clone());
    claims.delete(&victim, &DeleteParams::default()).await?;
    Ok(victim)
}

async fn blocked_drain(world: &World) -> Result<()> {
    let victim = start_blocked_drain(world, Pool::new("default")).await?;
    world
        .throughout(
            "the node stays while its pods may not be evicted",
            Duration::from_secs(10),
            |view| view.claims.iter().any(|claim| claim.name_any() == victim),
        )
        .await?;
    let budgets: Api<k8s_openapi::api::policy::v1::PodDisruptionBudget> = Api::default_namespaced(world.client.clone());
    let allow = json!({ "spec": { "maxUnavailable": 1 } });
    budgets
        .patch("web", &PatchParams::default(), &Patch::Merge(&allow))
        .await?;
    world
        .until("the drain ends once the budget allows it", SOON, |view| {
            view.all_run(2) && view.claims.iter().all(|claim| claim.name_any() != victim)
        })
        .await
}

async fn bounded_drain(world: &World) -> Result<()> {
    let victim = start_blocked_drain(world, Pool::new("default").termination_grace_period("15s")).await?;
    world
        .throughout(
            "the budget is honoured for as long as there is time",
            Duration::from_secs(8),
            |view| view.claims.iter().any(|claim| claim.name_any() == victim),
        )
        .await?;
    world
        .until("the grace period ends the drain", SOON, |view| {
            view.all_run(2) && view.claims.iter().all(|claim| claim.name_any() != victim)
        })
        .await
}

/// A machine vanishes behind our back. `vanish` takes away what there is beside its Node object, by `providerID`.
pub(super) async fn garbage_collection(world: &World, vanish: &dyn Fn(&str)) -> Result<()> {
    world.apply_pool(&Pool::new("default")).await?;
    world.apply(&deployment("web", 3, "1", "1Gi", "")).await?;
    // A claim that has not seen its node register waits for it until registration times out.
    world
        .until("3 pods run, and every claim is Ready", SOON, |view| {
            view.all_run(3) && view.all_initialized()
        })
        .await?;
    let node = world.now().await?.nodes.first().context("no node")?.clone();
    let provider_id = node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref());
    vanish(provider_id.context("a node without providerID")?);
    // Its Node goes too, as a cloud controller would have it: without waiting for our finalizer.
    let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(world.client.clone());
    let bare = json!({ "metadata": { "finalizers": null } });
    let (name, how) = (node.name_any(), PatchParams::default());
    // Some simulated clouds have a controller that is faster.
    world::unless_gone(nodes.patch(&name, &how, &Patch::Merge(&bare)).await)?;
    world::unless_gone(nodes.delete(&name, &DeleteParams::default()).await)?;
    let lost = node.meta().uid.clone();
    world
        .until(
            "the claim without a machine is gone, and all pods run",
            NEXT_LOOK,
            |view| {
                view.all_run(3)
                    && view.nodes.len() == view.claims.len()
                    && view.nodes.iter().all(|node| node.meta().uid != lost)
            },
        )
        .await
}

async fn expiry(world: &World) -> Result<()> {
    // Long enough for pods to run before their node expires, on a busy machine too.
    world.apply_pool(&Pool::new("default").expire_after("45s")).await?;
    world.apply(&deployment("web", 2, "1", "1Gi", "")).await?;
    world.until("2 pods run", SOON, |view| view.all_run(2)).await?;
    let first: Vec<String> = world.now().await?.claims.iter().map(|claim| claim.name_any()).collect();
    // The replacements must not expire too while we look.
    world.apply_pool(&Pool::new("default").expire_after("1h")).await?;
    world
        .until(
            "the expired claims are gone and two pods, no more, run on new nodes",
            SOON,
            |view| {
                view.all_run(2)
                    && view.pods.len() == 2
                    && view.claims.iter().all(|claim| !first.contains(&claim.name_any()))
            },
        )
        .await
}
