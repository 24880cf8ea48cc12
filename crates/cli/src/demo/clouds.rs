//! The simulated clouds of the demo: what each has running, and the manifests that its story begins with.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use karpenter_bizflycloud::sim::{self, SimOptions, SimulatedBizfly};
use karpenter_bizflycloud::{BizflyCloudProvider, Settings};
use karpenter_cloud::CloudProvider;
use karpenter_cloud::cache::CacheMetrics;
use karpenter_cloud::http::Redactor;
use karpenter_cloudstack::client::metrics::ApiMetrics;
use karpenter_cloudstack::sim::kubelets::Kubelets;
use karpenter_cloudstack::sim::{MANIFESTS, Seed, Simulator, seed};
use karpenter_cloudstack::{CloudStackProvider, ProviderSettings};
use karpenter_core::clock::Clock;
use karpenter_ovhcloud::sim::{self as ovh, Delays, SimulatedOvh, World as OvhWorld};
use karpenter_ovhcloud::{OvhProvider, OvhSettings};
use kube::Client;
use tokio_util::sync::CancellationToken;

use crate::error::CliError;
use crate::providers::{Provider, ProviderFlags, Purpose};

/// A cloud that exists only in this process, with the provider that launches machines in it.
pub(crate) struct SimulatedCloud {
    pub(crate) provider: Arc<dyn CloudProvider>,
    /// A NodeClass and the NodePool `default`, with what they need.
    pub(crate) manifests: String,
    /// How many zones it has.
    pub(crate) zones: usize,
    /// Breaks the machine behind a node, where the provider itself finds out about that.
    pub(crate) break_machine: Option<Break>,
    /// What must stay alive for as long as the cloud is used.
    _running: Box<dyn Any + Send + Sync>,
}

/// Breaks the machine of the node of that name.
pub(crate) type Break = Box<dyn Fn(&str) + Send + Sync>;

impl SimulatedCloud {
    /// Starts the cloud whose machines become Nodes of the cluster behind `client`.
    pub(crate) async fn start(provider: Provider, client: &Client, clock: &Clock) -> Result<Self, CliError> {
        match provider {
            // KWOK's machines are the cluster's own Nodes: there is nothing else to simulate.
            Provider::Kwok => Ok(Self {
                provider: provider
                    .start(client.clone(), clock.clone(), &ProviderFlags::default(), Purpose::Run)
                    .await?,
                manifests: KWOK.to_owned(),
                zones: 4,
                break_machine: None,
                _running: Box::new(()),
            }),
            Provider::BizflyCloud => bizflycloud(client, clock).await,
            Provider::CloudStack => cloudstack(client, clock).await,
            Provider::Ovhcloud => ovhcloud(client, clock).await,
        }
    }
}

/// A BKE cluster: the simulated API on a socket of this machine, whose servers register as nodes.
async fn bizflycloud(client: &Client, clock: &Clock) -> Result<SimulatedCloud, CliError> {
    // Several times as fast as the real one: a story should not be about waiting.
    let options = SimOptions {
        volume_delay: Some(Duration::from_secs(3)),
        build_delay: Some(Duration::from_secs(4)),
        boot_delay: Duration::from_secs(5),
        deletion_delay: Duration::from_secs(3),
        ..SimOptions::default()
    };
    let cloud = SimulatedBizfly::start(clock.clone(), options).await?;
    let variables = [
        ("CLUSTER_NAME", "demo"),
        ("BKE_CLUSTER_ID", sim::BKE_CLUSTER),
        ("BKE_CLUSTER_TOKEN", sim::BKE_TOKEN),
        ("BKE_JOIN_ENDPOINT", "https://bke.example.com/engine/cluster_join/demo"),
        ("BIZFLY_PROVISIONER_COMPATIBILITY", "true"),
    ];
    let settings = Settings::from_lookup(|name| {
        let found = variables.iter().find(|(own, _)| *own == name);
        found.map(|(_, value)| (*value).to_owned())
    });
    let provider = BizflyCloudProvider::new(client.clone(), clock.clone(), settings);
    let stop = CancellationToken::new();
    tokio::spawn(sim::run_nodes(
        cloud.clone(),
        client.clone(),
        clock.clone(),
        stop.clone(),
    ));
    let at_cloud = cloud.clone();
    Ok(SimulatedCloud {
        provider: Arc::new(provider),
        manifests: cloud.manifests("default"),
        zones: 2,
        break_machine: Some(Box::new(move |node| {
            let machines = at_cloud.servers();
            for machine in machines.iter().filter(|machine| machine.name == node) {
                at_cloud.set_status(&machine.id, "ERROR");
            }
        })),
        _running: Box::new((cloud, stop.drop_guard())),
    })
}

/// A simulated CloudStack API on a real socket; a machine that boots becomes a Node.
async fn cloudstack(client: &Client, clock: &Clock) -> Result<SimulatedCloud, CliError> {
    let simulator = Simulator::start(clock.clone(), Seed::of_zones(&["zone-1", "zone-2", "zone-3"])).await?;
    let mut settings = ProviderSettings::new("demo");
    // The story is played faster than real time, and requests take real time.
    settings.http.rate.per_second = 1000.0;
    settings.http.rate.burst = 1000;
    let keys = simulator.keys(seed::ACCOUNT);
    let api = karpenter_cloudstack::client::Client::new(
        clock.clone(),
        settings.http.clone(),
        keys,
        Redactor::default(),
        ApiMetrics::new(),
    )
    .map_err(|error| CliError::failed(error.to_string()))?;
    let caches = CacheMetrics::unregistered("cloudstack").expect("the name is valid");
    let provider = CloudStackProvider::new(client.clone(), clock.clone(), settings, api, &caches);
    Ok(SimulatedCloud {
        provider: Arc::new(provider),
        manifests: MANIFESTS.to_owned(),
        zones: 3,
        break_machine: None,
        _running: Box::new(Kubelets::attach(simulator, client.clone())),
    })
}

/// An MKS cluster: the simulated API on a socket of this machine, whose machines register as nodes.
async fn ovhcloud(client: &Client, clock: &Clock) -> Result<SimulatedCloud, CliError> {
    // Several times as fast as the real one: a story should not be about waiting.
    let seconds = Duration::from_secs;
    let delays = Delays {
        visible: seconds(1),
        schedule: seconds(2),
        vm: seconds(5),
        boot: seconds(15),
        delete: seconds(10),
        ..Delays::default()
    };
    let world = OvhWorld {
        delays,
        ..OvhWorld::default()
    };
    let cloud = SimulatedOvh::start(clock.clone(), world).await?;
    let mut settings = OvhSettings::of_project(ovh::SERVICE_NAME);
    settings.endpoint = cloud.endpoint();
    settings.kube_id = Some(ovh::KUBE_ID.to_owned());
    settings.secret_namespace = "default".to_owned();
    let environment = OvhProvider::environment(|_| None);
    let provider = OvhProvider::new(client.clone(), clock.clone(), settings, environment);
    let stop = CancellationToken::new();
    tokio::spawn(ovh::join_nodes(cloud.clone(), client.clone(), stop.clone()));
    Ok(SimulatedCloud {
        provider: Arc::new(provider),
        manifests: ovh::manifests("default"),
        zones: 3,
        break_machine: None,
        _running: Box::new((cloud, stop.drop_guard())),
    })
}

const KWOK: &str = "
apiVersion: karpenter.kwok.sh/v1alpha1
kind: KWOKNodeClass
metadata: {name: default}
spec: {}
---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: default}
spec:
  disruption: {consolidationPolicy: WhenEmptyOrUnderutilized, consolidateAfter: 10s, budgets: [{nodes: '2'}]}
  template:
    spec:
      nodeClassRef: {group: karpenter.kwok.sh, kind: KWOKNodeClass, name: default}
      expireAfter: Never
      requirements:
      - {key: kubernetes.io/arch, operator: In, values: [amd64]}
      - {key: kubernetes.io/os, operator: In, values: [linux]}
      - {key: karpenter.sh/capacity-type, operator: In, values: [on-demand]}
      - {key: karpenter.kwok.sh/instance-cpu, operator: Lt, values: ['9']}
";
