//! Managed affinity groups: the one that a machine goes into, made when needed, and removed when nobody is left in it
//! (cloudstack.md §5.3, §9.1, §9.2).

use std::collections::HashMap;

use karpenter_cloud::CloudError;
use parking_lot::Mutex;

use crate::{
    client::{ApiError, Class, Priority, Request, jobs::JobEnd, model::AffinityGroup},
    launch::Plan,
    node_class::placement::AffinityScope,
    provider::Shared,
};

/// Machines that were promised to a group and are not listed in it yet, by the group's id.
#[derive(Debug, Default)]
pub(crate) struct Seats(Mutex<HashMap<String, usize>>);

/// A place in a group, kept until the server has answered the deploy and lists the machine itself.
#[derive(Debug)]
pub(crate) struct Seat<'a> {
    seats: &'a Seats,
    group: String,
}

/// More groups than this are a mistake in maxSize.
const MOST_GROUPS: u32 = 1000;

impl Seats {
    fn take(&self, group: &str) -> Seat<'_> {
        *self.0.lock().entry(group.to_owned()).or_default() += 1;
        Seat {
            seats: self,
            group: group.to_owned(),
        }
    }

    fn all(&self) -> HashMap<String, usize> {
        self.0.lock().clone()
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        let mut seats = self.seats.0.lock();
        if let Some(taken) = seats.get_mut(&self.group) {
            *taken -= 1;
            if *taken == 0 {
                seats.remove(&self.group);
            }
        }
    }
}

impl Shared {
    /// What a group of ours says about itself; other clusters may have names that ours is the beginning of.
    fn group_description(&self) -> String {
        format!("made by Karpenter for cluster {}", self.settings.cluster_name)
    }

    /// Selected groups, and the managed one, which is made if it is not there.
    pub(crate) async fn affinity_group_ids(
        &self,
        plan: &Plan<'_>,
        project: Option<&str>,
    ) -> Result<(Vec<String>, Option<Seat<'_>>), CloudError> {
        let groups = &plan.resolution.affinity_groups;
        let mut ids: Vec<String> = groups.iter().map(|own| own.id.clone()).collect();
        let managed = plan.class.spec.affinity_groups.as_ref();
        let Some(managed) = managed.and_then(|own| own.managed.as_ref()) else {
            return Ok((ids, None));
        };
        let cluster = &self.settings.cluster_name;
        let base = match managed.scope.unwrap_or_default() {
            AffinityScope::NodePool => format!("karpenter-{cluster}-{}", plan.claim.node_pool().unwrap_or_default()),
            AffinityScope::NodeClass => format!("karpenter-{cluster}-{}", plan.class.name()),
            AffinityScope::Cluster => format!("karpenter-{cluster}"),
        };
        let most = managed
            .max_size
            .filter(|most| *most > 0)
            .and_then(|most| usize::try_from(most).ok());
        let _one_at_a_time = self.grouping.lock().await;
        // Before the list: a machine that appears in between is counted twice rather than not at all.
        let seats = self.seats.all();
        let request = self.inventory.scoped(Request::new("listAffinityGroups"), project);
        let known: Vec<AffinityGroup> = self.client.list(&request, "affinitygroup", Priority::Launch).await?;
        let members =
            |own: &AffinityGroup| own.virtual_machine_ids.len() + seats.get(&own.id).copied().unwrap_or_default();
        for number in 1..=MOST_GROUPS {
            let name = match number {
                1 => base.clone(),
                _ => format!("{base}-{number}"),
            };
            let id = match known.iter().find(|own| own.name == name) {
                Some(own) if most.is_none_or(|most| members(own) < most) => own.id.clone(),
                Some(_) => continue,
                None => {
                    let kind = plan.resolution.managed_affinity_type.unwrap_or_default();
                    self.make_group(&name, kind, project).await?
                }
            };
            let seat = self.seats.take(&id);
            ids.push(id);
            return Ok((ids, Some(seat)));
        }
        Err(CloudError::create(
            "AffinityGroupsExhausted",
            format!("there are {MOST_GROUPS} affinity groups already; raise maxSize"),
        ))
    }

    async fn make_group(&self, name: &str, kind: &str, project: Option<&str>) -> Result<String, CloudError> {
        let request = Request::new("createAffinityGroup")
            .with("name", name)
            .with("type", kind)
            .with("description", self.group_description());
        let request = self.inventory.scoped(request, project);
        let answer = self.client.call(&request, Priority::Launch).await;
        self.inventory.flush_affinity_groups();
        let content = answer.map_err(CloudError::from)?;
        let id = content.text("id").map(str::to_owned);
        id.ok_or_else(|| CloudError::transient("createAffinityGroup answered without an id"))
    }

    /// Removes the groups of this cluster that no machine is in, of every project.
    ///
    /// # Errors
    /// When groups could not be listed or one could not be deleted; the others were deleted all the same.
    pub(crate) async fn remove_empty_groups(&self) -> Result<(), CloudError> {
        // Without the lock: launches must not wait for a list that is in no hurry.
        let request = self.fleet.widest(Request::new("listAffinityGroups"));
        let known: Vec<AffinityGroup> = match self.client.list(&request, "affinitygroup", Priority::Discovery).await {
            Ok(known) => known,
            Err(error) if matches!(error.class(), Some(Class::Forbidden | Class::Unsupported)) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let mut first_failure = None;
        for group in known.iter().filter(|group| self.is_empty_and_ours(group)) {
            if let Err(error) = self.remove_group(group).await {
                tracing::warn!(group = group.name, %error, "an affinity group that no machine is in could not be deleted");
                first_failure.get_or_insert(error);
            }
        }
        first_failure.map_or(Ok(()), Err)
    }

    fn is_empty_and_ours(&self, group: &AffinityGroup) -> bool {
        let is_ours = group.description.as_ref() == Some(&self.group_description());
        is_ours && group.virtual_machine_ids.is_empty() && !self.seats.all().contains_key(&group.id)
    }

    /// Deletes a group that was empty a moment ago, if it still is; the server would also delete one that machines are in.
    async fn remove_group(&self, group: &AffinityGroup) -> Result<(), CloudError> {
        let _no_new_seats = self.grouping.lock().await;
        // Launches wait from here on, so it goes at their pace.
        let request = Request::new("listAffinityGroups").with("id", group.id.clone());
        let request = self.fleet.widest(request);
        let now: Vec<AffinityGroup> = match self.client.list(&request, "affinitygroup", Priority::Launch).await {
            Ok(now) => now,
            Err(error) if error.class() == Some(&Class::NotFound) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        if !now.iter().any(|own| own.id == group.id && self.is_empty_and_ours(own)) {
            return Ok(());
        }
        let request = Request::new("deleteAffinityGroup").with("id", group.id.clone());
        let content = match self.client.call(&request, Priority::Launch).await {
            Ok(content) => content,
            // Deleting groups is no part of the least role; an empty group costs nothing.
            Err(error) if matches!(error.class(), Some(Class::Forbidden | Class::Unsupported)) => {
                tracing::info!(group = group.name, %error, "an affinity group that no machine is in stays");
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        self.inventory.flush_affinity_groups();
        let job = content.text("jobid").unwrap_or_default();
        // Until its job is done the group is still listed, and a launch would take a seat in it.
        match self.jobs.settle(job, request.command, Priority::Launch).await? {
            Some(JobEnd::Succeeded(_) | JobEnd::Forgotten) => {}
            Some(JobEnd::Failed(failure)) => return Err(ApiError::Refused(failure).into()),
            None => {
                let sentence = format!("CloudStack is still deleting affinity group {}", group.name);
                return Err(CloudError::transient(sentence));
            }
        }
        tracing::info!(
            group = group.name,
            "an affinity group that no machine is in was deleted"
        );
        let orphans = &self.client.metrics().orphans;
        orphans.with_label_values(&["affinity_group"]).inc();
        Ok(())
    }
}
