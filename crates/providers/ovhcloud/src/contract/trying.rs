//! What only a node pool of one's own can tell: made, grown, shrunk in odd ways, and deleted.

use std::{collections::BTreeSet, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use karpenter_cloud::clock::later;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::{Answer, Contract, Ending, MACHINES, Trial, Tried, refused};
use crate::client::{
    ApiError, ApiErrorKind,
    model::{NewPool, NodeClass, Pool, PoolNode, PoolUpdate, Template, TemplateTaint},
};

/// Keeps everybody's pods away.
const TAINT: &str = "karpenter.ovhcloud.sh/probe";
const OFTEN: Duration = Duration::from_secs(1);
const SELDOM: Duration = Duration::from_secs(10);
const READS: Duration = Duration::from_secs(150);
const BOOT: Duration = Duration::from_secs(30 * 60);
const REAPPLY: Duration = Duration::from_secs(5 * 60);
const REJOIN: Duration = Duration::from_secs(15 * 60);
const DECISION: Duration = Duration::from_secs(60);
const DELETION: Duration = Duration::from_secs(20 * 60);

const DUPLICATE: &str = "What is said to a second pool of the same name?";
const UNAVAILABLE: &str = "What is said to a pool of a flavor that cannot be had?";
const STALE: &str = "How long do reads show the old size after a write?";
const BUSY: &str = "Is a write accepted while the pool is being changed?";
const BOOTED: &str = "How long until machines exist, and until they are ready?";
const TAINTS: &str = "Do taints of the pool come back once they were removed from a Node?";
const REJOINED: &str = "Does a machine whose Node was deleted come back as the same machine?";
const BY_NAME: &str = "Can nodesToRemove hold the name of a node?";
const GONE: &str = "What does nodesToRemove do with a node that is gone?";
const MORE: &str = "What does nodesToRemove do with more nodes than the size falls by?";
const FEWER: &str = "What does nodesToRemove do with fewer nodes than the size falls by?";
const REST: &str = "Was everything tried?";
const CLEANED: &str = "Is everything gone again?";

/// A trial under way.
struct Running<'a> {
    contract: &'a Contract,
    trial: &'a Trial,
    /// The pools that were made, which are deleted in the end.
    pools: Vec<Made>,
    /// A pool was asked for, and it is not known whether it was made.
    is_in_doubt: bool,
    answers: Vec<Answer>,
}

/// A pool that was made, or that may have been.
struct Made {
    id: String,
    at: Timestamp,
}

/// How much there was to try things on.
enum Tryable {
    Everything,
    NoMachines,
}

impl Contract {
    /// Makes the pool, tries everything, and deletes the pool, also if something fails or `stop` comes in between.
    pub async fn try_out(&self, trial: &Trial, stop: CancellationToken) -> Tried {
        let mut running = Running {
            contract: self,
            trial,
            pools: Vec::new(),
            is_in_doubt: false,
            answers: Vec::new(),
        };
        let ending = match stop.run_until_cancelled(running.run()).await {
            Some(Ok(Tryable::Everything)) => Ending::Done,
            Some(Ok(Tryable::NoMachines)) => {
                let why = "no: the machines were not ready in time";
                running.answers.push(Answer::unknown(REST, why));
                Ending::Incomplete
            }
            Some(Err(error)) => {
                running.answers.push(Answer::unknown(REST, format!("no: {error}")));
                Ending::Failed(error)
            }
            None => {
                running.answers.push(Answer::unknown(REST, "no: it was stopped"));
                Ending::Stopped
            }
        };
        let left = running.clean_up().await;
        Tried {
            answers: running.answers,
            ending,
            left,
        }
    }
}

impl Running<'_> {
    async fn run(&mut self) -> Result<Tryable, ApiError> {
        let pool = self.make().await?;
        self.repeat_the_name().await?;
        self.ask_for_the_unavailable().await?;
        self.grow(&pool).await?;
        let Some(machines) = self.boot(&pool).await? else {
            return Ok(Tryable::NoMachines);
        };
        let of_pool = self.contract.api.pool(&pool.id).await?;
        let seen = self.contract.of_nodes(&[of_pool], &machines).await;
        self.answers.extend(seen);
        self.take_a_taint_away(&machines[0]).await?;
        self.delete_a_node(&pool, &machines[1]).await?;
        self.remove_by_name(&pool, &machines[0]).await?;
        self.remove_what_is_gone(&pool, &machines[0]).await?;
        self.remove_more(&pool, &machines[1]).await?;
        self.remove_fewer(&pool, &machines[2]).await?;
        Ok(Tryable::Everything)
    }

    fn request(&self, name: &str, flavor: &str) -> NewPool {
        let mut template = Template::default();
        template.spec.taints = vec![TemplateTaint {
            key: TAINT.to_owned(),
            value: "true".to_owned(),
            effect: "NoSchedule".to_owned(),
        }];
        NewPool {
            name: name.to_owned(),
            flavor_name: flavor.to_owned(),
            desired_nodes: 0,
            min_nodes: 0,
            max_nodes: MACHINES,
            autoscale: false,
            monthly_billed: false,
            anti_affinity: false,
            availability_zones: self.trial.zone.clone().into_iter().collect(),
            attach_floating_ips: None,
            template,
        }
    }

    async fn make(&mut self) -> Result<Pool, ApiError> {
        const QUESTION: &str = "How long until a new pool can be read?";
        let request = self.request(&self.trial.pool, &self.trial.flavor);
        let pool = self.create(&request).await?;
        let api = &self.contract.api;
        let look = async || match api.pool(&pool.id).await {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.is(ApiErrorKind::NotFound) => Ok(None),
            Err(error) => Err(error),
        };
        let visible = self.contract.wait(OFTEN, READS, look).await?;
        self.answers.push(match visible {
            Some((_, took)) => Answer::seen(QUESTION, format!("{} s", took.as_secs())),
            None => Answer::unknown(QUESTION, format!("more than {} s", READS.as_secs())),
        });
        Ok(pool)
    }

    /// Asks for a pool, and remembers it for the end.
    async fn create(&mut self, request: &NewPool) -> Result<Pool, ApiError> {
        self.is_in_doubt = true;
        let made = self.contract.api.create_pool(request).await;
        self.is_in_doubt = made.as_ref().is_err_and(ApiError::is_unknown_outcome);
        if let Ok(pool) = &made {
            self.pools.push(Made {
                id: pool.id.clone(),
                at: self.contract.clock.now(),
            });
        }
        made
    }

    async fn repeat_the_name(&mut self) -> Result<(), ApiError> {
        let request = self.request(&self.trial.pool, &self.trial.flavor);
        self.refusal(DUPLICATE, &request).await
    }

    async fn ask_for_the_unavailable(&mut self) -> Result<(), ApiError> {
        let Some(flavor) = &self.trial.unavailable else {
            let why = "every flavor of the cluster can be had; stock, quota and the limit of pools are not provoked";
            self.answers.push(Answer::unknown(UNAVAILABLE, why));
            return Ok(());
        };
        let request = self.request(&format!("{}-x", self.trial.pool), flavor);
        self.refusal(UNAVAILABLE, &request).await
    }

    /// Asks for a pool that should be refused, and notes in which words it is.
    async fn refusal(&mut self, question: &'static str, request: &NewPool) -> Result<(), ApiError> {
        match self.create(request).await {
            Ok(_) => self.answers.push(Answer::seen(question, "nothing: it is made")),
            Err(error) if error.is_unanswered() => return Err(error),
            Err(error) => self.answers.push(Answer::seen(question, refused(&error))),
        }
        Ok(())
    }

    async fn grow(&mut self, pool: &Pool) -> Result<(), ApiError> {
        let api = &self.contract.api;
        let size = PoolUpdate {
            desired_nodes: Some(MACHINES),
            ..PoolUpdate::default()
        };
        api.update_pool(&pool.id, &size).await?;
        let look = async || {
            let shown = api.pool(&pool.id).await?.desired_nodes;
            Ok((shown == MACHINES).then_some(()))
        };
        let seen = self.contract.wait(OFTEN, READS, look).await?;
        self.answers.push(match seen {
            Some(((), took)) => Answer::seen(STALE, format!("{} s", took.as_secs())),
            None => Answer::unknown(STALE, format!("more than {} s", READS.as_secs())),
        });
        let status = api.pool(&pool.id).await?.status;
        let answer = match api.update_pool(&pool.id, &size).await {
            Ok(()) => format!("yes, while it is {status}"),
            Err(error) if error.is_unanswered() => return Err(error),
            Err(error) => format!("not while it is {status}: {}", refused(&error)),
        };
        self.answers.push(Answer::seen(BUSY, answer));
        Ok(())
    }

    /// The machines, the oldest first, once all are ready.
    async fn boot(&mut self, pool: &Pool) -> Result<Option<Vec<PoolNode>>, ApiError> {
        let api = &self.contract.api;
        let all = async |is_there: fn(&PoolNode) -> bool| {
            let nodes = api.nodes(&pool.id).await?;
            let is_complete = nodes.len() >= MACHINES as usize && nodes.iter().all(is_there);
            Ok::<_, ApiError>(is_complete.then_some(nodes))
        };
        let exist = async || all(|node| node.instance_id.is_some()).await;
        let existed = self.contract.wait(SELDOM, BOOT, exist).await?;
        let ready = async || all(|node| node.status == "READY").await;
        let booted = self.contract.wait(SELDOM, BOOT, ready).await?;
        let (Some((_, existed)), Some((mut machines, booted))) = (existed, booted) else {
            let states: Vec<String> = api.nodes(&pool.id).await?.into_iter().map(|node| node.status).collect();
            let why = format!("not within {} minutes: {}", BOOT.as_secs() / 60, states.join(", "));
            self.answers.push(Answer::unknown(BOOTED, why));
            return Ok(None);
        };
        let told = format!("{} s, and {} s more", existed.as_secs(), booted.as_secs());
        self.answers.push(Answer::seen(BOOTED, told));
        machines.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
        Ok(Some(machines))
    }

    async fn take_a_taint_away(&mut self, machine: &PoolNode) -> Result<(), ApiError> {
        let Some(node) = self.node(machine).await else {
            self.answers
                .push(Answer::unknown(TAINTS, "its Node can't be read from here"));
            return Ok(());
        };
        let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
        let others: Vec<_> = taints.iter().filter(|taint| taint.key != TAINT).collect();
        if others.len() == taints.len() {
            self.answers.push(Answer::seen(TAINTS, "the Node never had them"));
            return Ok(());
        }
        // Cordoned in the same breath: without the taint it looks like anybody's, and it will not live long.
        let patch = json!({
            "metadata": {"resourceVersion": node.metadata.resource_version},
            "spec": {"taints": others, "unschedulable": true},
        });
        let Some(nodes) = &self.contract.nodes else {
            return Ok(());
        };
        let patched = nodes
            .patch(&machine.name, &PatchParams::default(), &Patch::Merge(&patch))
            .await;
        if let Err(error) = patched {
            let why = format!("the taint can't be taken away: {error}");
            self.answers.push(Answer::unknown(TAINTS, why));
            return Ok(());
        }
        let look = async || {
            let node = self.node(machine).await;
            let taints = node.and_then(|node| node.spec?.taints).unwrap_or_default();
            Ok(taints.iter().any(|taint| taint.key == TAINT).then_some(()))
        };
        let back = self.contract.wait(SELDOM, REAPPLY, look).await?;
        self.answers.push(match back {
            Some(((), took)) => Answer::seen(TAINTS, format!("yes, after {} s", took.as_secs())),
            None => Answer::seen(TAINTS, format!("not within {} minutes", REAPPLY.as_secs() / 60)),
        });
        Ok(())
    }

    async fn delete_a_node(&mut self, pool: &Pool, machine: &PoolNode) -> Result<(), ApiError> {
        let (Some(nodes), Some(old)) = (&self.contract.nodes, self.node(machine).await) else {
            self.answers
                .push(Answer::unknown(REJOINED, "its Node can't be read from here"));
            return Ok(());
        };
        if let Err(error) = nodes.delete(&machine.name, &DeleteParams::default()).await {
            let why = format!("the Node can't be deleted: {error}");
            self.answers.push(Answer::unknown(REJOINED, why));
            return Ok(());
        }
        let look = async || {
            let node = self.node(machine).await;
            Ok(node.filter(|node| node.metadata.uid != old.metadata.uid))
        };
        let back = self.contract.wait(OFTEN, REJOIN, look).await?;
        // Whether it comes back with its taint is not known either.
        let cordoned = match &back {
            Some(_) => {
                let patch = json!({"spec": {"unschedulable": true}});
                nodes
                    .patch(&machine.name, &PatchParams::default(), &Patch::Merge(&patch))
                    .await
                    .map(drop)
            }
            None => Ok(()),
        };
        let uncordoned = cordoned.err().map(|error| format!("; it can't be cordoned: {error}"));
        let uncordoned = uncordoned.unwrap_or_default();
        let listed = self.contract.api.nodes(&pool.id).await?;
        let instance = listed.into_iter().find(|node| node.id == machine.id);
        let instance = instance.and_then(|node| node.instance_id);
        let same = match instance == machine.instance_id {
            true => "the same instance",
            false => "another instance",
        };
        self.answers.push(match back {
            Some((_, took)) => Answer::seen(REJOINED, format!("after {} s, {same}{uncordoned}", took.as_secs())),
            None => Answer::seen(
                REJOINED,
                format!("not within {} minutes; MKS shows {same}", REJOIN.as_secs() / 60),
            ),
        });
        Ok(())
    }

    async fn remove_by_name(&mut self, pool: &Pool, machine: &PoolNode) -> Result<(), ApiError> {
        let is_accepted = self.remove(BY_NAME, pool, MACHINES - 1, &machine.name).await?;
        if !is_accepted {
            let by_id = PoolUpdate {
                desired_nodes: Some(MACHINES - 1),
                nodes_to_remove: vec![machine.id.clone()],
                ..PoolUpdate::default()
            };
            self.contract.api.update_pool(&pool.id, &by_id).await?;
        }
        let api = &self.contract.api;
        let gone = async || {
            let nodes = api.nodes(&pool.id).await?;
            Ok((!nodes.iter().any(|node| node.id == machine.id)).then_some(()))
        };
        self.contract.wait(SELDOM, DELETION, gone).await?;
        Ok(())
    }

    async fn remove_what_is_gone(&mut self, pool: &Pool, machine: &PoolNode) -> Result<(), ApiError> {
        self.remove(GONE, pool, MACHINES - 1, &machine.id).await.map(drop)
    }

    async fn remove_more(&mut self, pool: &Pool, machine: &PoolNode) -> Result<(), ApiError> {
        self.remove(MORE, pool, MACHINES - 1, &machine.id).await.map(drop)
    }

    async fn remove_fewer(&mut self, pool: &Pool, machine: &PoolNode) -> Result<(), ApiError> {
        self.remove(FEWER, pool, 0, &machine.id).await.map(drop)
    }

    /// Sends a size and a machine to remove, and notes who goes. False if that was refused.
    async fn remove(
        &mut self,
        question: &'static str,
        pool: &Pool,
        desired: u32,
        named: &str,
    ) -> Result<bool, ApiError> {
        let api = &self.contract.api;
        let live = async || {
            let nodes = api.nodes(&pool.id).await?;
            let live = nodes
                .into_iter()
                .filter(|node| !matches!(node.class(), NodeClass::Going | NodeClass::Gone));
            Ok::<BTreeSet<String>, ApiError>(live.map(|node| node.id).collect())
        };
        let before = live().await?;
        let update = PoolUpdate {
            desired_nodes: Some(desired),
            nodes_to_remove: vec![named.to_owned()],
            ..PoolUpdate::default()
        };
        match api.update_pool(&pool.id, &update).await {
            Ok(()) => {}
            Err(error) if error.is_unanswered() => return Err(error),
            Err(error) => {
                self.answers.push(Answer::seen(question, refused(&error)));
                return Ok(false);
            }
        }
        self.contract.clock.sleep(DECISION).await;
        let (after, shown) = (live().await?, api.pool(&pool.id).await?.desired_nodes);
        let went: Vec<&String> = before.difference(&after).collect();
        let told = format!(
            "accepted: of {} machines {} went, {} came, and the size is {shown}",
            before.len(),
            went.len(),
            after.difference(&before).count()
        );
        self.answers.push(Answer::seen(question, told));
        Ok(true)
    }

    async fn node(&self, machine: &PoolNode) -> Option<Node> {
        let nodes = self.contract.nodes.as_ref()?;
        nodes.get_opt(&machine.name).await.ok().flatten()
    }

    /// Deletes what was made, and waits until it is gone; what is not, is told.
    async fn clean_up(&mut self) -> Vec<String> {
        let mut left = Vec::new();
        if self.is_in_doubt {
            match self.find_the_doubtful().await {
                Ok(found) => self.pools.extend(found),
                Err(error) => left.push(format!("the node pools can't be listed: {error}")),
            }
        }
        for made in &self.pools {
            left.extend(self.delete(made).await.err());
        }
        self.answers.push(match left.is_empty() {
            true => Answer::seen(CLEANED, "yes"),
            false => Answer::unknown(
                CLEANED,
                format!(
                    "{}; delete the pools named {} by hand",
                    left.join("; "),
                    self.trial.pool
                ),
            ),
        });
        left
    }

    /// The pool that was asked for without an answer. It is known by its name only, and may take its time to be listed.
    async fn find_the_doubtful(&self) -> Result<Option<Made>, ApiError> {
        let (api, clock) = (&self.contract.api, &self.contract.clock);
        let began = clock.now();
        let mut read_since = None;
        loop {
            let listed = api.pools().await;
            let now = clock.now();
            let is_over = match listed {
                Ok(listed) => {
                    let mut ours = listed.into_iter().filter(|pool| {
                        pool.name.starts_with(&self.trial.pool) && !self.pools.iter().any(|made| made.id == pool.id)
                    });
                    if let Some(pool) = ours.next() {
                        return Ok(Some(Made { id: pool.id, at: now }));
                    }
                    later(*read_since.get_or_insert(now), READS) <= now
                }
                Err(error) if later(began, DELETION) <= now => return Err(error),
                Err(_) => false,
            };
            if is_over {
                return Ok(None);
            }
            clock.sleep(SELDOM).await;
        }
    }

    /// Deletes a pool and looks until it is gone. Only time makes it give up, since what stays is billed, or a key that may not
    /// delete; then it tells why.
    async fn delete(&self, made: &Made) -> Result<(), String> {
        let (api, clock, id) = (&self.contract.api, &self.contract.clock, &made.id);
        let began = clock.now();
        let mut is_accepted = false;
        loop {
            // A new pool may not be found for a while, which does not mean that it is gone.
            let is_credible = is_accepted || later(made.at, READS) <= clock.now();
            let is_gone = |error: &ApiError| is_credible && error.is(ApiErrorKind::NotFound);
            let deleted = match api.pool(id).await {
                Ok(found) if found.status == "DELETED" => return Ok(()),
                Ok(found) if found.status == "DELETING" => Ok(()),
                Err(error) if is_gone(&error) => return Ok(()),
                Ok(_) | Err(_) => api.delete_pool(id).await,
            };
            if deleted.as_ref().is_err_and(is_gone) {
                return Ok(());
            }
            is_accepted |= deleted.is_ok();
            let is_forbidden = deleted.as_ref().is_err_and(|error| error.is(ApiErrorKind::NotGranted));
            if is_forbidden || later(began, DELETION) <= clock.now() {
                return Err(match deleted {
                    Ok(()) => format!("node pool {id} is still being deleted"),
                    Err(error) => format!("node pool {id} is there: {error}"),
                });
            }
            clock.sleep(SELDOM).await;
        }
    }
}
