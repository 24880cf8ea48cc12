//! Which pods wait for which NodeClaim, and for how long.

use super::*;

#[test]
fn pods_wait_for_their_claim_until_they_are_bound_or_it_is_gone() {
    let world = world();
    world.pod("a", "1", "", none());
    world.pod("b", "2", "", none());
    let pending = || {
        world
            .state
            .facts()
            .pending
            .iter()
            .map(|pending| pending.key.name.to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(pending(), ["a", "b"]);
    world.claim("c", "", none(), json!([]));
    let pods: Vec<_> = world
        .state
        .facts()
        .pending
        .iter()
        .map(|pending| pending.entry.pod.clone())
        .collect();
    world.state.assign("c", &pods);
    assert!(pending().is_empty());
    assert_eq!(world.state.facts().unlaunched[0].1.len(), 2);
    world.pod("a", "1", "n", none());
    assert_eq!(world.state.pods_assigned_to("c").len(), 1);
    world.watches.claims.remove(&Key::cluster("c"));
    assert_eq!(pending(), ["b"]);
}

#[test]
fn a_namesake_of_an_assigned_pod_is_planned_for_itself() {
    let world = world();
    world.pod("a", "1", "", none());
    world.claim("c", "", none(), json!([]));
    let pod = world.state.facts().pending[0].entry.pod.clone();
    world.state.assign("c", &[pod]);
    world.pod("a", "2", "", none());
    assert_eq!(world.state.facts().pending.len(), 1);
}

/// Creating claims takes seconds, in which the scheduler goes on.
#[test]
fn a_pod_that_found_a_place_or_is_gone_when_its_claim_is_there_does_not_wait_for_it() {
    let world = world();
    for name in ["bound", "gone", "waiting"] {
        world.pod(name, name, "", none());
    }
    let pending = world.state.facts().pending.into_iter();
    let planned: Vec<_> = pending.map(|pending| pending.entry.pod).collect();
    assert_eq!(planned.len(), 3);
    world.pod("bound", "bound", "n", none());
    world.gone("gone");
    world.claim("c", "p://1", none(), json!([]));
    world.state.assign("c", &planned);
    let waiting = world.state.pods_assigned_to("c");
    assert_eq!(waiting.len(), 1, "{waiting:?}");
    assert_eq!(&*waiting[0].uid, "waiting");
    assert_eq!(world.state.facts().nodes[0].requested().cpu().value(), 1);
}

/// A replacement is created while the pods that move to it are still on the old node.
#[test]
fn a_pod_that_is_still_where_it_is_to_leave_waits_for_its_claim() {
    let world = world();
    world.node("n", "p://1", none(), json!([]));
    world.pod("web", "1", "n", none());
    world.state.mark_for_deletion(["p://1"]);
    let leaving = world.state.facts().leaving;
    world.claim("c", "p://2", none(), json!([]));
    world.state.assign("c", &leaving);
    assert_eq!(world.state.pods_assigned_to("c").len(), 1);
    assert!(world.state.facts().leaving.is_empty(), "it has a place to go to");
}

#[test]
fn waiting_pods_take_room_on_the_machine_that_comes_up_and_are_planned_anew_if_they_do_not_get_it() {
    let world = world();
    world.pod("a", "1", "", none());
    world.claim("c", "p://1", none(), json!([]));
    let pod = world.state.facts().pending[0].entry.pod.clone();
    world.state.assign("c", &[pod]);
    assert_eq!(world.state.facts().nodes[0].requested().cpu().value(), 1);
    world.node("n", "p://1", initialized(), json!([]));
    assert!(world.state.facts().pending.is_empty());
    world.manual.advance(Duration::from_secs(20));
    let facts = world.state.facts();
    assert_eq!((facts.pending.len(), facts.nodes[0].requested().cpu().value()), (1, 0));
}

#[test]
fn a_machine_that_pods_wait_for_is_nominated_and_a_while_longer() {
    let world = world();
    world.pod("a", "1", "", none());
    world.claim("c", "p://1", none(), json!([]));
    let pod = world.state.facts().pending[0].entry.pod.clone();
    world.state.assign("c", &[pod]);
    world.node("n", "p://1", initialized(), json!([]));
    let nominated = || {
        let machine = world.state.machine("p://1").unwrap();
        machine.is_nominated(world.manual.clock().now())
    };
    world.state.facts();
    world.manual.advance(Duration::from_secs(20));
    assert!(!nominated(), "nobody has looked since");
    world.state.facts();
    assert!(nominated());
    assert!(
        world.state.pods_assigned_to("c").is_empty(),
        "given up on by the same look"
    );
    world.manual.advance(Duration::from_secs(19));
    world.state.facts();
    assert!(nominated(), "the plan that follows may send them there again");
    world.manual.advance(Duration::from_secs(1));
    assert!(!nominated());
}

#[test]
fn a_created_claim_counts_before_the_watch_shows_it_and_can_be_forgotten() {
    let world = world();
    let claim: NodeClaim = serde_json::from_value(json!({ "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
        "metadata": { "name": "c" }, "spec": { "requirements": [], "nodeClassRef": { "group": "karpenter.test.sh", "kind": "TestNodeClass", "name": "d" } } }))
    .unwrap();
    world.pod("a", "1", "", none());
    let pod = world.state.facts().pending[0].entry.pod.clone();
    world.state.claim_created(Arc::new(claim));
    world.state.assign("c", &[pod]);
    let facts = world.state.facts();
    assert_eq!((facts.unlaunched.len(), facts.pending.len()), (1, 0));
    world.manual.advance(Duration::from_secs(14));
    assert!(world.state.long_unseen().is_empty());
    world.manual.advance(Duration::from_secs(1));
    assert_eq!(world.state.long_unseen(), [Arc::from("c")]);
    world.state.forget_unseen("c");
    let facts = world.state.facts();
    assert_eq!((facts.unlaunched.len(), facts.pending.len()), (0, 1));
}
