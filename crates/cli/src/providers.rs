//! The providers that this binary is built with, and what each contributes to the commands.

mod bizflycloud;

use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use k8s_openapi::api::core::v1::Namespace;
use karpenter_api::crd::Crd;
use karpenter_api::labels::LabelRules;
use karpenter_bizflycloud::BizflyCloudProvider;
use karpenter_cloud::CloudProvider;
use karpenter_cloudstack::CloudStackProvider;
use karpenter_cloudstack::start::StartError;
use karpenter_core::clock::Clock;
use karpenter_kwok::{Catalogue, KwokProvider};
use karpenter_ovhcloud::{OvhProvider, OvhSettings};
use kube::{Api, Client};

use crate::error::CliError;
use bizflycloud::BizflyFlags;

/// A cloud that Karpenter can launch machines in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Provider {
    /// Nodes without machines, for tests and demonstrations.
    Kwok,
    /// OVHcloud Managed Kubernetes Service.
    Ovhcloud,
    /// BizFly Cloud.
    #[value(name = "bizflycloud")]
    BizflyCloud,
    /// Apache CloudStack.
    #[value(name = "cloudstack")]
    CloudStack,
}

/// What providers let the command line say; everything else they read from the environment.
#[derive(Debug, Default, Args)]
pub(crate) struct ProviderFlags {
    /// KWOK provider: a JSON file of instance types instead of the built-in ones.
    #[arg(long, value_name = "FILE", env = "INSTANCE_TYPES_FILE_PATH")]
    instance_types_file_path: Option<PathBuf>,
    #[command(flatten)]
    bizflycloud: BizflyFlags,
}

/// What a provider is started for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To run a cluster, and to answer its API server.
    Run,
    /// To be asked a few questions, perhaps beside a process that runs the cluster.
    Ask,
}

impl Provider {
    /// The CRDs that a cluster needs: Karpenter's own, then the NodeClasses of one provider or of all.
    pub(crate) fn crds(provider: Option<Self>) -> Vec<Crd> {
        let providers = match provider {
            Some(provider) => vec![provider],
            None => Self::value_variants().to_vec(),
        };
        let node_classes = providers.into_iter().flat_map(Self::node_class_crds);
        karpenter_api::crd::all().into_iter().chain(node_classes).collect()
    }

    fn node_class_crds(self) -> Vec<Crd> {
        match self {
            Self::Kwok => karpenter_kwok::node_class::crds(),
            Self::Ovhcloud => karpenter_ovhcloud::node_class::crds(),
            Self::BizflyCloud => karpenter_bizflycloud::node_class::crds(),
            Self::CloudStack => karpenter_cloudstack::node_class::crds(),
        }
    }

    /// The rendered chart of this provider.
    pub(crate) fn manifests(self) -> &'static str {
        match self {
            Self::Kwok => include_str!("../../../deploy/kwok.yaml"),
            Self::BizflyCloud => include_str!("../../../deploy/bizflycloud.yaml"),
            Self::CloudStack => include_str!("../../../deploy/cloudstack.yaml"),
            Self::Ovhcloud => include_str!("../../../deploy/ovhcloud.yaml"),
        }
    }

    /// The provider whose NodeClasses are in an API group.
    pub(crate) fn of_group(group: &str) -> Option<Self> {
        // Karpenter's own group is nobody's, although a provider may keep an old kind of it alive.
        if group == karpenter_api::labels::GROUP {
            return None;
        }
        let owns = |provider: &Self| provider.node_class_crds().iter().any(|crd| crd.group() == group);
        Self::value_variants().iter().copied().find(owns)
    }

    /// The provider itself, on the cluster behind `client`.
    ///
    /// # Errors
    /// When what it needs to start is missing or can't be read.
    pub(crate) async fn start(
        self,
        client: Client,
        clock: Clock,
        flags: &ProviderFlags,
        purpose: Purpose,
    ) -> Result<Arc<dyn CloudProvider>, CliError> {
        match self {
            Self::Kwok => {
                let catalogue = match &flags.instance_types_file_path {
                    Some(file) => Catalogue::from_file(file).map_err(|error| CliError::usage(error.to_string()))?,
                    None => Catalogue::built_in(),
                };
                Ok(Arc::new(KwokProvider::new(client, clock, catalogue)))
            }
            Self::CloudStack => {
                let started = CloudStackProvider::from_env(client, clock).await;
                let provider = started.map_err(|error| match error {
                    StartError::Settings(_) => CliError::usage(error.to_string()),
                    StartError::Http(_) | StartError::Cloud(_) => CliError::unreachable(error.to_string()),
                })?;
                // It only warns: machines matter more.
                if purpose == Purpose::Run
                    && let Err(error) = provider.serve_webhook().await
                {
                    tracing::error!(%error, "CloudStackNodeClasses are written without warnings");
                }
                Ok(Arc::new(provider))
            }
            Self::Ovhcloud => {
                let lookup = |name: &str| std::env::var(name).ok();
                let settings = OvhSettings::from_lookup(lookup).map_err(|error| CliError::usage(error.to_string()))?;
                let environment = OvhProvider::environment(lookup);
                Ok(Arc::new(OvhProvider::new(client, clock, settings, environment)))
            }
            Self::BizflyCloud => {
                let provider = bizfly(client, clock, flags).await?;
                if purpose == Purpose::Run
                    && let Err(error) = provider.serve_webhook().await
                {
                    tracing::error!(%error, "objects of BizFly Cloud are judged after they are written only");
                }
                Ok(Arc::new(provider))
            }
        }
    }

    /// Which labels mean something to the provider, and which it keeps for itself.
    pub(crate) fn label_rules(self) -> LabelRules {
        match self {
            Self::Kwok => Catalogue::built_in().rules().clone(),
            Self::Ovhcloud => karpenter_ovhcloud::names::rules(),
            Self::BizflyCloud => karpenter_bizflycloud::labels::rules(),
            Self::CloudStack => karpenter_cloudstack::labels::extend(LabelRules::default()),
        }
    }
}

/// The BizFly Cloud provider itself.
///
/// # Errors
/// When the cluster's name is not known.
pub(crate) async fn bizfly(
    client: Client,
    clock: Clock,
    flags: &ProviderFlags,
) -> Result<BizflyCloudProvider, CliError> {
    let environment = karpenter_bizflycloud::Settings::from_lookup(|name| std::env::var(name).ok());
    let mut settings = flags.bizflycloud.over(environment);
    if settings.cluster_name.is_empty() {
        settings.cluster_name = cluster_uid(&client).await?;
    }
    Ok(BizflyCloudProvider::new(client, clock, settings))
}

/// What tells a cluster from every other one: the UID of its oldest namespace.
async fn cluster_uid(client: &Client) -> Result<String, CliError> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let read = namespaces.get("kube-system").await;
    let uid = read.ok().and_then(|namespace| namespace.metadata.uid);
    uid.ok_or_else(|| {
        CliError::usage(
            "servers are marked with the cluster's name, and it can't be read from the cluster: set CLUSTER_NAME",
        )
    })
}
