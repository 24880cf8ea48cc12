//! Volumes, tags, affinity groups, key pairs and limits.

use serde_json::{Value, json};

use super::{Asked, deploy};
use crate::sim::{
    answer::{Answered, Refusal},
    jobs::Work,
    machines::{AffinityRecord, Volume, VolumeFate},
    render,
    state::{State, new_id},
};

pub(super) fn volumes(state: &State, asked: &Asked<'_>) -> Answered {
    let params = asked.params;
    if let Some(machine) = params.text("virtualmachineid")
        && state.machine(machine).is_none()
    {
        return Err(Refusal::unknown_id(asked.command, "virtualmachineid", machine));
    }
    let tags = params.tags("tags");
    let found = state.volumes.iter().filter(|own| {
        own.fate != VolumeFate::Gone
            && params.text("id").is_none_or(|id| own.id == id)
            && params
                .text("virtualmachineid")
                .is_none_or(|id| own.machine.as_deref() == Some(id))
            && params
                .text("name")
                .is_none_or(|name| own.name.eq_ignore_ascii_case(name))
            && params.text("keyword").is_none_or(|part| own.name.contains(part))
            && params.text("type").is_none_or(|kind| own.is_root == (kind == "ROOT"))
            && (tags.is_empty() || own.tags.iter().any(|tag| tags.contains(tag)))
            && asked.sees(state, &own.account, own.project.as_deref())
    });
    asked.list(
        state,
        "volume",
        found
            .map(|own| render::volume(state, own, asked.account.role))
            .collect(),
    )
}

pub(super) fn create_volume(state: &mut State, asked: &Asked<'_>) -> Answered {
    let params = asked.params;
    let wanted = params.text("diskofferingid").unwrap_or_default();
    let offering = state.catalogue.disk_offerings.iter().find(|own| own["id"] == wanted);
    let offering = offering.ok_or_else(|| Refusal::unknown_id(asked.command, "diskofferingid", wanted))?;
    let size = match offering["disksize"].as_i64() {
        Some(0) | None => params.number(asked.command, "size")?.unwrap_or(1),
        Some(fixed) => fixed,
    };
    let project = asked.project(state)?;
    deploy::quota(
        state,
        &asked.account.name,
        project.as_deref(),
        [("volume", 1), ("primary_storage", size)],
    )?;
    let id = new_id();
    state.volumes.push(Volume {
        id: id.clone(),
        name: params.text("name").unwrap_or("volume").to_owned(),
        is_root: false,
        account: asked.account.name.clone(),
        project,
        zone: params.text("zoneid").unwrap_or_default().to_owned(),
        machine: None,
        device: 0,
        size,
        offering: params.text("diskofferingid").map(str::to_owned),
        created: asked.now,
        attached: None,
        is_on_storage: false,
        tags: Vec::new(),
        fate: VolumeFate::Kept,
    });
    let class = "org.apache.cloudstack.api.command.user.volume.CreateVolumeCmd";
    let takes = state.settings.latency.small;
    let instance = Some(("Volume", id.clone()));
    let job = state.schedule(
        &asked.account.name,
        class,
        instance,
        Work::Volume { id: id.clone() },
        takes,
        asked.now,
    );
    Ok(json!({"id": id, "jobid": job}))
}

fn named_volume(state: &State, asked: &Asked<'_>) -> Result<String, Refusal> {
    let id = asked.params.text("id").unwrap_or_default();
    match state.volumes.iter().find(|own| own.id == id) {
        Some(own) if own.fate != VolumeFate::Kept => Err(Refusal::invalid("Unable to find volume with ID: 64")),
        Some(own) => Ok(own.id.clone()),
        None => Err(Refusal::unknown_id(asked.command, "id", id)),
    }
}

pub(super) fn act_on_volume(state: &mut State, asked: &Asked<'_>) -> Answered {
    let volume = named_volume(state, asked)?;
    let instance = Some(("Volume", volume.clone()));
    let (class, work) = match asked.command {
        "attachVolume" => {
            let machine = asked.params.text("virtualmachineid").unwrap_or_default().to_owned();
            let device = asked.params.number(asked.command, "deviceid")?;
            (
                "AttachVolumeCmd",
                Work::AttachVolume {
                    volume,
                    machine,
                    device,
                },
            )
        }
        _ => ("DestroyVolumeCmd", Work::DestroyVolume { volume }),
    };
    let class = format!("org.apache.cloudstack.api.command.user.volume.{class}");
    let takes = state.settings.latency.small;
    let job = state.schedule(&asked.account.name, &class, instance, work, takes, asked.now);
    Ok(asked.accepted(job))
}

pub(super) fn delete_volume(state: &mut State, asked: &Asked<'_>) -> Answered {
    let id = named_volume(state, asked)?;
    let own = state.volumes.iter_mut().find(|own| own.id == id);
    let own = own.ok_or_else(Refusal::internal)?;
    if own.machine.is_some() {
        return Err(Refusal::invalid(
            "Please specify a volume that is not attached to any VM.",
        ));
    }
    own.fate = VolumeFate::Gone;
    Ok(json!({"success": true}))
}

pub(super) fn change_tags(state: &mut State, asked: &Asked<'_>) -> Answered {
    let params = asked.params;
    let resources = params.list("resourceids").into_iter().map(str::to_owned).collect();
    let kind = params.text("resourcetype").unwrap_or_default().to_owned();
    let tags = params.tags("tags");
    let (class, work) = match asked.command {
        "createTags" => ("CreateTagsCmd", Work::CreateTags { kind, resources, tags }),
        _ => ("DeleteTagsCmd", Work::DeleteTags { resources, tags }),
    };
    let class = format!("org.apache.cloudstack.api.command.user.tag.{class}");
    let takes = state.settings.latency.small;
    let job = state.schedule(&asked.account.name, &class, None, work, takes, asked.now);
    Ok(asked.accepted(job))
}

pub(super) fn list_tags(state: &State, asked: &Asked<'_>) -> Answered {
    let params = asked.params;
    let machines = state
        .machines
        .iter()
        .filter(|own| !own.removed && own.account == asked.account.name);
    let machines = machines.map(|own| ("UserVm", &own.id, &own.tags));
    let volumes = state
        .volumes
        .iter()
        .filter(|own| own.fate == VolumeFate::Kept && own.account == asked.account.name);
    let volumes = volumes.map(|own| ("Volume", &own.id, &own.tags));
    let mut shown: Vec<Value> = Vec::new();
    for (kind, id, tags) in machines.chain(volumes) {
        if params.text("resourcetype").is_some_and(|wanted| wanted != kind)
            || params.text("resourceid").is_some_and(|wanted| wanted != id)
        {
            continue;
        }
        let wanted: Vec<(String, String)> = tags
            .iter()
            .filter(|(key, value)| {
                params.text("key").is_none_or(|own| own.eq_ignore_ascii_case(key))
                    && params.text("value").is_none_or(|own| own == value)
            })
            .cloned()
            .collect();
        if let Value::Array(mut rows) = render::tags(state, &asked.account.name, kind, id, &wanted) {
            rows.iter_mut()
                .for_each(|row| row["domainpath"] = json!(asked.account.domain_path));
            shown.extend(rows);
        }
    }
    asked.list(state, "tag", shown)
}

pub(super) fn create_affinity_group(state: &mut State, asked: &Asked<'_>) -> Answered {
    let params = asked.params;
    let name = params.text("name").unwrap_or_default().to_owned();
    let kind = params.text("type").unwrap_or_default().to_owned();
    let project = asked.project(state)?;
    let known = [
        "non-strict host affinity",
        "host affinity",
        "host anti-affinity",
        "ExplicitDedication",
        "non-strict host anti-affinity",
    ];
    if !known.contains(&kind.as_str()) {
        return Err(Refusal::invalid(format!(
            "Unable to create affinity group, invalid affinity group type: {kind}. Valid values are {}",
            known.join(",")
        )));
    }
    let account = asked.account.name.clone();
    if state
        .affinity_groups
        .iter()
        .any(|own| own.name == name && own.account == account && own.project == project)
    {
        return Err(Refusal::invalid(format!(
            "Unable to create affinity group, a group with name {name} already exists."
        )));
    }
    let id = new_id();
    state.affinity_groups.push(AffinityRecord {
        id: id.clone(),
        name,
        kind,
        description: params.text("description").map(str::to_owned),
        account: account.clone(),
        project,
    });
    let class = "org.apache.cloudstack.api.command.user.affinitygroup.CreateAffinityGroupCmd";
    let takes = state.settings.latency.small;
    let instance = Some(("AffinityGroup", String::new()));
    let job = state.schedule(
        &account,
        class,
        instance,
        Work::AffinityGroup { id: id.clone() },
        takes,
        asked.now,
    );
    Ok(json!({"id": id, "jobid": job}))
}

pub(super) fn delete_affinity_group(state: &mut State, asked: &Asked<'_>) -> Answered {
    let id = asked.params.text("id").unwrap_or_default().to_owned();
    if state.affinity_groups.iter().all(|own| own.id != id) {
        return Err(Refusal::unknown_id(asked.command, "id", &id));
    }
    let class = "org.apache.cloudstack.api.command.user.affinitygroup.DeleteAffinityGroupCmd";
    let takes = state.settings.latency.small;
    let instance = Some(("AffinityGroup", String::new()));
    let work = Work::DeleteAffinityGroup { id };
    let job = state.schedule(&asked.account.name, class, instance, work, takes, asked.now);
    Ok(asked.accepted(job))
}

pub(super) fn register_key_pair(state: &mut State, asked: &Asked<'_>) -> Answered {
    let name = asked.params.text("name").unwrap_or_default().to_owned();
    let own = state.accounts.iter_mut().find(|own| own.name == asked.account.name);
    let own = own.ok_or_else(Refusal::internal)?;
    if own.key_pairs.contains(&name) {
        return Err(Refusal::invalid(format!(
            "A key pair with name '{name}' already exists for this account."
        )));
    }
    own.key_pairs.push(name.clone());
    Ok(json!({"keypair": {
        "id": new_id(), "name": name, "account": own.name, "domainid": own.domain_id, "domain": own.domain,
        "fingerprint": "62:6f:8c:58:e1:12:bc:a4:d2:f8:93:6a:23:98:ab:7a",
        "hasannotations": false,
    }}))
}
