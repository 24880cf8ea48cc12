//! Drift: whether a running server is still what its NodeClass asks for (§5.11).

use std::time::Duration;

use jiff::Timestamp;
use karpenter_api::{
    NodeClaim,
    conditions::{Change, ConditionStatus, StatusConditions},
    labels,
};
use karpenter_cloud::{CloudError, DriftReason, clock::later};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;

use super::Shared;
use crate::{
    account::Account,
    catalogue::{ClassFacts, CloudCatalogue},
    client::wire::{Nic, Server},
    instance,
    labels::{self as own, annotations},
    node_class::{BizflyCloudNodeClass, HASH_VERSION},
};

/// What a check found, kept for the ProviderConfig's `reconcileInterval`.
#[derive(Clone, Debug)]
pub(super) struct DriftMemory {
    checked_at: Timestamp,
    /// What the answer was given for.
    inputs: String,
    found: Option<&'static str>,
}

impl Shared {
    pub(super) async fn is_drifted(&self, claim: &NodeClaim) -> Result<Option<DriftReason>, CloudError> {
        let (class, account) = self.ground(claim).await?;
        let uid = claim.metadata.uid.clone().unwrap_or_default();
        if !account.drift.enabled {
            // What was found is neither true any more nor known when it is switched on again.
            self.drift.lock().remove(&uid);
            self.mark(claim, None).await;
            return Ok(None);
        }
        let now = self.clock.now();
        let interval = Duration::try_from(account.drift.reconcile_interval.as_signed()).unwrap_or_default();
        let inputs = format!("{:?}/{}", class.metadata.resource_version, account.fingerprint);
        let known = self.drift.lock().get(&uid).cloned();
        if let Some(known) = &known
            && known.inputs == inputs
            && interval > CORES_INTERVAL
            && now < later(known.checked_at, interval)
        {
            return Ok(self.remedied(known.found, account.drift.auto_remediate));
        }
        let provider_id = claim.provider_id().unwrap_or_default();
        let id = instance::server_id(provider_id).ok_or_else(|| CloudError::not_found(provider_id))?;
        let servers = account.servers().await.map_err(CloudError::from)?;
        let server = servers
            .iter()
            .find(|server| server.id == id)
            .ok_or_else(|| CloudError::not_found(provider_id))?;
        let catalogue = account.catalogue().await.map_err(CloudError::from)?;
        let facts = self.facts(&class, &account);
        self.restamp(claim, &facts).await;
        let found = match reason(claim, server, &facts, &catalogue) {
            Some(found) => Some(found),
            None => self.network_reason(&class, &account, server).await?,
        };
        let took = Duration::try_from(self.clock.since(now)).unwrap_or_default();
        self.metrics.drift_checked(took.as_secs_f64());
        if let Some(reason) = found
            && known.as_ref().and_then(|known| known.found) != found
        {
            let node = claim.status.as_ref().and_then(|status| status.node_name.as_deref());
            self.metrics.drifted(node.unwrap_or(id), reason);
            if !account.drift.auto_remediate {
                let message =
                    format!("{reason}: the node is not replaced because driftDetection.autoRemediate is false");
                self.events.warn(claim, "DriftDetected", &message).await;
            }
            tracing::info!(
                NodeClaim = claim.metadata.name,
                "server-id" = id,
                reason,
                event = "drift_detection",
                replaced = account.drift.auto_remediate,
                "server is not what its NodeClass asks for"
            );
        }
        let told = found.filter(|_| !account.drift.auto_remediate);
        self.mark(claim, told).await;
        let memory = DriftMemory {
            checked_at: now,
            inputs,
            found,
        };
        self.drift.lock().insert(uid, memory);
        Ok(self.remedied(found, account.drift.auto_remediate))
    }

    /// Drift that is not remedied is on the claim for everybody to see, until it is gone or remedied.
    async fn mark(&self, claim: &NodeClaim, found: Option<&'static str>) {
        let is_marked = |claim: &NodeClaim| match (found, claim.condition(DRIFT_DETECTED)) {
            (Some(reason), Some(own)) => own.is_true() && own.reason == reason,
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        if is_marked(claim) {
            return;
        }
        let name = claim.metadata.name.clone().unwrap_or_default();
        let claims: Api<NodeClaim> = Api::all(self.kube.clone());
        let mut current = match claims.get_opt(&name).await {
            Ok(Some(current)) if !is_marked(&current) => current,
            Ok(_) => return,
            Err(error) => {
                tracing::debug!(NodeClaim = name, %error, "drift could not be told on the claim");
                return;
            }
        };
        let change = match found {
            Some(reason) => {
                let message = "the node is not replaced because driftDetection.autoRemediate is false";
                current.set_condition(DRIFT_DETECTED, ConditionStatus::True, reason, message, self.clock.now())
            }
            None => current.clear_condition(DRIFT_DETECTED),
        };
        if change == Change::Unchanged {
            return;
        }
        // Core writes conditions too: whoever read before the other wrote tries again at the next check.
        let patch = json!({
            "metadata": {"resourceVersion": current.metadata.resource_version},
            "status": {"conditions": current.conditions()},
        });
        let written = claims
            .patch_status(&name, &PatchParams::default(), &Patch::Merge(&patch))
            .await;
        if let Err(error) = written {
            tracing::debug!(NodeClaim = name, %error, "drift could not be told on the claim");
        }
    }

    /// A hash of another version can't be compared: the claim gets the current one, and is compared by it from then on.
    async fn restamp(&self, claim: &NodeClaim, facts: &ClassFacts) {
        let notes = claim.metadata.annotations.as_ref();
        let stamped = notes.and_then(|notes| notes.get(annotations::CLASS_HASH_VERSION));
        if stamped.is_none_or(|version| version == HASH_VERSION) {
            return;
        }
        self.note(claim, annotations::CLASS_HASH, &facts.spec.static_hash())
            .await;
        self.note(claim, annotations::CLASS_HASH_VERSION, HASH_VERSION).await;
    }

    /// Whether the server's network interfaces are still on the class's networks and behind its firewalls.
    async fn network_reason(
        &self,
        class: &BizflyCloudNodeClass,
        account: &Account,
        server: &Server,
    ) -> Result<Option<&'static str>, CloudError> {
        let status = class.status.clone().unwrap_or_default();
        if class.spec.vpc_network_ids.is_empty() && status.security_groups.is_empty() {
            return Ok(None);
        }
        let nics = account.nics().await.map_err(CloudError::from)?;
        let own: Vec<&Nic> = nics.iter().filter(|nic| nic.device_id == server.id).collect();
        // A server that was just made may not be listed with its interfaces yet.
        if own.is_empty() {
            return Ok(None);
        }
        let is_on = |network: &String| own.iter().any(|nic| nic.kind == "LAN" && nic.network_id == *network);
        if !class.spec.vpc_network_ids.iter().all(is_on) {
            return Ok(Some("NetworkDrift"));
        }
        let is_open = own.iter().any(|nic| {
            !status
                .security_groups
                .iter()
                .all(|group| nic.security_groups.contains(group))
        });
        let unrepaired = self.firewalls.unrepaired_since(&server.id);
        let is_lasting = unrepaired.is_some_and(|since| self.clock.now() >= later(since, FIREWALL_PATIENCE));
        Ok((is_open && is_lasting).then_some("SecurityGroupDrift"))
    }

    /// Without remediation drift is told, but core does not hear of it.
    fn remedied(&self, found: Option<&'static str>, remediate: bool) -> Option<DriftReason> {
        found.filter(|_| remediate).map(|reason| DriftReason(reason.to_owned()))
    }
}

/// The condition of claims that drifted and are not replaced.
const DRIFT_DETECTED: &str = "DriftDetected";
/// Firewalls are put back in place; a node whose firewalls can't be is replaced after this time.
const FIREWALL_PATIENCE: Duration = Duration::from_secs(10 * 60);
/// Core asks this often; a longer interval of the user's throttles our checks.
const CORES_INTERVAL: Duration = Duration::from_secs(5 * 60);

impl DriftMemory {
    pub(super) fn reason(&self) -> Option<&'static str> {
        self.found
    }
}

/// The first thing that differs.
fn reason(claim: &NodeClaim, server: &Server, class: &ClassFacts, catalogue: &CloudCatalogue) -> Option<&'static str> {
    let notes = |key: &str| {
        claim
            .metadata
            .annotations
            .iter()
            .flatten()
            .find(|(own, _)| *own == key)
            .map(|own| own.1)
    };
    let label = |key: &str| {
        let labels = claim.metadata.labels.iter().flatten();
        labels
            .into_iter()
            .find(|(own, _)| *own == key)
            .map(|(_, value)| value.as_str())
    };
    let same_version = notes(annotations::CLASS_HASH_VERSION).is_some_and(|version| version == HASH_VERSION);
    if same_version && notes(annotations::CLASS_HASH).is_some_and(|hash| *hash != class.spec.static_hash()) {
        return Some("NodeClassDrifted");
    }
    let image = server
        .root_volume()
        .map(|root| root.volume_image_metadata.image_id.as_str());
    if let Some(image) = image.filter(|image| !image.is_empty())
        && !class.images.is_empty()
        && !class.images.iter().any(|own| own.id == image)
    {
        return Some("ImageDrift");
    }
    let flavor = instance::canonical_flavor(server, catalogue);
    if label(labels::INSTANCE_TYPE).is_some_and(|own| !flavor.is_empty() && own != flavor) {
        return Some("FlavorDrift");
    }
    let plan = if class.spot_plan_names.contains(&server.billing_plan) {
        "spot"
    } else {
        &server.billing_plan
    };
    if label(own::BILLING_PLAN).is_some_and(|own| !plan.is_empty() && own != plan) {
        return Some("BillingPlanDrift");
    }
    let is_among = |value: Option<&str>, list: &[String]| {
        list.is_empty() || value.is_none_or(|value| list.iter().any(|own| own == value))
    };
    let fits = is_among(label(labels::ZONE), &class.zones)
        && is_among(label(own::NODE_CATEGORY), &class.spec.node_categories)
        && is_among(label(own::CPU_VENDOR), &class.spec.cpu_vendors)
        && is_among(label(own::DISK_TYPE), &class.spec.disk_types)
        && (label(own::BILLING_PLAN) == Some("spot") || is_among(label(own::BILLING_PLAN), &class.spec.billing_plans));
    (!fits).then_some("NodeClassRequirementsDrift")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_class::ResolvedImage;

    fn facts(spec: serde_json::Value) -> ClassFacts {
        ClassFacts {
            zones: vec!["HN1".into(), "HN2".into()],
            spec: serde_json::from_value(spec).expect("a spec"),
            images: vec![ResolvedImage {
                id: "img".into(),
                ..ResolvedImage::default()
            }],
            ..ClassFacts::default()
        }
    }

    fn claim(made_with: &ClassFacts) -> NodeClaim {
        serde_json::from_value(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
            "metadata": {
                "name": "c", "labels": {
                    labels::INSTANCE_TYPE: "nix.4c_8g", labels::ZONE: "HN1", own::BILLING_PLAN: "on_demand",
                    own::NODE_CATEGORY: "premium",
                },
                "annotations": {
                    annotations::CLASS_HASH: made_with.spec.static_hash(), annotations::CLASS_HASH_VERSION: HASH_VERSION,
                },
            },
            "spec": {"requirements": [], "nodeClassRef": {"group": "g", "kind": "K", "name": "n"}},
        }))
        .expect("a claim")
    }

    fn server(change: serde_json::Value) -> Server {
        let mut server = json!({
            "id": "s", "flavor": {"name": "nix.4c_8g"}, "billing_plan": "on_demand",
            "os-extended-volumes:volumes_attached": [
                {"id": "v", "attached_type": "rootdisk", "volume_image_metadata": {"image_id": "img"}}],
        });
        for (key, value) in change.as_object().expect("fields") {
            server[key] = value.clone();
        }
        serde_json::from_value(server).expect("a server")
    }

    fn check(made_with: serde_json::Value, now: serde_json::Value, change: serde_json::Value, expected: Option<&str>) {
        let claim = claim(&facts(made_with));
        assert_eq!(
            reason(&claim, &server(change), &facts(now), &CloudCatalogue::default()),
            expected
        );
    }

    #[test]
    fn each_difference_has_its_reason() {
        let same = json!({});
        check(same.clone(), json!({}), json!({}), None);
        check(
            same.clone(),
            json!({"rootDiskSize": 60}),
            json!({}),
            Some("NodeClassDrifted"),
        );
        check(same.clone(), json!({"tags": ["a=b"]}), json!({}), None);
        check(
            same.clone(),
            json!({}),
            json!({"flavor": {"name": "nix.8c_16g"}}),
            Some("FlavorDrift"),
        );
        check(
            same.clone(),
            json!({}),
            json!({"billing_plan": "saving_plan"}),
            Some("BillingPlanDrift"),
        );
        check(
            same.clone(),
            json!({"nodeCategories": ["basic"]}),
            json!({}),
            Some("NodeClassRequirementsDrift"),
        );
        let claim = claim(&facts(json!({})));
        let elsewhere = ClassFacts {
            zones: vec!["HN2".into()],
            ..facts(json!({}))
        };
        let left = reason(&claim, &server(json!({})), &elsewhere, &CloudCatalogue::default());
        assert_eq!(left, Some("NodeClassRequirementsDrift"), "its zone was removed");
        let other_image = json!({"os-extended-volumes:volumes_attached": [
            {"id": "v", "attached_type": "rootdisk", "volume_image_metadata": {"image_id": "old"}}]});
        check(same, json!({}), other_image, Some("ImageDrift"));
    }
}
