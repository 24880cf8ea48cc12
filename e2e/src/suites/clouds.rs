//! Each simulated cloud on the real control plane: its API on a socket, its machines real Node objects, our controller as a
//! process with the roles of that provider's manifests.

use std::time::Duration;

use anyhow::{Context, Result};
use futures::future::LocalBoxFuture;
use karpenter_bizflycloud::sim::{self as bizfly, SimOptions, SimulatedBizfly};
use karpenter_cloud::clock::Clock;
use karpenter_cloudstack::sim::kubelets::Kubelets;
use karpenter_cloudstack::sim::{MANIFESTS, Machine, MachineState, Seed, Simulator, seed};
use karpenter_ovhcloud::sim::{self as ovh, Delays, SimulatedOvh};
use kube::Client;
use secrecy::ExposeSecret;
use tokio_util::sync::CancellationToken;

use super::manifests::{Pool, Source, deployment};
use super::rbac;
use super::scenarios::{self, LIMIT, Scenario};
use crate::installation::{Installation, NAMESPACE, Replica};
use crate::runner::{Case, Environment, Runs, Suite};
use crate::world::World;

/// How long a step may take that takes some seconds on an idle machine.
const PATIENCE: Duration = Duration::from_secs(300);

/// A cloud that runs in this process for as long as it is kept.
struct Cloud {
    /// How the controller finds it, as the chart's environment variables.
    settings: Vec<(&'static str, String)>,
    source: Source,
    /// Machines that exist, whatever their state.
    machines: Box<dyn Fn() -> Vec<String>>,
    /// They, and what else costs money.
    left: Box<dyn Fn() -> Vec<String>>,
    /// Takes a machine away without telling anybody, by the `providerID` of its Node.
    vanish: Box<dyn Fn(&str)>,
    _running: Box<dyn std::any::Any>,
}

type Start = fn(Client) -> LocalBoxFuture<'static, Result<Cloud>>;

type Settings = &'static [(&'static str, &'static str)];

/// Three suites a cloud, since machines take their time: how they come, how those go that have to, and how they go by choice.
pub(crate) fn suites() -> Vec<Suite> {
    let provider = |[growing, deleting, disrupting]: [&'static str; 3], start: Start| {
        let provider = growing;
        [
            suite(growing, cases(scenarios::growing(), provider, start)),
            suite(deleting, deletions(provider, start)),
            suite(disrupting, disruptions(provider, start)),
        ]
    };
    [
        provider(
            ["cloudstack", "cloudstack-deletion", "cloudstack-disruption"],
            |client| Box::pin(cloudstack(client)),
        ),
        provider(["ovhcloud", "ovhcloud-deletion", "ovhcloud-disruption"], |client| {
            Box::pin(ovhcloud(client))
        }),
        provider(
            ["bizflycloud", "bizflycloud-deletion", "bizflycloud-disruption"],
            |client| Box::pin(bizflycloud(client)),
        ),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn suite(name: &'static str, cases: Vec<Case>) -> Suite {
    Suite {
        name,
        runs: Runs::BesideOthers,
        cases,
    }
}

fn deletions(provider: &'static str, start: Start) -> Vec<Case> {
    let mut cases = cases(scenarios::deleting(), provider, start);
    cases.push(Case {
        name: "a_controller_killed_in_the_middle_of_a_scale_up_loses_and_doubles_no_machine".to_owned(),
        run: Box::new(move |environment| Box::pin(killed(environment, provider, start))),
        limit: LIMIT,
    });
    cases
}

fn disruptions(provider: &'static str, start: Start) -> Vec<Case> {
    let mut cases = cases(scenarios::disrupting(), provider, start);
    cases.extend([
        Case {
            name: "a_machine_that_vanished_is_replaced".to_owned(),
            run: Box::new(move |environment| Box::pin(vanished(environment, provider, start))),
            limit: LIMIT,
        },
        // Last: it looks at all that the cases above made the controller ask for. Some of it takes nodes that live for minutes, as they
        // do where budgets hold back disruption.
        Case {
            name: "the_controller_uses_all_its_rights_and_asks_for_no_others".to_owned(),
            run: Box::new(move |environment| Box::pin(async move { rbac::check(environment, provider) })),
            limit: LIMIT,
        },
    ]);
    cases
}

fn cases(scenarios: Vec<Scenario>, provider: &'static str, start: Start) -> Vec<Case> {
    let scenarios = scenarios.into_iter();
    scenarios.map(|scenario| case(scenario, provider, start)).collect()
}

fn case(scenario: Scenario, provider: &'static str, start: Start) -> Case {
    let Scenario { name, settings, plays } = scenario;
    Case {
        name: name.to_owned(),
        run: Box::new(move |environment| {
            Box::pin(async move {
                let installed = Installed::new(environment, provider, start).await?;
                let mut replica = installed.start(environment, settings).await?;
                let outcome = plays(&installed.world).await;
                installed.end(environment, &mut replica, outcome).await
            })
        }),
        limit: LIMIT,
    }
}

/// A cloud, and a cluster in which its provider is installed and pools use its machines.
struct Installed {
    cloud: Cloud,
    world: World,
    installation: Installation,
}

// === impl Installed ===

impl Installed {
    async fn new(environment: &Environment, provider: &'static str, start: Start) -> Result<Self> {
        let client = environment.control_plane.admin().await?;
        let installation = Installation::install_provider(environment, provider).await?;
        let cloud = start(client.clone()).await?;
        let world = World::watch(client).await?.with_source(cloud.source.clone());
        // Some providers start with the secrets that go with their class.
        world.apply_class().await?;
        Ok(Self {
            cloud,
            world,
            installation,
        })
    }

    async fn start(&self, environment: &Environment, settings: Settings) -> Result<Replica> {
        let own = self.cloud.settings.iter();
        let all: Vec<(&str, &str)> = own
            .map(|(name, value)| (*name, value.as_str()))
            .chain(settings.iter().copied())
            .collect();
        self.installation.start(environment, &all).await
    }

    /// Empties the cluster, also after a failure; nothing may be left in the cloud.
    async fn end(&self, environment: &Environment, replica: &mut Replica, outcome: Result<()>) -> Result<()> {
        let cleared = self.world.clear().await.context("clearing up");
        let nothing_left = nothing_left(&self.cloud).await;
        replica.process.stop().await;
        outcome.and(cleared).and(nothing_left)?;
        rbac::used(environment).map(drop)
    }
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

async fn vanished(environment: &mut Environment, provider: &'static str, start: Start) -> Result<()> {
    let installed = Installed::new(environment, provider, start).await?;
    let mut replica = installed.start(environment, &[]).await?;
    let outcome = scenarios::garbage_collection(&installed.world, &installed.cloud.vanish).await;
    installed.end(environment, &mut replica, outcome).await
}

async fn killed(environment: &mut Environment, provider: &'static str, start: Start) -> Result<()> {
    let installed = Installed::new(environment, provider, start).await?;
    let Installed { cloud, world, .. } = &installed;
    let mut first = installed.start(environment, &[]).await?;
    world.apply_pool(&Pool::new("default")).await?;
    world.apply(&deployment("web", 20, "900m", "512Mi", "")).await?;
    world
        .until("machines are on their way", PATIENCE, |_| {
            !(cloud.machines)().is_empty()
        })
        .await?;
    first.process.kill().await;
    let mut second = installed.start(environment, &[]).await?;
    let outcome = world
        .until("20 pods run, on one machine a node", PATIENCE, |view| {
            view.all_run(20)
                && view.is_settled()
                && view.idle().is_empty()
                && (cloud.machines)().len() == view.nodes.len()
        })
        .await
        .with_context(|| format!("in the cloud: {:?}", (cloud.machines)()));
    installed.end(environment, &mut second, outcome).await
}

async fn cloudstack(cluster: Client) -> Result<Cloud> {
    const ZONES: [&str; 3] = ["zone-1", "zone-2", "zone-3"];
    let simulator = Simulator::start(Clock::system(), Seed::of_zones(&ZONES)).await?;
    simulator.operate(|operator| {
        let latency = &mut operator.settings().latency;
        latency.start = Duration::from_secs(2);
        latency.destroy = Duration::from_secs(1);
    });
    let keys = simulator.keys(seed::ACCOUNT);
    let settings = vec![
        ("CLUSTER_NAME", "e2e".to_owned()),
        (
            "CLOUDSTACK_CREDENTIALS_SECRET",
            format!("{NAMESPACE}/cloudstack-credentials"),
        ),
    ];
    let manifests = format!(
        "{MANIFESTS}
---
apiVersion: v1
kind: Secret
metadata: {{name: cloudstack-credentials, namespace: {NAMESPACE}}}
stringData: {{api-url: '{}', api-key: '{}', secret-key: '{}'}}
",
        simulator.url(),
        keys.api_key,
        keys.secret_key.expose_secret()
    );
    let cloud = simulator.clone();
    // An ordinary account may not expunge: what is destroyed is out of its hands.
    let exists = |machine: &Machine| machine.state != MachineState::Destroyed;
    let machines = move || {
        let machines = cloud.machines().into_iter().filter(exists);
        machines
            .map(|machine| format!("{} {:?}", machine.name, machine.state))
            .collect::<Vec<_>>()
    };
    let cloud = simulator.clone();
    Ok(Cloud {
        settings,
        source: Source::of(&manifests, &ZONES)?,
        left: Box::new(machines.clone()),
        machines: Box::new(machines),
        vanish: Box::new(move |provider_id| {
            let id = provider_id.rsplit('/').next().unwrap_or_default();
            cloud.operate(|operator| operator.expunge(id));
        }),
        _running: Box::new(Kubelets::attach(simulator, cluster)),
    })
}

async fn ovhcloud(cluster: Client) -> Result<Cloud> {
    let seconds = Duration::from_secs;
    let delays = Delays {
        visible: seconds(1),
        schedule: seconds(1),
        vm: seconds(2),
        boot: seconds(2),
        delete: seconds(2),
        ..Delays::default()
    };
    let world = ovh::World {
        delays,
        ..ovh::World::default()
    };
    let zones = world.zones.clone();
    let zones: Vec<&str> = zones.iter().map(String::as_str).collect();
    let cloud = SimulatedOvh::start(Clock::system(), world).await?;
    let settings = vec![
        ("OVH_ENDPOINT", cloud.endpoint()),
        ("OVH_SERVICE_NAME", ovh::SERVICE_NAME.to_owned()),
        ("OVH_KUBE_ID", ovh::KUBE_ID.to_owned()),
        ("OVH_CREDENTIALS_SECRET_NAMESPACE", NAMESPACE.to_owned()),
        // A machine whose claim is deleted before it is there waits for another claim, for ten minutes if nobody says otherwise.
        ("OVH_SPARE_NODE_TTL", "20s".to_owned()),
    ];
    let stop = CancellationToken::new();
    tokio::spawn(ovh::join_nodes(cloud.clone(), cluster, stop.clone()));
    let (of, vanishing) = (cloud.clone(), cloud.clone());
    let machines = move || {
        of.with(|state| {
            let machines = state.nodes.values();
            machines.map(|machine| machine.name.clone()).collect::<Vec<_>>()
        })
    };
    Ok(Cloud {
        settings,
        source: Source::of(&ovh::manifests(NAMESPACE), &zones)?,
        left: Box::new(machines.clone()),
        machines: Box::new(machines),
        vanish: Box::new(move |provider_id| vanishing.with(|state| state.vanish(provider_id))),
        _running: Box::new((cloud, stop.drop_guard())),
    })
}

async fn bizflycloud(cluster: Client) -> Result<Cloud> {
    let options = SimOptions {
        volume_delay: Some(Duration::from_secs(1)),
        build_delay: Some(Duration::from_secs(2)),
        boot_delay: Duration::from_secs(2),
        deletion_delay: Duration::from_secs(1),
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
    let (of, leaking, vanishing) = (cloud.clone(), cloud.clone(), cloud.clone());
    Ok(Cloud {
        settings,
        source: Source::of(&cloud.manifests(NAMESPACE), &["HN1", "HN2"])?,
        machines: Box::new(move || of.servers().into_iter().map(|server| server.name).collect()),
        left: Box::new(move || leaking.leaks().iter().map(|leak| format!("{leak:?}")).collect()),
        vanish: Box::new(move |provider_id| vanishing.vanish(provider_id.rsplit('/').next().unwrap_or_default())),
        _running: Box::new((cloud, stop.drop_guard())),
    })
}
