use serde_json::json;

use super::*;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).expect("a time")
}

/// A pool with machines and claims, and what an actor remembers of it.
struct Case {
    pool: Pool,
    nodes: Vec<PoolNode>,
    claims: Vec<Reservation>,
    wanted: BTreeSet<String>,
    memory: Memory,
    calm: bool,
    cap: u32,
    growth: Growth,
    occupied: BTreeSet<String>,
    abandoned: bool,
}

impl Case {
    fn new(desired: u32) -> Self {
        let pool = json!({"id": "p", "name": "n", "flavor": "b3-8", "status": "READY", "desiredNodes": desired, "maxNodes": 100});
        Self {
            pool: serde_json::from_value(pool).expect("a pool"),
            nodes: Vec::new(),
            claims: Vec::new(),
            wanted: BTreeSet::new(),
            memory: Memory::default(),
            calm: true,
            cap: 100,
            growth: Growth::Allowed,
            occupied: BTreeSet::new(),
            abandoned: false,
        }
    }

    fn node(mut self, id: &str, status: &str) -> Self {
        let instance = (status != "INSTALLING").then(|| format!("i-{id}"));
        let created = at(self.nodes.len() as i64).to_string();
        let node = json!({"id": id, "instanceId": instance, "name": id, "status": status, "createdAt": created});
        self.nodes.push(serde_json::from_value(node).expect("a node"));
        self
    }

    fn claim(mut self, uid: &str, node: Option<&str>) -> Self {
        self.claims.push(Reservation {
            uid: uid.into(),
            claim: uid.into(),
            reserved_at: at(self.claims.len() as i64),
            node_id: node.map(str::to_owned),
            registered: node.is_some(),
            deleting: false,
        });
        self
    }

    fn remove(mut self, id: &str) -> Self {
        self.wanted.insert(id.into());
        self
    }

    fn plan(&mut self, seconds: i64) -> Plan {
        let times = Times::default();
        let situation = Situation {
            pool: &self.pool,
            nodes: &self.nodes,
            claims: &self.claims,
            wanted: &self.wanted,
            cap: self.cap,
            now: at(seconds),
            calm: self.calm,
            growth: self.growth,
            strays: match self.abandoned {
                true => Strays::Reclaimed,
                false => Strays::Adopted {
                    occupied: &self.occupied,
                },
            },
            times: &times,
        };
        plan(&situation, &mut self.memory)
    }
}

fn pair(claim: &str, node: &str) -> (String, String) {
    (claim.to_owned(), node.to_owned())
}

#[test]
fn a_pool_grows_by_as_many_as_wait() {
    let mut case = Case::new(1)
        .node("a", "READY")
        .claim("1", Some("a"))
        .claim("2", None)
        .claim("3", None);
    assert_eq!(case.plan(0).write, Some(Write::Grow { desired: 3 }));
}

#[test]
fn a_growth_that_was_written_is_not_repeated_while_reads_are_stale() {
    let mut case = Case::new(0).claim("1", None);
    let write = case.plan(0).write.expect("a growth");
    case.memory.accepted(&write, at(0));
    assert_eq!(case.plan(10).write, None, "the old size is read, but ours is newer");
    let mut case = case.claim("2", None);
    assert_eq!(case.plan(11).write, Some(Write::Grow { desired: 2 }));
}

#[test]
fn after_a_restart_a_size_that_was_asked_for_is_not_asked_for_again() {
    let mut case = Case::new(1).claim("1", None);
    assert_eq!(case.plan(0).write, None);
}

#[test]
fn the_oldest_claim_gets_the_machine_that_is_furthest() {
    let mut case = Case::new(3)
        .node("new", "INSTALLING")
        .node("booting", "UPDATING")
        .node("ready", "READY")
        .claim("1", None)
        .claim("2", None)
        .claim("3", None);
    assert_eq!(case.plan(0).bind, [pair("1", "ready"), pair("2", "booting")]);
}

#[test]
fn the_removed_machine_is_named_and_the_other_survives() {
    let mut case = Case::new(2)
        .node("old", "READY")
        .node("new", "READY")
        .claim("1", Some("old"))
        .claim("2", Some("new"))
        .remove("old");
    let write = case.plan(0).write.expect("a removal");
    assert_eq!(
        write,
        Write::Remove {
            desired: 1,
            nodes: vec!["old".into()]
        }
    );
    case.memory.accepted(&write, at(0));
    let again = case.plan(1);
    assert_eq!(again.write, None, "a removal is not repeated");
    assert_eq!(again.going, ["old"]);
}

#[test]
fn a_removal_beside_a_waiting_claim_keeps_its_place() {
    let mut case = Case::new(2)
        .node("a", "READY")
        .claim("1", Some("a"))
        .claim("2", None)
        .remove("a");
    let write = case.plan(0).write.expect("a removal");
    assert_eq!(
        write,
        Write::Remove {
            desired: 1,
            nodes: vec!["a".into()]
        }
    );
    case.memory.accepted(&write, at(0));
    assert_eq!(case.plan(1).write, None, "one is still to come");
}

#[test]
fn a_machine_that_comes_back_is_removed_again() {
    let mut case = Case::new(1).node("a", "READY").remove("a");
    let write = case.plan(0).write.expect("a removal");
    case.memory.accepted(&write, at(0));
    assert_eq!(case.plan(14 * 60).write, None);
    assert!(matches!(case.plan(16 * 60).write, Some(Write::Remove { .. })));
}

#[test]
fn machines_that_will_not_come_fail_the_newest_claims_and_are_removed() {
    let mut case = Case::new(5)
        .node("a", "INSTALLING")
        .node("b", "READY")
        .node("c", "INSTALLING")
        .node("d", "FLAVOR_OUT_OF_STOCK_ERROR")
        .node("e", "FLAVOR_OUT_OF_STOCK_ERROR");
    for uid in ["1", "2", "3", "4", "5"] {
        case = case.claim(uid, None);
    }
    let plan = case.plan(0);
    assert_eq!(
        plan.fail,
        [
            ("5".to_owned(), Failure::OutOfStock),
            ("4".to_owned(), Failure::OutOfStock)
        ]
    );
    assert_eq!(plan.bind, [pair("1", "b")]);
    assert_eq!(
        plan.write,
        Some(Write::Remove {
            desired: 3,
            nodes: vec!["d".into(), "e".into()]
        })
    );
}

#[test]
fn a_machine_that_broke_after_it_was_claimed_is_left_to_repair() {
    let mut case = Case::new(1).node("a", "ERROR").claim("1", Some("a"));
    assert_eq!(case.plan(0).write, None);
    assert_eq!(case.plan(3600).write, None);
}

#[test]
fn size_that_nobody_waits_for_is_given_back_after_two_minutes() {
    let mut case = Case::new(3).node("a", "READY").claim("1", Some("a"));
    assert_eq!(case.plan(0).write, None);
    assert_eq!(case.plan(119).write, None);
    assert_eq!(case.plan(120).write, Some(Write::Trim { desired: 1 }));
}

#[test]
fn a_machine_that_is_nobodys_goes_after_ten_minutes_unless_mks_is_at_work() {
    let mut case = Case::new(2).node("a", "READY").node("b", "READY").claim("1", Some("a"));
    assert_eq!(case.plan(0).write, None);
    case.calm = false;
    assert_eq!(case.plan(700).write, None);
    case.calm = true;
    assert_eq!(
        case.plan(701).write,
        Some(Write::Remove {
            desired: 1,
            nodes: vec!["b".into()]
        })
    );
}

#[test]
fn a_machine_whose_claim_vanished_is_not_given_to_another() {
    let mut case = Case::new(1).node("a", "READY").claim("1", Some("a"));
    case.plan(0);
    case.claims.clear();
    let mut case = case.claim("2", None);
    let plan = case.plan(1);
    assert!(plan.bind.is_empty());
    assert_eq!(plan.write, Some(Write::Grow { desired: 2 }));
}

#[test]
fn at_most_a_tenth_of_a_pool_is_reclaimed_per_minute() {
    let mut case = Case::new(30);
    for number in 0..30 {
        case = case.node(&format!("n{number:02}"), "READY");
    }
    case.plan(0);
    let Some(write @ Write::Remove { .. }) = case.plan(600).write else {
        panic!("a reclaim")
    };
    assert_eq!(write.update().nodes_to_remove.len(), 3);
    case.memory.accepted(&write, at(600));
    assert_eq!(case.plan(630).write, None);
    assert!(matches!(case.plan(661).write, Some(Write::Remove { .. })));
}

#[test]
fn claims_beyond_the_cap_move_on_the_newest_first() {
    let mut case = Case::new(5).claim("x", None).claim("y", None);
    case.cap = 5;
    for number in 0..4 {
        let id = format!("n{number}");
        case = case.node(&id, "READY").claim(&id, Some(&id));
    }
    assert_eq!(case.plan(0).moved, ["y"]);
}

#[test]
fn a_pool_of_another_provider_is_never_grown() {
    let mut case = Case::new(0).claim("1", None);
    case.growth = Growth::Never;
    let plan = case.plan(0);
    assert_eq!((plan.moved, plan.write), (vec!["1".to_owned()], None));
}

#[test]
fn a_pool_on_its_way_out_sends_waiting_claims_elsewhere() {
    let mut case = Case::new(0).claim("1", None);
    case.pool.status = "DELETING".into();
    assert_eq!(case.plan(0).moved, ["1"]);
}

#[test]
fn settings_that_others_changed_are_put_right_before_the_size() {
    let mut case = Case::new(0).claim("1", None);
    case.pool.autoscale = true;
    let write = case.plan(0).write.expect("a write");
    assert_eq!(write.update().autoscale, Some(false));
    assert_eq!(write.update().desired_nodes, None);
    case.memory.accepted(&write, at(0));
    assert_eq!(
        case.plan(1).write,
        Some(Write::Grow { desired: 1 }),
        "at most once per ten minutes"
    );
    let mut case = Case::new(1).claim("1", None).claim("2", None);
    case.pool.max_nodes = 1;
    assert_eq!(case.plan(0).write.expect("a write").update().max_nodes, Some(100));
    let mut case = Case::new(1).node("a", "READY").claim("1", Some("a")).remove("a");
    case.pool.min_nodes = 1;
    assert_eq!(case.plan(0).write.expect("a write").update().min_nodes, Some(0));
}

#[test]
fn a_pool_out_of_quota_without_a_failed_machine_fails_who_waits_after_a_minute() {
    let mut case = Case::new(1).claim("1", None);
    case.pool.status = "USER_QUOTA_ERROR".into();
    assert!(case.plan(0).fail.is_empty());
    assert_eq!(case.plan(60).fail, [("1".to_owned(), Failure::Quota)]);
}

#[test]
fn a_claim_that_is_being_deleted_waits_for_nothing() {
    let mut case = Case::new(1).node("a", "READY").claim("1", None);
    case.claims[0].deleting = true;
    assert!(case.plan(0).bind.is_empty());
}

#[test]
fn a_machine_that_replaces_a_lost_one_is_offered_after_a_minute_and_never_reclaimed_meanwhile() {
    let mut case = Case::new(2)
        .node("a", "READY")
        .node("b", "READY")
        .claim("1", Some("a"))
        .claim("2", Some("b"));
    case.plan(0);
    // MKS replaced "b" by "c".
    case.nodes.remove(1);
    let mut case = case.node("c", "READY");
    assert!(case.plan(10).adoptable.is_empty(), "not before a minute");
    assert_eq!(case.plan(70).adoptable, ["c"]);
    assert_eq!(case.plan(900).write, None, "what is offered stays");
    // Core made a claim for it.
    let mut case = case.claim("3", Some("c"));
    case.claims.remove(1);
    let plan = case.plan(930);
    assert!(plan.adoptable.is_empty() && plan.write.is_none());
    // A second machine that nobody lost is not taken over.
    let mut case = case.node("d", "READY");
    case.pool.desired_nodes = 3;
    case.plan(940);
    assert!(case.plan(1100).adoptable.is_empty());
    assert_eq!(case.plan(1600).reclaimed, ["d"]);
}

#[test]
fn machines_beyond_the_size_do_not_make_it_grow() {
    let mut case = Case::new(1)
        .node("a", "READY")
        .node("surge", "READY")
        .claim("1", Some("a"));
    case.calm = false;
    assert_eq!(case.plan(0).write, None);
    let mut case = case.claim("2", None).claim("3", None);
    assert_eq!(
        case.plan(1).write,
        Some(Write::Grow { desired: 3 }),
        "who waits is served"
    );
}

#[test]
fn a_machine_that_we_removed_is_not_a_loss() {
    let mut case = Case::new(2).node("a", "READY").claim("1", Some("a")).remove("a");
    let write = case.plan(0).write.expect("a removal");
    case.memory.accepted(&write, at(0));
    case.nodes.clear();
    let mut case = case.node("b", "READY");
    case.plan(10);
    assert!(case.plan(100).adoptable.is_empty());
}

#[test]
fn a_machine_that_pods_have_moved_to_is_taken_over_instead_of_removed() {
    let mut case = Case::new(2).node("a", "READY").node("b", "READY");
    case.plan(0);
    assert_eq!(case.memory.overdue(at(600), &Times::default()), ["a", "b"]);
    case.occupied.insert("b".into());
    let plan = case.plan(600);
    assert_eq!(
        (plan.adoptable, plan.reclaimed),
        (vec!["b".to_owned()], vec!["a".to_owned()])
    );
    case.abandoned = true;
    assert!(case.plan(700).adoptable.is_empty(), "its NodePool is gone");
}

#[test]
fn claims_that_wait_for_a_blocked_machine_are_named() {
    let mut case = Case::new(1)
        .node("a", "USER_WEBHOOK_PREVENTING_OPERATIONS_ERROR")
        .claim("1", None);
    case.nodes[0].instance_id = None;
    let plan = case.plan(0);
    assert_eq!((plan.blocked, plan.write), (vec!["1".to_owned()], None));
}

#[test]
fn a_claim_whose_machine_is_missing_from_two_listings_has_lost_it() {
    let mut case = Case::new(2)
        .node("b", "READY")
        .claim("1", Some("a"))
        .claim("2", Some("b"));
    assert!(case.plan(0).vanished.is_empty(), "one listing proves nothing");
    assert!(case.plan(9).vanished.is_empty());
    let plan = case.plan(10);
    assert_eq!((plan.vanished, plan.sets.missing), (vec!["1".to_owned()], 1));
    let mut case = case.node("a", "READY");
    assert!(case.plan(11).vanished.is_empty(), "it is back");
    case.nodes.retain(|node| node.id != "a");
    assert!(case.plan(12).vanished.is_empty(), "and is given the same time again");
    case.claims[0].deleting = true;
    assert!(case.plan(60).vanished.is_empty(), "it ends anyway");
}

#[test]
fn a_claim_whose_machine_never_joined_is_not_ended_by_a_list_that_lags() {
    let mut case = Case::new(1).claim("1", Some("a"));
    case.claims[0].registered = false;
    case.plan(0);
    let plan = case.plan(600);
    assert_eq!((plan.vanished.len(), plan.sets.missing), (0, 0));
    case.claims[0].registered = true;
    assert!(case.plan(601).vanished.is_empty(), "its time begins now");
    assert_eq!(case.plan(611).vanished, ["1"]);
}

#[test]
fn a_machine_that_stays_missing_is_not_looked_for_at_every_turn_for_ever() {
    let mut case = Case::new(1).claim("1", Some("a"));
    assert_eq!(case.plan(0).missed, 1);
    assert_eq!(case.plan(299).missed, 1);
    let plan = case.plan(300);
    assert_eq!(plan.missed, 0);
    assert_eq!((plan.vanished.len(), plan.sets.missing), (1, 1), "it is still missing");
}
