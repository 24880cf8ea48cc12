//! Commands on virtual machines and their jobs.

use serde_json::{Value, json};

use super::Asked;
use crate::sim::{
    answer::{Answered, Refusal},
    jobs::Work,
    machines::Machine,
    render::{self, ALLOWED, Details},
    state::{Role, State},
};

pub(super) fn list_machines(state: &State, asked: &Asked<'_>) -> Answered {
    let params = asked.params;
    asked.project(state)?;
    let wanted_details = params.list("details");
    if wanted_details.iter().any(|own| !ALLOWED.contains(own)) {
        return Err(Refusal::invalid(format!(
            "The details parameter contains a non permitted value. The allowed values are [{}]",
            ALLOWED.join(", ")
        )));
    }
    let details = Details::of(&wanted_details);
    let mut ids = params.list("ids");
    if params.text("id").is_some() && !ids.is_empty() {
        return Err(Refusal::invalid("Specify either id or ids but not both parameters"));
    }
    let param = if ids.is_empty() { "id" } else { "ids" };
    ids.extend(params.text("id"));
    if let Some(unknown) = ids.iter().find(|id| state.machine(id).is_none()) {
        return Err(Refusal::unknown_id(asked.command, param, unknown));
    }
    let tags = params.tags("tags");
    if let Some((key, _)) = tags.iter().find(|(_, value)| value.is_empty()) {
        return Err(Refusal::invalid(format!("No value is passed in for key {key}")));
    }
    let sees_destroyed = asked.account.role != Role::User || state.settings.user_sees_destroyed;
    let zone_is = |own: &Machine| params.text("zoneid").is_none_or(|zone| own.zone == zone);
    let has_word = |own: &Machine| {
        params.text("keyword").is_none_or(|word| {
            let word = word.to_lowercase();
            let fields = [own.name.as_str(), &own.display_name, own.state.as_str()];
            fields.iter().any(|field| field.to_lowercase().contains(&word))
        })
    };
    let state_is = |own: &Machine| match params.text("state") {
        None => true,
        Some("Present") => !own.state.is_hidden(),
        Some(wanted) => own.state.as_str() == wanted,
    };
    let found = state.machines.iter().filter(|own| {
        !own.removed
            && (ids.is_empty() || ids.contains(&own.id.as_str()))
            && (sees_destroyed || !own.state.is_hidden())
            && asked.sees(state, &own.account, own.project.as_deref())
            && params
                .text("name")
                .is_none_or(|name| own.name.eq_ignore_ascii_case(name))
            && params
                .text("networkid")
                .is_none_or(|id| own.nics.iter().any(|nic| nic.network == id))
            && params.text("groupid").is_none_or(|id| {
                let group = own.group.as_deref().and_then(|name| state.known_group(name));
                group.is_some_and(|(own, _)| own == id)
            })
            && (tags.is_empty() || has_any_tag(own, &tags))
            && zone_is(own)
            && has_word(own)
            && state_is(own)
    });
    let shows_user_data = params.flag("userdata") == Some(true);
    let shown: Vec<Value> = found
        .map(|own| {
            let mut shown = render::machine(state, own, &details, asked.account.role);
            if let Some(user_data) = own.user_data.as_ref().filter(|_| shows_user_data) {
                shown["userdata"] = json!(user_data);
            }
            shown
        })
        .collect();
    asked.list(state, "virtualmachine", shown)
}

fn has_any_tag(machine: &Machine, tags: &[(String, String)]) -> bool {
    machine.tags.iter().any(|(key, value)| {
        tags.iter()
            .any(|(wanted, with)| wanted.eq_ignore_ascii_case(key) && with.eq_ignore_ascii_case(value))
    })
}

/// The machine that a command names, if the caller may change it.
fn named(state: &State, asked: &Asked<'_>, param: &str) -> Result<Machine, Refusal> {
    let id = asked.required(param)?;
    let Some(found) = state.machine(id) else {
        return Err(Refusal::unknown_id(asked.command, param, id));
    };
    let is_member = found.project.as_ref().is_some_and(|project| {
        let known = state.projects.iter().find(|own| own.id == *project);
        known.is_some_and(|own| own.members.contains(&asked.account.name))
    });
    let is_own = is_member || (found.project.is_none() && found.account == asked.account.name);
    if asked.account.role == Role::User && !is_own {
        return Err(Refusal::forbidden(
            "Caller does not have permission to operate with provided resource.",
        ));
    }
    Ok(found.clone())
}

pub(super) fn act(state: &mut State, asked: &Asked<'_>) -> Answered {
    let param = if asked.command == "addNicToVirtualMachine" {
        "virtualmachineid"
    } else {
        "id"
    };
    let found = named(state, asked, param)?;
    let machine = found.id.clone();
    let latency = state.settings.latency;
    let params = asked.params;
    let (class, work, takes) = match asked.command {
        "startVirtualMachine" => ("StartVMCmd", Work::Start { machine }, latency.start),
        "stopVirtualMachine" => ("StopVMCmd", Work::Stop { machine }, latency.destroy),
        "rebootVirtualMachine" => ("RebootVMCmd", Work::Reboot { machine }, latency.start),
        "expungeVirtualMachine" => ("ExpungeVMCmd", Work::Expunge { machine }, latency.destroy),
        "addNicToVirtualMachine" => {
            let network = params.text("networkid").unwrap_or_default().to_owned();
            ("AddNicToVMCmd", Work::AddNic { machine, network }, latency.small)
        }
        _ => {
            let work = Work::Destroy {
                machine,
                expunge: params.flag("expunge") == Some(true),
                volumes: params.list("volumeids").into_iter().map(str::to_owned).collect(),
            };
            ("DestroyVMCmd", work, latency.destroy)
        }
    };
    let class = match (asked.command, asked.account.role) {
        ("expungeVirtualMachine", _) => format!("org.apache.cloudstack.api.command.admin.vm.{class}"),
        (_, Role::RootAdmin) => format!("org.apache.cloudstack.api.command.admin.vm.{class}ByAdmin"),
        (_, Role::User | Role::DomainAdmin) => format!("org.apache.cloudstack.api.command.user.vm.{class}"),
    };
    let instance = Some(("VirtualMachine", found.id));
    let job = state.schedule(&asked.account.name, &class, instance, work, takes, asked.now);
    Ok(asked.accepted(job))
}

pub(super) fn update(state: &mut State, asked: &Asked<'_>) -> Answered {
    let found = named(state, asked, "id")?;
    let params = asked.params;
    let refused = || Refusal {
        cs: 4250,
        ..Refusal::internal()
    };
    let details = params.details("details");
    let is_custom = state
        .catalogue
        .offering(&found.offering)
        .is_some_and(|own| own["iscustomized"] == true);
    if is_custom && !details.is_empty() && !(details.contains_key("cpuNumber") && details.contains_key("memory")) {
        return Err(refused());
    }
    if let Some(name) = params.text("name") {
        let taken = state
            .machines
            .iter()
            .any(|own| own.name == name && own.id != found.id && !own.removed);
        if taken {
            return Err(refused());
        }
    }
    if let Some(machine) = state.machine_mut(&found.id) {
        if let Some(protect) = params.flag("deleteprotection") {
            machine.delete_protection = protect;
        }
        if let Some(name) = params.text("name") {
            name.clone_into(&mut machine.name);
        }
        if let Some(name) = params.text("displayname") {
            name.clone_into(&mut machine.display_name);
        }
    }
    let changed = state.machine(&found.id).cloned().unwrap_or(found);
    let shown = render::machine(state, &changed, &Details::result(), asked.account.role);
    Ok(json!({"virtualmachine": shown}))
}

pub(super) fn job(state: &State, asked: &Asked<'_>) -> Answered {
    let params = asked.params;
    let job = match (
        params.text("jobid"),
        params.text("resourceid"),
        params.text("resourcetype"),
    ) {
        (Some(id), _, _) => {
            let job = state.jobs.iter().find(|own| own.id == id);
            job.ok_or_else(|| Refusal::unknown_id(asked.command, "jobid", id))?
        }
        (None, Some(id), Some(kind)) => {
            let is_meant = |own: &&crate::sim::jobs::Job| {
                own.instance
                    .as_ref()
                    .is_some_and(|(own, resource)| own.eq_ignore_ascii_case(kind) && resource == id)
            };
            let job = state.jobs.iter().rev().find(is_meant);
            job.ok_or_else(|| Refusal::unknown_id(asked.command, "resourceid", id))?
        }
        _ => {
            return Err(Refusal::invalid(
                "Expected parameter job id or parameters resource type and resource id",
            ));
        }
    };
    if asked.account.role == Role::User && job.account != asked.account.name {
        return Err(Refusal::forbidden(format!(
            "Account Account [{{\"accountName\":\"{}\",\"id\":4,\"uuid\":\"{}\"}}] is not authorized to see job id=27",
            asked.account.name, asked.account.id
        )));
    }
    Ok(state.show_job(job, asked.account.role))
}
