//! Keeps the status of every OVHNodeClass true: credentials, cluster, flavors, prices, pools.

mod status;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use karpenter_api::{NodeClaim, conditions::StatusConditions};
use karpenter_cloud::{clock::later, events::Announcement};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams},
    runtime::{WatchStreamExt, watcher},
};
use serde_json::json;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::{
    directory::Problem,
    names,
    node_class::{HASH_VERSION, OvhNodeClass, SecretReference, condition},
    provider::Shared,
};

/// Between looks at a class that nothing happened to.
const EVERY: Duration = Duration::from_secs(5 * 60);
/// While something is wrong.
const EVERY_WHEN_WRONG: Duration = Duration::from_secs(60);
/// A failure that may pass by itself is told only when it lasted this long …
const PATIENCE: Duration = Duration::from_secs(5 * 60);
/// … and was seen this often: a class that is not ready stops all provisioning.
const FAILURES: u32 = 3;
/// A class whose cluster cannot be reached is let go after this.
const GIVE_UP: Duration = Duration::from_secs(10 * 60);

/// What is remembered of a class between looks.
#[derive(Debug, Default)]
struct History {
    failures: u32,
    failing_since: Option<Timestamp>,
}

/// Looks at all classes on every change, and from time to time, until `stop`.
pub(crate) async fn keep(shared: Arc<Shared>, stop: CancellationToken) {
    let wake = Arc::new(Notify::new());
    let followers = stop.child_token();
    let mut followed: BTreeMap<SecretReference, ()> = BTreeMap::new();
    let mut histories: BTreeMap<String, History> = BTreeMap::new();
    let classes: Api<OvhNodeClass> = Api::all(shared.client.clone());
    tokio::spawn(wake_on_change(classes.clone(), wake.clone(), followers.clone()));
    let work = async {
        loop {
            let mut pause = EVERY;
            match classes.list(&ListParams::default()).await {
                Ok(list) => {
                    for class in list {
                        let secret = shared.directory.secret_of(&class);
                        if followed.insert(secret.clone(), ()).is_none() {
                            let secrets: Api<Secret> = Api::namespaced(shared.client.clone(), &secret.namespace);
                            let watched = watcher::Config::default().fields(&format!("metadata.name={}", secret.name));
                            tokio::spawn(wake_on_secret(secrets, watched, wake.clone(), followers.clone()));
                        }
                        let history = histories.entry(class.name().to_owned()).or_default();
                        match look_at(&shared, &classes, class, history).await {
                            Ok(Verdict::Fine) => {}
                            Ok(Verdict::Wrong) => pause = pause.min(EVERY_WHEN_WRONG),
                            Ok(Verdict::Leaving) => pause = pause.min(Duration::from_secs(5)),
                            Err(error) => {
                                tracing::warn!(%error, "the status of an OVHNodeClass cannot be written");
                                pause = pause.min(EVERY_WHEN_WRONG);
                            }
                        }
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "OVHNodeClasses cannot be listed");
                    pause = EVERY_WHEN_WRONG;
                }
            }
            tokio::select! {
                () = wake.notified() => {}
                () = shared.suspicion.notified() => {}
                () = shared.clock.sleep(pause) => {}
            }
        }
    };
    stop.run_until_cancelled(work).await;
    followers.cancel();
}

async fn wake_on_change(classes: Api<OvhNodeClass>, wake: Arc<Notify>, stop: CancellationToken) {
    let changes = watcher(classes, watcher::Config::default())
        .default_backoff()
        .touched_objects();
    let mut changes = Box::pin(changes.take_until(stop.cancelled_owned()));
    let mut seen: BTreeMap<String, (Option<i64>, bool)> = BTreeMap::new();
    while let Some(change) = changes.next().await {
        let Ok(class) = change else { continue };
        // Our own writes of the status change neither.
        let now = (class.metadata.generation, class.metadata.deletion_timestamp.is_some());
        if seen.insert(class.name().to_owned(), now) != Some(now) {
            wake.notify_one();
        }
    }
}

async fn wake_on_secret(secrets: Api<Secret>, watched: watcher::Config, wake: Arc<Notify>, stop: CancellationToken) {
    let changes = watcher(secrets, watched).default_backoff().touched_objects();
    let mut changes = Box::pin(changes.take_until(stop.cancelled_owned()));
    while let Some(change) = changes.next().await {
        if change.is_ok() {
            wake.notify_one();
        }
    }
}

/// What a look at a class found.
enum Verdict {
    Fine,
    Wrong,
    /// It is being deleted, and not free to go yet.
    Leaving,
}

async fn look_at(
    shared: &Shared,
    classes: &Api<OvhNodeClass>,
    class: OvhNodeClass,
    history: &mut History,
) -> Result<Verdict, kube::Error> {
    if class.metadata.deletion_timestamp.is_some() {
        return leave(shared, classes, &class, history).await;
    }
    let class = match prepare(classes, class).await? {
        Some(class) => class,
        None => return Ok(Verdict::Fine),
    };
    let mut checked = class.clone();
    let now = shared.clock.now();
    let problems = status::check(shared, &mut checked).await;
    let verdict = history.judge(&mut checked, &problems, now);
    if checked.status != class.status {
        let patch = json!({
            "metadata": {"resourceVersion": class.metadata.resource_version},
            "status": checked.status,
        });
        match classes
            .patch_status(class.name(), &PatchParams::default(), &Patch::Merge(&patch))
            .await
        {
            // Deleted or changed meanwhile: the watch brings the news.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
            result => drop(result?),
        }
    }
    Ok(verdict)
}

impl History {
    /// Writes the conditions that the problems mean, patiently.
    fn judge(&mut self, class: &mut OvhNodeClass, problems: &[Problem], now: Timestamp) -> Verdict {
        let lasting = problems.iter().any(|problem| !problem.temporary);
        if problems.is_empty() {
            *self = Self::default();
        } else {
            self.failures += 1;
            self.failing_since.get_or_insert(now);
        }
        let since = self.failing_since.unwrap_or(now);
        let is_patient = !lasting && (self.failures < FAILURES || now < later(since, PATIENCE));
        for type_ in OvhNodeClass::DEPENDENTS {
            let problem = problems.iter().find(|problem| problem.condition == *type_);
            match problem {
                None if problems.is_empty() || is_decided_before(type_, problems) => drop(class.set_true(type_, now)),
                // What comes after a problem was not looked at; what it said before may still be so.
                None if class.is_unknown(type_) => {
                    let _ = class.set_unknown(type_, "NotChecked", "an earlier condition is not met", now);
                }
                None => touch(class, type_, now),
                Some(problem) if is_patient && problem.temporary => {
                    if class.is_unknown(type_) {
                        let _ = class.set_unknown(type_, problem.reason, &problem.message, now);
                    } else {
                        touch(class, type_, now);
                    }
                }
                Some(problem) => drop(class.set_false(type_, problem.reason, &problem.message, now)),
            }
        }
        if problems.is_empty() {
            Verdict::Fine
        } else {
            Verdict::Wrong
        }
    }
}

/// Conditions are checked in order, so those before the first problem hold.
fn is_decided_before(type_: &str, problems: &[Problem]) -> bool {
    let position = |wanted: &str| ORDER.iter().position(|own| *own == wanted).unwrap_or(ORDER.len());
    let first = problems.iter().map(|problem| position(problem.condition)).min();
    first.is_some_and(|first| position(type_) < first)
}

const ORDER: [&str; 4] = [
    condition::CREDENTIALS_READY,
    condition::CLUSTER_READY,
    condition::VALIDATION_SUCCEEDED,
    condition::FLAVORS_READY,
];

/// Lets a condition speak for the current generation without changing what it says.
fn touch(class: &mut OvhNodeClass, type_: &str, now: Timestamp) {
    if let Some(own) = class.condition(type_).cloned() {
        let _ = class.set_condition(type_, own.status, &own.reason, &own.message, now);
    }
}

/// Puts the finalizer and the hash on a class. `None` if it is gone.
async fn prepare(classes: &Api<OvhNodeClass>, class: OvhNodeClass) -> Result<Option<OvhNodeClass>, kube::Error> {
    let hash = class.spec.static_hash();
    let annotation = |key: &str| class.metadata.annotations.as_ref()?.get(key).cloned();
    let finalizers = class.metadata.finalizers.clone().unwrap_or_default();
    let is_held = finalizers.iter().any(|own| own == names::FINALIZER);
    let is_hashed = annotation(names::CLASS_HASH).as_ref() == Some(&hash)
        && annotation(names::CLASS_HASH_VERSION).as_deref() == Some(HASH_VERSION);
    if is_held && is_hashed {
        return Ok(Some(class));
    }
    let mut finalizers = finalizers;
    if !is_held {
        finalizers.push(names::FINALIZER.to_owned());
    }
    let patch = json!({"metadata": {
        "resourceVersion": class.metadata.resource_version,
        "finalizers": finalizers,
        "annotations": {names::CLASS_HASH: hash, names::CLASS_HASH_VERSION: HASH_VERSION},
    }});
    match classes
        .patch(class.name(), &PatchParams::default(), &Patch::Merge(&patch))
        .await
    {
        Ok(class) => Ok(Some(class)),
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Lets a class go once no claim uses it and its pools are gone.
async fn leave(
    shared: &Shared,
    classes: &Api<OvhNodeClass>,
    class: &OvhNodeClass,
    history: &mut History,
) -> Result<Verdict, kube::Error> {
    let mut finalizers = class.metadata.finalizers.clone().unwrap_or_default();
    if !finalizers.iter().any(|own| own == names::FINALIZER) {
        return Ok(Verdict::Fine);
    }
    let claims: Api<NodeClaim> = Api::all(shared.client.clone());
    let claims = claims.list(&ListParams::default()).await?;
    let uses = |claim: &NodeClaim| {
        let reference = &claim.spec.node_class_ref;
        reference.group == names::GROUP && reference.name == class.name()
    };
    let users: Vec<&str> = claims
        .iter()
        .filter(|claim| uses(claim))
        .filter_map(|claim| claim.metadata.name.as_deref())
        .collect();
    if !users.is_empty() {
        let message = format!("waits for NodeClaims that use it: {}", some(&users));
        let told = Announcement::normal("WaitingOnNodeClaimTermination", message);
        shared.events.on_class(class.name(), told).await;
        return Ok(Verdict::Leaving);
    }
    let now = shared.clock.now();
    let left = match shared.connection(class).await {
        Ok(_) => shared
            .engine
            .pools(Duration::ZERO)
            .await
            .map_err(|error| error.to_string()),
        Err(problem) => Err(problem.message),
    };
    let remaining: Vec<String> = match &left {
        Ok(pools) => pools
            .iter()
            .filter(|pool| pool.label(names::NODE_CLASS) == Some(class.name()))
            .filter(|pool| crate::pool::PoolOwner::of(pool) == crate::pool::PoolOwner::Owned)
            .map(|pool| pool.name.clone())
            .collect(),
        Err(_) => Vec::new(),
    };
    match left {
        Ok(_) if !remaining.is_empty() => {
            history.failing_since = None;
            return Ok(Verdict::Leaving);
        }
        Ok(_) => {}
        Err(why) => {
            let since = *history.failing_since.get_or_insert(now);
            if now < later(since, GIVE_UP) {
                return Ok(Verdict::Leaving);
            }
            let known = shared.engine.last_known_pools(class.name());
            let left = match known.as_slice() {
                [] => "node pools may be left behind".to_owned(),
                known => format!("node pools that may be left behind: {}", known.join(", ")),
            };
            let message = format!("let go although its cluster cannot be asked ({why}); {left}");
            let told = Announcement::warning("PoolsLeftBehind", message);
            shared.events.on_class(class.name(), told).await;
        }
    }
    shared.directory.forget(class.name());
    finalizers.retain(|own| own != names::FINALIZER);
    let patch = json!({"metadata": {
        "resourceVersion": class.metadata.resource_version, "finalizers": finalizers,
    }});
    match classes
        .patch(class.name(), &PatchParams::default(), &Patch::Merge(&patch))
        .await
    {
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(Verdict::Leaving),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Verdict::Fine),
        result => result.map(|_| Verdict::Fine),
    }
}

/// The first few names of a list.
fn some(names: &[&str]) -> String {
    const NAMED: usize = 5;
    let shown = names.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
    match names.len().checked_sub(NAMED) {
        Some(more) if more > 0 => format!("{shown} and {more} more"),
        _ => shown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).expect("a time")
    }

    fn class() -> OvhNodeClass {
        serde_json::from_value(json!({
            "apiVersion": "karpenter.ovhcloud.sh/v1alpha1", "kind": "OVHNodeClass",
            "metadata": {"name": "default", "generation": 1}, "spec": {},
        }))
        .expect("a class")
    }

    fn problem(temporary: bool) -> Problem {
        Problem {
            condition: condition::CLUSTER_READY,
            reason: "ClusterNotFound",
            message: "m".into(),
            temporary,
        }
    }

    #[test]
    fn a_class_is_not_ready_before_it_was_looked_at() {
        assert!(!class().is_ready());
        let mut own = class();
        History::default().judge(&mut own, &[], at(0));
        assert!(own.is_ready());
    }

    #[test]
    fn a_blip_does_not_take_a_class_out_of_service() {
        let (mut own, mut history) = (class(), History::default());
        history.judge(&mut own, &[], at(0));
        for seconds in [10, 20, 130] {
            history.judge(&mut own, &[problem(true)], at(seconds));
            assert!(own.is_ready(), "after {seconds} s");
        }
        history.judge(&mut own, &[problem(true)], at(400));
        assert!(!own.is_ready(), "it lasts");
        history.judge(&mut own, &[], at(410));
        assert!(own.is_ready());
    }

    #[test]
    fn a_lasting_problem_is_told_at_once_and_what_was_checked_before_it_holds() {
        let (mut own, mut history) = (class(), History::default());
        history.judge(&mut own, &[problem(false)], at(0));
        assert!(own.is_true(condition::CREDENTIALS_READY));
        assert!(own.is_false(condition::CLUSTER_READY));
        assert!(own.is_unknown(condition::FLAVORS_READY));
        assert!(!own.is_ready());
    }
}
