//! Each simulated cloud on the real control plane: its API on a socket, its machines real Node objects, our controller as a
//! process with the roles of that provider's manifests.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::future::LocalBoxFuture;
use karpenter_bizflycloud::sim::{self as bizfly, SimOptions, SimulatedBizfly};
use karpenter_cloud::clock::Clock;
use karpenter_cloudstack::sim::kubelets::Kubelets;
use karpenter_cloudstack::sim::{MANIFESTS, Machine, MachineState, Seed, Simulator, seed};
use karpenter_ovhcloud::sim::{self as ovh, Delays, SimulatedOvh};
use kube::Client;
use secrecy::ExposeSecret;
use tokio_util::sync::CancellationToken;

use super::manifests::deployment;
use super::rbac;
use crate::installation::{Installation, NAMESPACE};
use crate::runner::{Case, Environment, Runs, Suite};
use crate::world::World;

/// How long a step may take: a simulated machine boots in half a minute.
const PATIENCE: Duration = Duration::from_secs(300);

/// A cloud that runs in this process for as long as it is kept.
struct Cloud {
    /// How the controller finds it, as the chart's environment variables.
    settings: Vec<(&'static str, String)>,
    /// A NodeClass and the NodePool `default`, with what they need.
    manifests: String,
    /// Machines that exist, whatever their state, and what else costs money.
    left: Box<dyn Fn() -> Vec<String>>,
    _running: Box<dyn std::any::Any>,
}

pub(crate) fn suite() -> Suite {
    Suite {
        name: "clouds",
        runs: Runs::BesideOthers,
        cases: vec![
            case("cloudstack", |client| Box::pin(cloudstack(client))),
            case("ovhcloud", |client| Box::pin(ovhcloud(client))),
            case("bizflycloud", |client| Box::pin(bizflycloud(client))),
        ],
    }
}

type Start = fn(Client) -> LocalBoxFuture<'static, Result<Cloud>>;

fn case(provider: &'static str, start: Start) -> Case {
    Case {
        name: format!("pods_bring_machines_of_{provider}_and_take_them_away"),
        run: Box::new(move |environment| Box::pin(story(environment, provider, start))),
        limit: Duration::from_secs(1_500),
    }
}

/// Pods arrive and run on the cloud's machines, most of them go and the cluster shrinks, the rest goes and nothing is left,
/// neither in the cluster nor in the cloud.
async fn story(environment: &mut Environment, provider: &'static str, start: Start) -> Result<()> {
    let client = environment.control_plane.admin().await?;
    let installation = Installation::install_provider(environment, provider).await?;
    let cloud = start(client.clone()).await?;
    let settings: Vec<(&str, &str)> = cloud
        .settings
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    let world = World::watch(client).await?;
    world.apply(&cloud.manifests).await?;
    let mut replica = installation.start(environment, &settings).await?;
    let outcome = grow_and_shrink(&world, &cloud).await;
    let cleared = world.clear().await.context("clearing up");
    replica.process.stop().await;
    outcome.and(cleared)?;
    rbac::used(environment)?;
    nothing_left(&cloud).await
}

/// A NodeClaim may go when its machine is being destroyed, which takes the cloud a little longer.
async fn nothing_left(cloud: &Cloud) -> Result<()> {
    let empty = async {
        while !(cloud.left)().is_empty() {
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    };
    let ended = tokio::time::timeout(PATIENCE, empty).await;
    ended.with_context(|| format!("left in the cloud: {:?}", (cloud.left)()))
}

async fn grow_and_shrink(world: &World, cloud: &Cloud) -> Result<()> {
    world.apply(&deployment("web", 12, "900m", "512Mi", "")).await?;
    world.until("12 pods run", PATIENCE, |view| view.all_run(12)).await?;
    let view = world.now().await?;
    ensure!(
        view.nodes.len() == view.claims.len() && view.nodes.len() > 1,
        "every node has its claim: {}",
        view.summary()
    );
    ensure!(
        (cloud.left)().len() >= view.nodes.len(),
        "every node is a machine: {:?}",
        (cloud.left)()
    );
    world.scale("web", 3).await?;
    let grown = view.nodes.len();
    world
        .until("the cluster shrinks with its pods", PATIENCE, |view| {
            view.all_run(3) && view.nodes.len() < grown
        })
        .await?;
    world.scale("web", 0).await?;
    world
        .until("no node is left", PATIENCE, |view| {
            view.nodes.is_empty() && view.claims.is_empty()
        })
        .await
}

async fn cloudstack(cluster: Client) -> Result<Cloud> {
    let simulator = Simulator::start(Clock::system(), Seed::of_zones(&["zone-1", "zone-2", "zone-3"])).await?;
    let keys = simulator.keys(seed::ACCOUNT);
    let settings = vec![
        ("CLUSTER_NAME", "e2e".to_owned()),
        ("CLOUDSTACK_API_URL", simulator.url()),
        ("CLOUDSTACK_API_KEY", keys.api_key.clone()),
        ("CLOUDSTACK_SECRET_KEY", keys.secret_key.expose_secret().to_owned()),
    ];
    let machines = simulator.clone();
    // An ordinary account may not expunge: what is destroyed is out of its hands.
    let exists = |machine: &Machine| machine.state != MachineState::Destroyed;
    let left = move || {
        let machines = machines.machines().into_iter().filter(exists);
        machines
            .map(|machine| format!("{} {:?}", machine.name, machine.state))
            .collect()
    };
    Ok(Cloud {
        settings,
        manifests: MANIFESTS.to_owned(),
        left: Box::new(left),
        _running: Box::new(Kubelets::attach(simulator, cluster)),
    })
}

async fn ovhcloud(cluster: Client) -> Result<Cloud> {
    let seconds = Duration::from_secs;
    let delays = Delays {
        visible: seconds(1),
        schedule: seconds(2),
        vm: seconds(3),
        boot: seconds(5),
        delete: seconds(5),
        ..Delays::default()
    };
    let world = ovh::World {
        delays,
        ..ovh::World::default()
    };
    let cloud = SimulatedOvh::start(Clock::system(), world).await?;
    let settings = vec![
        ("OVH_ENDPOINT", cloud.endpoint()),
        ("OVH_SERVICE_NAME", ovh::SERVICE_NAME.to_owned()),
        ("OVH_KUBE_ID", ovh::KUBE_ID.to_owned()),
        ("OVH_CREDENTIALS_SECRET_NAMESPACE", NAMESPACE.to_owned()),
    ];
    let stop = CancellationToken::new();
    tokio::spawn(ovh::join_nodes(cloud.clone(), cluster, stop.clone()));
    let machines = cloud.clone();
    let left = move || machines.with(|state| state.nodes.values().map(|machine| machine.name.clone()).collect());
    Ok(Cloud {
        settings,
        manifests: ovh::manifests(NAMESPACE),
        left: Box::new(left),
        _running: Box::new((cloud, stop.drop_guard())),
    })
}

async fn bizflycloud(cluster: Client) -> Result<Cloud> {
    let options = SimOptions {
        volume_delay: Some(Duration::from_secs(2)),
        build_delay: Some(Duration::from_secs(3)),
        ..SimOptions::default()
    };
    let clock = Clock::system();
    let cloud = SimulatedBizfly::start(clock.clone(), options).await?;
    let settings = vec![
        ("CLUSTER_NAME", "e2e".to_owned()),
        ("BKE_CLUSTER_ID", bizfly::BKE_CLUSTER.to_owned()),
        ("BKE_CLUSTER_TOKEN", bizfly::BKE_TOKEN.to_owned()),
        (
            "BKE_JOIN_ENDPOINT",
            "https://bke.example.com/engine/cluster_join/e2e".to_owned(),
        ),
    ];
    let stop = CancellationToken::new();
    tokio::spawn(bizfly::run_nodes(cloud.clone(), cluster, clock, stop.clone()));
    let machines = cloud.clone();
    let left = move || machines.leaks().into_iter().map(|leak| format!("{leak:?}")).collect();
    Ok(Cloud {
        settings,
        manifests: cloud.manifests(NAMESPACE),
        left: Box::new(left),
        _running: Box::new((cloud, stop.drop_guard())),
    })
}
