//! Claims become nodes of pools: few writes, no machine twice, and what is reserved is what is made.

use std::collections::BTreeSet;

use http::Method;
use karpenter_api::{NodeClaim, labels};
use karpenter_cloud::{CloudProvider, Deletion, LaunchEffect};
use karpenter_ovhcloud::{
    client::model::NewPool,
    names,
    sim::{Delays, Effect, HttpFault, World},
};
use karpenter_sandbox::faults::Fault;
use serde_json::json;

use crate::environment::{Cluster, HOUR, MINUTE, SECOND, only};

pub(crate) const ZONE: &str = "eu-west-par-a";

fn slow(delays: Delays) -> World {
    World {
        delays,
        ..World::default()
    }
}

pub(crate) fn sizes(cluster: &Cluster) -> Vec<u32> {
    let mut sizes: Vec<u32> = cluster.sim(|sim| sim.pools.values().map(|pool| pool.desired).collect());
    sizes.sort_unstable();
    sizes
}

#[tokio::test]
async fn claims_of_one_kind_become_one_pool_in_few_writes() {
    let cluster = Cluster::start().await;
    let provider = cluster.provider();
    let claims: Vec<NodeClaim> = (0..50)
        .map(|number| cluster.claim(&format!("c{number}"), only("b3-8", ZONE)))
        .collect();
    let made = futures::future::join_all(claims.iter().map(|claim| provider.create(claim))).await;
    let made = made.into_iter().map(|made| made.expect("launched").provider_id);
    let ids: BTreeSet<String> = made.collect();
    assert_eq!(ids.len(), 50, "every claim has its own machine");
    assert_eq!(sizes(&cluster), [50]);
    cluster.sim(|sim| {
        assert_eq!(sim.requests_of(&Method::POST, "/nodepool").len(), 1);
        assert!(sim.requests_of(&Method::PUT, "/nodepool/").len() <= 2);
    });
}

#[tokio::test]
async fn a_launch_returns_when_the_machine_exists_and_not_when_it_is_ready() {
    let cluster = Cluster::of(slow(Delays::realistic())).await;
    let asked_at = cluster.clock.now();
    cluster.launch(&cluster.claim("a", json!([]))).await;
    let took = cluster.clock.since(asked_at).as_secs();
    // Three seconds until it is listed, twenty until it exists, and what polling and batching add.
    assert!((23..=30).contains(&took), "{took} s");
    assert!(cluster.sim(|sim| sim.nodes.values().all(|node| node.status == "INSTALLING")));
}

#[tokio::test]
async fn a_one_zone_region_is_not_told_a_zone_unless_it_asks() {
    for zone_mandatory in [false, true] {
        let world = World {
            region: "GRA11".into(),
            zones: Vec::new(),
            plan: "free".into(),
            zone_mandatory,
            ..World::default()
        };
        let cluster = Cluster::of(world).await;
        let claim = cluster.launch(&cluster.claim("a", only("b3-8", "nova"))).await;
        assert_eq!(claim.metadata.labels.expect("labels")[labels::ZONE], "nova");
        cluster.launch(&cluster.claim("b", only("b3-16", "nova"))).await;
        let posts = cluster.sim(|sim| sim.requests_of(&Method::POST, "/nodepool"));
        let zones: Vec<_> = posts
            .iter()
            .map(|post| (post.status, post.body.get("availabilityZones").cloned()))
            .collect();
        let named = Some(json!(["gra11"]));
        if zone_mandatory {
            assert_eq!(zones, [(400, None), (200, named.clone()), (200, named)]);
        } else {
            assert_eq!(zones, [(200, None), (200, None)]);
        }
    }
}

#[tokio::test]
async fn taints_make_pools_and_labels_do_not() {
    let cluster = Cluster::start().await;
    let with = |name: &str, taints: serde_json::Value, startup: serde_json::Value| {
        let spec = json!({"requirements": only("b3-8", ZONE), "taints": taints, "startupTaints": startup});
        cluster.claim_with(name, spec)
    };
    let plain = with("plain", json!([]), json!([]));
    let mut labelled = with(
        "labelled",
        json!([]),
        json!([{"key": "starting", "effect": "NoSchedule"}]),
    );
    labelled
        .metadata
        .labels
        .get_or_insert_default()
        .insert("team".into(), "web".into());
    cluster.launch(&plain).await;
    cluster.launch(&labelled).await;
    assert_eq!(sizes(&cluster), [2], "labels and startup taints are core's to write");
    let tainted = with(
        "tainted",
        json!([{"key": "dedicated", "effect": "NoSchedule"}]),
        json!([]),
    );
    cluster.launch(&tainted).await;
    assert_eq!(sizes(&cluster), [1, 2]);
    let posts = cluster.sim(|sim| sim.requests_of(&Method::POST, "/nodepool"));
    let taints = |number: usize| posts[number].body["template"]["spec"]["taints"].clone();
    assert_eq!(taints(0), json!([]));
    assert_eq!(
        taints(1),
        json!([{"key": "dedicated", "value": "", "effect": "NoSchedule"}])
    );
}

#[tokio::test]
async fn two_node_pools_do_not_share() {
    let cluster = Cluster::start().await;
    cluster.launch(&cluster.claim("a", only("b3-8", ZONE))).await;
    let mut other = crate::environment::node_pool();
    other["metadata"]["name"] = json!("other");
    cluster.sandbox.apply(&other.to_string()).expect("accepted");
    let claim = cluster.claim_of("other", "b", only("b3-8", ZONE));
    cluster.launch(&claim).await;
    assert_eq!(sizes(&cluster), [1, 1]);
}

#[tokio::test]
async fn a_pool_that_is_not_visible_yet_is_not_made_twice() {
    let delays = Delays {
        visible: SECOND * 110,
        ..Delays::default()
    };
    let cluster = Cluster::of(slow(delays)).await;
    cluster.launch(&cluster.claim("a", only("b3-8", ZONE))).await;
    assert_eq!(cluster.sim(|sim| sim.requests_of(&Method::POST, "/nodepool").len()), 1);
}

#[tokio::test]
async fn a_pool_whose_making_lost_its_answer_is_found_by_its_name() {
    let cluster = Cluster::start().await;
    cluster.sim(|sim| {
        sim.faults
            .push(HttpFault::new(Method::POST, "/nodepool", Effect::Reset).once());
    });
    let claim = cluster.claim("a", only("b3-8", ZONE));
    cluster.provider().create(&claim).await.expect_err("the answer is lost");
    cluster.launch(&claim).await;
    assert_eq!(sizes(&cluster), [1]);
    assert_eq!(
        cluster.sim(|sim| sim.requests_of(&Method::POST, "/nodepool").len()),
        1,
        "no twin"
    );
}

#[tokio::test]
async fn of_two_pools_of_one_name_the_older_is_used_and_the_other_emptied_and_deleted() {
    let mut world = slow(Delays {
        visible: MINUTE,
        ..Delays::default()
    });
    world.names_repeat = true;
    let cluster = Cluster::of(world).await;
    cluster.sim(|sim| {
        sim.faults
            .push(HttpFault::new(Method::POST, "/nodepool", Effect::Reset).once());
    });
    let claim = cluster.claim("a", only("b3-8", ZONE));
    cluster.provider().create(&claim).await.expect_err("the answer is lost");
    let claim = cluster.launch(&claim).await;
    let oldest = cluster.sim(|sim| {
        assert_eq!(sim.requests_of(&Method::POST, "/nodepool").len(), 2);
        let oldest = sim.pools.values().min_by_key(|pool| pool.created_at);
        oldest.expect("two").id.clone()
    });
    cluster.pass(HOUR).await;
    cluster.sim(|sim| {
        let writes = sim.requests.iter().filter(|own| own.method != Method::GET);
        let writes: Vec<String> = writes
            .map(|own| format!("{} {} {} {} {}", own.at, own.method, own.path, own.body, own.status))
            .collect();
        assert_eq!(
            sim.pools.keys().collect::<Vec<_>>(),
            [&oldest],
            "{writes:#?} {:?}",
            sim.nodes
        );
        assert_eq!(sim.machines(), [claim.provider_id().expect("launched")]);
        assert!(sim.unnamed_removals.is_empty());
    });
    assert_eq!(sizes(&cluster), [1]);
}

#[tokio::test]
async fn a_machine_in_a_pool_whose_older_twin_appears_stays_with_its_claim_and_goes_with_it() {
    let cluster = Cluster::start().await;
    let held = cluster.launch(&cluster.claim("a", only("b3-8", ZONE))).await;
    let (older, younger) = add_older_twin(&cluster);
    cluster.crash();
    cluster.pass(MINUTE).await;
    let next = cluster.launch(&cluster.claim("b", only("b3-8", ZONE))).await;
    let pool_of = |claim: &NodeClaim| claim.metadata.annotations.as_ref().expect("annotations")[names::POOL_ID].clone();
    assert_eq!((pool_of(&held), pool_of(&next)), (younger, older.clone()));
    cluster.pass(HOUR).await;
    let machine = |claim: &NodeClaim| claim.provider_id().expect("launched").to_owned();
    let mut machines = cluster.sim(|sim| sim.machines());
    machines.sort();
    let mut expected = [machine(&held), machine(&next)];
    expected.sort();
    assert_eq!(machines, expected);
    cluster.terminate(&held).await;
    cluster.pass(MINUTE * 2).await;
    cluster.sim(|sim| {
        assert_eq!(sim.pools.keys().collect::<Vec<_>>(), [&older], "emptied and deleted");
        assert_eq!(sim.machines(), [machine(&next)]);
        assert!(sim.unnamed_removals.is_empty());
    });
    cluster.terminate(&next).await;
    cluster.pass(HOUR).await;
    assert!(cluster.sim(|sim| sim.pools.is_empty() && sim.nodes.is_empty()));
}

/// An older pool of the same name beside the only one there is, empty; the ids of both, the older first.
fn add_older_twin(cluster: &Cluster) -> (String, String) {
    const OLDER: &str = "ffffffff-0000-4000-8000-000000000001";
    cluster.sim(|sim| {
        let younger = sim.pools.values().next().expect("one").clone();
        let mut older = younger.clone();
        older.id = OLDER.to_owned();
        older.created_at -= jiff::SignedDuration::from_mins(1);
        sim.pools.insert(older.id.clone(), older);
        sim.resize_by_hand(OLDER, 0);
        (OLDER.to_owned(), younger.id)
    })
}

#[tokio::test]
async fn a_pool_whose_older_twin_is_deleted_has_one_who_looks_after_it() {
    let cluster = Cluster::start().await;
    let held = cluster.launch(&cluster.claim("a", only("b3-8", ZONE))).await;
    let (older, younger) = add_older_twin(&cluster);
    cluster.crash();
    cluster.pass(MINUTE * 2).await;
    cluster.sim(|sim| {
        sim.delete_by_hand(&older);
        // Machines are listed late: whoever does not know of the claim would take their places back.
        sim.world.delays.schedule = MINUTE * 4;
        sim.requests.clear();
    });
    cluster.pass(MINUTE * 2).await;
    let next = cluster.launch(&cluster.claim("b", only("b3-8", ZONE))).await;
    let pool = &next.metadata.annotations.as_ref().expect("annotations")[names::POOL_ID];
    assert_eq!(*pool, younger, "the only one of that name");
    cluster.pass(MINUTE * 30).await;
    cluster.sim(|sim| {
        let puts = sim.requests_of(&Method::PUT, "/nodepool/");
        let bodies: Vec<_> = puts.iter().map(|put| put.body.clone()).collect();
        assert_eq!(bodies, [json!({"desiredNodes": 2})], "written once, by one");
        assert!(sim.requests_of(&Method::POST, "/nodepool").is_empty());
        assert_eq!(sim.machines().len(), 2);
    });
    cluster.terminate(&held).await;
    cluster.terminate(&next).await;
    cluster.pass(MINUTE * 15).await;
    assert!(cluster.sim(|sim| sim.pools.is_empty() && sim.unnamed_removals.is_empty()));
}

#[tokio::test]
async fn a_machine_is_not_said_to_be_gone_because_the_name_of_its_pool_means_another_by_now() {
    let cluster = Cluster::start().await;
    let held = cluster.launch(&cluster.claim("a", only("b3-8", ZONE))).await;
    let id = held.provider_id().expect("launched").to_owned();
    cluster.pass(SECOND * 10).await;
    let (provider, doomed) = (cluster.provider(), held.clone());
    let deletion = tokio::spawn(async move { provider.delete(&doomed).await });
    // It is asked for by now, and the pool is not looked at yet.
    cluster.pass(SECOND / 10).await;
    add_older_twin(&cluster);
    cluster.provider().list().await.expect("listed anew");
    match deletion.await.expect("no panic") {
        Ok(deletion) => assert_eq!(deletion, Deletion::InProgress, "the machine is there"),
        Err(error) => assert!(error.to_string().contains("another node pool of the name"), "{error}"),
    }
    assert_eq!(cluster.sim(|sim| sim.machines()), [id], "not asked for anything yet");
    cluster.terminate(&held).await;
    assert!(cluster.sim(|sim| sim.nodes.is_empty() && sim.unnamed_removals.is_empty()));
}

#[tokio::test]
async fn a_making_that_never_arrived_is_repeated_once_it_is_certain() {
    let cluster = Cluster::start().await;
    cluster.sim(|sim| {
        sim.faults
            .push(HttpFault::server_error(Method::POST, "/nodepool").once());
    });
    let claim = cluster.claim("a", only("b3-8", ZONE));
    let asked_at = cluster.clock.now();
    cluster.provider().create(&claim).await.expect_err("not made");
    cluster.launch(&claim).await;
    assert!(
        cluster.clock.since(asked_at).as_secs() >= 30,
        "looked for it for half a minute"
    );
    assert_eq!(sizes(&cluster), [1]);
    assert_eq!(cluster.sim(|sim| sim.requests_of(&Method::POST, "/nodepool").len()), 2);
}

#[tokio::test]
async fn stale_reads_neither_lose_nor_double_a_place() {
    let delays = Delays {
        stale: SECOND * 10,
        ..Delays::default()
    };
    let cluster = Cluster::of(slow(delays)).await;
    cluster.launch(&cluster.claim("a", only("b3-8", ZONE))).await;
    cluster.launch(&cluster.claim("b", only("b3-8", ZONE))).await;
    cluster.pass(MINUTE * 5).await;
    assert_eq!(sizes(&cluster), [2]);
}

#[tokio::test]
async fn a_reservation_without_a_pool_makes_exactly_that_pool() {
    let cluster = Cluster::start().await;
    // As a process leaves it that dies between the reservation and the request.
    let claim = cluster.claim("a", json!([]));
    let cheap = cluster.launch(&cluster.claim("cheap", json!([]))).await;
    let flavor = cheap.metadata.labels.expect("labels")[labels::INSTANCE_TYPE].clone();
    assert_ne!(flavor, "b3-64");
    let design = cluster.launch(&cluster.claim("dear", only("b3-64", ZONE))).await;
    let pool = design.metadata.annotations.clone().expect("annotations")[names::POOL_NAME].clone();
    cluster.terminate(&design).await;
    cluster.pass(MINUTE * 11).await;
    assert!(cluster.sim(|sim| sim.pool_named(&pool).is_none()), "the pool is gone");
    let reservation = json!({"metadata": {"annotations": {
        names::POOL_NAME: pool, names::RESERVED_OFFERING: format!("b3-64/{ZONE}"),
        names::RESERVED_AT: cluster.clock.now().to_string(),
    }}});
    let patched = cluster.sandbox.objects().patch::<NodeClaim>("", "a", &reservation);
    patched.expect("accepted");
    let restarted = cluster.crash();
    restarted.create(&claim).await.expect("continued");
    assert_eq!(
        cluster.sim(|sim| sim.pool_named(&pool).map(|pool| pool.desired)),
        Some(1),
        "made from the reservation, although a cheaper flavor would do"
    );
}

#[tokio::test]
async fn a_claim_that_is_deleted_before_its_reservation_asks_nothing_of_the_cloud() {
    let cluster = Cluster::start().await;
    let claim = cluster.claim("a", json!([]));
    cluster.forget("a");
    cluster.provider().create(&claim).await.expect_err("the claim is gone");
    assert!(cluster.sim(|sim| sim.requests_of(&Method::POST, "/nodepool").is_empty()));
}

#[tokio::test]
async fn a_claim_that_goes_between_plan_and_reservation_asks_nothing_of_the_cloud() {
    let cluster = Cluster::start().await;
    let claim = cluster.claim("a", json!([]));
    let gone = Fault::fail(404).verb("patch").resource("nodeclaims").name("a");
    cluster.sandbox.faults().inject(gone);
    let error = cluster.provider().create(&claim).await.expect_err("the claim is gone");
    assert!(error.to_string().contains("the claim is being deleted"), "{error}");
    cluster.pass(MINUTE).await;
    assert!(cluster.sim(|sim| sim.requests_of(&Method::POST, "/nodepool").is_empty()));
}

#[tokio::test]
async fn a_claim_that_says_nothing_of_types_gets_the_cheapest_that_fits() {
    let cluster = Cluster::start().await;
    let spec = json!({"requirements": [], "resources": {"requests": {"cpu": "3", "memory": "10Gi"}}});
    let claim = cluster.launch(&cluster.claim_with("a", spec)).await;
    let flavor = claim.metadata.labels.expect("labels")[labels::INSTANCE_TYPE].clone();
    assert_eq!(flavor, "b3-16", "4 vCPUs and 16 GiB for 0.10");
}

#[tokio::test]
async fn a_pool_that_somebody_deletes_under_a_reservation_is_made_again() {
    let delays = Delays {
        vm: MINUTE,
        ..Delays::default()
    };
    let cluster = Cluster::of(slow(delays)).await;
    let claim = cluster.claim("a", only("b3-8", ZONE));
    let provider = cluster.provider();
    let launch = tokio::spawn(async move { provider.create(&claim).await });
    assert!(cluster.until(|| cluster.sim(|sim| sim.nodes.len() == 1)).await);
    cluster.sim(|sim| {
        let pool = sim.pools.keys().next().expect("one").clone();
        sim.delete_by_hand(&pool);
    });
    launch.await.expect("no panic").expect("launched in the new pool");
    assert_eq!(sizes(&cluster), [1]);
    assert_eq!(cluster.sim(|sim| sim.requests_of(&Method::POST, "/nodepool").len()), 2);
}

#[tokio::test]
async fn a_pool_of_our_name_that_is_a_users_stays_untouched() {
    let cluster = Cluster::start().await;
    let first = cluster.launch(&cluster.claim("a", only("b3-8", ZONE))).await;
    let name = first.metadata.annotations.clone().expect("annotations")[names::POOL_NAME].clone();
    cluster.terminate(&first).await;
    cluster.pass(MINUTE * 12).await;
    assert!(cluster.sim(|sim| sim.pools.is_empty()), "the empty pool is gone");
    let theirs = cluster.sim(|sim| sim.foreign_pool(&name, 1));
    let second = cluster.launch(&cluster.claim("b", only("b3-8", ZONE))).await;
    let next = &second.metadata.annotations.expect("annotations")[names::POOL_NAME];
    assert_eq!(*next, name.replace("-0", "-1"));
    cluster.sim(|sim| {
        assert_eq!(sim.pools[&theirs].desired, 1);
        assert!(sim.requests_of(&Method::PUT, &theirs).is_empty());
    });
}

#[tokio::test]
async fn a_claim_whose_node_never_comes_is_cleaned_up_and_its_pool_shrunk() {
    let cluster = Cluster::start().await;
    cluster.sim(|sim| sim.never_instance = true);
    let claim = cluster.claim("a", only("b3-8", ZONE));
    let provider = cluster.provider();
    let asked_at = cluster.clock.now();
    let error = provider.create(&claim).await.expect_err("pending");
    let LaunchEffect::Retry { reason, .. } = error.launch_effect() else {
        panic!("{error}")
    };
    assert_eq!(reason, "InstancePending");
    let waited = cluster.clock.since(asked_at).as_secs();
    assert!((260..=290).contains(&waited), "below core's five minutes: {waited} s");
    provider.create(&claim).await.expect_err("still pending");
    assert_eq!(sizes(&cluster), [1], "asked for once");
    assert_eq!(provider.abandon(&claim).await.expect("given up"), Deletion::Gone);
    cluster.forget("a");
    cluster.pass(MINUTE * 15).await;
    cluster.sim(|sim| {
        assert!(sim.nodes.is_empty(), "{:?}", sim.nodes);
        assert!(sim.pools.values().all(|pool| pool.desired == 0), "the pool is shrunk");
        assert!(sim.unnamed_removals.is_empty());
    });
    cluster.pass(MINUTE * 15).await;
    assert!(cluster.sim(|sim| sim.pools.is_empty()), "the empty pool goes, too");
}

#[tokio::test]
async fn size_that_no_machine_was_made_for_is_given_back() {
    let delays = Delays {
        schedule: HOUR,
        ..Delays::default()
    };
    let cluster = Cluster::of(slow(delays)).await;
    let claim = cluster.claim("a", only("b3-8", ZONE));
    cluster.provider().create(&claim).await.expect_err("pending");
    cluster.provider().abandon(&claim).await.expect("given up");
    cluster.forget("a");
    cluster.pass(MINUTE * 5).await;
    assert_eq!(sizes(&cluster), [0]);
}

#[tokio::test]
async fn a_late_node_is_given_to_the_next_claim() {
    let delays = Delays {
        vm: MINUTE * 7,
        ..Delays::default()
    };
    let cluster = Cluster::of(slow(delays)).await;
    let provider = cluster.provider();
    let first = cluster.claim("a", only("b3-8", ZONE));
    provider.create(&first).await.expect_err("pending");
    provider.abandon(&first).await.expect("given up");
    cluster.forget("a");
    let second = cluster.claim("b", only("b3-8", ZONE));
    cluster.launch(&second).await;
    assert_eq!(cluster.sim(|sim| sim.nodes.len()), 1, "no second machine is asked for");
}

#[tokio::test]
async fn a_user_made_pool_never_gets_our_label_by_chance() {
    let cluster = Cluster::start().await;
    let pool = cluster.sim(|sim| {
        let request = NewPool {
            name: "karpenter-b3-8".into(),
            flavor_name: "b3-8".into(),
            desired_nodes: 1,
            min_nodes: 0,
            max_nodes: 100,
            autoscale: false,
            monthly_billed: false,
            anti_affinity: false,
            availability_zones: vec![ZONE.into()],
            attach_floating_ips: None,
            template: Default::default(),
        };
        let made = sim.create_pool(&request).expect("accepted");
        made["id"].as_str().expect("an id").to_owned()
    });
    cluster.pass(HOUR).await;
    assert!(cluster.provider().list().await.expect("listed").is_empty());
    assert!(cluster.sim(|sim| sim.requests_of(&Method::PUT, &pool).is_empty()));
}
