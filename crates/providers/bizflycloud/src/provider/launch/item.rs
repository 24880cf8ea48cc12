//! What is ordered: one element of the request that creates servers (§1.5).

use karpenter_api::{Requirements, labels::CAPACITY_TYPE};
use karpenter_cloud::{CloudError, selection::Candidate};

use super::Launch;
use crate::{
    bootstrap::{self, NodeFacts, UserParts},
    catalogue::{CloudCatalogue, Offer, PLAN_SPOT},
    client::wire::{BootSource, NewDisk, NewServer},
    labels as own,
    node_class::{ResolvedImage, validation},
    provider::Shared,
    resolution,
    tags::{self, TagFacts},
};

impl Shared {
    /// What is sent for one server.
    pub(in crate::provider) async fn item(
        &self,
        launch: &Launch<'_>,
        name: &str,
        candidate: &Candidate,
        offer: &Offer,
        catalogue: &CloudCatalogue,
    ) -> Result<NewServer, CloudError> {
        let Launch {
            claim,
            mark,
            class,
            account,
            facts,
        } = launch;
        let invalid = |message: String| CloudError::create("InvalidRequest", message);
        let flavor = catalogue
            .flavor(&offer.flavor)
            .ok_or_else(|| invalid(format!("flavor {} is not listed any more", offer.flavor)))?;
        let volume_type = |kind: &str| {
            let found = catalogue.volume_type(flavor.category(), kind, &offer.zone);
            found
                .map(|found| found.name.clone())
                .ok_or_else(|| invalid(format!("there is no {kind} disk for {} in {}", flavor.name, offer.zone)))
        };
        let data_disks = class.spec.data_disks.iter().map(|disk| {
            Ok(NewDisk {
                size: disk.size,
                volume_type: volume_type(disk.kind.as_deref().unwrap_or(&offer.disk_type))?,
            })
        });
        let data_disks = data_disks.collect::<Result<Vec<NewDisk>, CloudError>>()?;
        let asked = Requirements::from_wire(&self.rules, &claim.spec.requirements);
        let image = image_for(&facts.images, &asked).ok_or_else(|| {
            CloudError::insufficient_capacity("no image of the NodeClass satisfies the claim's requirements")
        })?;
        let status = class.status.clone().unwrap_or_default();
        let join = resolution::join(&self.kube, &class.spec, &self.settings, Some(image))
            .await?
            .map_err(|problem| CloudError::node_class_not_ready(&facts.name, problem.message))?;
        // The API may repeat what it was sent.
        if let Some(token) = join.token() {
            self.accounts.redactor().add(token);
        }
        let base = account
            .image_config
            .as_ref()
            .and_then(|own| own.user_data_template.as_deref());
        let parts = UserParts {
            base,
            own: class.spec.user_data.as_deref(),
            ssh_keys: &class.spec.ssh_keys,
            kubelet: class.spec.kubelet.as_ref(),
        };
        let wants_taint = offer.plan == PLAN_SPOT && class.spec.spot.as_ref().is_some_and(|spot| spot.taint);
        let node = NodeFacts {
            name,
            claim,
            spot_taint: wants_taint.then(bootstrap::spot_taint),
        };
        let user_data = join.user_data(&parts, &node).map_err(invalid)?;
        let class_tags = validation::parse_tags(&class.spec, &account.tagging.tag_prefix).unwrap_or_default();
        let capacity_type = candidate
            .offering
            .requirements
            .get(CAPACITY_TYPE)
            .and_then(|own| own.single_value());
        let mut metadata = tags::for_launch(
            &account.tagging,
            &TagFacts {
                cluster: &self.settings.cluster_name,
                claim: mark,
                node_pool: claim.node_pool().unwrap_or_default(),
                node_class: &facts.name,
                capacity_type: capacity_type.unwrap_or_default(),
                class_tags,
                data_disks: class.spec.data_disks.len(),
            },
        );
        let network = status.vpc_networks.first().map_or("", |vpc| vpc.id.as_str());
        metadata.extend(join.metadata(network));
        let wanted_network = asked.get(own::NETWORK_PLAN);
        let network_plan = facts
            .network_plans()
            .into_iter()
            .find(|plan| wanted_network.is_none_or(|wanted| wanted.has(plan)))
            .unwrap_or_default();
        let billing_plan = if offer.plan == PLAN_SPOT {
            facts.spot_plan(flavor).unwrap_or(PLAN_SPOT)
        } else {
            &offer.plan
        };
        let ssh_key = resolution::ssh_key(&class.spec, account);
        let inherited_ipv6 = account.image_config.as_ref().is_some_and(|own| own.enable_ipv6);
        Ok(NewServer {
            name: name.to_owned(),
            flavor: flavor.name.clone(),
            category: flavor.category().as_str().to_owned(),
            availability_zone: offer.zone.clone(),
            os: BootSource {
                id: image.id.clone(),
                kind: "image",
            },
            rootdisk: NewDisk {
                size: facts.root_disk_gib,
                volume_type: volume_type(&offer.disk_type)?,
            },
            datadisks: data_disks,
            password: ssh_key.is_none(),
            sshkey: ssh_key.map(str::to_owned),
            quantity: 1,
            vpc_network_ids: status.vpc_networks.iter().map(|vpc| vpc.id.clone()).collect(),
            firewalls: status.security_groups,
            is_created_wan: class.spec.public_ip.unwrap_or(true),
            ipv6: class.spec.enable_ipv6.unwrap_or(inherited_ipv6),
            network_plan,
            billing_plan: billing_plan.to_owned(),
            user_data,
            metadata,
        })
    }
}

/// The first image whose labels the claim allows.
fn image_for<'a>(images: &'a [ResolvedImage], asked: &Requirements) -> Option<&'a ResolvedImage> {
    let allows = |key: &str, value: Option<&str>| match (asked.get(key), value) {
        (None, _) => true,
        (Some(requirement), Some(value)) => requirement.has(value),
        (Some(_), None) => false,
    };
    images.iter().find(|image| {
        allows(own::OS_TYPE, Some(&image.os_type))
            && allows(own::KUBERNETES_VERSION, image.kubernetes_version.as_deref())
            && (allows(own::IMAGE_ID, Some(&image.name)) || allows(own::IMAGE_ID, Some(&image.id)))
    })
}
