use serde_json::json;

use super::*;
use crate::NodePool;
use crate::node_claim::{NodeClaim, condition};
use crate::node_pool::{NODE_CLASS_READY, NODE_REGISTRATION_HEALTHY, VALIDATION_SUCCEEDED};

const CREATED: &str = "2026-01-01T00:00:00Z";

fn at(second: i64) -> Timestamp {
    CREATED.parse::<Timestamp>().unwrap() + jiff::SignedDuration::from_secs(second)
}

fn pool() -> NodePool {
    serde_json::from_value(json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool",
        "metadata": { "name": "p", "generation": 1, "creationTimestamp": CREATED },
        "spec": { "template": { "spec": { "requirements": [], "nodeClassRef": { "group": "g", "kind": "k", "name": "n" } } } },
    }))
    .unwrap()
}

fn shown(object: &impl StatusConditions) -> Vec<String> {
    object
        .conditions()
        .iter()
        .map(|c| format!("{}={} {} {:?}", c.type_, c.status, c.reason, c.message))
        .collect()
}

#[test]
fn a_fresh_object_is_unknown_since_its_creation() {
    let mut claim: NodeClaim = serde_json::from_value(json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
        "metadata": { "name": "c", "generation": 1, "creationTimestamp": CREATED },
        "spec": { "requirements": [], "nodeClassRef": { "group": "g", "kind": "k", "name": "n" } },
    }))
    .unwrap();
    assert_eq!(claim.initialize_conditions(at(60)), Change::Changed);
    let types: Vec<&str> = claim.conditions().iter().map(|c| c.type_.as_str()).collect();
    assert_eq!(
        types,
        [
            condition::LAUNCHED,
            condition::REGISTERED,
            condition::INITIALIZED,
            READY
        ]
    );
    assert!(
        claim
            .conditions()
            .iter()
            .all(|c| c.is_unknown() && c.transitioned_at() == at(0))
    );
    assert_eq!(claim.initialize_conditions(at(61)), Change::Unchanged);
}

#[test]
fn the_root_is_true_once_every_dependent_is() {
    let mut pool = pool();
    let _ = pool.set_true(VALIDATION_SUCCEEDED, at(1));
    assert!(pool.is_unknown(READY));
    assert_eq!(pool.condition(READY).unwrap().reason, "ReconcilingDependents");
    assert_eq!(pool.condition(READY).unwrap().message, "NodeClassReady=Unknown");
    let _ = pool.set_true(NODE_CLASS_READY, at(2));
    assert!(pool.is_ready());
    assert_eq!(
        shown(&pool),
        [
            "ValidationSucceeded=True ValidationSucceeded \"\"",
            "NodeClassReady=True NodeClassReady \"\"",
            "Ready=True Ready \"\"",
        ]
    );
}

#[test]
fn a_false_dependent_makes_the_root_false_and_the_latest_is_named_first() {
    let mut pool = pool();
    let _ = pool.set_unknown(NODE_CLASS_READY, "Waiting", "", at(1));
    let _ = pool.set_false(VALIDATION_SUCCEEDED, "NodePoolValidationFailed", "bad", at(2));
    let root = pool.condition(READY).unwrap();
    assert!(root.is_false());
    assert_eq!(
        (root.reason.as_str(), root.message.as_str()),
        (
            "UnhealthyDependents",
            "ValidationSucceeded=False, NodeClassReady=Unknown"
        )
    );
}

#[test]
fn a_dependent_of_an_older_generation_leaves_the_root_unknown() {
    let mut pool = pool();
    let _ = pool.set_true(VALIDATION_SUCCEEDED, at(1));
    let _ = pool.set_true(NODE_CLASS_READY, at(1));
    pool.metadata.generation = Some(2);
    let _ = pool.set_true(NODE_CLASS_READY, at(2));
    let root = pool.condition(READY).unwrap();
    assert!(root.is_unknown());
    assert_eq!(root.reason, "ReconcilingDependents");
    assert_eq!(root.message, "ValidationSucceeded=True");
}

#[test]
fn a_false_dependent_of_an_older_generation_does_not_make_the_root_false() {
    let mut pool = pool();
    let _ = pool.set_false(VALIDATION_SUCCEEDED, "NodePoolValidationFailed", "", at(1));
    pool.metadata.generation = Some(2);
    let _ = pool.set_true(NODE_CLASS_READY, at(2));
    assert!(pool.is_unknown(READY));
}

#[test]
fn transition_times_move_with_the_status_only() {
    let mut pool = pool();
    let _ = pool.set_false(VALIDATION_SUCCEEDED, "A", "one", at(1));
    assert_eq!(pool.set_false(VALIDATION_SUCCEEDED, "A", "two", at(2)), Change::Changed);
    assert_eq!(pool.condition(VALIDATION_SUCCEEDED).unwrap().transitioned_at(), at(1));
    let _ = pool.set_true(VALIDATION_SUCCEEDED, at(3));
    assert_eq!(pool.condition(VALIDATION_SUCCEEDED).unwrap().transitioned_at(), at(3));
}

#[test]
fn writing_the_same_again_changes_nothing() {
    let mut pool = pool();
    let _ = pool.set_true(VALIDATION_SUCCEEDED, at(1));
    let before = pool.clone();
    assert_eq!(pool.set_true(VALIDATION_SUCCEEDED, at(9)), Change::Unchanged);
    assert_eq!(pool, before);
}

#[test]
fn independent_conditions_start_now_and_do_not_touch_the_root() {
    let mut pool = pool();
    let _ = pool.set_true(VALIDATION_SUCCEEDED, at(1));
    let _ = pool.set_true(NODE_CLASS_READY, at(1));
    let _ = pool.set_false(NODE_REGISTRATION_HEALTHY, "RegistrationFailed", "", at(5));
    assert!(pool.is_ready());
    assert_eq!(
        pool.condition(NODE_REGISTRATION_HEALTHY).unwrap().transitioned_at(),
        at(5)
    );
    assert_eq!(pool.conditions().last().unwrap().type_, READY);
}

#[test]
fn only_independent_conditions_can_be_cleared() {
    let mut pool = pool();
    let _ = pool.set_true(NODE_REGISTRATION_HEALTHY, at(1));
    assert_eq!(pool.clear_condition(NODE_REGISTRATION_HEALTHY), Change::Changed);
    assert_eq!(pool.clear_condition(NODE_REGISTRATION_HEALTHY), Change::Unchanged);
    assert_eq!(pool.clear_condition(VALIDATION_SUCCEEDED), Change::Unchanged);
    let types: Vec<&str> = pool.conditions().iter().map(|c| c.type_.as_str()).collect();
    assert_eq!(types, [NODE_CLASS_READY, READY, VALIDATION_SUCCEEDED]);
}

#[test]
fn a_dying_object_has_all_its_conditions_at_its_generation() {
    let mut pool = pool();
    let _ = pool.set_true(VALIDATION_SUCCEEDED, at(1));
    let _ = pool.set_true(NODE_CLASS_READY, at(1));
    pool.metadata.generation = Some(2);
    pool.metadata.deletion_timestamp = Some(Time(at(2)));
    let _ = pool.set_false(NODE_REGISTRATION_HEALTHY, "RegistrationFailed", "", at(3));
    assert!(pool.conditions().iter().all(|c| c.observed_generation == Some(2)));
    assert!(pool.is_ready());
}

#[test]
fn conditions_have_the_wire_form_of_kubernetes() {
    let written = json!({
        "type": "Ready", "status": "True", "observedGeneration": 3, "lastTransitionTime": "2026-01-01T00:00:00Z",
        "reason": "Ready", "message": "",
    });
    let condition: Condition = serde_json::from_value(written.clone()).unwrap();
    assert_eq!(serde_json::to_value(&condition).unwrap(), written);
    let lenient: Condition = serde_json::from_value(
        json!({ "type": "X", "status": "Unknown", "lastTransitionTime": "2026-01-01T00:00:00Z" }),
    )
    .unwrap();
    assert_eq!((lenient.reason.as_str(), lenient.observed_generation), ("", None));
}
