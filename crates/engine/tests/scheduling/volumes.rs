//! Volumes: how many a node can attach, and where.

use karpenter_engine::model::{ClaimTopology, SpreadConstraint};

use crate::support::*;

const DRIVER: Option<&str> = Some("csi.example.com");

fn zones(alternatives: &[&[&str]]) -> ClaimTopology {
    ClaimTopology::AnyOf(alternatives.iter().map(|zones| vec![within(ZONE, zones)]).collect())
}

fn with_volumes(mut cluster: Cluster, names: impl IntoIterator<Item = String>) -> Cluster {
    for name in names {
        cluster = cluster.volume(&name, DRIVER, ClaimTopology::Anywhere);
    }
    cluster
}

fn limited_shape(limit: u32) -> karpenter_engine::model::InstanceType {
    let mut large = shape("m-16", 16, "64Gi");
    large.volume_limits.insert("csi.example.com".to_owned(), limit);
    large
}

#[test]
fn pods_beyond_the_attachment_limit_go_to_another_node() {
    let cluster = Cluster::of(pool("default"), vec![limited_shape(10)]);
    let names = (0..6)
        .map(|nth| format!("web-{nth}"))
        .chain((0..6).map(|nth| format!("extra-{nth}")));
    let mut cluster = with_volumes(cluster, names);
    for nth in 0..6 {
        let pod = pod(&format!("p{nth}"))
            .cpu("100m")
            .claim(&format!("web-{nth}"))
            .claim(&format!("extra-{nth}"));
        cluster = cluster.pods(pod);
    }
    assert_eq!(cluster.solve().nodes(), 2);
}

#[test]
fn a_shared_claim_counts_once() {
    let cluster = with_volumes(
        Cluster::of(pool("default"), vec![limited_shape(1)]),
        ["shared".to_owned()],
    );
    assert_eq!(
        cluster
            .pods(pods(100, "web").cpu("100m").claim("shared"))
            .solve()
            .nodes(),
        1
    );
}

#[test]
fn a_hundred_pods_with_a_volume_each_need_ten_nodes_of_ten() {
    let cluster = Cluster::of(pool("default"), vec![limited_shape(10)]);
    let cluster = with_volumes(cluster, (0..100).map(|nth| format!("db-{nth}")));
    assert_eq!(
        cluster.pods(pods(100, "db").cpu("10m").claim_each()).solve().nodes(),
        10
    );
}

#[test]
fn the_published_limit_of_a_node_overrides_its_type() {
    let check = |published: Option<Option<u32>>, expect: usize| {
        let mut existing = node("a", "zone-1");
        if let Some(limit) = published {
            existing.volume_limits.insert("csi.example.com".to_owned(), limit);
        }
        let mut m8 = shape("m-8", 8, "32Gi");
        m8.volume_limits.insert("csi.example.com".to_owned(), 2);
        let cluster = Cluster::of(pool("default"), vec![m8]).node(existing);
        let cluster = with_volumes(cluster, (0..5).map(|nth| format!("db-{nth}")));
        assert_eq!(
            cluster.pods(pods(5, "db").cpu("10m").claim_each()).solve().on("a"),
            expect,
            "{published:?}"
        );
    };
    check(None, 2);
    check(Some(Some(4)), 4);
    check(Some(None), 5);
}

#[test]
fn volumes_in_two_zones_let_anti_affine_pods_use_both() {
    let outcome = cluster()
        .volume("data-0", None, zones(&[&["zone-1"], &["zone-2"]]))
        .volume("data-1", None, zones(&[&["zone-1"], &["zone-2"]]))
        .pods(pods(2, "data").claim_each().away_from(ZONE, "data"))
        .solve();
    assert_eq!(outcome.by(ZONE).into_keys().collect::<Vec<_>>(), ["zone-1", "zone-2"]);
}

#[test]
fn volumes_that_partly_conflict_use_the_combination_that_works() {
    let outcome = cluster()
        .volume("a", None, zones(&[&["zone-1"], &["zone-2"]]))
        .volume("b", None, zones(&[&["zone-2"], &["zone-3"]]))
        .pods(pod("web").claim("a").claim("b"))
        .solve();
    assert_eq!(outcome.by(ZONE).into_keys().collect::<Vec<_>>(), ["zone-2"]);
}

#[test]
fn volumes_that_exclude_each_other_are_reported() {
    let outcome = cluster()
        .volume("a", None, zones(&[&["zone-1"]]))
        .volume("b", None, zones(&[&["zone-2"]]))
        .pods(pod("web").claim("a").claim("b"))
        .solve();
    assert_eq!(outcome.pending(), ["web"]);
}

#[test]
fn a_volume_on_one_host_needs_that_host() {
    let host = || ClaimTopology::AnyOf(vec![vec![within(HOSTNAME, &["a"])]]);
    let outcome = cluster()
        .volume("data", None, host())
        .pods(pod("web").claim("data"))
        .solve();
    assert_eq!(outcome.codes(), ["VolumeTopologyConflict"]);
    let outcome = cluster()
        .node(node("a", "zone-1"))
        .volume("data", None, host())
        .pods(pod("web").claim("data"))
        .solve();
    assert_eq!(outcome.on("a"), 1);
}

#[test]
fn an_unconstrained_alternative_lets_the_pod_go_anywhere() {
    let either = ClaimTopology::AnyOf(vec![vec![within(ZONE, &["nowhere"])], Vec::new()]);
    let outcome = cluster()
        .volume("local", None, either)
        .pods(pod("web").claim("local"))
        .solve();
    assert_eq!(outcome.nodes(), 1);
}

#[test]
fn a_volume_that_cannot_be_resolved_leaves_its_pod_out_and_others_alone() {
    let lost = ClaimTopology::Unresolved("its StorageClass does not exist".to_owned());
    let outcome = cluster()
        .volume("lost", None, lost)
        .pods(pod("broken").claim("lost"))
        .pods(pod("missing").claim("absent"))
        .pods(pod("web"))
        .solve();
    assert_eq!(outcome.pending(), ["broken", "missing"]);
    assert_eq!(outcome.codes(), ["VolumeUnresolved"]);
    assert_eq!(outcome.nodes(), 1);
}

#[test]
fn a_zonal_volume_does_not_shrink_what_spread_counts() {
    let running = |zone: &str| (node(zone, zone), [pod("web").cpu("8")]);
    let mut cluster = cluster();
    for zone in ZONES {
        let (node, pods) = running(zone);
        cluster = cluster.node_with(node, &pods);
    }
    let spread = SpreadConstraint {
        selector: karpenter_engine::model::LabelSelector::labels([("app", "web")]),
        min_domains: Some(3),
        ..constraint(ZONE)
    };
    let outcome = cluster
        .volume("data", None, zones(&[&["zone-2"]]))
        .pods(pod("web").claim("data").spread_with(spread))
        .solve();
    assert_eq!(outcome.by(ZONE).into_keys().collect::<Vec<_>>(), ["zone-2"]);
}

#[test]
fn a_volume_keeps_its_zone_when_a_required_term_is_given_up() {
    let outcome = cluster()
        .volume("data", None, zones(&[&["zone-3"]]))
        .pods(
            pod("web")
                .claim("data")
                .or_requires(within("team", &["nobody"]))
                .or_requires(within(ZONE, &["zone-2", "zone-3"])),
        )
        .solve();
    assert_eq!(outcome.by(ZONE).into_keys().collect::<Vec<_>>(), ["zone-3"]);
}
