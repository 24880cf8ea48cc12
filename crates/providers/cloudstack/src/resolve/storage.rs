//! The disk offerings of root and data disks.

use super::{DisksAskedFor, Lists, Resolution, choice, names, problem};
use crate::{
    client::model::{DiskOffering, Version},
    node_class::{CloudStackNodeClass, status::STORAGE_READY, storage::DataDisk},
};

/// Whether offering and size say all there is to say; a deploy puts such a disk at the first device.
fn is_plain(disk: &DataDisk) -> bool {
    disk.min_iops.is_none() && disk.max_iops.is_none() && disk.device_id.is_none_or(|own| own == 1)
}

pub(super) fn disks(class: &CloudStackNodeClass, lists: &Lists, resolution: &mut Resolution) {
    let spec = &class.spec;
    if let Some(disks) = &spec.data_disks
        && !Version::takes_several_disks(lists.version)
    {
        resolution.disks_asked_for = match disks.as_slice() {
            [only] if is_plain(only) => DisksAskedFor::ByOffering,
            _ => DisksAskedFor::Afterwards,
        };
    }
    let mut wanted: Vec<(&str, Option<i64>, bool)> = Vec::new();
    wanted.extend(
        spec.root_disk_offering
            .as_deref()
            .map(|name| (name, spec.root_disk_size, true)),
    );
    wanted.extend(spec.disk_offering.as_deref().map(|name| (name, spec.disk_size, false)));
    wanted.extend(
        spec.data_disks
            .iter()
            .flatten()
            .map(|disk| (disk.offering.as_str(), disk.size, false)),
    );
    for (name, size, is_root) in wanted {
        let named: Vec<&DiskOffering> = lists
            .disk_offerings
            .iter()
            .filter(|own| own.id == name || own.name == name)
            .collect();
        let [found] = named.as_slice() else {
            let message = if named.is_empty() {
                let all = choice(lists.disk_offerings.iter().map(|own| own.name.as_str()));
                format!("disk offering {name} does not exist or is not visible to the API key; {all}")
            } else {
                let ids = names(named.iter().map(|own| own.id.as_str()));
                format!("disk offering {name} is ambiguous; use one of the ids {ids}")
            };
            problem(&mut resolution.problems, STORAGE_READY, "DiskOfferingNotFound", message);
            continue;
        };
        if found.iscustomized && size.is_none() {
            let message = format!("disk offering {name} is of custom size; give the size in GiB");
            problem(
                &mut resolution.problems,
                STORAGE_READY,
                "InvalidDiskConfiguration",
                message,
            );
        }
        if is_root {
            resolution.root_disk_offering = Some((*found).clone());
        } else {
            resolution.disk_offerings.push((*found).clone());
        }
    }
}
