//! Judges objects before they are stored: what the controller would report later is refused or warned of at once (§3.3).
//!
//! The cloud is not asked: what is known of it is what the status of a ProviderConfig tells.

use std::net::SocketAddr;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Secret;
use karpenter_api::{NodeClaim, NodePool, validation::Finding};
use karpenter_cloud::{
    CloudError, NodeClassKind,
    error::CloudContext,
    webhook::{Judgement, Reviewer, WebhookError},
};
use kube::{Api, ResourceExt, api::ListParams};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{
    catalogue::{CloudCatalogue, glob},
    client::wire::Flavor,
    compat,
    convert::convert,
    node_class::{BizflyCloudNodeClass, validation},
    pool_advice,
    provider::{BizflyCloudProvider, Shared},
    provider_config::{self, DEFAULT_TAG_PREFIX, LEAST_ROOT_DISK, ProviderConfig},
    provisioner::Provisioner,
    region::{Region, RegionChoice},
    resolution::JoinMode,
};

impl BizflyCloudProvider {
    /// Serves the webhook where the settings ask for it, in this process whether it leads or not; answers where.
    ///
    /// # Errors
    /// When its port is taken or its certificate cannot be used.
    pub async fn serve_webhook(&self) -> Result<Option<SocketAddr>, WebhookError> {
        let (shared, settings) = (&self.shared, self.shared.settings.webhook.as_ref());
        shared.webhook.serve(shared, shared.clock.clone(), settings).await
    }
}

#[async_trait]
impl Reviewer for Shared {
    async fn review(&self, request: &Value) -> Judgement {
        let (object, old) = (&request["object"], &request["oldObject"]);
        // Finalizers and labels of what was stored before are nobody's mistake.
        if !old.is_null() && object["spec"] == old["spec"] {
            return Judgement::default();
        }
        let group = object["apiVersion"].as_str().and_then(|own| own.split('/').next());
        match (group, object["kind"].as_str()) {
            (Some("bizflycloud.karpenter.sh"), Some("ProviderConfig")) => match read(object) {
                Ok(config) => self.of_config(&config, read(old).ok().as_ref()).await,
                Err(judgement) => judgement,
            },
            (Some("karpenter.bizflycloud.com"), Some("BizflyCloudNodeClass")) => match read(object) {
                Ok(class) => self.of_class(&class).await,
                Err(judgement) => judgement,
            },
            // Pools are only warned of, and perhaps another provider's, of a newer version.
            (Some("karpenter.sh"), Some("NodePool")) => match read(object) {
                Ok(pool) => self.of_pool(&pool).await,
                Err(_) => Judgement::default(),
            },
            (Some("karpenter.sh"), Some("Provisioner")) => match read(object) {
                Ok(provisioner) => self.of_provisioner(&provisioner).await,
                Err(judgement) => judgement,
            },
            _ => Judgement::default(),
        }
    }
}

/// What the schema admits and the type can't hold is refused like anything else.
fn read<K: DeserializeOwned>(object: &Value) -> Result<K, Judgement> {
    serde_json::from_value(object.clone()).map_err(|error| Judgement {
        refusals: vec![error.to_string()],
        warnings: Vec::new(),
    })
}

impl Shared {
    async fn of_config(&self, config: &ProviderConfig, old: Option<&ProviderConfig>) -> Judgement {
        let spec = &config.spec;
        let name = config.name_any();
        let mut judgement = refused(&provider_config::validation::findings(spec));
        if let Some(old) = old {
            let region = |own: &ProviderConfig| RegionChoice::parse(&own.spec.region).map(|choice| choice.region).ok();
            if region(old) != region(config) {
                match self.claim_of(&name).await {
                    Ok(Some(claim)) => judgement.refusals.push(format!(
                        "spec.region can't change while NodeClaims such as {claim} are in it; make another ProviderConfig"
                    )),
                    Ok(None) => {}
                    Err(error) => judgement.warnings.push(format!(
                        "spec.region: whether NodeClaims are in it could not be checked: {error}"
                    )),
                }
            }
            if old.spec.tagging.tag_prefix != spec.tagging.tag_prefix {
                judgement.warnings.push(
                    "spec.tagging.tagPrefix: servers keep the tags they have; both prefixes are read from now on"
                        .to_owned(),
                );
            }
        }
        let secret = &spec.secret_ref;
        let secrets: Api<Secret> = Api::namespaced(self.kube.clone(), &secret.namespace);
        if let Ok(None) = secrets.get_opt(&secret.name).await {
            let message = format!("secret {}/{} does not exist", secret.namespace, secret.name);
            judgement.warnings.push(message);
        }
        let size = spec.image_config.root_disk_size;
        if size < LEAST_ROOT_DISK {
            judgement.warnings.push(format!(
                "spec.imageConfig.rootDiskSize: {size} GB is raised to the cloud's minimum of {LEAST_ROOT_DISK}"
            ));
        }
        if spec.cloud_config.api_endpoint.starts_with("http://") {
            let message = "spec.cloudConfig.apiEndpoint: credentials are sent without encryption";
            judgement.warnings.push(message.to_owned());
        }
        judgement
    }

    async fn of_class(&self, class: &BizflyCloudNodeClass) -> Judgement {
        let spec = &class.spec;
        let config = self.config(spec.provider_config()).await;
        let prefix = config.as_ref().map(|own| own.spec.tagging.tag_prefix.as_str());
        let mut judgement = refused(&validation::findings(spec, prefix.unwrap_or(DEFAULT_TAG_PREFIX)));
        let region = spec
            .region
            .as_deref()
            .or(config.as_ref().map(|own| own.spec.region.as_str()));
        if let Some(region) = region.and_then(|text| RegionChoice::parse(text).ok()) {
            let told = config.as_ref().and_then(|own| own.status.as_ref());
            let open = told.map_or(&[][..], |own| &own.zones);
            let (region, known) = (region.region, region.region.zones());
            // The cloud opens zones that nobody here has heard of, and closes others for a while; who asked it knows.
            for zone in spec.zones.iter().filter(|zone| !open.contains(zone)) {
                match (open, known.contains(&zone.as_str())) {
                    ([], true) => {}
                    ([], false) => judgement.warnings.push(format!(
                        "spec.zones: {zone} is not a zone of {region}; it has {}",
                        known.join(", ")
                    )),
                    (open, true) => judgement.warnings.push(format!(
                        "spec.zones: {zone} is not open, and the class not ready until it is; open are {}",
                        open.join(", ")
                    )),
                    (open, false) => judgement.refusals.push(format!(
                        "spec.zones: {zone} is not a zone of {region}; it has {}",
                        open.join(", ")
                    )),
                }
            }
        }
        let mode = JoinMode::of(spec, &self.settings);
        let bootstrap = spec.bootstrap.as_ref();
        let has_token = bootstrap
            .and_then(|own| own.bke.as_ref()?.token_secret_ref.as_ref())
            .is_some()
            || self.settings.bke.token.is_some();
        if mode == JoinMode::Bke && !has_token {
            judgement.refusals.push(
                "spec.bootstrap.bke.tokenSecretRef is needed: the controller has no BKE_CLUSTER_TOKEN".to_owned(),
            );
        }
        let uses_template = bootstrap.is_some_and(|own| own.image_policy.as_deref() == Some("Template"));
        if mode == JoinMode::Bke && spec.template.is_some() && !uses_template {
            let message = "spec.template is not used: BKE chooses the image (see bootstrap.imagePolicy)";
            judgement.warnings.push(message.to_owned());
        }
        if spec.public_ip == Some(false) {
            let message = "spec.publicIP: nodes reach nothing unless a network of the class has an internet gateway";
            judgement.warnings.push(message.to_owned());
        }
        let patterns: Vec<&str> = spec
            .flavor_selector_terms
            .iter()
            .filter_map(|term| term.name.as_deref())
            .collect();
        match flavors(config.as_ref()) {
            _ if patterns.is_empty() => {}
            None => judgement.warnings.push(unknown("spec.flavorSelectorTerms")),
            Some(flavors) => {
                let unmatched = patterns
                    .into_iter()
                    .filter(|pattern| !flavors.iter().any(|own| glob(pattern, own)));
                let told = unmatched.map(|pattern| format!("spec.flavorSelectorTerms: no flavor is called {pattern}"));
                judgement.warnings.extend(told);
            }
        }
        judgement
    }

    async fn of_pool(&self, pool: &NodePool) -> Judgement {
        let mut judgement = Judgement::default();
        let reference = &pool.spec.template.spec.node_class_ref;
        if !NodeClassKind::of::<BizflyCloudNodeClass>().is_meant_by(&reference.group, &reference.kind) {
            return judgement;
        }
        let Ok(Some(class)) = self.node_class(&reference.name).await else {
            return judgement;
        };
        let Some(config) = self.config(class.spec.provider_config()).await else {
            return judgement;
        };
        let region = RegionChoice::parse(&config.spec.region).map_or(Region::HaNoi, |choice| choice.region);
        let known = flavors(Some(&config));
        if known.is_none() {
            judgement.warnings.push(unknown("instance types"));
        }
        let named = known.into_iter().flatten().map(|name| Flavor {
            name: name.clone(),
            ..Flavor::default()
        });
        let catalogue = CloudCatalogue {
            flavors: named.collect(),
            volume_types: Vec::new(),
        };
        let advice = pool_advice::findings(pool, &catalogue, region).into_iter();
        let advice = advice.filter(|own| !catalogue.flavors.is_empty() || own.reason != "UnknownInstanceType");
        judgement.warnings.extend(advice.map(|own| own.message));
        judgement
    }

    async fn of_provisioner(&self, provisioner: &Provisioner) -> Judgement {
        let config = match compat::config_of(provisioner) {
            Some(name) => self.config(name).await,
            None => None,
        };
        match convert(provisioner, config.as_ref(), flavors(config.as_ref())) {
            Ok(conversion) => Judgement {
                warnings: conversion.notes,
                ..Judgement::default()
            },
            Err(findings) => refused(&findings),
        }
    }

    async fn config(&self, name: &str) -> Option<ProviderConfig> {
        let configs: Api<ProviderConfig> = Api::all(self.kube.clone());
        configs.get_opt(name).await.ok().flatten()
    }

    /// A claim whose class uses this ProviderConfig.
    async fn claim_of(&self, config: &str) -> Result<Option<String>, CloudError> {
        let classes = self.classes().await?;
        let claims: Api<NodeClaim> = Api::all(self.kube.clone());
        let claims = claims
            .list(&ListParams::default())
            .await
            .cloud_context("listing NodeClaims")?;
        let kind = NodeClassKind::of::<BizflyCloudNodeClass>();
        let uses = |claim: &NodeClaim| {
            let reference = &claim.spec.node_class_ref;
            let class = classes.get(&reference.name);
            kind.is_meant_by(&reference.group, &reference.kind)
                && class.is_some_and(|class| class.spec.provider_config() == config)
        };
        Ok(claims.items.iter().find(|claim| uses(claim)).map(ResourceExt::name_any))
    }
}

fn refused(findings: &[Finding]) -> Judgement {
    Judgement {
        refusals: findings.iter().map(ToString::to_string).collect(),
        warnings: Vec::new(),
    }
}

/// The flavors of a region, once its ProviderConfig was looked at.
fn flavors(config: Option<&ProviderConfig>) -> Option<&[String]> {
    let known = config?.status.as_ref()?.instance_types.as_slice();
    (!known.is_empty()).then_some(known)
}

fn unknown(what: &str) -> String {
    format!("{what} could not be checked: what the cloud sells is not known yet")
}
