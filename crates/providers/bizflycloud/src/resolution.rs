//! What a NodeClass means at its account: zones, images, networks, firewalls and how its nodes join (§3.2).

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use karpenter_cloud::{CloudError, error::CloudContext};
use kube::{Api, Client};
use secrecy::SecretString;

use crate::{
    account::{Account, BkeInterest, Inventory},
    bootstrap::{BkeJoin, Join, UserDataJoin, certificate::ClusterCa},
    client::wire::Vpc,
    images::{self, ImagePolicy, Version},
    node_class::{
        BizflyCloudNodeClassSpec, Bootstrap, DEFAULT_ROOT_DISK, ResolvedImage, ResolvedVpc, SecretKeyReference,
    },
    problem::Problem,
    provider_config::LEAST_ROOT_DISK,
    region::RegionChoice,
    settings::Settings,
};

/// A part that was found, or why not.
pub(crate) type Found<T> = Result<T, Problem>;

/// How nodes of a class join, before anything is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JoinMode {
    Bke,
    UserData,
}

/// The names of up to three things that there are.
const NEAR: usize = 3;

impl JoinMode {
    /// BKE if its cluster is known, unless the class says otherwise.
    pub(crate) fn of(class: &BizflyCloudNodeClassSpec, settings: &Settings) -> Self {
        let bootstrap = class.bootstrap.clone().unwrap_or_default();
        match bootstrap.mode.as_deref() {
            Some("UserData") => Self::UserData,
            Some("BKE") => Self::Bke,
            _ if cluster_id(&bootstrap, settings).is_some() => Self::Bke,
            _ => Self::UserData,
        }
    }

    pub(crate) fn interest(self) -> BkeInterest {
        match self {
            Self::Bke => BkeInterest::Needed,
            Self::UserData => BkeInterest::None,
        }
    }
}

/// The zones of a class, the preferred first, and remarks.
pub(crate) fn zones(
    class: &BizflyCloudNodeClassSpec,
    account: &Account,
    inventory: &Inventory,
    vpcs: &[ResolvedVpc],
) -> Found<(Vec<String>, Vec<String>)> {
    let mut warnings = Vec::new();
    if let Some(region) = &class.region {
        let named = RegionChoice::parse(region).map_err(|error| Problem::new("UnknownRegion", error.to_string()))?;
        if named.region != account.region.region {
            let message = format!(
                "spec.region {region} is not the region {} of ProviderConfig {}",
                account.region.region, account.name
            );
            return Err(Problem::new("RegionMismatch", message));
        }
    }
    let open = &inventory.zones;
    let mut wanted: Vec<String> = if !class.zones.is_empty() {
        class.zones.clone()
    } else if let Some(zone) = &account.zone {
        vec![zone.clone()]
    } else {
        open.clone()
    };
    let mut seen = BTreeSet::new();
    wanted.retain(|zone| seen.insert(zone.clone()));
    if let Some(unknown) = wanted.iter().find(|zone| !open.contains(zone)) {
        let message = format!(
            "zone {unknown} is not an open zone of {}; there are {}",
            account.region.region,
            open.join(", ")
        );
        return Err(Problem::new("ZoneNotFound", message));
    }
    let spread: Vec<String> = class
        .placement_strategy
        .iter()
        .flat_map(|own| &own.spread)
        .flat_map(|spread| spread.zones.clone())
        .collect();
    if !spread.is_empty() {
        wanted.retain(|zone| spread.contains(zone));
        wanted.sort_by_key(|zone| spread.iter().position(|own| own == zone));
    } else if class.zones.is_empty()
        && let Some(preferred) = &account.region.preferred_zone
    {
        wanted.sort_by_key(|zone| zone != preferred);
    }
    for vpc in vpcs.iter().filter(|vpc| !vpc.zones.is_empty()) {
        for zone in wanted.iter().filter(|zone| !vpc.zones.contains(zone)) {
            warnings.push(format!(
                "network {} does not reach {zone}, so no node is launched there",
                vpc.id
            ));
        }
        wanted.retain(|zone| vpc.zones.contains(zone));
    }
    if wanted.is_empty() {
        return Err(Problem::new(
            "NoZones",
            "no open zone is left that the networks and spec.zones allow",
        ));
    }
    Ok((wanted, warnings))
}

/// The private networks of a class: its own, else that of the BKE cluster, else the default one.
pub(crate) fn networks(
    class: &BizflyCloudNodeClassSpec,
    inventory: &Inventory,
    bke_network: Option<&str>,
) -> Found<(Vec<ResolvedVpc>, Vec<String>)> {
    let wanted: Vec<String> = if !class.vpc_network_ids.is_empty() {
        class.vpc_network_ids.clone()
    } else if let Some(id) = bke_network {
        vec![id.to_owned()]
    } else {
        let default = inventory.vpcs.iter().find(|vpc| vpc.is_default);
        let default = default.ok_or_else(|| {
            Problem::new(
                "VPCNotFound",
                "the account has no default network; set spec.vpcNetworkIds",
            )
        })?;
        vec![default.id.clone()]
    };
    let mut found = Vec::new();
    let mut has_gateway = false;
    for id in &wanted {
        let Some(vpc) = inventory.vpcs.iter().find(|vpc| vpc.id == *id) else {
            let near = near(inventory.vpcs.iter().map(|vpc| format!("{} ({})", vpc.id, vpc.name)));
            return Err(Problem::new("VPCNotFound", format!("there is no network {id}{near}")));
        };
        if !vpc.status.is_empty() && !vpc.status.eq_ignore_ascii_case("active") {
            return Err(Problem::new("VPCNotActive", format!("network {id} is {}", vpc.status)));
        }
        has_gateway |= vpc.internet_gateway.as_ref().is_some_and(|gateway| !gateway.is_null());
        found.push(ResolvedVpc {
            id: vpc.id.clone(),
            name: vpc.name.clone(),
            zones: reach(vpc),
        });
    }
    let mut warnings = Vec::new();
    if class.public_ip == Some(false) && !has_gateway {
        warnings.push("NoEgress: publicIP is false and no network has an internet gateway".to_owned());
    }
    Ok((found, warnings))
}

fn reach(vpc: &Vpc) -> Vec<String> {
    let mut zones: Vec<String> = vpc.availability_zones.clone();
    zones.extend(vpc.availability_zone_hints.clone());
    zones.sort();
    zones.dedup();
    zones
}

/// The firewalls of a class, and that its key pair exists.
pub(crate) fn firewalls(
    class: &BizflyCloudNodeClassSpec,
    account: &Account,
    inventory: &Inventory,
) -> Found<Vec<String>> {
    if let Some(key) = ssh_key(class, account)
        && !inventory.keypairs.iter().any(|own| own == key)
    {
        let near = near(inventory.keypairs.iter().cloned());
        return Err(Problem::new(
            "SSHKeyNotFound",
            format!("there is no SSH key pair {key}{near}"),
        ));
    }
    let mut found = Vec::new();
    for group in &class.security_groups {
        let id = &group.security_group_id;
        if !inventory.firewalls.iter().any(|own| own.id == *id) {
            let near = near(
                inventory
                    .firewalls
                    .iter()
                    .map(|own| format!("{} ({})", own.id, own.name)),
            );
            return Err(Problem::new(
                "SecurityGroupNotFound",
                format!("there is no firewall {id}{near}"),
            ));
        }
        found.push(id.clone());
    }
    Ok(found)
}

/// The images of a class.
pub(crate) fn images(
    class: &BizflyCloudNodeClassSpec,
    account: &Account,
    inventory: &Inventory,
    mode: JoinMode,
    cluster_version: Option<Version>,
) -> Found<images::FoundImages> {
    let wants_template = class
        .bootstrap
        .as_ref()
        .is_some_and(|own| own.image_policy.as_deref() == Some("Template"));
    let policy = match mode {
        JoinMode::Bke if !wants_template => ImagePolicy::Worker,
        JoinMode::Bke | JoinMode::UserData => ImagePolicy::Template,
    };
    let default = account.image_config.clone().unwrap_or_default().image_id;
    let mut found = images::resolve(class, policy, &default, cluster_version, &inventory.images)?;
    if class.template.is_some() && policy == ImagePolicy::Worker {
        found
            .warnings
            .push("spec.template is not used: BKE chooses the image (see bootstrap.imagePolicy)".to_owned());
    }
    Ok(found)
}

pub(crate) fn ssh_key<'a>(class: &'a BizflyCloudNodeClassSpec, account: &'a Account) -> Option<&'a str> {
    let inherited = || account.image_config.as_ref()?.ssh_key_name.as_deref();
    class.ssh_key_name.as_deref().or_else(inherited)
}

pub(crate) fn root_disk(class: &BizflyCloudNodeClassSpec, account: &Account) -> u32 {
    let inherited = account.image_config.as_ref().map(|own| own.root_disk_size);
    class
        .root_disk_size
        .or(inherited)
        .unwrap_or(DEFAULT_ROOT_DISK)
        .max(LEAST_ROOT_DISK)
}

fn cluster_id(bootstrap: &Bootstrap, settings: &Settings) -> Option<String> {
    let own = bootstrap.bke.as_ref().and_then(|bke| bke.cluster_id.clone());
    own.or_else(|| settings.bke.cluster_id.clone())
}

/// The BKE cluster of a class, if it joins one.
pub(crate) fn bke_cluster_id(class: &BizflyCloudNodeClassSpec, settings: &Settings) -> Option<String> {
    match JoinMode::of(class, settings) {
        JoinMode::Bke => cluster_id(&class.bootstrap.clone().unwrap_or_default(), settings),
        JoinMode::UserData => None,
    }
}

/// How nodes of a class join.
///
/// # Errors
/// The outer one when the cluster could not be asked; the inner one is the user's to fix.
pub(crate) async fn join(
    kube: &Client,
    class: &BizflyCloudNodeClassSpec,
    settings: &Settings,
    image: Option<&ResolvedImage>,
) -> Result<Found<Join>, CloudError> {
    let bootstrap = class.bootstrap.clone().unwrap_or_default();
    match JoinMode::of(class, settings) {
        JoinMode::Bke => {
            let bke = bootstrap.bke.clone().unwrap_or_default();
            let token = match &bke.token_secret_ref {
                Some(reference) => match read_key(kube, reference).await? {
                    Ok(token) => Some(token),
                    Err(problem) => return Ok(Err(problem)),
                },
                None => settings.bke.token.clone(),
            };
            let cluster = cluster_id(&bootstrap, settings);
            let endpoint = bke.join_endpoint.or_else(|| settings.bke.join_endpoint.clone());
            let missing: Vec<&str> = [
                ("clusterID (BKE_CLUSTER_ID)", cluster.is_none()),
                ("tokenSecretRef (BKE_CLUSTER_TOKEN)", token.is_none()),
                ("joinEndpoint (BKE_JOIN_ENDPOINT)", endpoint.is_none()),
            ]
            .into_iter()
            .filter(|(_, is)| *is)
            .map(|(what, _)| what)
            .collect();
            let (Some(cluster_id), Some(token), Some(join_endpoint)) = (cluster, token, endpoint) else {
                let message = format!("nodes of BKE need spec.bootstrap.bke.{}", missing.join(", "));
                return Ok(Err(Problem::new("BootstrapIncomplete", message)));
            };
            let of_image = image.and_then(|image| image.kubernetes_version.clone());
            Ok(Ok(Join::Bke(BkeJoin {
                cluster_id,
                token,
                join_endpoint,
                log_endpoint: bke.log_endpoint.or_else(|| settings.bke.log_endpoint.clone()),
                kubernetes_version: of_image
                    .or(bke.kubernetes_version)
                    .or_else(|| settings.bke.kubernetes_version.clone())
                    .unwrap_or_default(),
                everywhere: bke.everywhere.unwrap_or_default(),
                local_dns: bke.local_dns.unwrap_or_default(),
            })))
        }
        JoinMode::UserData => {
            let token = match &bootstrap.bootstrap_token_secret_ref {
                Some(reference) => match read_key(kube, reference).await? {
                    Ok(token) => Some(token),
                    Err(problem) => return Ok(Err(problem)),
                },
                None => settings.bootstrap_token.clone(),
            };
            Ok(Ok(Join::UserData(UserDataJoin {
                cluster_name: settings.cluster_name.clone(),
                endpoint: settings.cluster_endpoint.clone(),
                token,
                ca: cluster_ca(kube).await?,
            })))
        }
    }
}

async fn read_key(kube: &Client, reference: &SecretKeyReference) -> Result<Found<SecretString>, CloudError> {
    let SecretKeyReference { name, namespace, key } = reference;
    let secrets: Api<Secret> = Api::namespaced(kube.clone(), namespace);
    let secret = secrets
        .get_opt(name)
        .await
        .cloud_context(format!("reading secret {namespace}/{name}"))?;
    let Some(secret) = secret else {
        return Ok(Err(Problem::new(
            "SecretNotFound",
            format!("secret {namespace}/{name} does not exist"),
        )));
    };
    let values = crate::credentials::SecretValues::of(&secret);
    Ok(values.get(key).cloned().ok_or_else(|| {
        Problem::new(
            "SecretIncomplete",
            format!("secret {namespace}/{name} has no key {key}"),
        )
    }))
}

async fn cluster_ca(kube: &Client) -> Result<Option<ClusterCa>, CloudError> {
    let maps: Api<ConfigMap> = Api::namespaced(kube.clone(), "kube-public");
    let info = match maps.get_opt("cluster-info").await {
        // Only clusters that join by kubeadm need it; a controller that may not read it says so where it matters.
        Err(kube::Error::Api(status)) if status.code == 403 => return Ok(None),
        answer => answer.cloud_context("reading ConfigMap kube-public/cluster-info")?,
    };
    let kubeconfig = info.and_then(|map| map.data?.remove("kubeconfig"));
    Ok(kubeconfig.and_then(|text| ClusterCa::of_cluster_info(&text)))
}

fn near(names: impl Iterator<Item = String>) -> String {
    let names: Vec<String> = names.take(NEAR).collect();
    if names.is_empty() {
        String::new()
    } else {
        format!("; there are for example {}", names.join(", "))
    }
}
