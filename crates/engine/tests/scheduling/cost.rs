//! `packing: cost`.

use karpenter_engine::model::Packing;

use crate::support::*;

/// Types of three shapes, one to 64 cores, priced by what they hold.
fn families() -> Vec<karpenter_engine::model::InstanceType> {
    let mut types = Vec::new();
    for (family, memory) in [("c", 2), ("m", 4), ("r", 8)] {
        for cpu in [1, 2, 4, 8, 16, 32, 48, 64] {
            let mut shape = shape(&format!("{family}-{cpu}"), cpu, &format!("{}Gi", cpu * memory));
            for offering in &mut shape.offerings {
                offering.price = f64::from(cpu) * (0.024 + 0.0035 * f64::from(memory));
            }
            types.push(shape);
        }
    }
    types
}

/// Pods of many sizes.
fn mixed(mut cluster: Cluster, count: usize) -> Cluster {
    for nth in 0..count {
        let cpu = ["100m", "250m", "500m", "1000m", "1500m"][nth * 7 % 5];
        let memory = ["100Mi", "256Mi", "512Mi", "1024Mi", "2048Mi", "4096Mi"][nth * 11 % 6];
        cluster = cluster.pods(pod(&format!("p-{nth:04}")).requests(&[("cpu", cpu), ("memory", memory)]));
    }
    cluster
}

fn both(cluster: impl Fn() -> Cluster) -> (Outcome, Outcome) {
    let compatible = cluster().solve();
    let cost = cluster().options(|options| options.packing = Packing::Cost).solve();
    (compatible, cost)
}

#[test]
fn plain_pods_are_packed_for_an_eighth_less() {
    let (compatible, cost) = both(|| mixed(Cluster::of(pool("default"), families()), 300));
    assert_eq!(cost.scheduled(), 300);
    let saved = 1.0 - cost.0.price() / compatible.0.price();
    assert!(
        saved >= 0.12,
        "saved {saved:.3}: {} instead of {}",
        cost.0.price(),
        compatible.0.price()
    );
}

#[test]
fn no_planned_node_is_overfull() {
    let (_, cost) = both(|| mixed(Cluster::of(pool("default"), families()), 200).daemon(pod("agent").cpu("300m")));
    for claim in &cost.0.claims {
        for instance_type in claim.instance_types.iter() {
            assert!(
                claim.requests.fits(&instance_type.capacity),
                "{} on {}",
                claim.requests["cpu"],
                instance_type.name
            );
        }
    }
}

#[test]
fn constraints_hold_and_the_plan_is_never_dearer() {
    let cluster = || {
        mixed(Cluster::of(pool("default"), families()), 60)
            .pods(pods(12, "web").spread(ZONE, 1))
            .pods(pods(5, "db").cpu("2").away_from(HOSTNAME, "db"))
            .pods(pods(4, "pinned").selector(ZONE, "zone-2"))
    };
    let (compatible, cost) = both(cluster);
    assert!(cost.0.price() <= compatible.0.price());
    assert_eq!(cost.scheduled(), compatible.scheduled());
    for claim in &cost.0.claims {
        assert!(claim.pods.iter().filter(|pod| pod.name.starts_with("db")).count() <= 1);
        let pinned = claim.pods.iter().any(|pod| pod.name.starts_with("pinned"));
        let zone = claim.requirements.get(ZONE).and_then(|zone| zone.single_value());
        assert!(!pinned || zone == Some("zone-2"));
    }
}

#[test]
fn limits_hold() {
    let limited = || {
        let mut default = pool("default");
        default.limits = resources(&[("nodes", "1")]);
        mixed(Cluster::of(default, families()), 40)
    };
    let (compatible, cost) = both(limited);
    assert_eq!((compatible.nodes(), cost.nodes()), (1, 1));
    assert_eq!(cost.scheduled(), compatible.scheduled());
}

#[test]
fn pods_stay_in_the_pool_that_the_weights_chose() {
    let mut heavy = pool("heavy");
    heavy.weight = 10;
    heavy
        .requirements
        .add(within(karpenter_api::labels::CAPACITY_TYPE, &["on-demand"]));
    let (_, cost) = both(|| {
        mixed(
            Cluster::of(heavy.clone(), families()).pool(pool("light"), families()),
            50,
        )
    });
    assert!(cost.0.claims.iter().all(|claim| claim.node_pool.name == "heavy"));
}
