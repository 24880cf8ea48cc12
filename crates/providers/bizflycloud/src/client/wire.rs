//! The JSON of BizFly's API, as far as it is read or written here.
//!
//! The API is loose with types (`"true"` and `true`, strings for numbers, `null` for anything), so every field that is not
//! essential has a default and unknown fields are ignored (§1.3).

use std::collections::BTreeMap;

use jiff::{Timestamp, civil::DateTime, tz::TimeZone};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// An entry of the service catalogue.
#[derive(Clone, Debug, Deserialize)]
pub struct Service {
    #[serde(default, deserialize_with = "lenient")]
    pub canonical_name: String,
    #[serde(default, deserialize_with = "lenient")]
    pub region: String,
    #[serde(default, deserialize_with = "lenient")]
    pub service_url: String,
}

#[derive(Debug, Deserialize)]
pub struct Services {
    #[serde(default)]
    pub services: Vec<Service>,
}

/// A region of the account.
#[derive(Clone, Debug, Deserialize)]
pub struct AccountRegion {
    #[serde(default, deserialize_with = "loose_bool")]
    pub active: bool,
    #[serde(default, deserialize_with = "lenient")]
    pub short_name: String,
    #[serde(default, deserialize_with = "lenient")]
    pub zones: Vec<AccountZone>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct AccountZone {
    #[serde(default, deserialize_with = "loose_bool")]
    pub active: bool,
    #[serde(default, deserialize_with = "lenient")]
    pub short_name: String,
}

/// What the account service says about the user.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct User {
    #[serde(default, deserialize_with = "lenient")]
    pub user_regions: Vec<UserRegion>,
    #[serde(default, deserialize_with = "lenient")]
    pub billing_balance: f64,
    #[serde(default, deserialize_with = "loose_bool")]
    pub negative_balance: bool,
    #[serde(default, deserialize_with = "loose_bool")]
    pub has_expired_invoice: bool,
}

#[derive(Clone, Debug, Deserialize)]
pub struct UserRegion {
    #[serde(default, deserialize_with = "lenient")]
    pub code: String,
    #[serde(default, deserialize_with = "lenient")]
    pub short_name: String,
}

#[derive(Debug, Deserialize)]
pub struct UserAnswer {
    pub data: User,
}

/// A size of server.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Flavor {
    pub name: String,
    /// In MB.
    #[serde(default, deserialize_with = "loose_number")]
    pub ram: u64,
    #[serde(default, deserialize_with = "loose_number")]
    pub vcpus: u64,
    #[serde(default)]
    pub category: Option<String>,
    #[serde(default)]
    pub generation: Option<Generation>,
    #[serde(default)]
    pub gpu: Option<Gpu>,
    #[serde(default)]
    pub billing_plans: Option<Vec<String>>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Generation {
    #[serde(default)]
    pub code: Option<String>,
    #[serde(default)]
    pub vendor: Option<String>,
    #[serde(default, deserialize_with = "lenient")]
    pub availability_zones: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Gpu {
    #[serde(default, deserialize_with = "lenient")]
    pub name: String,
    #[serde(default, deserialize_with = "loose_number")]
    pub count: u64,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct VolumeType {
    pub name: String,
    #[serde(default, deserialize_with = "lenient")]
    pub category: String,
    /// `ENTERPRISE HDD`, or just `HDD`.
    #[serde(default, rename = "type", deserialize_with = "lenient")]
    pub kind: String,
    #[serde(default, deserialize_with = "lenient")]
    pub availability_zones: Vec<String>,
}

#[derive(Debug, Deserialize)]
pub struct VolumeTypes {
    #[serde(default)]
    pub volume_types: Vec<VolumeType>,
}

#[derive(Debug, Deserialize)]
pub struct OsImages {
    #[serde(default)]
    pub os_images: Vec<OsFamily>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct OsFamily {
    pub os: String,
    #[serde(default)]
    pub versions: Vec<OsVersion>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct OsVersion {
    pub name: String,
    pub id: String,
}

#[derive(Debug, Deserialize)]
pub struct CustomImages {
    #[serde(default)]
    pub images: Vec<CustomImage>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct CustomImage {
    pub id: String,
    #[serde(default, deserialize_with = "lenient")]
    pub name: String,
}

#[derive(Debug, Deserialize)]
pub struct KubernetesVersions {
    #[serde(default)]
    pub controller_versions: Vec<KubernetesVersion>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct KubernetesVersion {
    /// `v1.31.5`, or `v1.31.5.flatcar`.
    #[serde(default, deserialize_with = "lenient")]
    pub kubernetes_version: String,
    #[serde(default, deserialize_with = "lenient")]
    pub worker_image_id: String,
}

/// A cluster of the vendor's own Kubernetes service.
#[derive(Clone, Debug, Deserialize)]
pub struct BkeCluster {
    #[serde(default, deserialize_with = "lenient")]
    pub private_network_id: String,
    #[serde(default, deserialize_with = "lenient")]
    pub worker_pools: Vec<BkePool>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct BkePool {
    #[serde(default, deserialize_with = "lenient")]
    pub name: String,
    #[serde(default, deserialize_with = "loose_bool")]
    pub enable_autoscaling: bool,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Vpc {
    pub id: String,
    #[serde(default, deserialize_with = "lenient")]
    pub name: String,
    #[serde(default, deserialize_with = "lenient")]
    pub status: String,
    #[serde(default, deserialize_with = "loose_bool")]
    pub is_default: bool,
    #[serde(default, deserialize_with = "lenient")]
    pub availability_zones: Vec<String>,
    #[serde(default, deserialize_with = "lenient")]
    pub availability_zone_hints: Vec<String>,
    #[serde(default)]
    pub internet_gateway: Option<Value>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Firewall {
    pub id: String,
    #[serde(default, deserialize_with = "lenient")]
    pub name: String,
}

/// A network interface of a server.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Nic {
    pub id: String,
    #[serde(default, deserialize_with = "lenient")]
    pub network_id: String,
    /// The server that it is plugged into, if any.
    #[serde(default, deserialize_with = "lenient")]
    pub device_id: String,
    /// `LAN` or `WAN`.
    #[serde(default, rename = "type", deserialize_with = "lenient")]
    pub kind: String,
    #[serde(default, deserialize_with = "lenient")]
    pub security_groups: Vec<String>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct KeypairEntry {
    pub keypair: Keypair,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Keypair {
    pub name: String,
}

/// One element of the array that creates servers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NewServer {
    pub name: String,
    pub flavor: String,
    /// The flavor's category.
    #[serde(rename = "type")]
    pub category: String,
    pub availability_zone: String,
    pub os: BootSource,
    pub rootdisk: NewDisk,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub datadisks: Vec<NewDisk>,
    pub password: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sshkey: Option<String>,
    pub quantity: u32,
    pub vpc_network_ids: Vec<String>,
    pub firewalls: Vec<String>,
    pub is_created_wan: bool,
    pub ipv6: bool,
    pub network_plan: String,
    pub billing_plan: String,
    pub user_data: String,
    pub metadata: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BootSource {
    pub id: String,
    #[serde(rename = "type")]
    pub kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NewDisk {
    pub size: u32,
    pub volume_type: String,
}

#[derive(Debug, Deserialize)]
pub struct CreatedTasks {
    #[serde(deserialize_with = "one_or_many")]
    pub task_id: Vec<String>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Task {
    #[serde(default, deserialize_with = "loose_bool")]
    pub ready: bool,
    #[serde(default)]
    pub result: Value,
}

/// How far a task is. `progress` is not looked at: it says 100 of tasks that are not done.
#[derive(Clone, Debug)]
pub enum TaskState {
    Running,
    Done(Box<Server>),
    Failed(String),
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Server {
    pub id: String,
    #[serde(default, deserialize_with = "lenient")]
    pub name: String,
    #[serde(default, deserialize_with = "lenient")]
    pub status: String,
    #[serde(default, deserialize_with = "lenient")]
    pub created: String,
    #[serde(default, deserialize_with = "text_map")]
    pub metadata: BTreeMap<String, String>,
    #[serde(default, deserialize_with = "lenient")]
    pub flavor: ServerFlavor,
    #[serde(default, deserialize_with = "lenient")]
    pub flavor_name: String,
    #[serde(default, deserialize_with = "lenient")]
    pub category: String,
    #[serde(default, rename = "OS-EXT-AZ:availability_zone", deserialize_with = "lenient")]
    pub availability_zone: String,
    #[serde(default, deserialize_with = "lenient")]
    pub zone_name: String,
    #[serde(default, rename = "OS-EXT-STS:task_state", deserialize_with = "lenient")]
    pub task_state: String,
    #[serde(
        default,
        rename = "os-extended-volumes:volumes_attached",
        deserialize_with = "lenient"
    )]
    pub volumes: Vec<AttachedVolume>,
    #[serde(default, deserialize_with = "lenient")]
    pub network_plan: String,
    #[serde(default, deserialize_with = "lenient")]
    pub billing_plan: String,
    /// `false` while an action is being carried out; not every answer tells.
    #[serde(default, deserialize_with = "lenient")]
    pub is_available: Option<bool>,
    #[serde(default, deserialize_with = "lenient")]
    pub ip_addresses: IpAddresses,
}

/// The addresses of a server by kind of network.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct IpAddresses {
    #[serde(default, rename = "LAN", deserialize_with = "lenient")]
    pub lan: Vec<IpAddress>,
    #[serde(default, rename = "WAN_V4", deserialize_with = "lenient")]
    pub wan_v4: Vec<IpAddress>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct IpAddress {
    #[serde(default, deserialize_with = "lenient")]
    pub addr: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct ServerFlavor {
    #[serde(default, deserialize_with = "lenient")]
    pub name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct AttachedVolume {
    pub id: String,
    #[serde(default, deserialize_with = "lenient")]
    pub name: String,
    #[serde(default, rename = "type", deserialize_with = "lenient")]
    pub kind: String,
    #[serde(default, deserialize_with = "lenient")]
    pub volume_type: String,
    #[serde(default, deserialize_with = "lenient")]
    pub attached_type: String,
    #[serde(default, deserialize_with = "lenient")]
    pub volume_image_metadata: ImageMetadata,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct ImageMetadata {
    #[serde(default, deserialize_with = "lenient")]
    pub image_id: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Volume {
    pub id: String,
    #[serde(default, deserialize_with = "lenient")]
    pub name: String,
    #[serde(default, deserialize_with = "lenient")]
    pub status: String,
    #[serde(default, deserialize_with = "lenient")]
    pub attachments: Vec<Value>,
    #[serde(default, alias = "created", deserialize_with = "lenient")]
    pub created_at: String,
    #[serde(default, deserialize_with = "loose_bool")]
    pub bootable: bool,
    /// In GB.
    #[serde(default, deserialize_with = "loose_number")]
    pub size: u64,
    #[serde(default, deserialize_with = "lenient")]
    pub billing_plan: String,
}

/// The tag of servers that are renamed later: the name that they were ordered with.
pub const ORDERED_AS: &str = "karpenter-ordered-as";

// === impl Server ===

impl Server {
    pub fn zone(&self) -> &str {
        if self.availability_zone.is_empty() {
            &self.zone_name
        } else {
            &self.availability_zone
        }
    }

    /// As the API lists flavors, unless the server was made with a short name.
    pub fn flavor(&self) -> &str {
        if self.flavor.name.is_empty() {
            &self.flavor_name
        } else {
            &self.flavor.name
        }
    }

    pub fn root_volume(&self) -> Option<&AttachedVolume> {
        self.volumes.iter().find(|volume| volume.attached_type == "rootdisk")
    }

    pub fn created_at(&self) -> Option<Timestamp> {
        time(&self.created)
    }

    /// On its way out, or gone in all but name (§1.6).
    pub fn is_terminating(&self) -> bool {
        self.task_state == "deleting" || matches!(self.status.as_str(), "DELETED" | "SOFT_DELETED")
    }

    pub fn has_failed(&self) -> bool {
        self.status == "ERROR"
    }

    /// Whether an action is under way, as far as the API tells.
    pub fn is_busy(&self) -> bool {
        self.is_available == Some(false)
    }

    /// The name that it was ordered with, which its disks keep when it is renamed.
    pub fn ordered_name(&self) -> &str {
        self.metadata.get(ORDERED_AS).unwrap_or(&self.name)
    }

    /// Attached disks that have the name which data disks of an order get.
    pub fn named_data_disks(&self) -> impl Iterator<Item = &AttachedVolume> {
        let name = data_disk_name(self.ordered_name());
        self.volumes
            .iter()
            .filter(move |volume| volume.attached_type != "rootdisk" && volume.name.eq_ignore_ascii_case(&name))
    }
}

/// What the API calls the root disk that it makes for a server.
pub fn root_disk_name(server: &str) -> String {
    format!("{server}_rootdisk")
}

/// What the API calls the data disks that are ordered with a server.
pub fn data_disk_name(server: &str) -> String {
    format!("{server}_datadisk")
}

impl Volume {
    pub fn is_attached(&self) -> bool {
        !self.attachments.is_empty() || self.status.eq_ignore_ascii_case("in-use")
    }

    pub fn is_building(&self) -> bool {
        ["creating", "downloading"]
            .iter()
            .any(|status| self.status.eq_ignore_ascii_case(status))
    }

    pub fn created_at(&self) -> Option<Timestamp> {
        time(&self.created_at)
    }
}

impl Task {
    /// Ready with a server is done; ready without, or without success, is failed (the shape of failures is not documented).
    pub fn state(&self) -> TaskState {
        if !self.ready {
            return TaskState::Running;
        }
        let refused = self.result["success"] == Value::Bool(false);
        if !refused && let Ok(server) = serde_json::from_value::<Server>(self.result.clone()) {
            return TaskState::Done(Box::new(server));
        }
        let told = ["message", "error", "detail"]
            .iter()
            .find_map(|key| self.result[key].as_str());
        TaskState::Failed(told.unwrap_or("the task failed without a reason").to_owned())
    }
}

/// Reads the four ways in which the API writes times; a time without a zone is UTC.
pub fn time(text: &str) -> Option<Timestamp> {
    if let Ok(time) = text.parse::<Timestamp>() {
        return Some(time);
    }
    let civil: DateTime = text.parse().ok()?;
    civil.to_zoned(TimeZone::UTC).ok().map(|zoned| zoned.timestamp())
}

/// `null` and values of the wrong type count as absent.
fn lenient<'de, D: Deserializer<'de>, T: Default + serde::de::DeserializeOwned>(from: D) -> Result<T, D::Error> {
    let value = Value::deserialize(from)?;
    Ok(serde_json::from_value(value).unwrap_or_default())
}

fn loose_bool<'de, D: Deserializer<'de>>(from: D) -> Result<bool, D::Error> {
    Ok(match Value::deserialize(from)? {
        Value::Bool(own) => own,
        Value::String(text) => text.eq_ignore_ascii_case("true"),
        Value::Null | Value::Number(_) | Value::Array(_) | Value::Object(_) => false,
    })
}

fn loose_number<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    Ok(match Value::deserialize(from)? {
        Value::Number(number) => number.as_u64().unwrap_or_default(),
        Value::String(text) => text.trim().parse().unwrap_or_default(),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => 0,
    })
}

fn text_map<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, String>, D::Error> {
    let Value::Object(fields) = Value::deserialize(from)? else {
        return Ok(BTreeMap::new());
    };
    let text = |value: Value| match value {
        Value::String(text) => text,
        other => other.to_string(),
    };
    Ok(fields.into_iter().map(|(key, value)| (key, text(value))).collect())
}

fn one_or_many<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    Ok(match Value::deserialize(from)? {
        Value::String(one) => vec![one],
        Value::Array(many) => many
            .into_iter()
            .filter_map(|one| one.as_str().map(str::to_owned))
            .collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn loosely_typed_answers_are_read() {
        let volume: Volume = serde_json::from_value(json!({
            "id": "v", "name": null, "bootable": "true", "status": "available", "snapshot_id": null, "more": {},
        }))
        .expect("a volume");
        assert!(volume.bootable && volume.name.is_empty());
        let server: Server = serde_json::from_value(json!({
            "id": "s", "name": "n", "key_name": null, "metadata": {"a": 1}, "flavor": {"name": "nix.2c_4g", "ram": "4096"},
            "os-extended-volumes:volumes_attached": [{"id": "v"}], "is_available": null,
        }))
        .expect("a server");
        assert_eq!((server.flavor(), server.metadata["a"].as_str()), ("nix.2c_4g", "1"));
        let flavor: Flavor =
            serde_json::from_value(json!({"name": "nix.1c_1g", "ram": "1024", "vcpus": 1})).expect("one");
        assert_eq!((flavor.ram, flavor.generation), (1024, None));
    }

    #[test]
    fn all_four_forms_of_time_are_read() {
        for text in [
            "2020-04-08T09:36:08Z",
            "2020-04-08T09:36:08.000000",
            "2020-04-08T09:36:08",
            "2020-04-08T09:36:08.000000Z",
        ] {
            assert_eq!(time(text).map(|time| time.as_second()), Some(1_586_338_568), "{text}");
        }
        assert_eq!(time("yesterday"), None);
    }

    #[test]
    fn progress_does_not_make_a_task_done() {
        let task = |value| serde_json::from_value::<Task>(value).expect("a task").state();
        let running = json!({"ready": false, "result": {"action": "create_server", "progress": 100}});
        assert!(matches!(task(running), TaskState::Running));
        let failed = json!({"ready": true, "result": {"success": false, "message": "No valid host"}});
        assert!(matches!(task(failed), TaskState::Failed(text) if text == "No valid host"));
        let done = json!({"ready": true, "result": {"success": true, "id": "s", "name": "n"}});
        assert!(matches!(task(done), TaskState::Done(server) if server.id == "s"));
    }
}
