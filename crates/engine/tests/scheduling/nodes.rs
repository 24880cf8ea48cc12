//! Existing nodes and in-flight ones.

use crate::support::*;

#[test]
fn pods_fill_existing_nodes_before_new_ones_are_opened() {
    let outcome = cluster()
        .node(node("a", "zone-1"))
        .node(node("b", "zone-1"))
        .pods(pods(17, "web").cpu("1"))
        .solve();
    assert_eq!((outcome.on("a"), outcome.on("b"), outcome.sizes()), (8, 8, vec![1]));
}

#[test]
fn a_node_with_anything_below_zero_takes_nothing() {
    let over = pods(1, "over").requests(&[("cpu", "9")]);
    let outcome = Cluster::empty()
        .node_with(node("a", "zone-1"), &[over])
        .pods(pod("web").requests(&[("memory", "1Mi")]))
        .solve();
    assert_eq!(outcome.on("a"), 0);
}

#[test]
fn a_zero_request_of_an_unknown_resource_fits() {
    let none = pod("web").requests(&[("cpu", "1"), ("example.com/gpu", "0")]);
    assert_eq!(cluster().pods(none.clone()).solve().scheduled(), 1);
    assert_eq!(Cluster::empty().node(node("a", "zone-1")).pods(none).solve().on("a"), 1);
    let one = pod("web").requests(&[("cpu", "1"), ("example.com/gpu", "1")]);
    assert_eq!(cluster().pods(one).solve().codes(), ["NoInstanceTypeFits"]);
}

#[test]
fn an_offering_that_adds_a_resource_is_the_only_one_kept_for_it() {
    let mut gpu = shape("gpu", 4, "16Gi");
    gpu.offerings[0].overrides.capacity = resources(&[("example.com/gpu", "1")]);
    let wants = || pod("web").requests(&[("cpu", "1"), ("example.com/gpu", "1")]);
    let mut types = shapes();
    types.push(gpu.clone());
    let outcome = Cluster::of(pool("default"), types).pods(wants()).solve();
    assert_eq!(outcome.types(0), ["gpu"]);
    gpu.offerings[0].available = false;
    assert_eq!(
        Cluster::of(pool("default"), vec![gpu]).pods(wants()).solve().pending(),
        ["web"]
    );
}

#[test]
fn a_deleting_node_gives_no_capacity_and_its_pods_get_a_new_one() {
    let mut leaving = node("a", "zone-1");
    leaving.deleting = true;
    let running = pods(2, "web").on("a");
    for pod in &running {
        leaving.bind(pod.clone());
    }
    let mut cluster = cluster().node(leaving).pods(pod("other"));
    cluster.pods.extend(running);
    let outcome = cluster.solve();
    assert_eq!((outcome.on("a"), outcome.sizes()), (0, vec![3]));
}

#[test]
fn huge_pages_are_taken_from_memory() {
    let mut huge = shape("huge", 4, "8Gi");
    huge.capacity.insert("hugepages-2Mi".to_owned(), "6Gi".parse().unwrap());
    let web = |memory: &str| {
        let web = pod("web").requests(&[("cpu", "1"), ("memory", memory)]);
        Cluster::of(pool("default"), vec![huge.clone()])
            .pods(web)
            .solve()
            .scheduled()
    };
    assert_eq!((web("2Gi"), web("3Gi")), (1, 0));
}
