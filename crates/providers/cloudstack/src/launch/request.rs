//! The deploy request of a plan, and the tags that follow it.

use std::collections::BTreeMap;

use karpenter_api::NodeClaim;
use karpenter_cloud::{ClaimMark, CloudError};
use sha1::{Digest, Sha1};
use uuid::Uuid;

use super::Plan;
use crate::{
    affinity::Seat,
    client::{ApiError, Class, Priority, Request},
    machine,
    node_class::CloudStackNodeClass,
    provider::Shared,
    resolve::DisksAskedFor,
    settings::OwnershipDetails,
};

/// The id that the machine of this name is given: UUIDv5 in the namespace of the claim.
fn custom_id(claim_uid: &str, name: &str) -> Option<String> {
    let namespace = Uuid::parse_str(claim_uid).ok()?;
    let mut hash = Sha1::new();
    hash.update(namespace.as_bytes());
    hash.update(name.as_bytes());
    let digest = hash.finalize();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    Some(uuid::Builder::from_sha1_bytes(bytes).into_uuid().to_string())
}

impl Shared {
    /// The request, and the seat in a managed affinity group that it takes.
    pub(super) async fn deploy_request(
        &self,
        plan: &Plan<'_>,
        name: &str,
    ) -> Result<(Request, Option<Seat<'_>>), CloudError> {
        let spec = &plan.class.spec;
        let shape = plan.entry.shape;
        let project = self.inventory.project(plan.class).await?;
        let user_data = self.user_data(plan, name).map_err(|error| {
            CloudError::create("UserDataTooLong", format!("NodeClass {}: {error}", plan.class.name()))
        })?;
        let mut request = Request::new("deployVirtualMachine")
            .with("zoneid", plan.zone.zone.id.clone())
            .with("serviceofferingid", plan.entry.offering.offering.id.clone())
            .with("templateid", plan.template.template.id.clone())
            .with("name", name)
            .with("displayname", name);
        request = self.inventory.scoped(request, project.as_deref());
        // Names are checked without a lock; an id is kept unique by the database, but only root administrators may choose it.
        if self.fleet.is_of_root() {
            request = request.with_some("customid", custom_id(&plan.mark.uid, name));
        }
        // Basic zones have one network and refuse to be told which.
        if plan.zone.zone.networktype != "Basic" {
            let mut networks = vec![plan.network.id.as_str()];
            networks.extend(plan.zone.additional.iter().map(|own| own.id.as_str()));
            request = request.with_list("networkids", &networks);
        }
        request = request.with_some("userdata", user_data);
        if let Some(id) = &plan.resolution.registered_user_data {
            let registered = spec.user_data_ref.as_ref().and_then(|own| own.registered.as_ref());
            let parameters = registered.and_then(|own| own.parameters.clone()).unwrap_or_default();
            request = request
                .with("userdataid", id.clone())
                .with_details("userdatadetails", &parameters);
        }
        let group = match &spec.instance_group {
            Some(own) => own.clone(),
            None => format!("karpenter-{}", self.settings.cluster_name),
        };
        if !group.is_empty() {
            request = request.with("group", group);
        }
        let groups: Vec<&str> = plan
            .resolution
            .security_groups
            .iter()
            .map(|own| own.id.as_str())
            .collect();
        let (affinity_groups, seat) = self.affinity_group_ids(plan, project.as_deref()).await?;
        request = request
            .with_list("securitygroupids", &groups)
            .with_list("affinitygroupids", &affinity_groups)
            .with_list("keypairs", &plan.class.ssh_key_pairs())
            .with_some("rootdisksize", spec.root_disk_size.map(|own| own.to_string()))
            .with_some(
                "overridediskofferingid",
                plan.resolution.root_disk_offering.as_ref().map(|own| own.id.clone()),
            )
            .with_some("extraconfig", spec.extra_config.clone())
            .with_some("boottype", spec.boot_type.map(|own| own.as_str()))
            .with_some("bootmode", spec.boot_mode.map(|own| own.as_str()));
        request = self.with_disks(request, plan);
        if let Some(pins) = &spec.placement {
            request = request
                .with_some("hostid", pins.host_id.clone())
                .with_some("clusterid", pins.cluster_id.clone())
                .with_some("podid", pins.pod_id.clone())
                .with_some("deploymentplanner", pins.deployment_planner.clone());
        }
        if let Some(tuning) = &spec.tuning {
            request = request
                .with_some(
                    "dynamicscalingenabled",
                    tuning.dynamic_scaling.map(|own| own.to_string()),
                )
                .with_some("iothreadsenabled", tuning.io_threads.map(|own| own.to_string()))
                .with_some("iodriverpolicy", tuning.io_driver_policy.clone())
                .with_some("nicmultiqueuenumber", tuning.nic_multiqueue.map(|own| own.to_string()))
                .with_some(
                    "nicpackedvirtqueuesenabled",
                    tuning.nic_packed_virtqueues.map(|own| own.to_string()),
                );
        }
        let mut details = spec.details.clone().unwrap_or_default();
        let mut open = |is_open: bool, name: &str, value: Option<i64>| {
            if let (true, Some(value)) = (is_open, value) {
                details.insert(name.to_owned(), value.to_string());
            }
        };
        open(shape.open.cpu, "cpuNumber", Some(shape.cpu));
        open(shape.open.memory, "memory", Some(shape.memory));
        open(shape.open.speed, "cpuSpeed", shape.cpu_speed);
        if self.settings.ownership_details == OwnershipDetails::Written {
            let pool = plan.claim.node_pool().unwrap_or_default();
            details.extend(machine::details(&self.settings, plan.mark, pool, plan.class.name()));
        }
        request = request.with_details("details", &details);
        // Without it, an offering with a lease would have the server stop the machine.
        if self.inventory.capabilities().await?.instanceleaseenabled {
            request.add("leaseduration", "-1");
        }
        Ok((request, seat))
    }

    fn with_disks(&self, mut request: Request, plan: &Plan<'_>) -> Request {
        let spec = &plan.class.spec;
        let id = |wanted: &str| plan.resolution.disk_offering(wanted);
        if let Some(offering) = &spec.disk_offering {
            request = request
                .with("diskofferingid", id(offering))
                .with_some("size", spec.disk_size.map(|own| own.to_string()));
        }
        match plan.resolution.disks_asked_for {
            DisksAskedFor::InDetail => {}
            DisksAskedFor::ByOffering => {
                if let Some(disk) = spec.data_disks.iter().flatten().next() {
                    request = request
                        .with("diskofferingid", id(&disk.offering))
                        .with_some("size", disk.size.map(|own| own.to_string()));
                }
                return request;
            }
            DisksAskedFor::Afterwards => return request,
        }
        for (index, (device, disk)) in plan.class.data_disks().enumerate() {
            let mut add = |field: &str, value: Option<String>| {
                if let Some(value) = value {
                    request.add(format!("datadisksdetails[{index}].{field}"), value);
                }
            };
            add("diskofferingid", Some(id(&disk.offering)));
            add("deviceid", Some(device.to_string()));
            add("size", disk.size.map(|own| own.to_string()));
            add("miniops", disk.min_iops.map(|own| own.to_string()));
            add("maxiops", disk.max_iops.map(|own| own.to_string()));
        }
        request
    }

    /// Tags a machine that was just accepted. What fails here is repaired by the tagging task.
    pub(super) async fn tag_new(&self, claim: &NodeClaim, mark: &ClaimMark, class: &CloudStackNodeClass, id: &str) {
        let pool = claim.node_pool().unwrap_or_default();
        let tags = machine::tags(&self.settings, mark, pool, class.name(), class.spec.tags.as_ref());
        let mut tagged = self.create_tags("UserVm", id, &tags).await.map(drop);
        if tagged.is_ok() && class.has_data_disks() {
            tagged = self.tag_disks(id, class, &tags, Priority::Launch).await.map(drop);
        }
        if let Err(error) = tagged {
            tracing::warn!(vm = id, %error, "a new machine could not be tagged yet");
        }
    }

    /// Tags a machine, but none of its disks.
    pub(super) async fn tag_machine(&self, claim: &NodeClaim, mark: &ClaimMark, class: &CloudStackNodeClass, id: &str) {
        let pool = claim.node_pool().unwrap_or_default();
        let tags = machine::tags(&self.settings, mark, pool, class.name(), class.spec.tags.as_ref());
        if let Err(error) = self.create_tags("UserVm", id, &tags).await {
            tracing::warn!(vm = id, %error, "a machine could not be tagged yet");
        }
    }

    /// Submits tags for a resource.
    pub(crate) async fn create_tags(
        &self,
        kind: &str,
        id: &str,
        tags: &BTreeMap<String, String>,
    ) -> Result<Option<String>, ApiError> {
        let request = Request::new("createTags")
            .with("resourcetype", kind)
            .with("resourceids", id)
            .with_tags("tags", tags);
        match self.client.call(&request, Priority::Launch).await {
            Ok(content) => Ok(content.text("jobid").map(str::to_owned)),
            // The machine went meanwhile.
            Err(error) if error.class() == Some(&Class::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_of_the_same_claim_and_name_always_has_the_same_id() {
        let uid = "0b0d7a3e-0000-4000-8000-000000000001";
        let id = custom_id(uid, "karpenter-a").expect("a UUID");
        assert_eq!(Some(id.clone()), custom_id(uid, "karpenter-a"));
        assert_ne!(Some(id.clone()), custom_id(uid, "karpenter-a-2"));
        assert_eq!(Uuid::parse_str(&id).expect("a UUID").get_version_num(), 5);
        assert_eq!(custom_id("not a UUID", "karpenter-a"), None);
    }
}
