//! Reading the machines of the cluster: one by one, all of them, or those of one claim (cloudstack.md §8.3).

use std::{
    collections::BTreeMap,
    sync::Arc,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use karpenter_cloud::{
    ClaimMark, CloudError,
    batch::{BatchWindow, Batcher},
    ownership::NameRules,
};

use crate::{
    client::{
        ApiError, Class, Client, Priority, Request,
        model::{VirtualMachine, Volume},
    },
    machine::Marks,
    settings::ProviderSettings,
};

/// The machines of this cluster.
#[derive(Clone, Debug)]
pub(crate) struct Fleet {
    client: Client,
    settings: Arc<ProviderSettings>,
    names: NameRules,
    /// Root administrators see every machine of the cloud if they ask for everything.
    sees_everything: Arc<AtomicBool>,
    reads: Batcher<String, Option<VirtualMachine>>,
}

/// What is asked of a machine: everything we need, without the slow statistics.
const DETAILS: &str = "min,servoff,tmpl,nics,group,affgrp,secgrp";
const WINDOW: BatchWindow = BatchWindow {
    idle: Duration::from_millis(50),
    longest: Duration::from_millis(100),
    most: 100,
};

impl Fleet {
    pub(crate) fn new(client: Client, settings: Arc<ProviderSettings>) -> Self {
        let sees_everything = Arc::new(AtomicBool::new(false));
        let (reader, everything, scope) = (client.clone(), sees_everything.clone(), settings.clone());
        let reads = Batcher::new(client.clock().clone(), WINDOW, move |ids: Vec<String>| {
            let (client, everything, scope) = (reader.clone(), everything.clone(), scope.clone());
            async move { read_many(&client, &scope, everything.load(Ordering::Relaxed), ids).await }
        });
        Self {
            names: NameRules::host_name(settings.name_prefix.clone()),
            client,
            settings,
            sees_everything,
            reads,
        }
    }

    pub(crate) fn set_sees_everything(&self, value: bool) {
        self.sees_everything.store(value, Ordering::Relaxed);
    }

    pub(crate) fn is_of_root(&self) -> bool {
        self.sees_everything.load(Ordering::Relaxed)
    }

    pub(crate) fn name(&self, claim: &ClaimMark, attempt: u32) -> String {
        self.names.machine_name(claim, attempt)
    }

    /// The machine as it is now; `None` if it does not exist. Reads at the same time share a request.
    ///
    /// # Errors
    /// When CloudStack could not be asked.
    pub(crate) async fn read(&self, id: &str) -> Result<Option<VirtualMachine>, CloudError> {
        self.reads.ask(id.to_owned()).await
    }

    /// As [`read`](Self::read), at once and ahead of others.
    ///
    /// # Errors
    /// When CloudStack could not be asked.
    pub(crate) async fn read_now(&self, id: &str, priority: Priority) -> Result<Option<VirtualMachine>, ApiError> {
        read_one(
            &self.client,
            &self.settings,
            self.sees_everything.load(Ordering::Relaxed),
            id,
            priority,
        )
        .await
    }

    /// Every machine of this cluster, found by tag and by name; complete or an error.
    ///
    /// # Errors
    /// When either list could not be read.
    pub(crate) async fn list(&self, priority: Priority) -> Result<Vec<VirtualMachine>, ApiError> {
        let present = || {
            self.widest(
                Request::new("listVirtualMachines")
                    .with("details", DETAILS)
                    .with("state", "Present"),
            )
        };
        let by_tag = present()
            .with("tags[0].key", self.settings.cluster_tag())
            .with("tags[0].value", "owned");
        // Finds machines whose tagging failed; without a prefix there is nothing to search for but everything.
        let by_name = if self.settings.name_prefix.is_empty() {
            present()
        } else {
            present().with("keyword", self.settings.name_prefix.clone())
        };
        let (by_tag, by_name) = futures::future::try_join(
            self.client.list::<VirtualMachine>(&by_tag, "virtualmachine", priority),
            self.client.list::<VirtualMachine>(&by_name, "virtualmachine", priority),
        )
        .await?;
        let mut all: BTreeMap<String, VirtualMachine> = BTreeMap::new();
        for vm in by_tag.into_iter().chain(by_name) {
            if Marks::of(&vm, &self.settings).is_ours() {
                all.insert(vm.id.clone(), vm);
            }
        }
        Ok(all.into_values().collect())
    }

    /// The machines that were made for a claim, whatever became of them.
    ///
    /// # Errors
    /// When CloudStack could not be asked.
    pub(crate) async fn of_claim(
        &self,
        claim: &ClaimMark,
        priority: Priority,
    ) -> Result<Vec<VirtualMachine>, ApiError> {
        let request = self.widest(
            Request::new("listVirtualMachines")
                .with("details", DETAILS)
                .with("keyword", self.name(claim, 1)),
        );
        let mut found: Vec<VirtualMachine> = self.client.list(&request, "virtualmachine", priority).await?;
        found.retain(|vm| {
            let marks = Marks::of(vm, &self.settings);
            marks.claim().is_some_and(|own| own.uid == claim.uid)
        });
        found.sort_by(|a, b| (a.created_at(), &a.id).cmp(&(b.created_at(), &b.id)));
        Ok(found)
    }

    /// The data disks of a machine, or all of a tag.
    ///
    /// # Errors
    /// When CloudStack could not be asked.
    pub(crate) async fn data_disks(&self, machine: &str, priority: Priority) -> Result<Vec<Volume>, ApiError> {
        let request = self.widest(
            Request::new("listVolumes")
                .with("virtualmachineid", machine)
                .with("type", "DATADISK"),
        );
        self.client.list(&request, "volume", priority).await
    }

    /// Every volume that carries our cluster's tag.
    ///
    /// # Errors
    /// When CloudStack could not be asked.
    pub(crate) async fn tagged_volumes(&self) -> Result<Vec<Volume>, ApiError> {
        let request = self.widest(
            Request::new("listVolumes")
                .with("tags[0].key", self.settings.cluster_tag())
                .with("tags[0].value", "owned"),
        );
        self.client.list(&request, "volume", Priority::Discovery).await
    }

    /// Everything that the key may see, of every project.
    pub(crate) fn widest(&self, request: Request) -> Request {
        widest(request, &self.settings, self.sees_everything.load(Ordering::Relaxed))
    }
}

/// Everything the caller may see: a machine of a project is invisible otherwise, and looks gone (cloudstack.md §2.9).
fn widest(request: Request, settings: &ProviderSettings, sees_everything: bool) -> Request {
    let scope = &settings.scope;
    if let (Some(account), Some(domain)) = (&scope.account, &scope.domain_id) {
        return request
            .with("account", account.clone())
            .with("domainid", domain.clone());
    }
    if sees_everything && scope.project.is_none() {
        return request.with("listall", "true");
    }
    request.with("listall", "true").with("projectid", "-1")
}

async fn read_one(
    client: &Client,
    settings: &ProviderSettings,
    everything: bool,
    id: &str,
    priority: Priority,
) -> Result<Option<VirtualMachine>, ApiError> {
    let request = widest(
        Request::new("listVirtualMachines")
            .with("id", id)
            .with("details", DETAILS),
        settings,
        everything,
    );
    match client
        .list::<VirtualMachine>(&request, "virtualmachine", priority)
        .await
    {
        Ok(found) => Ok(found.into_iter().find(|vm| vm.id.eq_ignore_ascii_case(id))),
        Err(error) if error.class() == Some(&Class::NotFound) => Ok(None),
        Err(error) => Err(error),
    }
}

/// One request for all; if an id is unknown the server refuses them together, then each is asked for alone.
async fn read_many(
    client: &Client,
    settings: &ProviderSettings,
    everything: bool,
    ids: Vec<String>,
) -> Vec<Result<Option<VirtualMachine>, CloudError>> {
    if ids.len() > 1 {
        let mut distinct = ids.clone();
        distinct.sort_unstable();
        distinct.dedup();
        let request = widest(
            Request::new("listVirtualMachines")
                .with_list("ids", &distinct)
                .with("details", DETAILS),
            settings,
            everything,
        );
        match client
            .list::<VirtualMachine>(&request, "virtualmachine", Priority::Launch)
            .await
        {
            Ok(found) => {
                let of = |id: &String| found.iter().find(|vm| vm.id.eq_ignore_ascii_case(id)).cloned();
                return ids.iter().map(|id| Ok(of(id))).collect();
            }
            Err(error) if error.class() == Some(&Class::NotFound) => {}
            Err(error) => {
                let sentence = CloudError::from(error).to_string();
                return ids
                    .iter()
                    .map(|_| Err(CloudError::transient(sentence.clone())))
                    .collect();
            }
        }
    }
    let mut answers = Vec::new();
    for id in &ids {
        let read = read_one(client, settings, everything, id, Priority::Launch).await;
        answers.push(read.map_err(CloudError::from));
    }
    answers
}
