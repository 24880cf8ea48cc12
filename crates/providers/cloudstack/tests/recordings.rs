//! The client reads what a real management server said: every signing vector and every recorded exchange.

use karpenter_cloudstack::client::{
    ApiError, Class,
    envelope::{self, Content},
    interpret,
    jobs::JobEnd,
    model::{
        Account, AffinityGroup, AffinityGroupType, Capabilities, Capacity, DiskOffering, Job, Network, Project,
        RegisteredUserData, SecurityGroup, ServiceOffering, SshKeyPair, Template, VirtualMachine, Volume, Zone,
        timestamp,
    },
    signing,
};
use serde::de::DeserializeOwned;
use serde_json::Value;

struct Exchange {
    file: String,
    title: String,
    command: &'static str,
    status: u16,
    body: Vec<u8>,
    json: Value,
}

fn exchanges() -> Vec<Exchange> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures");
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).expect("the fixtures") {
        let path = entry.expect("a file").path();
        let text = std::fs::read_to_string(&path).expect("a fixture");
        let group: Value = serde_json::from_str(&text).expect("JSON");
        for exchange in group["exchanges"].as_array().into_iter().flatten() {
            let command = exchange["request"]["params"]["command"].as_str().unwrap_or_default();
            let body = match &exchange["body"] {
                Value::String(text) => text.clone().into_bytes(),
                json => json.to_string().into_bytes(),
            };
            all.push(Exchange {
                file: path.file_stem().expect("a name").to_string_lossy().into_owned(),
                title: exchange["title"].as_str().unwrap_or_default().to_owned(),
                // The client knows its commands at compile time.
                command: command.to_owned().leak(),
                status: exchange["status"].as_u64().expect("a status") as u16,
                body,
                json: exchange["body"].clone(),
            });
        }
    }
    all
}

#[test]
fn every_signing_vector_is_signed_as_the_server_accepted_it() {
    let text = include_str!("fixtures/signing-vectors.json");
    let file: Value = serde_json::from_str(text).expect("JSON");
    let secret = file["secretkey"].as_str().expect("a key").to_owned().into();
    let vectors = file["vectors"].as_array().expect("vectors");
    let (mut accepted, mut rejected) = (0, 0);
    for vector in vectors {
        let params = vector["params"].as_object().expect("parameters");
        let params = params
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str().expect("text")));
        let canonical = signing::canonical(params);
        let signature = signing::sign(&canonical, &secret);
        if vector["accepted"] == true {
            assert_eq!(canonical, vector["canonical"], "{}", vector["title"]);
            assert_eq!(signature, vector["signature"], "{}", vector["title"]);
            accepted += 1;
        } else {
            assert_ne!(signature, vector["signature"], "{}", vector["title"]);
            rejected += 1;
        }
    }
    assert_eq!((accepted, rejected), (14, 7));
}

/// What each recorded error means to us, by code and a part of its text; written down by hand.
const MEANINGS: [(u16, &str, &str); 58] = [
    (400, "needs to be sent using POST", "needs_post"),
    (429, "please retry after", "throttled"),
    (430, "Unable to decode parameter", "internal"),
    (431, "entity does not exist", "not_found"),
    (431, "unable to find a virtual machine with id", "not_found"),
    (431, "already exists in the network domain", "name_taken"),
    (
        431,
        "already exists so can't create/update with custom id",
        "name_taken",
    ),
    (431, "Page size can't exceed", "page_size"),
    (431, "has delete protection enabled", "protected"),
    (431, "User data has exceeded", "user_data_too_long"),
    (431, "User data is too long", "user_data_too_long"),
    (431, "a group with name", "invalid"),
    (431, "invalid affinity group type", "invalid"),
    (431, "it can contain ASCII letters", "invalid"),
    (431, "illegal ASCII non-printable", "invalid"),
    (431, "doesn't belong to zone", "invalid"),
    (431, "Not all specified keypairs exist", "invalid"),
    (431, "should not be specified for static service offering", "invalid"),
    (431, "Need to specify custom parameter values", "invalid"),
    (431, "specify a value between", "invalid"),
    (431, "is not customizable", "invalid"),
    (431, "extraconfig", "invalid"),
    (431, "Root disk size should be", "invalid"),
    (431, "User data is not base64 encoded", "invalid"),
    (431, "deviceid parameter is required", "invalid"),
    (431, "no support for UserData service", "invalid"),
    (431, "Unable to find volume", "invalid"),
    (431, "Expected parameter job id", "invalid"),
    (431, "for parameter page", "invalid"),
    (431, "non permitted value", "invalid"),
    (431, "Specify either id or ids", "invalid"),
    (431, "parameter is required when", "invalid"),
    (431, "Can't specify page parameter", "invalid"),
    (431, "is smaller than template size", "invalid"),
    (431, "is not available for use", "invalid"),
    (431, "is not running, unable to reboot", "invalid"),
    (431, "is already running", "invalid"),
    (431, "security group feature is not enabled", "invalid"),
    (431, "already exists for this account", "invalid"),
    (431, "either null or empty", "invalid"),
    (431, "Unable to find resource by uuid", "invalid"),
    (431, "doesn't support resource tags", "invalid"),
    (431, "Invalid resource type", "invalid"),
    (431, "No value is passed in for key", "invalid"),
    (431, "Filter all can be specified by admin only", "invalid"),
    (431, "missing parameter", "invalid"),
    (431, "No enum constant", "invalid"),
    (431, "Both userdata and userdata ID", "invalid"),
    (431, "not attached to any VM", "invalid"),
    (431, "are not DATADISK attached", "invalid"),
    (431, "Value greater than max allowed length", "invalid"),
    (431, "for parameter rootdisksize", "invalid"),
    (432, "The API [", "forbidden"),
    (432, "only available when", "unsupported"),
    (531, "", "forbidden"),
    (533, "No destination found", "capacity"),
    (535, "Maximum", "quota"),
    (401, "unable to verify user credentials", "auth"),
];

/// The same for the server's catch-all code.
const INTERNAL: [(&str, &str); 15] = [
    ("Internal error executing command", "generic"),
    ("Insufficient address capacity", "network"),
    ("due to insufficient capacity", "capacity"),
    ("No suitable host found", "capacity"),
    ("Unable to orchestrate the start", "start_failed"),
    ("permission for expunging", "expunge_denied"),
    ("Expunging a vm can only be done", "expunge_denied"),
    ("Caller does not have permission", "forbidden"),
    ("permission denied", "forbidden"),
    ("Unable to stop VM instance", "transient"),
    ("already on UserVm", "transient"),
    ("Failed to delete tags", "transient"),
    ("A NIC already exists", "transient"),
    ("Please provide only one of the following parameters", "transient"),
    ("has not been completely downloaded", "transient"),
];

fn meaning(code: u16, text: &str) -> Option<&'static str> {
    if code == 530 {
        return INTERNAL
            .iter()
            .find(|(part, _)| text.contains(part))
            .map(|(_, class)| *class);
    }
    let known = MEANINGS
        .iter()
        .find(|(own, part, _)| *own == code && text.contains(part));
    known.map(|(_, _, class)| *class)
}

#[test]
fn every_recorded_error_has_the_class_that_we_act_upon() {
    let mut checked = 0;
    let mut wrong = Vec::new();
    for exchange in exchanges() {
        let place = format!("{}: {}", exchange.file, exchange.title);
        if is_foreign(&exchange) {
            continue;
        }
        let answer = interpret(exchange.command, exchange.status, &exchange.body);
        let failure = match answer {
            Ok(content) => {
                assert_eq!(exchange.status, 200, "{place}");
                let job: Job = content.whole().unwrap_or_default();
                match job.end(exchange.command) {
                    Some(JobEnd::Failed(failure)) if content.key == "queryasyncjobresultresponse" => failure,
                    _ => continue,
                }
            }
            Err(ApiError::Refused(failure)) => {
                assert_eq!(failure.code, exchange.status, "{place}");
                failure
            }
            Err(error) => panic!("{place}: {error}"),
        };
        checked += 1;
        let content = envelope::open(&exchange.body).expect("an envelope");
        let expected = match (failure.code, content.key.as_str()) {
            (401, "errorresponse" | "null") => Some("unsupported"),
            (530, _) if failure.text.is_empty() => Some("ambiguous"),
            _ => meaning(failure.code, &failure.text),
        };
        if expected != Some(failure.class.name()) {
            wrong.push(format!(
                "{place}: {failure}: {expected:?}, but {}",
                failure.class.name()
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(checked > 150, "only {checked} errors were found");
}

/// Commands that the recordings have for the sake of the simulated server alone.
const NEVER_CALLED: [&str; 14] = [
    "authorizeSecurityGroupIngress",
    "createNetwork",
    "createProject",
    "createSecurityGroup",
    "createTemplate",
    "getApiLimit",
    "listHosts",
    "listInstanceGroups",
    "listResourceLimits",
    "listTags",
    "registerSSHKeyPair",
    "registerUserData",
    "updateResourceLimit",
    "updateVirtualMachine",
];

/// Answers that are no JSON, because the request did not ask for it or the servlet container answered itself.
const FOREIGN: [(&str, u16); 4] = [
    ("user data of 1048580 characters", 404),
    ("user data by GET above the header limit", 414),
    ("without response=json (XML)", 200),
    ("error without response=json (XML)", 431),
];

fn is_foreign(exchange: &Exchange) -> bool {
    let is_foreign = FOREIGN.contains(&(exchange.title.as_str(), exchange.status));
    assert_eq!(
        is_foreign,
        exchange.json.is_string(),
        "{}: {}",
        exchange.file,
        exchange.title
    );
    is_foreign
}

fn items<T: DeserializeOwned>(content: &Content, object: &str, is_sound: impl Fn(&T) -> bool) -> bool {
    let page = content
        .page::<T>(object)
        .unwrap_or_else(|error| panic!("{}: {error}", content.key));
    page.items.iter().all(is_sound) && page.count >= page.items.len()
}

#[test]
fn every_recorded_success_is_read_into_its_type() {
    let mut read = 0;
    for exchange in exchanges() {
        let place = format!("{}: {}", exchange.file, exchange.title);
        if is_foreign(&exchange) || exchange.status != 200 {
            continue;
        }
        let content = interpret(exchange.command, exchange.status, &exchange.body).expect("a success");
        let is_id = |id: &str| id.len() == 36;
        let sound = match exchange.command {
            "listCapabilities" => content.object::<Capabilities>("capability").is_ok(),
            "listZones" => items(&content, "zone", |zone: &Zone| {
                is_id(&zone.id) && !zone.networktype.is_empty() && !zone.allocationstate.is_empty()
            }),
            "listServiceOfferings" => items(&content, "serviceoffering", |own: &ServiceOffering| {
                is_id(&own.id) && own.state == "Active" && (own.iscustomized || own.cpunumber.is_some())
            }),
            "listDiskOfferings" => items(&content, "diskoffering", |own: &DiskOffering| {
                is_id(&own.id) && own.disksize.is_some()
            }),
            "listTemplates" => items(&content, "template", |own: &Template| {
                is_id(&own.id) && own.created_at().is_some() && own.zoneid.is_some()
            }),
            "listNetworks" => items(&content, "network", |own: &Network| {
                is_id(&own.id) && is_id(&own.zoneid) && !own.kind.is_empty()
            }),
            "listAffinityGroups" => items(&content, "affinitygroup", |own: &AffinityGroup| !own.kind.is_empty()),
            "listAffinityGroupTypes" => items(&content, "affinityGroupType", |own: &AffinityGroupType| {
                !own.kind.is_empty()
            }),
            "listSecurityGroups" => items(&content, "securitygroup", |own: &SecurityGroup| is_id(&own.id)),
            "listSSHKeyPairs" => items(&content, "sshkeypair", |own: &SshKeyPair| !own.name.is_empty()),
            "listUserData" => items(&content, "userdata", |own: &RegisteredUserData| is_id(&own.id)),
            "listProjects" => items(&content, "project", |own: &Project| is_id(&own.id)),
            "listAccounts" => items(&content, "account", |own: &Account| own.vmavailable.is_some()),
            "listVirtualMachines" => items(&content, "virtualmachine", |own: &VirtualMachine| {
                is_id(&own.id) && !own.state.is_empty() && own.created_at().is_some()
            }),
            "listVolumes" => items(&content, "volume", |own: &Volume| {
                is_id(&own.id) && !own.kind.is_empty()
            }),
            "queryAsyncJobResult" => {
                let job: Job = content.whole().expect("a job");
                let has_ended = job.end("x").is_some();
                let has_result = job.jobresult.is_some();
                is_id(&job.jobid) && job.created.as_deref().and_then(timestamp).is_some() && (has_ended || !has_result)
            }
            "listCapacity" => items(&content, "capacity", |own: &Capacity| {
                is_id(&own.zoneid) && own.percentused.trim().parse::<f64>().is_ok()
            }),
            "deployVirtualMachine" | "createVolume" | "createAffinityGroup" => {
                content.text("jobid").is_some_and(is_id) && content.text("id").is_some_and(is_id)
            }
            "destroyVirtualMachine"
            | "expungeVirtualMachine"
            | "startVirtualMachine"
            | "stopVirtualMachine"
            | "rebootVirtualMachine"
            | "addNicToVirtualMachine"
            | "attachVolume"
            | "destroyVolume"
            | "createTags"
            | "deleteTags"
            | "deleteAffinityGroup" => content.text("jobid").is_some_and(is_id),
            "deleteVolume" => content.fields.get("success").is_some(),
            "quotaIsEnabled" => content.fields.get("isenabled").is_some(),
            // Made or read only by whoever recorded, never by the provider: the envelope is all that there is to read.
            command => {
                assert!(NEVER_CALLED.contains(&command), "{place}: {command} has no type");
                true
            }
        };
        assert!(sound, "{place}");
        read += 1;
    }
    assert!(read > 400, "only {read} answers were found");
}

#[test]
fn the_servlet_containers_pages_are_our_own_size_error() {
    let pages: Vec<Exchange> = exchanges()
        .into_iter()
        .filter(|exchange| matches!(exchange.status, 404 | 414))
        .collect();
    assert_eq!(pages.len(), 2);
    for page in pages {
        let error = interpret(page.command, page.status, &page.body).expect_err("a page");
        assert_eq!(error.class(), Some(&Class::UserDataTooLong), "{}", page.title);
    }
}
