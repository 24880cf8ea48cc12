//! What `karpenter doctor` is told of each account: whether it can be reached and used, and what is left over in it (§8.3).

use jiff::Timestamp;
use karpenter_cloud::Diagnosis;

use super::Shared;
use crate::{
    account::Account,
    client::{ApiError, ServiceName},
    tags,
};

/// Names in a sentence before it says "and more".
const NAMED: usize = 5;

impl Shared {
    pub(super) async fn diagnose(&self) -> Vec<Diagnosis> {
        let names = match self.accounts.names().await {
            Ok(names) => names,
            Err(error) => {
                let remedy = "install the CRDs, and check the rights of whoever runs this";
                return vec![Diagnosis::fail("account", error.to_string(), remedy)];
            }
        };
        if names.is_empty() {
            let message = "there is no ProviderConfig, and the environment has no credentials";
            let remedy = "make a ProviderConfig, or set BIZFLY_CLOUD_EMAIL and BIZFLY_CLOUD_PASSWORD";
            return vec![Diagnosis::fail("account", message, remedy)];
        }
        let mut found = Vec::new();
        for name in names {
            match self.accounts.get(&name).await {
                Ok(account) => found.extend(self.examine(&account).await),
                Err(error) => {
                    let error = karpenter_cloud::CloudError::from(error);
                    let remedy = "correct the ProviderConfig or its Secret";
                    found.push(Diagnosis::fail("account", format!("{name}: {error}"), remedy));
                }
            }
        }
        found
    }

    async fn examine(&self, account: &Account) -> Vec<Diagnosis> {
        let name = &account.name;
        let mut found = Vec::new();
        match account.api.authenticate().await {
            Ok(project) => {
                let project = if project.is_empty() {
                    "the default one"
                } else {
                    project.as_str()
                };
                found.push(Diagnosis::ok("credentials", self.accepted(account, project)));
            }
            Err(error) => {
                let remedy = if error.is_about_credentials() {
                    "correct the Secret that the ProviderConfig names"
                } else {
                    "check apiEndpoint, and the network to it"
                };
                found.push(Diagnosis::fail("credentials", self.told(name, &error), remedy));
                return found;
            }
        }
        for service in [
            ServiceName::CloudServer,
            ServiceName::Account,
            ServiceName::KubernetesEngine,
        ] {
            found.push(self.service(account, service).await);
        }
        found.push(self.region(account).await);
        found.push(self.balance(account).await);
        for (endpoint, answer) in [
            ("flavors", account.api.flavors().await.map(drop)),
            ("volume types", account.api.volume_types().await.map(drop)),
            ("images", account.api.os_images().await.map(drop)),
            ("networks", account.api.vpcs().await.map(drop)),
            ("network interfaces", account.api.nics().await.map(drop)),
            ("firewalls", account.api.firewalls().await.map(drop)),
            ("key pairs", account.api.keypairs().await.map(drop)),
        ] {
            if let Err(error) = answer {
                let message = format!("{name}: {endpoint} can't be read: {}", self.redacted(&error));
                let remedy = "give the credential the right to read them";
                found.push(Diagnosis::fail("permission", message, remedy));
            }
        }
        found.extend(self.leftovers(account).await);
        found
    }

    fn accepted(&self, account: &Account, project: &str) -> String {
        let now = self.clock.now();
        let minutes = |end: Timestamp| end.duration_since(now).as_mins();
        let token = match account.api.token_expires_at() {
            Some(end) => format!("; the token ends in {} minutes and is renewed before", minutes(end)),
            None => String::new(),
        };
        format!("{}: accepted, project {project}{token}", account.name)
    }

    async fn service(&self, account: &Account, service: ServiceName) -> Diagnosis {
        let (name, service_name) = (&account.name, service.canonical());
        match account.api.service_url(service).await {
            Ok(url) => Diagnosis::ok("catalogue", format!("{name}: {service_name} is at {url}")),
            // Only clusters of BKE need it.
            Err(error) if service == ServiceName::KubernetesEngine && self.settings.bke.cluster_id.is_none() => {
                Diagnosis::warn(
                    "catalogue",
                    self.told(name, &error),
                    "only BKE clusters need this service",
                )
            }
            Err(error) => {
                let remedy = "check the region; ask BizFly Cloud which services it has there";
                Diagnosis::fail("catalogue", self.told(name, &error), remedy)
            }
        }
    }

    async fn region(&self, account: &Account) -> Diagnosis {
        let (name, ours) = (&account.name, account.region.region);
        match account.api.regions().await {
            Ok(regions) => {
                let open: Vec<&str> = regions
                    .iter()
                    .filter(|own| own.active)
                    .map(|own| own.short_name.as_str())
                    .collect();
                if open.iter().any(|own| ours.is(own)) {
                    Diagnosis::ok("region", format!("{name}: {ours} is open to the account"))
                } else {
                    let message = format!(
                        "{name}: {ours} is not open to the account; it may use {}",
                        open.join(", ")
                    );
                    Diagnosis::fail("region", message, "change spec.region of the ProviderConfig")
                }
            }
            Err(error) => Diagnosis::fail("region", self.told(name, &error), "see credentials"),
        }
    }

    async fn balance(&self, account: &Account) -> Diagnosis {
        let name = &account.name;
        match account.api.user().await {
            Ok(user) if user.negative_balance || user.has_expired_invoice => {
                let message = format!("{name}: the account must be paid up (balance {})", user.billing_balance);
                Diagnosis::fail("balance", message, "pay; nothing is launched until then")
            }
            Ok(user) => Diagnosis::ok("balance", format!("{name}: {}", user.billing_balance)),
            Err(error) => Diagnosis::warn("balance", self.told(name, &error), "it is not needed to launch"),
        }
    }

    /// Disks whose server is gone, and servers of providers that came before.
    async fn leftovers(&self, account: &Account) -> Vec<Diagnosis> {
        let name = &account.name;
        let mut found = Vec::new();
        let servers = match account.api.servers().await {
            Ok(servers) => servers,
            Err(error) => {
                let remedy = "give the credential the right to read servers";
                return vec![Diagnosis::fail("permission", self.told(name, &error), remedy)];
            }
        };
        let early: Vec<String> = servers
            .iter()
            .filter(|server| tags::is_of_first_provider(server))
            .map(|server| server.name.clone())
            .collect();
        if !early.is_empty() {
            let message = format!("{name}: servers of the first provider: {}", named(&early));
            found.push(Diagnosis::warn(
                "leftovers",
                message,
                "nothing looks after them; delete them by hand",
            ));
        }
        match self.orphans(account).await {
            Ok(orphans) => {
                let left: Vec<String> = orphans
                    .iter()
                    .map(|volume| format!("{} ({})", volume.id, volume.name))
                    .collect();
                if !left.is_empty() {
                    let message = format!("{name}: root disks without a server cost money: {}", named(&left));
                    let remedy = "those of this controller go by themselves; --orphan-volumes lists all, and with --delete \
                                  deletes them";
                    found.push(Diagnosis::warn("leftovers", message, remedy));
                }
            }
            Err(error) => {
                let remedy =
                    "give the credential the right to read volumes, and the controller that to list PersistentVolumes";
                let error = self.accounts.redactor().redact(&error.to_string());
                found.push(Diagnosis::fail("permission", format!("{name}: {error}"), remedy));
            }
        }
        found
    }

    fn told(&self, account: &str, error: &ApiError) -> String {
        format!("{account}: {}", self.redacted(error))
    }

    fn redacted(&self, error: &ApiError) -> String {
        self.accounts.redactor().redact(&error.to_string())
    }
}

fn named(names: &[String]) -> String {
    let shown = names[..names.len().min(NAMED)].join(", ");
    match names.len().saturating_sub(NAMED) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
