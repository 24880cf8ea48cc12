//! The commands of the API.

mod accounts;
mod creation;
mod deploy;
mod discovery;
mod infrastructure;
mod machines;
mod resources;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    answer::{Answered, Page, Refusal, list},
    params::Params,
    state::{Account, Role, State},
};

/// One request, ready to be carried out.
struct Asked<'a> {
    command: &'a str,
    account: &'a Account,
    params: &'a Params,
    now: Timestamp,
}

/// Who may use a command; `None` if there is no such command.
pub(super) fn least_role(command: &str) -> Option<Role> {
    match command {
        "listCapabilities"
        | "listZones"
        | "listServiceOfferings"
        | "listDiskOfferings"
        | "listTemplates"
        | "listNetworks"
        | "listAffinityGroups"
        | "listAffinityGroupTypes"
        | "listSecurityGroups"
        | "listSSHKeyPairs"
        | "listUserData"
        | "listInstanceGroups"
        | "listAccounts"
        | "listProjects"
        | "listResourceLimits"
        | "listVirtualMachines"
        | "listVolumes"
        | "listTags"
        | "queryAsyncJobResult"
        | "deployVirtualMachine"
        | "destroyVirtualMachine"
        | "startVirtualMachine"
        | "stopVirtualMachine"
        | "rebootVirtualMachine"
        | "expungeVirtualMachine"
        | "updateVirtualMachine"
        | "createTags"
        | "deleteTags"
        | "createAffinityGroup"
        | "deleteAffinityGroup"
        | "createVolume"
        | "attachVolume"
        | "deleteVolume"
        | "destroyVolume"
        | "addNicToVirtualMachine"
        | "quotaIsEnabled"
        | "quotaTariffList"
        | "getApiLimit"
        | "createNetwork"
        | "createProject"
        | "createTemplate"
        | "createSecurityGroup"
        | "authorizeSecurityGroupIngress"
        | "registerUserData"
        | "registerSSHKeyPair" => Some(Role::User),
        "listHosts" | "listCapacity" | "updateResourceLimit" | "createZone" => Some(Role::RootAdmin),
        _ => None,
    }
}

pub(super) fn run(state: &mut State, command: &str, account: &Account, params: &Params, now: Timestamp) -> Answered {
    let asked = Asked {
        command,
        account,
        params,
        now,
    };
    match command {
        "listCapabilities" => discovery::capabilities(state, &asked),
        "listZones" => discovery::zones(state, &asked),
        "listServiceOfferings" => discovery::offerings(state, &asked),
        "listDiskOfferings" => discovery::disk_offerings(state, &asked),
        "listTemplates" => discovery::templates(state, &asked),
        "listNetworks" => discovery::networks(state, &asked),
        "listAffinityGroups" => discovery::affinity_groups(state, &asked),
        "listAffinityGroupTypes" => discovery::affinity_group_types(),
        "listSecurityGroups" => discovery::security_groups(state, &asked),
        "listSSHKeyPairs" => discovery::key_pairs(state, &asked),
        "listUserData" => discovery::user_data(state, &asked),
        "listInstanceGroups" => discovery::instance_groups(state, &asked),
        "listAccounts" => accounts::accounts(state, &asked),
        "listProjects" => accounts::projects(state, &asked),
        "listResourceLimits" => accounts::resource_limits(state, &asked),
        "updateResourceLimit" => accounts::update_limit(state, &asked),
        "listHosts" => infrastructure::hosts(state, &asked),
        "listCapacity" => infrastructure::capacity(state, &asked),
        "quotaIsEnabled" => Ok(json!({"isenabled": {"isenabled": state.settings.tariffs.is_some()}})),
        "quotaTariffList" => discovery::tariffs(state),
        "getApiLimit" => accounts::api_limit(state, &asked),
        "deployVirtualMachine" => deploy::deploy(state, &asked),
        "listVirtualMachines" => machines::list_machines(state, &asked),
        "startVirtualMachine"
        | "stopVirtualMachine"
        | "rebootVirtualMachine"
        | "destroyVirtualMachine"
        | "expungeVirtualMachine"
        | "addNicToVirtualMachine" => machines::act(state, &asked),
        "updateVirtualMachine" => machines::update(state, &asked),
        "queryAsyncJobResult" => machines::job(state, &asked),
        "listVolumes" => resources::volumes(state, &asked),
        "createVolume" => resources::create_volume(state, &asked),
        "attachVolume" | "destroyVolume" => resources::act_on_volume(state, &asked),
        "deleteVolume" => resources::delete_volume(state, &asked),
        "createTags" | "deleteTags" => resources::change_tags(state, &asked),
        "listTags" => resources::list_tags(state, &asked),
        "createAffinityGroup" => resources::create_affinity_group(state, &asked),
        "deleteAffinityGroup" => resources::delete_affinity_group(state, &asked),
        "registerSSHKeyPair" => resources::register_key_pair(state, &asked),
        "createNetwork" => creation::network(state, &asked),
        "createProject" => creation::project(state, &asked),
        "createTemplate" => creation::template(state, &asked),
        "createSecurityGroup" => creation::security_group(state, &asked),
        "authorizeSecurityGroupIngress" => creation::ingress_rule(state, &asked),
        "registerUserData" => creation::user_data(state, &asked),
        _ => Err(Refusal::invalid(format!("{command} is not simulated"))),
    }
}

impl Asked<'_> {
    /// A list, cut as the request asks.
    fn list(&self, state: &State, object: &str, all: Vec<Value>) -> Answered {
        Ok(list(object, all, self.page(state)?))
    }

    fn page(&self, state: &State) -> Result<Page, Refusal> {
        let number = self.params.number(self.command, "page")?;
        let size = self.params.number(self.command, "pagesize")?;
        let most = state.settings.page_size;
        match (number, size) {
            (None, None) => Ok(Page::Part { number: 1, size: most }),
            (None, Some(-1)) if state.settings.unlimited_pages => Ok(Page::Everything),
            (Some(_), Some(-1)) => Err(Refusal::invalid(
                "Can't specify page parameter when pagesize is -1 (Unlimited)",
            )),
            (None, Some(_)) => Err(Refusal::new(
                431,
                9999,
                "\"page\" parameter is required when \"pagesize\" is specified",
            )),
            (Some(_), None) => Err(Refusal::new(
                431,
                9999,
                "\"pagesize\" parameter is required when \"page\" is specified",
            )),
            (Some(number), Some(size)) => {
                let size = usize::try_from(size).unwrap_or_default();
                if size > most {
                    return Err(Refusal::invalid(format!(
                        "Page size can't exceed max allowed page size value: {most}"
                    )));
                }
                Ok(Page::Part {
                    number: usize::try_from(number).unwrap_or(1).max(1),
                    size,
                })
            }
        }
    }

    /// Whether the caller may see something of this owner with this request.
    fn sees(&self, state: &State, account: &str, project: Option<&str>) -> bool {
        let wanted = self.params.text("projectid");
        match (project, wanted) {
            (Some(project), Some("-1")) => self.account.role == Role::RootAdmin || is_member(state, project, self),
            (Some(project), Some(wanted)) => project == wanted,
            (Some(_), None) => false,
            (None, Some("-1")) => self.sees_account(account),
            (None, Some(_)) => false,
            (None, None) => self.sees_account(account),
        }
    }

    fn sees_account(&self, account: &str) -> bool {
        let listall = self.params.flag("listall") == Some(true) || self.params.text("id").is_some();
        match self.account.role {
            Role::User => account == self.account.name,
            Role::DomainAdmin | Role::RootAdmin => match self.params.text("account") {
                Some(wanted) => account == wanted,
                None => listall || account == self.account.name,
            },
        }
    }

    /// The project that is named, if the caller is in it.
    fn project(&self, state: &State) -> Result<Option<String>, Refusal> {
        let Some(wanted) = self.params.text("projectid").filter(|id| *id != "-1") else {
            return Ok(None);
        };
        if state.projects.iter().all(|own| own.id != wanted) {
            return Err(Refusal::unknown_id(self.command, "projectid", wanted));
        }
        if self.account.role == Role::User && !is_member(state, wanted, self) {
            let text = format!(
                "The API [{}] does not exist or is not available for this account/user in project [{wanted}].",
                self.command
            );
            return Err(Refusal {
                key: super::answer::Key::ErrorResponse,
                ..Refusal::new(432, 9999, text)
            });
        }
        Ok(Some(wanted.to_owned()))
    }

    /// The value of a parameter that the command cannot do without.
    fn required(&self, param: &str) -> Result<&str, Refusal> {
        self.params.text(param).ok_or_else(|| {
            Refusal::new(
                431,
                9999,
                format!(
                    "Unable to execute API command {} due to missing parameter {param}",
                    self.command.to_lowercase()
                ),
            )
        })
    }

    fn accepted(&self, job: String) -> Value {
        json!({"jobid": job})
    }
}

fn is_member(state: &State, project: &str, asked: &Asked<'_>) -> bool {
    let found = state.projects.iter().find(|own| own.id == project);
    found.is_some_and(|own| own.members.contains(&asked.account.name))
}
