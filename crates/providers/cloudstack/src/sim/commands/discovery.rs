//! What there is to choose from.

use serde_json::{Value, json};

use super::{Asked, infrastructure};
use crate::sim::{
    answer::{Answered, Page, Refusal, list},
    render,
    state::{Role, State, date},
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
    if asked.account.role == Role::RootAdmin {
        capability["extensionspath"] = json!("/usr/share/cloudstack-management/extensions");
    }
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
    let zones = zones.filter(|zone| !only_used || owns_machine(zone)).map(|zone| {
        let mut zone = zone.clone();
        if asked.account.role == Role::RootAdmin {
            for (field, value) in [
                ("dns1", "192.0.2.53"),
                ("internaldns1", "192.0.2.53"),
                ("guestcidraddress", "10.1.1.0/24"),
            ] {
                zone[field] = json!(value);
            }
            if params.flag("showcapacities") == Some(true) {
                zone["capacity"] = infrastructure::of_zone(state, zone["id"].as_str().unwrap_or_default());
            }
        }
        zone
    });
    let zones = zones.collect();
    asked.list(state, "zone", zones)
}

pub(super) fn offerings(state: &State, asked: &Asked<'_>) -> Answered {
    let params = asked.params;
    let zone = params.text("zoneid");
    // Hosts with the template's tag are those of offerings with that host tag, or with none.
    let template = params.text("templateid");
    let template = template.and_then(|id| state.catalogue.templates.iter().find(|own| own["id"] == id));
    let tag = template.and_then(|own| own["templatetag"].as_str());
    let wanted = |own: &&Value| {
        let bound = own["zoneid"].as_str().unwrap_or_default();
        let is_hosted = match (tag, own["hosttags"].as_str()) {
            (Some(tag), Some(tags)) => tags.split(',').any(|own| own == tag),
            (Some(_), None) | (None, _) => true,
        };
        is_hosted
            && params.text("id").is_none_or(|id| own["id"] == id)
            && params.text("name").is_none_or(|name| same(&own["name"], name))
            && own["state"] == params.text("state").unwrap_or("Active")
            && own["issystem"] != true
            && zone.is_none_or(|zone| bound.is_empty() || bound.split(',').any(|own| own == zone))
            && params.text("keyword").is_none_or(|word| contains(&own["name"], word))
    };
    let shown = state.catalogue.offerings.iter().filter(wanted).map(|own| {
        let mut shown = own.clone();
        // What binds an offering is a detail of it, by the server's own numbers.
        if asked.account.role == Role::RootAdmin {
            for field in ["domainid", "zoneid"] {
                if own[field].is_string() {
                    shown["serviceofferingdetails"][field] = json!("2");
                }
            }
        }
        shown
    });
    asked.list(state, "serviceoffering", shown.collect())
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
        return Err(Refusal::new(431, 9999, text));
    }
    if filter == "all" && asked.account.role == Role::User {
        return Err(Refusal::invalid("Filter all can be specified by admin only"));
    }
    let mut ids = params.list("ids");
    ids.extend(params.text("id"));
    let is_own = |own: &Value| own["account"] == asked.account.name.as_str();
    let is_visible = |own: &Value| own["ispublic"] == true || asked.account.role != Role::User || is_own(own);
    let private = |own: &&Value| ids.iter().any(|id| own["id"] == *id) && !is_visible(own);
    if let Some(own) = state.catalogue.templates.iter().find(private) {
        return Err(no_launch(asked, own));
    }
    let tags = params.tags("tags");
    let wanted = |own: &&Value| {
        let is_meant = match filter {
            "self" | "selfexecutable" => is_own(own),
            "sharedexecutable" => own["ispublic"] != true && !is_own(own),
            "community" => own["ispublic"] == true && own["isfeatured"] != true,
            "featured" => own["ispublic"] == true && own["isfeatured"] == true,
            _ => true,
        };
        (ids.is_empty() || ids.iter().any(|id| own["id"] == *id))
            && params.text("zoneid").is_none_or(|zone| own["zoneid"] == zone)
            && params.text("name").is_none_or(|name| same(&own["name"], name))
            && (tags.is_empty() || has_any_tag(own, &tags))
            && (filter == "all" || own["templatetype"] != "SYSTEM")
            && is_meant
            && is_visible(own)
    };
    let shown = state.catalogue.templates.iter().filter(wanted).map(|own| {
        let mut shown = own.clone();
        // A template that machines were made of is also on the storage that they run from.
        let is_used = state.machines.iter().any(|machine| {
            own["id"] == machine.template.as_str()
                && own["zoneid"] == machine.zone.as_str()
                && machine.first_ran.is_some()
        });
        if let Some(Value::Array(stores)) = shown.get_mut("downloaddetails") {
            if is_used {
                stores.push(json!({"downloadState": "DOWNLOADED", "datastore": "primary", "downloadPercent": "100"}));
            }
            if asked.account.role == Role::RootAdmin {
                for store in stores {
                    store["datastoreRole"] = json!("Image");
                    store["datastoreId"] = json!("c84217c0-0be4-4468-83f9-ee4fe7b24240");
                }
            }
        }
        if is_own(own) || asked.account.role == Role::RootAdmin {
            shown["status"] = json!("Download Complete");
        }
        if asked.account.role == Role::RootAdmin {
            shown["url"] = json!("http://images.example/template");
        }
        shown
    });
    asked.list(state, "template", shown.collect())
}

/// A private template of somebody else.
pub(super) fn no_launch(asked: &Asked<'_>, template: &Value) -> Refusal {
    Refusal::forbidden(format!(
        "Account Account [{{\"accountName\":\"{}\",\"id\":4,\"uuid\":\"{}\"}}] does not have permission to launch instances from template Template {{\"format\":{},\"id\":200,\"name\":{},\"uniqueName\":\"200-3-8d2ebef8-5707-3e5e-9f17-6ec52e9f5319\",\"uuid\":{}}}",
        asked.account.name, asked.account.id, template["format"], template["name"], template["id"]
    ))
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
        // Networks of a domain are everybody's in it.
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
            "domain": owner.domain,
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
    let shown = names.into_iter().filter_map(|name| {
        let (id, created) = state.known_group(name)?;
        Some(json!({
            "id": id, "name": name, "created": date(*created), "account": account.name, "domainid": account.domain_id,
            "domain": account.domain, "domainpath": account.domain_path, "hasannotations": false,
        }))
    });
    asked.list(state, "instancegroup", shown.collect())
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

fn same(value: &Value, wanted: &str) -> bool {
    value.as_str().is_some_and(|value| value.eq_ignore_ascii_case(wanted))
}

fn contains(value: &Value, word: &str) -> bool {
    value
        .as_str()
        .is_some_and(|value| value.to_lowercase().contains(&word.to_lowercase()))
}
