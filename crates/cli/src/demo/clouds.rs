//! The simulated clouds of the demo: what each has running, and the manifests that its story begins with.

use std::sync::Arc;

use karpenter_cloud::CloudProvider;
use karpenter_core::clock::Clock;
use kube::Client;

use crate::error::CliError;
use crate::providers::{Provider, ProviderFlags};

/// A cloud that exists only in this process, with the provider that launches machines in it.
pub(crate) struct SimulatedCloud {
    pub(crate) provider: Arc<dyn CloudProvider>,
    /// A NodeClass and the NodePool `default`, with what they need.
    pub(crate) manifests: &'static str,
}

impl SimulatedCloud {
    /// Starts the cloud whose machines become Nodes of the cluster behind `client`.
    pub(crate) async fn start(provider: Provider, client: &Client, clock: &Clock) -> Result<Self, CliError> {
        match provider {
            // KWOK's machines are the cluster's own Nodes: there is nothing else to simulate.
            Provider::Kwok => Ok(Self {
                provider: provider
                    .start(client.clone(), clock.clone(), &ProviderFlags::default())
                    .await?,
                manifests: KWOK,
            }),
        }
    }
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
