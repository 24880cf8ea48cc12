//! What can be said of the account, for `karpenter doctor`. Only reads.

use karpenter_api::conditions::{READY, StatusConditions};
use karpenter_cloud::diagnosis::Diagnosis;
use kube::Api;

use super::Shared;
use crate::{
    client::{Class, Priority, Request, model::Account},
    node_class::CloudStackNodeClass,
};

const DOCUMENT: &str = "see docs/providers/cloudstack/troubleshooting.md";

/// Commands without which nothing works, that change nothing when asked.
const NEEDED: [&str; 5] = [
    "listZones",
    "listServiceOfferings",
    "listNetworks",
    "listVirtualMachines",
    "listTags",
];

impl Shared {
    pub(super) async fn diagnose(&self) -> Vec<Diagnosis> {
        let capabilities = match self.client.capabilities().await {
            Ok(capabilities) => capabilities,
            Err(error) => {
                let remedy = match error.class() {
                    Some(Class::Auth) => "check the API key, the secret key and the clock of this machine",
                    _ => "check CLOUDSTACK_API_URL, the network, CLOUDSTACK_CA_BUNDLE and the proxy",
                };
                return vec![Diagnosis::fail("credentials", error.to_string(), remedy)];
            }
        };
        let version = capabilities
            .cloudstackversion
            .as_deref()
            .unwrap_or("of a version that it hides");
        let mut found = vec![Diagnosis::ok(
            "credentials",
            format!("the key works at CloudStack {version}"),
        )];
        found.extend(self.diagnose_permissions().await);
        found.extend(self.diagnose_quota().await);
        found.extend(self.diagnose_classes().await);
        found
    }

    async fn diagnose_permissions(&self) -> Option<Diagnosis> {
        let mut missing = Vec::new();
        for command in NEEDED {
            let request = Request::new(command).with("page", "1").with("pagesize", "1");
            if let Err(error) = self.client.call(&request, Priority::Discovery).await
                && matches!(error.class(), Some(Class::Forbidden | Class::Unsupported))
            {
                missing.push(command);
            }
        }
        (!missing.is_empty()).then(|| {
            Diagnosis::fail(
                "permissions",
                format!("the role of the key may not use {}", missing.join(", ")),
                "allow the commands of the install page",
            )
        })
    }

    async fn diagnose_quota(&self) -> Option<Diagnosis> {
        let account = self.inventory.quota(None).await.ok()?;
        let account: &Account = account.as_ref().as_ref()?;
        let left = [
            ("machines", account.vmavailable),
            ("vCPUs", account.cpuavailable),
            ("MiB of memory", account.memoryavailable),
            ("volumes", account.volumeavailable),
        ];
        let told: Vec<String> = left
            .iter()
            .filter_map(|(name, left)| match *left {
                Some(i64::MAX) => Some(format!("any number of {name}")),
                Some(left) => Some(format!("{left} {name}")),
                None => None,
            })
            .collect();
        let message = format!("the account may still use {}", told.join(", "));
        let is_used_up = left.iter().any(|(_, left)| left.is_some_and(|left| left <= 0));
        Some(match is_used_up {
            true => Diagnosis::fail("quota", message, "raise the limit of the account, or free some"),
            false => Diagnosis::ok("quota", message),
        })
    }

    async fn diagnose_classes(&self) -> Vec<Diagnosis> {
        let classes: Api<CloudStackNodeClass> = Api::all(self.kube.clone());
        let classes = match classes.list(&Default::default()).await {
            Ok(classes) => classes.items,
            Err(error) => {
                let message = format!("CloudStackNodeClasses cannot be listed: {error}");
                return vec![Diagnosis::fail(
                    "node classes",
                    message,
                    "install the CRDs and check the role",
                )];
            }
        };
        if classes.is_empty() {
            let remedy = "apply one, such as examples/cloudstack/nodepool.yaml";
            return vec![Diagnosis::warn(
                "node classes",
                "there is no CloudStackNodeClass",
                remedy,
            )];
        }
        let mut found = Vec::new();
        for class in &classes {
            let subject = format!("class {}", class.name());
            found.push(match class.condition(READY) {
                Some(ready) if ready.is_true() => Diagnosis::ok(&subject, "is ready"),
                Some(ready) => Diagnosis::fail(&subject, ready.message.clone(), DOCUMENT),
                None => Diagnosis::warn(&subject, "was not looked at yet", "is the controller running?"),
            });
        }
        found
    }
}
