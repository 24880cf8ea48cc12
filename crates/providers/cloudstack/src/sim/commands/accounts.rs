//! Accounts, projects, and what they may use.

use serde_json::{Map, Value, json};

use super::Asked;
use crate::sim::{
    answer::{Answered, Key, Refusal},
    state::{Account, Project, Role, State, date},
};

/// A resource that is limited: its number, its name in limits, its name in accounts, and the server's default.
const RESOURCES: [(&str, &str, &str, i64); 17] = [
    ("0", "user_vm", "vm", 20),
    ("1", "public_ip", "ip", 20),
    ("2", "volume", "volume", 20),
    ("3", "snapshot", "snapshot", 20),
    ("4", "template", "template", 20),
    ("5", "project", "project", 10),
    ("6", "network", "network", 20),
    ("7", "vpc", "vpc", 20),
    ("8", "cpu", "cpu", 40),
    ("9", "memory", "memory", 40960),
    ("10", "primary_storage", "primarystorage", 200),
    ("11", "secondary_storage", "secondarystorage", 400),
    ("12", "backup", "backup", 20),
    ("13", "backup_storage", "backupstorage", 400),
    ("14", "bucket", "bucket", 20),
    ("15", "object_storage", "objectstorage", 400),
    ("16", "gpu", "gpu", 20),
];

const ROLE: &str = "3f2aa3d7-e0d5-11f1-9142-02fc00000001";

fn limit(account: &Account, resource: &str, default: i64) -> i64 {
    account.limits.get(resource).copied().unwrap_or(default)
}

/// What of each resource may be used, is used and is left; limits are texts, totals are numbers.
fn usage(state: &State, owner: (&str, Option<&str>), limits: impl Fn(&str, i64) -> i64) -> Map<String, Value> {
    let used = state.usage(owner);
    let mut shown = Map::new();
    for (_, resource, name, default) in RESOURCES {
        let total = used.get(resource).copied().unwrap_or_default();
        let most = limits(resource, default);
        let told = |amount: i64| match resource {
            _ if most < 0 => "Unlimited".to_owned(),
            "secondary_storage" => format!("{amount}.0"),
            _ => amount.to_string(),
        };
        let bound = if most < 0 {
            "Unlimited".to_owned()
        } else {
            most.to_string()
        };
        shown.insert(format!("{name}limit"), json!(bound));
        shown.insert(format!("{name}available"), json!(told(most - total)));
        let total = match resource {
            "secondary_storage" => json!(0.0),
            _ => json!(total),
        };
        shown.insert(format!("{name}total"), total);
    }
    for (field, resource) in [("vmstopped", "stopped"), ("vmrunning", "running")] {
        shown.insert(field.to_owned(), json!(used.get(resource).copied().unwrap_or_default()));
    }
    shown
}

pub(super) fn accounts(state: &State, asked: &Asked<'_>) -> Answered {
    let wanted = asked.params.text("name");
    let listall = asked.params.flag("listall") == Some(true);
    let shown = state
        .accounts
        .iter()
        .filter(|own| match asked.account.role {
            Role::User => own.name == asked.account.name,
            Role::DomainAdmin | Role::RootAdmin => listall || wanted.is_some() || own.name == asked.account.name,
        })
        .filter(|own| wanted.is_none_or(|wanted| own.name == wanted))
        .map(|own| {
            let role = match own.role {
                Role::User => "User",
                Role::DomainAdmin => "DomainAdmin",
                Role::RootAdmin => "Admin",
            };
            let created = date(asked.now);
            let mut shown = json!({
                "id": own.id, "name": own.name, "accounttype": 0, "roleid": ROLE, "roletype": role, "rolename": role,
                "domainid": own.domain_id, "domain": own.domain, "domainpath": own.domain_path, "state": "enabled",
                "receivedbytes": 0, "sentbytes": 0, "created": created, "isdefault": false, "groups": [],
                "user": [{
                    "id": own.user_id, "username": own.name, "firstname": own.name, "lastname": "test",
                    "email": format!("{}@example.com", own.name), "created": created, "state": "enabled",
                    "account": own.name, "accounttype": 0, "usersource": "native", "roleid": ROLE, "roletype": role,
                    "rolename": role, "domainid": own.domain_id, "domain": own.domain, "apikey": own.api_key,
                    "accountid": own.id, "iscallerchilddomain": false, "isdefault": false, "is2faenabled": false,
                    "is2famandated": false,
                }],
            });
            let limits = usage(state, (&own.name, None), |resource, default| {
                limit(own, resource, default)
            });
            if let Some(shown) = shown.as_object_mut() {
                shown.extend(limits);
            }
            shown
        });
    asked.list(state, "account", shown.collect())
}

pub(super) fn projects(state: &State, asked: &Asked<'_>) -> Answered {
    let params = asked.params;
    let shown = state
        .projects
        .iter()
        .filter(|own| asked.account.role == Role::RootAdmin || own.members.contains(&asked.account.name))
        .filter(|own| params.text("id").is_none_or(|id| own.id == id))
        .filter(|own| params.text("name").is_none_or(|name| own.name == name))
        .map(|own| project(state, asked.account, own));
    asked.list(state, "project", shown.collect())
}

/// A project as its members see it.
pub(super) fn project(state: &State, account: &Account, own: &Project) -> Value {
    let mut shown = json!({
        "id": own.id, "name": own.name, "displaytext": own.text, "domainid": account.domain_id,
        "domain": account.domain, "owner": [{"account": own.members.first()}], "state": "Active", "tags": [],
        "projectaccountname": format!("PrjAcct-{}-2", own.name), "created": date(own.created),
    });
    // A project holds no projects.
    let mut limits = usage(state, ("", Some(&own.id)), |_, default| default);
    limits.retain(|name, _| !name.starts_with("project"));
    if let Some(shown) = shown.as_object_mut() {
        shown.extend(limits);
    }
    shown
}

pub(super) fn resource_limits(state: &State, asked: &Asked<'_>) -> Answered {
    let params = asked.params;
    let own = asked.account;
    let shown = RESOURCES
        .iter()
        .filter(|(number, name, _, _)| {
            params.text("resourcetype").is_none_or(|wanted| wanted == *number)
                && params.text("resourcetypename").is_none_or(|wanted| wanted == *name)
        })
        .map(|(number, name, _, default)| {
            json!({
                "account": own.name, "domainid": own.domain_id, "domain": own.domain, "domainpath": own.domain_path,
                "resourcetype": number, "resourcetypename": name, "max": limit(own, name, *default),
            })
        });
    asked.list(state, "resourcelimit", shown.collect())
}

pub(super) fn update_limit(state: &mut State, asked: &Asked<'_>) -> Answered {
    let params = asked.params;
    let number = asked.required("resourcetype")?.to_owned();
    let found = RESOURCES.iter().find(|(own, ..)| *own == number);
    let Some((_, name, ..)) = found else {
        return Err(Refusal::invalid(format!(
            "Please specify a valid resource type: {number}"
        )));
    };
    let most = params.number(asked.command, "max")?.unwrap_or(-1);
    let mut limit = json!({"resourcetype": number, "resourcetypename": name, "max": most});
    let any = state
        .accounts
        .iter()
        .find(|own| Some(own.domain_id.as_str()) == params.text("domainid"))
        .cloned();
    let any = any.unwrap_or_else(|| asked.account.clone());
    for (field, value) in [
        ("domainid", &any.domain_id),
        ("domain", &any.domain),
        ("domainpath", &any.domain_path),
    ] {
        limit[field] = json!(value);
    }
    match params.text("account") {
        Some(account) => {
            if let Some(own) = state.accounts.iter_mut().find(|own| own.name == account) {
                own.limits.insert((*name).to_owned(), most);
            }
            limit["account"] = json!(account);
        }
        None => {
            state.domain_limits.insert((any.domain_id, (*name).to_owned()), most);
        }
    }
    Ok(json!({"resourcelimit": limit}))
}

pub(super) fn api_limit(state: &State, asked: &Asked<'_>) -> Answered {
    let Some((_, most)) = state.settings.throttling else {
        return Err(Refusal {
            key: Key::ErrorResponse,
            ..Refusal::new(
                432,
                9999,
                "This api is only available when api.throttling.enabled = true.",
            )
        });
    };
    let own = asked.account;
    Ok(json!({"apilimit": {
        "accountid": own.id, "account": own.name, "apiIssued": 2, "apiAllowed": most.saturating_sub(2), "expireAfter": 0,
    }}))
}
