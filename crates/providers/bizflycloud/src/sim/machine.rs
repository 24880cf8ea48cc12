//! A server of the simulated cloud, from its order to its end.

use std::time::Duration;

use jiff::Timestamp;
use karpenter_cloud::clock::later;
use serde_json::{Value, json};

/// A server with the disks and network interfaces that were made with it.
#[derive(Clone, Debug)]
pub(super) struct Machine {
    pub(super) id: String,
    pub(super) task: String,
    pub(super) order: Value,
    pub(super) name: String,
    pub(super) flavor: String,
    pub(super) ordered_at: Timestamp,
    /// When its disk is ready and the server shows.
    pub(super) visible_at: Timestamp,
    pub(super) active_at: Timestamp,
    pub(super) deletion: Option<Deletion>,
    pub(super) fate: Fate,
    /// What somebody, or an action, made of it.
    pub(super) change: Option<Change>,
    /// How often it was booted after the first time.
    pub(super) reboots: u32,
    pub(super) billing_plan: String,
    pub(super) nics: Vec<NicState>,
    /// Disks that are no longer there.
    pub(super) gone_disks: Vec<String>,
}

/// An action under way, or done.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) during: String,
    pub(super) until: Timestamp,
    pub(super) then: String,
}

#[derive(Clone, Debug)]
pub(super) struct NicState {
    pub(super) id: String,
    pub(super) network: String,
    pub(super) kind: &'static str,
    pub(super) firewalls: Vec<String>,
}

#[derive(Clone, Debug)]
pub(super) struct Deletion {
    pub(super) at: Timestamp,
    pub(super) takes: Vec<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Fate {
    Lives,
    /// Its task fails: it never shows, and its disks stay.
    TaskFails(String),
    GoesIntoError,
    /// It runs, but its task never says so.
    TaskNeverReady,
}

impl Machine {
    pub(super) fn root_disk(&self) -> String {
        format!("root-{}", self.id)
    }

    /// The ids of the disks that were ordered with it, the root disk first.
    pub(super) fn disks(&self) -> Vec<String> {
        let data = self.order["datadisks"].as_array().map_or(0, Vec::len);
        let data = (1..=data).map(|number| format!("data-{}-{number}", self.id));
        std::iter::once(self.root_disk()).chain(data).collect()
    }

    pub(super) fn is_up(&self, now: Timestamp) -> bool {
        let runs = matches!(self.fate, Fate::Lives | Fate::TaskNeverReady);
        runs && now >= self.active_at && self.status(now) == "ACTIVE"
    }

    pub(super) fn status(&self, now: Timestamp) -> &str {
        match (&self.change, &self.fate) {
            (Some(change), _) if now < change.until => &change.during,
            (Some(change), _) => &change.then,
            (None, Fate::GoesIntoError) => "ERROR",
            (None, _) if now < self.active_at => "BUILD",
            (None, _) => "ACTIVE",
        }
    }

    /// Whether an action may begin.
    pub(super) fn is_available(&self, now: Timestamp) -> bool {
        now >= self.active_at && self.change.as_ref().is_none_or(|change| now >= change.until)
    }

    pub(super) fn exists(&self, now: Timestamp, gone_after: Duration) -> bool {
        let shows = now >= self.visible_at && !matches!(self.fate, Fate::TaskFails(_));
        shows
            && self
                .deletion
                .as_ref()
                .is_none_or(|deletion| now < later(deletion.at, gone_after))
    }

    /// The moment from which it is no more, if it was deleted.
    pub(super) fn ended_at(&self, gone_after: Duration) -> Option<Timestamp> {
        self.deletion.as_ref().map(|deletion| later(deletion.at, gone_after))
    }

    pub(super) fn has_disk(&self, disk: &str, now: Timestamp, gone_after: Duration) -> bool {
        if self.gone_disks.iter().any(|gone| gone == disk) {
            return false;
        }
        match &self.deletion {
            Some(deletion) if deletion.takes.iter().any(|taken| taken == disk) => now < later(deletion.at, gone_after),
            Some(_) | None => true,
        }
    }

    pub(super) fn server_json(&self, now: Timestamp, pod_disks: &[String]) -> Value {
        let order = &self.order;
        let mut metadata = order["metadata"].clone();
        metadata["category"] = order["type"].clone();
        let mut volumes = vec![json!({
            "id": self.root_disk(), "name": format!("{}_rootdisk", self.ordered_name()), "size": order["rootdisk"]["size"],
            "volume_type": order["rootdisk"]["volume_type"], "type": null, "attached_type": "rootdisk",
            "volume_image_metadata": {"image_id": order["os"]["id"], "min_disk": "0"},
        })];
        let data = self.disks();
        volumes.extend(data.iter().skip(1).map(
            |id| json!({"id": id, "name": format!("{}_datadisk", self.ordered_name()), "attached_type": "datadisk"}),
        ));
        volumes.extend(
            pod_disks
                .iter()
                .map(|id| json!({"id": id, "name": format!("pvc-{id}"), "attached_type": "datadisk"})),
        );
        let address = |kind: &str, number: u8| {
            let has = self.nics.iter().any(|nic| nic.kind == kind) && now >= self.active_at;
            let tail = self.id.rsplit('-').next().unwrap_or_default().trim_start_matches('0');
            if has {
                json!([{"version": 4, "addr": format!("10.{number}.0.{tail}")}])
            } else {
                json!([])
            }
        };
        json!({
            "id": self.id, "name": self.name, "status": self.status(now), "key_name": null,
            "created": self.visible_at.to_string(), "metadata": metadata,
            "flavor": {"name": self.flavor}, "flavor_name": self.flavor, "category": order["type"],
            "OS-EXT-AZ:availability_zone": order["availability_zone"], "zone_name": order["availability_zone"],
            "region_name": "HaNoi", "OS-EXT-STS:task_state": self.deletion.as_ref().map(|_| "deleting"),
            "os-extended-volumes:volumes_attached": volumes,
            "ip_addresses": {"LAN": address("LAN", 0), "WAN_V4": address("WAN", 1), "WAN_V6": []},
            "network_plan": order["network_plan"], "billing_plan": self.billing_plan, "locked": false,
            "is_available": self.is_available(now),
        })
    }

    /// Disks keep the name that their server was ordered with.
    fn ordered_name(&self) -> &str {
        self.order["name"].as_str().unwrap_or_default()
    }

    pub(super) fn disk_json(&self, disk: &str, now: Timestamp, gone_after: Duration) -> Value {
        let exists = self.exists(now, gone_after);
        let status = if now < self.visible_at {
            "creating"
        } else if exists {
            "in-use"
        } else {
            "available"
        };
        let attachments = if exists {
            json!([{"server_id": self.id, "device": "/dev/vda"}])
        } else {
            json!([])
        };
        // Volumes tell their time without a zone.
        let created = self.ordered_at.to_string().trim_end_matches('Z').to_owned();
        let is_root = disk == self.root_disk();
        let kind = if is_root { "rootdisk" } else { "datadisk" };
        json!({
            "id": disk, "name": format!("{}_{kind}", self.ordered_name()), "size": self.order["rootdisk"]["size"],
            "volume_type": self.order["rootdisk"]["volume_type"], "status": status, "attachments": attachments,
            "bootable": is_root.to_string(), "created_at": created, "snapshot_id": null,
        })
    }
}
