//! What operators make before machines: networks, projects, templates, security groups, registered user data.

use serde_json::{Value, json};

use super::{Asked, accounts};
use crate::sim::{
    answer::{Answered, Refusal},
    jobs::Work,
    seed,
    state::{Project, Role, State, date, new_id},
};

pub(super) fn network(state: &mut State, asked: &Asked<'_>) -> Answered {
    let params = asked.params;
    let zone = asked.required("zoneid")?;
    let Some(zone) = state.zone(zone).cloned() else {
        return Err(Refusal::unknown_id(asked.command, "zoneid", zone));
    };
    let offering = asked.required("networkofferingid")?;
    let found = state
        .catalogue
        .network_offerings
        .iter()
        .find(|own| own["id"] == offering);
    let Some(found) = found.cloned() else {
        return Err(Refusal::unknown_id(asked.command, "networkofferingid", offering));
    };
    let kind = found["guestiptype"].as_str().unwrap_or("Isolated");
    let own = asked.account;
    let mut network = seed::network(asked.required("name")?, &zone, kind);
    let id = network["id"].as_str().unwrap_or_default().to_owned();
    network["state"] = json!(if kind == "Shared" { "Setup" } else { "Allocated" });
    network["networkofferingid"] = found["id"].clone();
    network["created"] = json!(date(asked.now));
    let mut set = |field: &str, value: Option<&str>| {
        if let Some(value) = value {
            network[field] = json!(value);
        }
    };
    set("displaytext", params.text("displaytext"));
    set("gateway", params.text("gateway"));
    set("netmask", params.text("netmask"));
    set("domainid", Some(&own.domain_id));
    if kind != "Shared" {
        set("account", Some(&own.name));
    }
    if kind != "L2" {
        set("networkdomain", Some("cs3cloud.internal"));
    }
    if let (Some(first), Some(last)) = (params.text("startip"), params.text("endip")) {
        let number = |ip: &str| ip.rsplit('.').next().and_then(|own| own.parse::<u32>().ok());
        // The first address goes to the network's own router.
        let free = number(last)
            .unwrap_or_default()
            .saturating_sub(number(first).unwrap_or_default());
        state.catalogue.free_addresses.insert(id, free);
    }
    state.catalogue.networks.push(network.clone());
    if own.role == Role::RootAdmin {
        network["details"] = json!({});
        network["displaynetwork"] = json!(true);
        if let Some(vlan) = params.text("vlan") {
            network["vlan"] = json!(vlan);
            network["broadcasturi"] = json!(format!("vlan://{vlan}"));
        }
    }
    Ok(json!({"network": network}))
}

pub(super) fn project(state: &mut State, asked: &Asked<'_>) -> Answered {
    let name = asked.required("name")?.to_owned();
    let own = Project {
        id: new_id(),
        text: asked.params.text("displaytext").unwrap_or(&name).to_owned(),
        name,
        created: asked.now,
        members: vec![asked.account.name.clone()],
    };
    let id = own.id.clone();
    let value = accounts::project(state, asked.account, &own);
    state.projects.push(own);
    let work = Work::Told {
        object: "project",
        value,
    };
    let class = "org.apache.cloudstack.api.command.user.project.CreateProjectCmd";
    let takes = state.settings.latency.small;
    let instance = Some(("None", String::new()));
    let job = state.schedule(&asked.account.name, class, instance, work, takes, asked.now);
    Ok(json!({"id": id, "jobid": job}))
}

/// A template made of the root disk of a machine.
pub(super) fn template(state: &mut State, asked: &Asked<'_>) -> Answered {
    let params = asked.params;
    let volume = asked.required("volumeid")?;
    let found = state.volumes.iter().find(|own| own.id == volume);
    let machine = found
        .and_then(|own| own.machine.as_deref())
        .and_then(|id| state.machine(id));
    let Some(machine) = machine.cloned() else {
        return Err(Refusal::unknown_id(asked.command, "volumeid", volume));
    };
    let zone = state.zone(&machine.zone).cloned().unwrap_or_default();
    let name = asked.required("name")?;
    let mut own = seed::template(name, &zone, &date(asked.now));
    let account = asked.account;
    for (field, value) in [
        ("displaytext", json!(params.text("displaytext").unwrap_or(name))),
        ("ispublic", json!(false)),
        ("isfeatured", json!(false)),
        ("format", json!("RAW")),
        ("account", json!(account.name)),
        ("domainid", json!(account.domain_id)),
        ("ostypeid", json!(params.text("ostypeid"))),
        ("sourcetemplateid", json!(machine.template)),
        ("details", json!(machine.details)),
        ("requireshvm", json!(true)),
    ] {
        own[field] = value;
    }
    // Known only once it was downloaded from somewhere.
    for field in ["physicalsize", "checksum"] {
        if let Some(own) = own.as_object_mut() {
            own.remove(field);
        }
    }
    let id = own["id"].as_str().unwrap_or_default().to_owned();
    state.catalogue.templates.push(own.clone());
    own["status"] = json!("Download Complete");
    let work = Work::Told {
        object: "template",
        value: own,
    };
    let class = "org.apache.cloudstack.api.command.user.template.CreateTemplateCmd";
    let takes = state.settings.latency.small;
    let instance = Some(("Template", id.clone()));
    let job = state.schedule(&account.name, class, instance, work, takes, asked.now);
    Ok(json!({"id": id, "jobid": job}))
}

pub(super) fn security_group(state: &mut State, asked: &Asked<'_>) -> Answered {
    let name = asked.required("name")?;
    let own = asked.account;
    let mut groups = state.catalogue.security_groups.iter();
    if groups.any(|group| group["name"] == name && group["account"] == own.name.as_str()) {
        return Err(Refusal::invalid(format!(
            "Unable to create security group, a group with name {name} already exists."
        )));
    }
    let group = json!({
        "id": new_id(), "name": name, "description": asked.params.text("description").unwrap_or_default(),
        "account": own.name, "domainid": own.domain_id, "domain": own.domain, "domainpath": own.domain_path,
        "ingressrule": [], "egressrule": [], "tags": [], "virtualmachinecount": 0, "virtualmachineids": [],
    });
    state.catalogue.security_groups.push(group.clone());
    Ok(json!({"securitygroup": group}))
}

pub(super) fn ingress_rule(state: &mut State, asked: &Asked<'_>) -> Answered {
    let params = asked.params;
    let id = asked.required("securitygroupid")?.to_owned();
    let mut groups = state.catalogue.security_groups.iter_mut();
    let Some(group) = groups.find(|group| group["id"] == id.as_str()) else {
        return Err(Refusal::unknown_id(asked.command, "securitygroupid", &id));
    };
    let mut rule = json!({
        "ruleid": new_id(), "protocol": params.text("protocol").unwrap_or("tcp").to_lowercase(),
        "startport": params.number(asked.command, "startport")?, "endport": params.number(asked.command, "endport")?,
        "cidr": params.text("cidrlist"),
    });
    let mut told = group.clone();
    told["ingressrule"] = json!([rule]);
    if let Some(told) = told.as_object_mut() {
        told.remove("virtualmachinecount");
    }
    rule["tags"] = json!([]);
    if let Some(Value::Array(rules)) = group.get_mut("ingressrule") {
        rules.push(rule);
    }
    let work = Work::Told {
        object: "securitygroup",
        value: told,
    };
    let class = "org.apache.cloudstack.api.command.user.securitygroup.AuthorizeSecurityGroupIngressCmd";
    let takes = state.settings.latency.small;
    let instance = Some(("SecurityGroup", id));
    let job = state.schedule(&asked.account.name, class, instance, work, takes, asked.now);
    Ok(asked.accepted(job))
}

pub(super) fn user_data(state: &mut State, asked: &Asked<'_>) -> Answered {
    let name = asked.required("name")?;
    let own = asked.account;
    let mut known = state.catalogue.user_data.iter();
    if known.any(|known| known["name"] == name && known["account"] == own.name.as_str()) {
        return Err(Refusal::invalid(format!(
            "A userdata with name {name} already exists for this account."
        )));
    }
    let mut registered = json!({
        "id": new_id(), "name": name, "account": own.name, "domainid": own.domain_id, "domain": own.domain,
        "domainpath": own.domain_path, "userdata": asked.required("userdata")?, "hasannotations": false,
    });
    if let Some(params) = asked.params.text("params") {
        registered["params"] = json!(params);
    }
    state.catalogue.user_data.push(registered.clone());
    Ok(json!({"userdata": registered}))
}
