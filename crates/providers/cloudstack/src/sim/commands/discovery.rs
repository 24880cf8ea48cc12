//! What there is to choose from.

use serde_json::{Value, json};

use super::Asked;
use crate::sim::{
    answer::{Answered, Page, Refusal, list},
    render,
    state::{Role, State},
};

pub(super) fn capabilities(state: &State, asked: &Asked<'_>) -> Answered {
    let is_admin = asked.account.role != Role::User;
    let settings = &state.settings;
    let groups = state
        .catalogue
        .zones
        .iter()
        .any(|zone| zone["securitygroupsenabled"] == true);
    let mut capability = json!({
        "securitygroupsenabled": groups, "dynamicrolesenabled": true, "cloudstackversion": settings.version,
        "userpublictemplateenabled": true, "supportELB": "false", "projectinviterequired": false,
        "allowusercreateprojects": true, "customdiskofferingminsize": 1, "customdiskofferingmaxsize": 1024,
        "regionsecondaryenabled": false, "kvmsnapshotenabled": true, "snapshotshowchainsize": false,
        "allowuserviewdestroyedvm": settings.user_sees_destroyed || is_admin,
        "allowuserexpungerecovervm": settings.user_may_expunge || is_admin, "allowuserexpungerecovervolume": true,
        "allowuserviewalldomainaccounts": is_admin, "allowuserforcestopvm": true, "kubernetesserviceenabled": false,
        "kubernetesclusterexperimentalfeaturesenabled": false, "customhypervisordisplayname": "Custom",
        "defaultuipagesize": 20, "instancesstatsretentiontime": 720, "instancesstatsuseronly": false,
        "instancesdisksstatsretentionenabled": false, "instancesdisksstatsretentiontime": 720, "sharedfsvmmincpucount": 2,
        "sharedfsvmminramsize": 1024, "instanceleaseenabled": settings.leases, "dynamicscalingenabled": false,
        "additionalconfigenabled": settings.extra_config,
    });
    if let Some((interval, most)) = settings.throttling {
        capability["apilimitinterval"] = json!(interval.as_secs());
        capability["apilimitmax"] = json!(most);
    }
    Ok(json!({"capability": capability}))
}

pub(super) fn zones(state: &State, asked: &Asked<'_>) -> Answered {
    let params = asked.params;
    let id = params.text("id");
    let zones = state.catalogue.zones.iter().filter(|zone| {
        id.is_none_or(|id| zone["id"] == id)
            && params.text("name").is_none_or(|name| same(&zone["name"], name))
            && (id.is_some() || asked.account.role != Role::User || zone["allocationstate"] == "Enabled")
            && params.text("keyword").is_none_or(|word| contains(&zone["name"], word))
    });
    let owns_machine = |zone: &Value| {
        let machines = state.machines.iter().filter(|own| !own.removed);
        machines
            .filter(|own| own.account == asked.account.name)
            .any(|own| zone["id"] == own.zone.as_str())
    };
    // An explicit false means: only zones where the caller has a machine.
    let only_used = params.flag("available") == Some(false);
    let zones = zones.filter(|zone| !only_used || owns_machine(zone)).cloned().collect();
    asked.list(state, "zone", zones)
}

pub(super) fn offerings(state: &State, asked: &Asked<'_>) -> Answered {
    let params = asked.params;
    let zone = params.text("zoneid");
    let wanted = |own: &&Value| {
        let bound = own["zoneid"].as_str().unwrap_or_default();
        params.text("id").is_none_or(|id| own["id"] == id)
            && params.text("name").is_none_or(|name| same(&own["name"], name))
            && own["state"] == params.text("state").unwrap_or("Active")
            && own["issystem"] != true
            && zone.is_none_or(|zone| bound.is_empty() || bound.split(',').any(|own| own == zone))
            && params.text("keyword").is_none_or(|word| contains(&own["name"], word))
    };
    asked.list(
        state,
        "serviceoffering",
        state.catalogue.offerings.iter().filter(wanted).cloned().collect(),
    )
}

pub(super) fn disk_offerings(state: &State, asked: &Asked<'_>) -> Answered {
    let params = asked.params;
    let wanted = |own: &&Value| {
        params.text("id").is_none_or(|id| own["id"] == id)
            && params.text("name").is_none_or(|name| same(&own["name"], name))
            && own["state"] == "Active"
    };
    let found = state.catalogue.disk_offerings.iter().filter(wanted).cloned().collect();
    asked.list(state, "diskoffering", found)
}

pub(super) fn templates(state: &State, asked: &Asked<'_>) -> Answered {
    let params = asked.params;
    let filter = params.text("templatefilter").ok_or_else(|| {
        Refusal::new(
            431,
            9999,
            "Unable to execute API command listtemplates due to missing parameter templatefilter",
        )
    })?;
    let known = [
        "featured",
        "self",
        "selfexecutable",
        "sharedexecutable",
        "executable",
        "community",
        "all",
    ];
    if !known.contains(&filter) {
        let text = format!("No enum constant com.cloud.template.VirtualMachineTemplate.TemplateFilter.{filter}");
        return Err(Refusal::invalid(text));
    }
    if filter == "all" && asked.account.role == Role::User {
        return Err(Refusal::invalid("Filter all can be specified by admin only"));
    }
    let mut ids = params.list("ids");
    ids.extend(params.text("id"));
    let wanted = |own: &&Value| {
        let is_visible = own["ispublic"] == true
            || asked.account.role != Role::User
            || own["account"] == asked.account.name.as_str();
        (ids.is_empty() || ids.iter().any(|id| own["id"] == *id))
            && params.text("zoneid").is_none_or(|zone| own["zoneid"] == zone)
            && params.text("name").is_none_or(|name| same(&own["name"], name))
            && (filter != "self" || own["account"] == asked.account.name.as_str())
            && is_visible
    };
    asked.list(
        state,
        "template",
        state.catalogue.templates.iter().filter(wanted).cloned().collect(),
    )
}

pub(super) fn networks(state: &State, asked: &Asked<'_>) -> Answered {
    asked.project(state)?;
    let params = asked.params;
    let id = params.text("id");
    let project = params.text("projectid");
    let shown = state.catalogue.networks.iter().map(|own| {
        let mut own = own.clone();
        let has_room = state.has_free_address(own["id"].as_str().unwrap_or_default());
        own["canusefordeploy"] = json!(own["canusefordeploy"] == true && has_room);
        own
    });
    let tags = params.tags("tags");
    let wanted = |own: &Value| {
        let is_visible = match (own["projectid"].as_str(), project) {
            (Some(own), Some(wanted)) => own == wanted || wanted == "-1",
            (Some(_), None) => false,
            (None, Some(wanted)) if wanted != "-1" => own["acltype"] == "Domain",
            (None, _) => own["acltype"] == "Domain" || asked.sees_account(own["account"].as_str().unwrap_or_default()),
        };
        id.is_none_or(|id| own["id"] == id)
            && params.text("zoneid").is_none_or(|zone| own["zoneid"] == zone)
            && params.text("name").is_none_or(|name| same(&own["name"], name))
            && params.text("keyword").is_none_or(|word| contains(&own["name"], word))
            && params.text("type").is_none_or(|kind| same(&own["type"], kind))
            && params
                .flag("canusefordeploy")
                .is_none_or(|wanted| own["canusefordeploy"] == wanted)
            && (tags.is_empty() || has_any_tag(own, &tags))
            && is_visible
    };
    asked.list(state, "network", shown.filter(wanted).collect())
}

/// Several tags are ORed by the server.
fn has_any_tag(object: &Value, tags: &[(String, String)]) -> bool {
    let own = object["tags"].as_array();
    own.into_iter().flatten().any(|tag| {
        tags.iter()
            .any(|(key, value)| same(&tag["key"], key) && same(&tag["value"], value))
    })
}

pub(super) fn affinity_groups(state: &State, asked: &Asked<'_>) -> Answered {
    let params = asked.params;
    let wanted = state.affinity_groups.iter().filter(|own| {
        params.text("id").is_none_or(|id| own.id == id)
            && params
                .text("name")
                .is_none_or(|name| own.name.eq_ignore_ascii_case(name))
            && params.text("type").is_none_or(|kind| own.kind == kind)
            && asked.sees(state, &own.account, own.project.as_deref())
    });
    asked.list(
        state,
        "affinitygroup",
        wanted.map(|own| render::affinity_group(state, own)).collect(),
    )
}

pub(super) fn affinity_group_types() -> Answered {
    let kinds = [
        "host anti-affinity",
        "host affinity",
        "non-strict host affinity",
        "non-strict host anti-affinity",
    ];
    let kinds = kinds.iter().map(|kind| json!({"type": kind})).collect();
    Ok(list("affinityGroupType", kinds, Page::Everything))
}

pub(super) fn security_groups(state: &State, asked: &Asked<'_>) -> Answered {
    let params = asked.params;
    let wanted = |own: &&Value| {
        params.text("id").is_none_or(|id| own["id"] == id)
            && params
                .text("securitygroupname")
                .is_none_or(|name| same(&own["name"], name))
            && asked.sees_account(own["account"].as_str().unwrap_or_default())
    };
    let found = state.catalogue.security_groups.iter().filter(wanted).cloned().collect();
    asked.list(state, "securitygroup", found)
}

pub(super) fn key_pairs(state: &State, asked: &Asked<'_>) -> Answered {
    let owner = state.account(asked.params.text("account").unwrap_or(&asked.account.name));
    let Some(owner) = owner else { return Ok(json!({})) };
    let wanted = asked.params.text("name");
    let pairs = owner
        .key_pairs
        .iter()
        .filter(|name| wanted.is_none_or(|wanted| *name == wanted));
    let shown = pairs.map(|name| {
        json!({
            "id": "0c2b0e0e-0000-4000-8000-000000000001", "name": name, "account": owner.name, "domainid": owner.domain_id,
            "domain": owner.domain, "domainpath": owner.domain_path,
            "fingerprint": "62:6f:8c:58:e1:12:bc:a4:d2:f8:93:6a:23:98:ab:7a", "hasannotations": false,
        })
    });
    asked.list(state, "sshkeypair", shown.collect())
}

pub(super) fn user_data(state: &State, asked: &Asked<'_>) -> Answered {
    let params = asked.params;
    let wanted = |own: &&Value| {
        params.text("id").is_none_or(|id| own["id"] == id)
            && params.text("name").is_none_or(|name| same(&own["name"], name))
    };
    let found = state.catalogue.user_data.iter().filter(wanted).cloned().collect();
    asked.list(state, "userdata", found)
}

pub(super) fn instance_groups(state: &State, asked: &Asked<'_>) -> Answered {
    let mut names: Vec<&str> = state
        .machines
        .iter()
        .filter(|own| own.account == asked.account.name)
        .filter_map(|own| own.group.as_deref())
        .collect();
    names.sort_unstable();
    names.dedup();
    let account = asked.account;
    let shown = names.into_iter().map(|name| {
        json!({
            "id": state.known_group(name), "name": name, "account": account.name, "domainid": account.domain_id,
            "domain": account.domain, "domainpath": account.domain_path, "hasannotations": false,
        })
    });
    asked.list(state, "instancegroup", shown.collect())
}

/// (name in the answer, name of the resource, unit).
const LIMITS: [(&str, &str); 6] = [
    ("vm", "user_vm"),
    ("volume", "volume"),
    ("cpu", "cpu"),
    ("memory", "memory"),
    ("gpu", "gpu"),
    ("primarystorage", "primary_storage"),
];

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
            let mut shown = json!({
                "id": own.id, "name": own.name, "accounttype": 0, "roletype": role, "rolename": role,
                "domainid": own.domain_id, "domain": own.domain, "domainpath": own.domain_path, "state": "enabled",
                "user": [{"id": own.user_id, "username": own.name, "account": own.name, "apikey": own.api_key}],
                "isdefault": false, "groups": [],
            });
            let used = state.usage((&own.name, None));
            for (name, resource) in LIMITS {
                let total = used.get(resource).copied().unwrap_or_default();
                let limit = own.limits.get(resource).copied().unwrap_or(-1);
                shown[format!("{name}total")] = json!(total);
                let (most, left) = if limit < 0 {
                    ("Unlimited".to_owned(), "Unlimited".to_owned())
                } else {
                    (limit.to_string(), (limit - total).to_string())
                };
                shown[format!("{name}limit")] = json!(most);
                shown[format!("{name}available")] = json!(left);
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
        .map(|own| {
            let used = state.usage(("", Some(&own.id)));
            let mut shown = json!({
                "id": own.id, "name": own.name, "displaytext": own.name, "domainid": asked.account.domain_id,
                "domain": asked.account.domain, "owner": [{"account": own.members.first()}], "state": "Active", "tags": [],
            });
            for (name, resource) in LIMITS {
                shown[format!("{name}total")] = json!(used.get(resource).copied().unwrap_or_default());
                shown[format!("{name}limit")] = json!("Unlimited");
                shown[format!("{name}available")] = json!("Unlimited");
            }
            shown
        });
    asked.list(state, "project", shown.collect())
}

pub(super) fn resource_limits(state: &State, asked: &Asked<'_>) -> Answered {
    const TYPES: [(&str, &str); 6] = [
        ("0", "user_vm"),
        ("2", "volume"),
        ("8", "cpu"),
        ("9", "memory"),
        ("10", "primary_storage"),
        ("16", "gpu"),
    ];
    let params = asked.params;
    let own = asked.account;
    let shown = TYPES
        .iter()
        .filter(|(number, name)| {
            params.text("resourcetype").is_none_or(|wanted| wanted == *number)
                && params.text("resourcetypename").is_none_or(|wanted| wanted == *name)
        })
        .map(|(number, name)| {
            json!({
                "account": own.name, "domainid": own.domain_id, "domain": own.domain, "domainpath": own.domain_path,
                "resourcetype": number, "resourcetypename": name, "max": own.limits.get(*name).copied().unwrap_or(-1),
            })
        });
    asked.list(state, "resourcelimit", shown.collect())
}

pub(super) fn hosts(state: &State, asked: &Asked<'_>) -> Answered {
    let zone = asked.params.text("zoneid");
    let hosts = state
        .hosts
        .iter()
        .filter(|own| zone.is_none_or(|zone| own.zone == zone));
    let shown =
        hosts.map(|own| json!({"id": own.id, "name": own.name, "state": "Up", "type": "Routing", "zoneid": own.zone}));
    asked.list(state, "host", shown.collect())
}

pub(super) fn tariffs(state: &State) -> Answered {
    let tariffs = state.settings.tariffs.iter().flatten().map(|(kind, value, has_rule)| {
        let mut shown = json!({"usageType": kind, "tariffValue": value, "effectiveDate": "2020-01-01T00:00:00+0000",
            "currency": "$", "position": 1});
        if *has_rule {
            shown["activationRule"] = json!("value.tags['x'] == 'y'");
        }
        shown
    });
    Ok(list("quotatariff", tariffs.collect(), Page::Everything))
}

pub(super) fn api_limit(state: &State) -> Answered {
    let Some((_, most)) = state.settings.throttling else {
        return Err(Refusal {
            key: crate::sim::answer::Key::ErrorResponse,
            ..Refusal::new(
                432,
                9999,
                "This api is only available when api.throttling.enabled = true.",
            )
        });
    };
    Ok(json!({"apilimit": {"apiIssued": 2, "apiAllowed": most - 2, "expireAfter": 0}}))
}

fn same(value: &Value, wanted: &str) -> bool {
    value.as_str().is_some_and(|value| value.eq_ignore_ascii_case(wanted))
}

fn contains(value: &Value, word: &str) -> bool {
    value
        .as_str()
        .is_some_and(|value| value.to_lowercase().contains(&word.to_lowercase()))
}
