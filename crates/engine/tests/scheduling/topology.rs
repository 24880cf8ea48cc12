//! Spread, affinity and anti-affinity.

use std::collections::BTreeSet;

use karpenter_api::labels;
use karpenter_engine::model::*;

use crate::support::*;

fn two_zones() -> Vec<InstanceType> {
    vec![shape_in("m-16", 16, "64Gi", &["zone-1", "zone-2"])]
}

fn spread_of(app: &str, key: &str) -> SpreadConstraint {
    SpreadConstraint {
        selector: LabelSelector::labels([("app", app)]),
        ..constraint(key)
    }
}

#[test]
fn pods_spread_over_zones() {
    assert_eq!(
        cluster().pods(pods(4, "web").spread(ZONE, 1)).solve().zone_counts(),
        [1, 1, 2]
    );
}

#[test]
fn a_pool_with_two_zones_spreads_over_two() {
    let mut default = pool("default");
    default.requirements.add(within(ZONE, &["zone-1", "zone-2"]));
    let outcome = Cluster::of(default, shapes())
        .pods(pods(4, "web").spread(ZONE, 1))
        .solve();
    assert_eq!(outcome.zone_counts(), [2, 2]);
}

#[test]
fn a_pod_in_a_zone_that_cannot_grow_limits_the_others() {
    let far = node("far", "zone-3");
    let full = pod("full").cpu("7");
    let outcome = Cluster::of(pool("default"), two_zones())
        .node_with(far, &[full, pod("web").cpu("1")])
        .pods(pods(6, "web").cpu("1").spread(ZONE, 1))
        .solve();
    assert_eq!((outcome.zone_counts(), outcome.pending().len()), (vec![2, 2], 2));
}

#[test]
fn a_skew_of_five_lets_one_zone_run_ahead_by_five() {
    let existing = |name: &str, zone: &str| (node(name, zone), [pod("web").cpu("1"), pod("full").cpu("7")]);
    let (a, on_a) = existing("a", "zone-1");
    let (b, on_b) = existing("b", "zone-2");
    let mut only = pool("default");
    only.requirements.add(within(ZONE, &["zone-3"]));
    let outcome = Cluster::of(only, shapes())
        .node_with(a, &on_a)
        .node_with(b, &on_b)
        .pods(pods(10, "web").cpu("1").spread(ZONE, 5))
        .solve();
    assert_eq!((outcome.scheduled(), outcome.pending().len()), (6, 4));
}

#[test]
fn min_domains_holds_pods_back_while_there_are_too_few() {
    let check = |types: Vec<InstanceType>, count: usize, expect: &[usize]| {
        let constraint = SpreadConstraint {
            min_domains: Some(3),
            ..spread_of("web", ZONE)
        };
        let outcome = Cluster::of(pool("default"), types)
            .pods(pods(count, "web").spread_with(constraint))
            .solve();
        assert_eq!(outcome.zone_counts(), expect);
    };
    check(two_zones(), 3, &[1, 1]);
    check(shapes(), 11, &[3, 4, 4]);
}

#[test]
fn a_spread_over_hosts_opens_a_node_for_each_pod_beyond_the_skew() {
    assert_eq!(cluster().pods(pods(4, "web").spread(HOSTNAME, 1)).solve().nodes(), 4);
    assert_eq!(cluster().pods(pods(4, "web").spread(HOSTNAME, 4)).solve().nodes(), 1);
    let two = cluster()
        .pods(pods(2, "a").spread(HOSTNAME, 1))
        .pods(pods(2, "b").spread(HOSTNAME, 1))
        .solve();
    assert_eq!(two.nodes(), 2);
}

#[test]
fn pods_of_different_architectures_do_not_share_a_host() {
    let mut arm = shape("arm-16", 16, "64Gi");
    arm.requirements.replace(within(labels::ARCH, &["arm64"]));
    let mut types = shapes();
    types.push(arm);
    let outcome = Cluster::of(pool("default"), types)
        .pods(pods(2, "a").selector(labels::ARCH, "amd64").spread(HOSTNAME, 1))
        .pods(pods(2, "b").selector(labels::ARCH, "arm64").spread(HOSTNAME, 1))
        .solve();
    assert_eq!(outcome.nodes(), 4);
}

#[test]
fn a_spread_that_does_not_select_its_own_pods_lets_them_share() {
    let outcome = cluster()
        .pods(pods(4, "web").spread_with(spread_of("other", HOSTNAME)))
        .solve();
    assert_eq!(outcome.nodes(), 1);
}

#[test]
fn pods_pinned_to_zones_are_counted_among_those_zones() {
    let pinned = |count, name: &str, zone: &str| {
        pods(count, name)
            .label("app", "web")
            .selector(ZONE, zone)
            .spread_with(spread_of("web", ZONE))
    };
    let outcome = cluster()
        .pods(pinned(5, "a", "zone-1"))
        .pods(pinned(10, "b", "zone-2"))
        .solve();
    assert_eq!(outcome.zone_counts(), [5, 10]);
}

#[test]
fn a_preferred_zone_does_not_limit_spread() {
    let preferring = pods(6, "web")
        .prefers(1, within(ZONE, &["zone-1", "zone-2"]))
        .spread(ZONE, 1);
    assert_eq!(cluster().pods(preferring).solve().zone_counts(), [2, 2, 2]);
}

#[test]
fn a_custom_key_spreads_over_the_pools_that_offer_its_values() {
    let pool_with = |name: &str, capacity_type: &str, values: &[&str]| {
        let mut pool = pool(name);
        pool.requirements.add(within(labels::CAPACITY_TYPE, &[capacity_type]));
        pool.requirements.add(within("capacity.spread", values));
        pool
    };
    let outcome = Cluster::of(pool_with("spot", "spot", &["2", "3", "4", "5"]), shapes())
        .pool(pool_with("on-demand", "on-demand", &["1"]), shapes())
        .pods(pods(20, "web").cpu("100m").spread("capacity.spread", 1))
        .solve();
    assert_eq!(outcome.by("capacity.spread").into_values().collect::<Vec<_>>(), [4; 5]);
    assert_eq!(outcome.by(labels::CAPACITY_TYPE)["spot"], 16);
}

#[test]
fn a_pool_that_may_launch_nothing_still_offers_its_zone() {
    let mut stuck = pool("stuck");
    stuck.limits = resources(&[("cpu", "0")]);
    let three = vec![shape_in("m-16", 16, "64Gi", &["zone-3"])];
    let outcome = Cluster::of(pool("default"), two_zones())
        .pool(stuck, three)
        .pods(pods(4, "web").spread(ZONE, 1))
        .solve();
    assert_eq!((outcome.zone_counts(), outcome.pending().len()), (vec![1, 1], 2));
}

#[test]
fn honoring_taints_leaves_out_domains_behind_taints() {
    let foreign = |name: &str, value: &str| {
        let mut pool = pool(name);
        pool.taints.push(taint(name, Effect::NoSchedule));
        pool.requirements.add(within("rack", &[value]));
        pool
    };
    let mut own = pool("own");
    own.requirements.add(within("rack", &["a"]));
    let check = |policy: SpreadPolicy, expect: usize| {
        let spread = SpreadConstraint {
            node_taints_policy: policy,
            ..spread_of("web", "rack")
        };
        let outcome = Cluster::of(own.clone(), shapes())
            .pool(foreign("x", "b"), shapes())
            .pool(foreign("y", "c"), shapes())
            .pods(pods(5, "web").spread_with(spread))
            .solve();
        assert_eq!(outcome.scheduled(), expect, "{policy:?}");
    };
    check(SpreadPolicy::Ignore, 1);
    check(SpreadPolicy::Honor, 5);
}

#[test]
fn workloads_behind_different_taints_are_each_even_over_the_domains_that_they_tolerate() {
    let racks = |name: &str, racks: &[&str]| {
        let mut pool = pool(name);
        pool.taints.push(taint(name, Effect::NoSchedule));
        pool.requirements.add(within("rack", racks));
        pool
    };
    let of_pool = |count: usize, name: &str| {
        let spread = SpreadConstraint {
            node_taints_policy: SpreadPolicy::Honor,
            ..spread_of("web", "rack")
        };
        pods(count, name)
            .label("app", "web")
            .tolerates(name)
            .spread_with(spread)
    };
    let outcome = Cluster::of(racks("x", &["foo", "bar"]), shapes())
        .pool(racks("y", &["foo", "baz"]), shapes())
        .pods(of_pool(2, "x"))
        .pods(of_pool(4, "y"))
        .solve();
    // `foo` is offered by both pools. kube-scheduler does not count nodes behind a taint that a pod does not tolerate, so
    // neither workload sees the other's node there (scheduling.md §5.7).
    let expected = [("bar", 1), ("baz", 2), ("foo", 3)].map(|(rack, pods)| (rack.to_owned(), pods));
    assert_eq!(outcome.by("rack"), expected.into());
}

#[test]
fn pods_pinned_to_different_zones_do_not_count_in_each_others_spread() {
    let pinned = |name: &str, zone: &str| pods(3, name).label("app", "web").selector(ZONE, zone).spread(ZONE, 1);
    let outcome = cluster()
        .pods(pinned("a", "zone-1"))
        .pods(pinned("b", "zone-2"))
        .solve();
    assert_eq!(outcome.zone_counts(), [3, 3]);
}

#[test]
fn match_label_keys_separate_revisions() {
    let revision = |name: &str, hash: &str| {
        let spread = SpreadConstraint {
            match_label_keys: vec!["hash".to_owned(), "unknown".to_owned()],
            ..spread_of("web", HOSTNAME)
        };
        pods(2, name)
            .label("app", "web")
            .label("hash", hash)
            .spread_with(spread)
    };
    let outcome = cluster().pods(revision("old", "1")).pods(revision("new", "2")).solve();
    assert_eq!(outcome.sizes(), [2, 2]);
}

#[test]
fn only_bound_live_matching_pods_of_the_namespace_count() {
    let mut a = node("a", "zone-1");
    for pod in pods(3, "web").cpu("2").namespace("elsewhere").on("a") {
        a.bind(pod);
    }
    for pod in pods(1, "web").cpu("2").on("a") {
        a.bind(std::sync::Arc::new(Pod {
            terminating: true,
            ..Pod::clone(&pod)
        }));
    }
    let outcome = cluster().node(a).pods(pods(3, "web").cpu("1").spread(ZONE, 1)).solve();
    assert_eq!(outcome.zone_counts(), [1, 1, 1]);
}

#[test]
fn pods_that_want_each_other_fill_one_host_and_the_rest_wait() {
    let types = vec![shape("m-4", 4, "16Gi")];
    let outcome = Cluster::of(pool("default"), types)
        .pods(pods(10, "web").cpu("800m").near(HOSTNAME, "web"))
        .solve();
    assert_eq!((outcome.sizes(), outcome.pending().len()), (vec![5], 5));
}

#[test]
fn pods_that_want_a_running_pod_join_it() {
    let outcome = cluster()
        .node_with(node("a", "zone-1"), &[])
        .node_with(node("b", "zone-2"), &[pod("db")])
        .pods(pods(3, "web").near(HOSTNAME, "db"))
        .solve();
    assert_eq!(outcome.on("b"), 3);
}

#[test]
fn self_affinity_with_incompatible_selectors_settles_in_two_zones() {
    let outcome = cluster()
        .pods(pods(2, "a").selector(ZONE, "zone-1").near(ZONE, "a"))
        .pods(pods(2, "b").selector(ZONE, "zone-2").near(ZONE, "b"))
        .solve();
    assert_eq!((outcome.nodes(), outcome.zone_counts()), (2, vec![2, 2]));
}

#[test]
fn zonal_anti_affinity_places_one_pod_per_pass_while_zones_are_open() {
    let outcome = cluster().pods(pods(3, "web").away_from(ZONE, "web")).solve();
    assert_eq!((outcome.scheduled(), outcome.pending().len()), (1, 2));
    assert_eq!(outcome.codes(), ["PodAntiAffinityUnsatisfied"]);
    let next = cluster()
        .node_with(node("a", "zone-1"), &[pod("web").away_from(ZONE, "web")])
        .pods(pods(2, "web").away_from(ZONE, "web"))
        .solve();
    assert_eq!((next.scheduled(), next.pending().len()), (1, 1));
}

#[test]
fn an_anti_affine_pod_after_an_unpinned_match_waits_for_the_next_pass() {
    let outcome = cluster()
        .pods(pod("other").cpu("2"))
        .pods(pod("web").cpu("1").away_from(ZONE, "other"))
        .solve();
    assert_eq!(outcome.pending(), ["web"]);
    let next = cluster()
        .node_with(node("a", "zone-1"), &[pod("other")])
        .pods(pod("web").away_from(ZONE, "other"))
        .solve();
    assert!(next.pending().is_empty() && next.on("a") == 0);
}

#[test]
fn required_anti_affinity_of_running_pods_keeps_plain_pods_away() {
    let guarded = |preferred: bool| {
        let mut cluster = cluster();
        for zone in ZONES {
            let guard = match preferred {
                false => pod("guard").away_from(ZONE, "web"),
                true => pod("guard").would_rather_avoid(1, ZONE, "web"),
            };
            cluster = cluster.node_with(node(zone, zone), &[guard]);
        }
        cluster.pods(pod("web")).solve().scheduled()
    };
    assert_eq!((guarded(false), guarded(true)), (0, 1));
}

#[test]
fn affinity_looks_into_its_own_namespace_unless_told_otherwise() {
    let check = |namespaces: NamespaceScope, expect: usize| {
        let mut near = pod("web");
        near.spec.affinity.required.push(PodAffinityTerm {
            namespaces,
            ..term(HOSTNAME, "db")
        });
        let mut cluster = cluster()
            .node_with(node("a", "zone-1"), &[pod("db").namespace("data")])
            .pods(near);
        cluster
            .namespaces
            .insert("data".to_owned(), labels_of(&[("kind", "store")]));
        assert_eq!(cluster.solve().on("a"), expect);
    };
    let selected = |selector| NamespaceScope::Selected {
        selector,
        listed: BTreeSet::new(),
    };
    check(NamespaceScope::Own, 0);
    check(NamespaceScope::Listed(["data".to_owned()].into()), 1);
    check(selected(LabelSelector::everything()), 1);
    check(selected(LabelSelector::labels([("kind", "store")])), 1);
    check(selected(LabelSelector::labels([("kind", "web")])), 0);
}

#[test]
fn an_unknown_topology_key_blocks_spread_and_affinity_but_not_anti_affinity() {
    let check = |pods: Pods, expect: usize| {
        let outcome = cluster().pods(pods).pods(pod("fine")).solve();
        assert_eq!(outcome.scheduled() - 1, expect);
    };
    check(pod("web").spread("example.com/unknown", 1), 0);
    check(pod("web").near("example.com/unknown", "web"), 0);
    check(pods(2, "web").away_from("example.com/unknown", "web"), 2);
    let guard = pod("guard").away_from("example.com/unknown", "fine");
    assert_eq!(
        cluster()
            .node_with(node("a", "zone-1"), &[guard])
            .pods(pod("fine"))
            .solve()
            .scheduled(),
        1
    );
}

#[test]
fn spreads_that_differ_in_min_domains_do_not_share_their_counts() {
    let with = |name: &str, min_domains| {
        let spread = SpreadConstraint {
            min_domains,
            ..spread_of("web", ZONE)
        };
        pods(3, name).label("app", "web").spread_with(spread)
    };
    let outcome = Cluster::of(pool("default"), two_zones())
        .pods(with("a", Some(3)))
        .pods(with("b", None).cpu("2"))
        .solve();
    assert_eq!(outcome.pending().iter().filter(|name| name.starts_with('b')).count(), 0);
}

fn with_defaults(when_unsatisfiable: WhenUnsatisfiable) -> Cluster {
    let default = SpreadConstraint {
        when_unsatisfiable,
        selector: LabelSelector::Nothing,
        ..constraint(ZONE)
    };
    cluster().options(|options| options.default_spread = [default].into())
}

fn owned(mut pods: Pods, kind: &str, name: &str) -> Pods {
    pods.controller = Some(ControllerRef {
        kind: kind.to_owned(),
        name: name.to_owned(),
    });
    pods
}

fn controlled(mut cluster: Cluster, kind: &str, name: &str) -> Cluster {
    let key = ("default".to_owned(), kind.to_owned(), name.to_owned());
    cluster
        .workloads
        .controllers
        .insert(key, LabelSelector::labels([("app", name)]));
    cluster
}

#[test]
fn default_constraints_spread_pods_of_a_workload() {
    let cluster = controlled(with_defaults(WhenUnsatisfiable::DoNotSchedule), "ReplicaSet", "web");
    let outcome = cluster.pods(owned(pods(3, "web"), "ReplicaSet", "web")).solve();
    assert_eq!(outcome.zone_counts(), [1, 1, 1]);
}

#[test]
fn default_constraints_spread_what_a_service_selects() {
    let mut cluster = with_defaults(WhenUnsatisfiable::DoNotSchedule);
    cluster
        .workloads
        .services
        .insert("default".to_owned(), vec![labels_of(&[("app", "job")])]);
    assert_eq!(
        cluster.pods(owned(pods(3, "job"), "Job", "job")).solve().zone_counts(),
        [1, 1, 1]
    );
}

#[test]
fn default_constraints_leave_bare_pods_and_pods_with_their_own_alone() {
    assert_eq!(
        with_defaults(WhenUnsatisfiable::DoNotSchedule)
            .pods(pods(3, "bare"))
            .solve()
            .nodes(),
        1
    );
    let cluster = controlled(with_defaults(WhenUnsatisfiable::DoNotSchedule), "ReplicaSet", "web");
    let own = owned(pods(3, "web"), "ReplicaSet", "web").spread(HOSTNAME, 3);
    assert_eq!(cluster.pods(own).solve().nodes(), 1);
}

#[test]
fn soft_default_constraints_are_given_up() {
    let cluster = controlled(with_defaults(WhenUnsatisfiable::ScheduleAnyway), "ReplicaSet", "web");
    let pinned = owned(pods(3, "web"), "ReplicaSet", "web").selector(ZONE, "zone-1");
    assert_eq!(cluster.pods(pinned).solve().scheduled(), 3);
}

#[test]
fn default_constraints_spread_each_replica_set_by_itself() {
    let cluster = controlled(with_defaults(WhenUnsatisfiable::DoNotSchedule), "ReplicaSet", "web");
    let outcome = controlled(cluster, "ReplicaSet", "api")
        .pods(owned(pods(3, "web"), "ReplicaSet", "web"))
        .pods(owned(pods(3, "api"), "ReplicaSet", "api"))
        .solve();
    assert_eq!(outcome.zone_counts(), [2, 2, 2]);
    for claim in &outcome.0.claims {
        let apps: BTreeSet<&str> = claim.pods.iter().map(|pod| pod.labels["app"].as_str()).collect();
        assert_eq!(apps.len(), claim.pods.len(), "two pods of one ReplicaSet in a zone");
    }
}

#[test]
fn labels_that_each_pod_of_a_stateful_set_has_for_itself_do_not_split_its_default_spread() {
    let mut cluster = controlled(with_defaults(WhenUnsatisfiable::DoNotSchedule), "StatefulSet", "db");
    for nth in 0..3 {
        let mut one = owned(pod(&format!("db-{nth}")), "StatefulSet", "db").label("app", "db");
        one = one.label("statefulset.kubernetes.io/pod-name", &format!("db-{nth}"));
        cluster = cluster.pods(one);
    }
    assert_eq!(cluster.solve().zone_counts(), [1, 1, 1]);
}

#[test]
fn default_constraints_count_pods_that_run_already() {
    let cluster = controlled(with_defaults(WhenUnsatisfiable::DoNotSchedule), "ReplicaSet", "web");
    let running = owned(pods(1, "web"), "ReplicaSet", "web");
    let outcome = cluster
        .node_with(node("a", "zone-1"), &[running])
        .pods(owned(pods(2, "web"), "ReplicaSet", "web"))
        .solve();
    assert_eq!(outcome.on("a"), 0);
    assert_eq!(outcome.zone_counts(), [1, 1]);
}
