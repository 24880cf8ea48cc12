//! deployVirtualMachine: everything that is checked at once, in the server's order, before a job starts the machine.

use std::{collections::BTreeMap, time::Duration};

use base64::{
    Engine,
    alphabet::{STANDARD, URL_SAFE},
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use jiff::Timestamp;
use karpenter_cloud::clock::later;
use serde_json::{Value, json};

use super::{Asked, discovery};
use crate::{
    client::model::{Capabilities, Version},
    sim::{
        answer::{Answered, Refusal},
        jobs::Work,
        machines::{Machine, MachineState, Volume, VolumeFate},
        params::Method,
        state::{Role, State, new_id},
    },
};

/// User data in the address itself.
const LONGEST_BY_GET: usize = 4096;

pub(super) fn deploy(state: &mut State, asked: &Asked<'_>) -> Answered {
    let params = asked.params;
    let is_admin = asked.account.role == Role::RootAdmin;
    let hidden = |refusal: Refusal| match is_admin {
        true => refusal,
        false => Refusal {
            cs: refusal.cs,
            ..Refusal::internal()
        },
    };
    let project = asked.project(state)?;
    let owner = match params.text("account") {
        Some(account) if asked.account.role == Role::User && account != asked.account.name => {
            return Err(Refusal::forbidden(
                "Caller does not have permission to operate with provided resource.",
            ));
        }
        Some(account) => account.to_owned(),
        None => asked.account.name.clone(),
    };
    if params.text("customid").is_some() && !is_admin {
        return Err(Refusal::forbidden(
            "Please check your permissions, you are not allowed to create/update custom id",
        ));
    }
    if let Some(id) = params.text("customid")
        && state.machine(id).is_some()
    {
        return Err(Refusal::invalid(format!(
            "UUID: {id} already exists so can't create/update with custom id"
        )));
    }
    check_name(asked)?;
    let zone = object(asked, "zoneid", &state.catalogue.zones)?;
    let offering = object(asked, "serviceofferingid", &state.catalogue.offerings)?;
    if params.text("templateid").is_none() {
        let text = "Please provide only one of the following parameters - template ID, volume ID or snapshot ID";
        return Err(hidden(Refusal::new(530, 4250, text)));
    }
    let template = object(asked, "templateid", &state.catalogue.templates)?;
    known_ids(state, asked)?;
    let is_own = template["account"] == asked.account.name.as_str();
    if template["ispublic"] == false && !is_own && asked.account.role == Role::User {
        return Err(discovery::no_launch(asked, &template));
    }
    let root_size = root_disk(asked, &offering, &template)?;
    let (cpu, speed, memory) = size(asked, &offering)?;
    let details = details(asked)?;
    let user_data = user_data(state, asked)?;
    if zone["allocationstate"] != "Enabled" && !is_admin {
        let text = format!(
            "Cannot perform this operation, Zone is currently disabled: Zone {{\"id\": \"3\", \"name\": {}, \"uuid\": {}}}",
            zone["name"], zone["id"]
        );
        return Err(Refusal::forbidden(text));
    }
    let bound = offering["zoneid"].as_str().unwrap_or_default();
    if !bound.is_empty() && !bound.split(',').any(|own| zone["id"] == own) {
        let text = format!(
            "There's no way to confirm Account [{{\"accountName\":\"{}\",\"id\":3,\"uuid\":\"{}\"}}] has access to Service offering {{\"id\":20,\"name\":{},\"uuid\":{}}}.",
            asked.account.name, asked.account.id, offering["name"], offering["id"]
        );
        return Err(Refusal::forbidden(text));
    }
    let mut rows = state.catalogue.templates.iter();
    let is_here = rows.any(|row| row["id"] == template["id"] && row["zoneid"] == zone["id"]);
    if !is_here && template["crossZones"] != true {
        return Err(Refusal::invalid("The template 200 is not available for use"));
    }
    let networks = networks(state, asked, &zone, &owner)?;
    let mut security_groups: Vec<String> = params.list("securitygroupids").into_iter().map(str::to_owned).collect();
    if !security_groups.is_empty() && zone["securitygroupsenabled"] != true {
        let text = "Can't create vm with security groups; security group feature is not enabled per zone";
        return Err(Refusal::invalid(text));
    }
    if security_groups.is_empty() && zone["securitygroupsenabled"] == true {
        let groups = state.catalogue.security_groups.iter();
        let mut own = groups.filter(|group| group["account"] == owner.as_str() && group["name"] == "default");
        security_groups.extend(own.next().map(|group| text(&group["id"])));
    }
    let key_pairs = key_pairs(state, asked, &owner)?;
    if let (Some(_), Some(network)) = (&user_data, networks.first())
        && !network["service"]
            .as_array()
            .is_some_and(|services| services.iter().any(|own| own["name"] == "UserData"))
    {
        let text = format!(
            "Unable to deploy VM as UserData is provided while deploying the VM, but there is no support for UserData service in the default network {}/{}.",
            text(&network["name"]),
            text(&network["id"])
        );
        return Err(Refusal::invalid(text));
    }
    let disks = disks(state, asked)?;
    let name = params.text("name").map(str::to_owned);
    if let Some(name) = &name {
        name_is_free(state, name, &networks)?;
    }
    let volumes = 1 + i64::try_from(disks.len()).unwrap_or_default();
    let storage = root_size + disks.iter().map(|(_, size, _)| size).sum::<i64>();
    quota(
        state,
        &owner,
        project.as_deref(),
        [
            ("user_vm", 1),
            ("cpu", cpu),
            ("memory", memory),
            ("volume", volumes),
            ("primary_storage", storage),
        ],
    )?;

    let id = params.text("customid").map_or_else(new_id, str::to_owned);
    let name = name.unwrap_or_else(|| format!("VM-{id}"));
    let number = state.next_number();
    let group = params.text("group").map(str::to_owned);
    if let Some(group) = &group {
        state.make_group(group, asked.now);
    }
    let network_ids: Vec<String> = networks.iter().map(|own| text(&own["id"])).collect();
    let is_gateway = |own: &BTreeMap<String, String>| own.get("ip").is_some_and(|ip| ip.ends_with(".1"));
    let full = network_ids.iter().any(|id| !state.has_free_address(id))
        || params.entries("iptonetworklist").iter().any(is_gateway);
    let nics = match full {
        true => Vec::new(),
        false => network_ids.iter().filter_map(|id| state.new_nic(id)).collect(),
    };
    let mut details = details;
    if let Some(size) = params.text("rootdisksize") {
        details.insert("rootdisksize".to_owned(), size.to_owned());
    }
    details.insert("deployvm".to_owned(), "true".to_owned());
    if !key_pairs.is_empty() {
        details.insert("SSH.KeyPairNames".to_owned(), key_pairs.join(","));
        details.insert(
            "SSH.PublicKey".to_owned(),
            "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKq8".to_owned(),
        );
    }
    let machine = Machine {
        id: id.clone(),
        number,
        display_name: params.text("displayname").unwrap_or(&name).to_owned(),
        name,
        account: owner.clone(),
        project: project.clone(),
        zone: text(&zone["id"]),
        template: text(&template["id"]),
        offering: text(&offering["id"]),
        cpu,
        cpu_speed: speed,
        memory,
        nics,
        details,
        tags: Vec::new(),
        group,
        affinity_groups: params.list("affinitygroupids").into_iter().map(str::to_owned).collect(),
        security_groups,
        key_pairs,
        user_data,
        registered_user_data: params.text("userdataid").map(|id| {
            let parameters = params.details("userdatadetails");
            let pairs: Vec<String> = parameters.iter().map(|(key, value)| format!("{key}={value}")).collect();
            (id.to_owned(), format!("{{{}}}", pairs.join(", ")))
        }),
        boot: params
            .text("boottype")
            .map(|kind| (kind.to_owned(), params.text("bootmode").unwrap_or("Legacy").to_owned())),
        state: MachineState::Stopped,
        created: asked.now,
        updated: None,
        host: None,
        first_ran: None,
        delete_protection: false,
        lease_ends: lease_ends(state, asked, &offering),
        removed: false,
    };
    let volume = |name: String, is_root: bool, device: i64, size: i64, offering: Option<String>| Volume {
        id: new_id(),
        name,
        is_root,
        account: owner.clone(),
        project: project.clone(),
        zone: machine.zone.clone(),
        machine: Some(id.clone()),
        device,
        size,
        offering,
        created: asked.now,
        attached: None,
        is_on_storage: false,
        tags: Vec::new(),
        fate: VolumeFate::Kept,
    };
    state
        .volumes
        .push(volume(format!("ROOT-{number}"), true, 0, root_size, None));
    for (offering, size, device) in disks {
        let name = if params.text("diskofferingid").is_some() {
            format!("DATA-{number}")
        } else {
            format!("DATA-{number}-{device}")
        };
        state.volumes.push(volume(name, false, device, size, Some(offering)));
    }
    state.machines.push(machine);
    if full {
        // The record is stored before addresses are handed out, and stays.
        state.fail_start(&id, asked.now);
        return Err(hidden(Refusal::new(530, 0, "Insufficient address capacity")));
    }
    if !is_here {
        state.fail_start(&id, asked.now);
        // It did not get as far as disks and groups.
        state.volumes.retain(|own| own.machine.as_deref() != Some(&id));
        if let Some(own) = state.machine_mut(&id) {
            own.security_groups.clear();
        }
        let text = format!(
            "Template Template {{\"format\":{},\"id\":111,\"name\":{},\"uniqueName\":\"simulator-Centos\",\"uuid\":{}}} has not been completely downloaded to zone Zone {{\"id\": \"4\", \"name\": {}, \"uuid\": {}}}",
            template["format"], template["name"], template["id"], zone["name"], zone["id"]
        );
        return Err(Refusal {
            cs: 4250,
            left: Some(id),
            ..hidden(Refusal::new(530, 4250, text))
        });
    }
    if params.text("extraconfig").is_some() && !state.settings.extra_config {
        let text = "attempted setting extraconfig but enable.additional.vm.configuration is disabled";
        return Err(Refusal::invalid(text));
    }
    // Checked only now, when the record is there.
    let custom = params.text("customjobid").map(str::to_owned);
    if custom
        .as_ref()
        .is_some_and(|id| state.jobs.iter().any(|own| own.id == *id))
    {
        return Err(hidden(Refusal::new(530, 9999, "Duplicate entry for key 'uuid'")));
    }
    let start = params.flag("startvm") != Some(false);
    let class = match is_admin {
        true => "org.apache.cloudstack.api.command.admin.vm.DeployVMCmdByAdmin",
        false => "org.apache.cloudstack.api.command.user.vm.DeployVMCmd",
    };
    let latency = state.settings.latency;
    let is_on_storage = state.machines.iter().any(|own| {
        own.first_ran.is_some() && zone["id"] == own.zone.as_str() && template["id"] == own.template.as_str()
    });
    let takes = match is_on_storage {
        true => latency.start,
        false => latency.start + latency.first_copy,
    };
    let work = Work::Deploy {
        machine: id.clone(),
        start,
    };
    let instance = Some(("VirtualMachine", id.clone()));
    let job = state.schedule_as(custom, &asked.account.name, class, instance, work, takes, asked.now);
    Ok(json!({"id": id, "jobid": job}))
}

/// When the lease of the offering ends; -1 declines it.
fn lease_ends(state: &State, asked: &Asked<'_>, offering: &Value) -> Option<Timestamp> {
    let asked_for = asked.params.text("leaseduration").and_then(|days| days.parse().ok());
    let days: i64 = asked_for.or_else(|| offering["leaseduration"].as_i64())?;
    let days = u64::try_from(days).ok().filter(|_| state.settings.leases)?;
    Some(later(asked.now, Duration::from_secs(days * 86400)))
}

/// Ids of other things are resolved before anything is looked at.
fn known_ids(state: &State, asked: &Asked<'_>) -> Result<(), Refusal> {
    let params = asked.params;
    let check = |param: &str, is_known: &dyn Fn(&str) -> bool| {
        let unknown = params.list(param).into_iter().find(|id| !is_known(id));
        unknown.map_or(Ok(()), |id| Err(Refusal::unknown_id(asked.command, param, id)))
    };
    let in_list = |all: &[Value], id: &str| all.iter().any(|own| own["id"] == id);
    check("affinitygroupids", &|id| {
        state.affinity_groups.iter().any(|own| own.id == id)
    })?;
    check("securitygroupids", &|id| in_list(&state.catalogue.security_groups, id))?;
    check("userdataid", &|id| in_list(&state.catalogue.user_data, id))?;
    check("hostid", &|id| state.hosts.iter().any(|own| own.id == id))
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn object(asked: &Asked<'_>, param: &str, all: &[Value]) -> Result<Value, Refusal> {
    let id = asked.required(param)?;
    let found = all.iter().find(|own| own["id"] == id).cloned();
    found.ok_or_else(|| Refusal::unknown_id(asked.command, param, id))
}

fn check_name(asked: &Asked<'_>) -> Result<(), Refusal> {
    let Some(name) = asked.params.text("name") else {
        return Ok(());
    };
    let is_valid = name.len() <= 63
        && name.chars().all(|char| char.is_ascii_alphanumeric() || char == '-')
        && name.starts_with(|char: char| char.is_ascii_alphabetic())
        && !name.ends_with('-');
    if is_valid {
        return Ok(());
    }
    Err(Refusal::new(
        431,
        9999,
        "Unable to execute API command deployvirtualmachine due to invalid value. Invalid value provided for API arg: name - it can contain ASCII letters 'a' through 'z', the digits '0' through '9', and the hyphen ('-'), must be between 1 and 63 characters long, and can't start or end with \"-\" and can't start with digit",
    ))
}

fn name_is_free(state: &State, name: &str, networks: &[Value]) -> Result<(), Refusal> {
    if state.settings.name_race {
        return Ok(());
    }
    for network in networks {
        let id = text(&network["id"]);
        let taken = state
            .machines
            .iter()
            .any(|own| !own.removed && own.name == name && own.nics.iter().any(|nic| nic.network == id));
        if taken {
            return Err(Refusal::invalid(format!(
                "The vm with hostName {name} already exists in the network domain: {}; network={}",
                text(&network["networkdomain"]),
                text(&network["name"])
            )));
        }
    }
    Ok(())
}

fn root_disk(asked: &Asked<'_>, offering: &Value, template: &Value) -> Result<i64, Refusal> {
    let of_template = template["size"].as_i64().unwrap_or_default();
    let wanted = asked.params.number(asked.command, "rootdisksize")?;
    let fixed = offering["rootdisksize"].as_i64().unwrap_or_default();
    if let Some(wanted) = wanted {
        if wanted <= 0 {
            return Err(Refusal::invalid("Root disk size should be a positive number."));
        }
        if fixed == 0 && (wanted << 30) < of_template {
            return Err(Refusal::invalid(format!(
                "Unsupported: rootdisksize override ({wanted} GB) is smaller than template size ({:.2} GB) {of_template}",
                of_template as f64 / f64::from(1 << 30)
            )));
        }
    }
    Ok(match (fixed, wanted) {
        (0, Some(wanted)) => wanted,
        (0, None) => of_template >> 30,
        (fixed, _) => fixed,
    })
}

/// The size of the machine; open dimensions come from details.
fn size(asked: &Asked<'_>, offering: &Value) -> Result<(i64, i64, i64), Refusal> {
    let given = asked.params.details("details");
    let number = |name: &str| given.get(name).and_then(|value| value.parse::<i64>().ok());
    let custom = [
        ("cpunumber", "cpuNumber"),
        ("cpuspeed", "cpuSpeed"),
        ("memory", "memory"),
    ];
    let fixed: Vec<Option<i64>> = custom.iter().map(|(field, _)| offering[*field].as_i64()).collect();
    if fixed.iter().all(Option::is_some) {
        if custom.iter().any(|(_, detail)| given.contains_key(*detail)) {
            let text = "cpuNumber or cpuSpeed or memory should not be specified for static service offering";
            return Err(Refusal::invalid(text));
        }
        return Ok((fixed[0].unwrap_or(1), fixed[1].unwrap_or(1), fixed[2].unwrap_or(1)));
    }
    if let (Some(speed), Some(_)) = (fixed[1], number("cpuSpeed")) {
        return Err(Refusal::invalid(format!(
            "The CPU speed of this offering id:{} is not customizable. This is predefined as {speed} MHz.",
            text(&offering["id"])
        )));
    }
    let chosen: Vec<Option<i64>> = custom
        .iter()
        .zip(&fixed)
        .map(|((_, detail), fixed)| fixed.or(number(detail)))
        .collect();
    let (Some(cpu), Some(speed), Some(memory)) = (chosen[0], chosen[1], chosen[2]) else {
        let text = "Need to specify custom parameter values cpu, cpu speed and memory when using custom offering";
        return Err(Refusal::invalid(text));
    };
    let bound = |name: &str| {
        offering["serviceofferingdetails"][name]
            .as_str()
            .and_then(|value| value.parse::<i64>().ok())
    };
    for (value, least, most, what) in [
        (cpu, bound("mincpunumber"), bound("maxcpunumber"), "CPU cores"),
        (memory, bound("minmemory"), bound("maxmemory"), "memory"),
    ] {
        if let (Some(least), Some(most)) = (least, most)
            && !(least..=most).contains(&value)
        {
            return Err(Refusal::invalid(format!(
                "Invalid {what} value, specify a value between {least} and {most}"
            )));
        }
    }
    Ok((cpu, speed, memory))
}

fn details(asked: &Asked<'_>) -> Result<BTreeMap<String, String>, Refusal> {
    let mut details = asked.params.details("details");
    if details.keys().any(|name| name.starts_with("extraconfig")) {
        return Err(Refusal::invalid("detail name should not start with extraconfig"));
    }
    details.retain(|name, _| name != "rootdisksize");
    Ok(details)
}

fn user_data(state: &State, asked: &Asked<'_>) -> Result<Option<String>, Refusal> {
    let Some(given) = asked.params.text("userdata") else {
        return Ok(None);
    };
    if asked.params.method == Method::Get && given.len() > LONGEST_BY_GET {
        return Err(Refusal::invalid("User data is too long for http GET request"));
    }
    if asked.params.text("userdataid").is_some() {
        let text = "Both userdata and userdata ID inputs are not allowed, please provide only one";
        return Err(Refusal::invalid(text));
    }
    let given: String = given.chars().filter(|char| !char.is_whitespace()).collect();
    let config = GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    let engines = [
        GeneralPurpose::new(&STANDARD, config),
        GeneralPurpose::new(&URL_SAFE, config),
    ];
    if !engines.iter().any(|engine| engine.decode(&given).is_ok()) {
        return Err(Refusal::invalid("User data is not base64 encoded."));
    }
    let limit = state.settings.user_data_limit;
    if given.len() > limit {
        return Err(Refusal::invalid(format!(
            "User data has exceeded configurable max length: {limit}"
        )));
    }
    Ok(Some(given))
}

fn networks(state: &State, asked: &Asked<'_>, zone: &Value, owner: &str) -> Result<Vec<Value>, Refusal> {
    let mut found = Vec::new();
    let by_address = asked.params.entries("iptonetworklist");
    let mut ids = asked.params.list("networkids");
    ids.extend(
        by_address
            .iter()
            .filter_map(|own| own.get("networkid"))
            .map(String::as_str),
    );
    if ids.is_empty() && zone["networktype"] == "Advanced" {
        // The server chooses.
        let mut own = state.catalogue.networks.iter();
        let own = own.find(|own| own["account"] == owner && own["zoneid"] == zone["id"] && own["type"] == "Isolated");
        found.extend(own.cloned());
    }
    for id in ids {
        let network = state.catalogue.networks.iter().find(|own| own["id"] == id);
        let network = network.ok_or_else(|| Refusal::unknown_id(asked.command, "networkids", id))?;
        if network["zoneid"] != zone["id"] {
            return Err(Refusal::invalid(format!(
                "Network Network {{\"id\": 213, \"name\": {}, \"uuid\": {}, \"networkofferingid\": 10}} doesn't belong to zone Zone {{\"id\": \"2\", \"name\": {}, \"uuid\": {}}}",
                network["name"], network["id"], zone["name"], zone["id"]
            )));
        }
        let is_own = network["acltype"] == "Domain" || network["account"] == owner || network["projectid"].is_string();
        if !is_own && asked.account.role != Role::RootAdmin {
            return Err(Refusal::forbidden(format!(
                "Unable to use network with id= {id}, permission denied"
            )));
        }
        found.push(network.clone());
    }
    Ok(found)
}

fn key_pairs(state: &State, asked: &Asked<'_>, owner: &str) -> Result<Vec<String>, Refusal> {
    let mut names: Vec<String> = asked.params.list("keypairs").into_iter().map(str::to_owned).collect();
    names.extend(asked.params.text("keypair").map(str::to_owned));
    let known = state
        .account(owner)
        .map(|own| own.key_pairs.as_slice())
        .unwrap_or_default();
    if names.iter().any(|name| !known.contains(name)) {
        return Err(Refusal::invalid("Not all specified keypairs exist"));
    }
    Ok(names)
}

/// Data disks: (offering, GiB, device).
fn disks(state: &State, asked: &Asked<'_>) -> Result<Vec<(String, i64, i64)>, Refusal> {
    let offering = |id: &str, param: &str| {
        let found = state.catalogue.disk_offerings.iter().find(|own| own["id"] == id);
        found.ok_or_else(|| Refusal::unknown_id(asked.command, param, id))
    };
    let size = |offering: &Value, given: Option<i64>| match offering["disksize"].as_i64() {
        Some(0) | None => given.unwrap_or(1),
        Some(fixed) => fixed,
    };
    if let Some(id) = asked.params.text("diskofferingid") {
        let found = offering(id, "diskofferingid")?;
        let given = asked.params.number(asked.command, "size")?;
        return Ok(vec![(id.to_owned(), size(found, given), 1)]);
    }
    let mut disks = Vec::new();
    // Before 4.21 the parameter was unknown, and what is unknown is ignored.
    let told = Capabilities {
        cloudstackversion: Some(state.settings.version.clone()),
        ..Capabilities::default()
    };
    if !Version::takes_several_disks(told.version()) {
        return Ok(disks);
    }
    for entry in asked.params.entries("datadisksdetails") {
        let Some(device) = entry.get("deviceid").and_then(|own| own.parse().ok()) else {
            return Err(Refusal::invalid("deviceid parameter is required for datadiskdetails"));
        };
        let id = entry.get("diskofferingid").cloned().unwrap_or_default();
        let found = offering(&id, "diskofferingid")?;
        let given = entry.get("size").and_then(|own| own.parse().ok());
        disks.push((id, size(found, given), device));
    }
    Ok(disks)
}

pub(super) fn quota<const N: usize>(
    state: &State,
    owner: &str,
    project: Option<&str>,
    wanted: [(&str, i64); N],
) -> Result<(), Refusal> {
    let used = state.usage((owner, project));
    let Some(account) = state.account(owner).filter(|_| project.is_none()) else {
        return Ok(());
    };
    for (resource, amount) in wanted {
        let of_domain = state
            .domain_limits
            .get(&(account.domain_id.clone(), resource.to_owned()));
        let now = used.get(resource).copied().unwrap_or_default();
        if let Some(limit) = of_domain.filter(|limit| **limit >= 0 && now + amount > **limit) {
            return Err(Refusal::new(
                535,
                9999,
                format!(
                    "Maximum domain resource limits of Type '{resource}' for Domain Id = {} is exceeded: Domain Resource Limit = {limit}, Current Domain Resource Amount = {now}, Current Resource Reservation = 0, Requested Resource Amount = {amount}.",
                    account.domain_id
                ),
            ));
        }
        let limit = account.limits.get(resource).copied().unwrap_or(-1);
        // Sizes of disks are told in words and in bytes.
        let told = |gib: i64| match (resource, gib) {
            ("primary_storage", 0) => "(0 bytes) 0".to_owned(),
            ("primary_storage", gib) => format!("({gib}.00 GB) {}", gib << 30),
            (_, amount) => amount.to_string(),
        };
        if limit >= 0 && now + amount > limit {
            return Err(Refusal::new(
                535,
                9999,
                format!(
                    "Maximum amount of resources of Type = '{resource}', tag = 'null' for Account Name = {owner} in Domain Id = 2 is exceeded: Account Resource Limit = {}, Current Account Resource Amount = {}, Current Account Resource Reservation = {}, Requested Resource Amount = {}.",
                    told(limit),
                    told(now),
                    told(0),
                    told(amount)
                ),
            ));
        }
    }
    Ok(())
}
