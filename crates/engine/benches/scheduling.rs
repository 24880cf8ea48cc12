//! How long a decision takes: the workloads of scheduling.md §9.2 on 400 instance types.
//!
//! `cargo bench -p karpenter-engine`; `docs/performance.md` has figures and the machine they came from.

#[expect(
    dead_code,
    reason = "the example writes the same workloads as files, and uses all of it"
)]
#[path = "../examples/workload/generate.rs"]
mod generate;

use std::collections::BTreeMap;
use std::sync::Arc;

use divan::Bencher;
use divan::counter::ItemsCount;
use generate::{Fill, Mix, Workload};
use karpenter_api::{NodeClaim, NodePool};
use karpenter_engine::catalog_file::{self, FileInstanceType};
use karpenter_engine::convert::{self, NodeObjects, PodIntake};
use karpenter_engine::model::{Options, PreferencePolicy, Snapshot};
use karpenter_engine::{Catalog, PoolTypes, solve};
use serde::de::DeserializeOwned;
use serde_json::Value;

fn main() {
    divan::main();
}

const TYPES: usize = 400;

#[divan::bench(args = [1000, 5000, 20000], sample_count = 10)]
fn generic(bencher: Bencher<'_, '_>, pods: usize) {
    measure(
        bencher,
        pods,
        &generate::pending(Mix::Generic, pods, TYPES),
        Options::default(),
    );
}

#[divan::bench(args = [1000, 5000, 20000], sample_count = 10)]
fn diverse(bencher: Bencher<'_, '_>, pods: usize) {
    measure(
        bencher,
        pods,
        &generate::pending(Mix::Diverse, pods, TYPES),
        Options::default(),
    );
}

#[divan::bench(args = [1000, 4000], sample_count = 10)]
fn preferences_respected(bencher: Bencher<'_, '_>, pods: usize) {
    measure(
        bencher,
        pods,
        &generate::pending(Mix::Prefer, pods, TYPES),
        Options::default(),
    );
}

#[divan::bench(args = [1000, 4000], sample_count = 10)]
fn preferences_ignored(bencher: Bencher<'_, '_>, pods: usize) {
    let options = Options {
        preference_policy: PreferencePolicy::Ignore,
        ..Options::default()
    };
    measure(bencher, pods, &generate::pending(Mix::Prefer, pods, TYPES), options);
}

#[divan::bench(args = [1000, 15000], sample_count = 5)]
fn onto_2000_nodes_with_40000_pods(bencher: Bencher<'_, '_>, pods: usize) {
    measure(
        bencher,
        pods,
        &generate::with_nodes(Mix::Diverse, pods, TYPES, 2000, 40_000, Fill::Loose),
        Options::default(),
    );
}

fn measure(bencher: Bencher<'_, '_>, pods: usize, workload: &Workload, options: Options) {
    let snapshot = snapshot(workload, options);
    assert_eq!(snapshot.pods.len(), pods);
    bencher.counter(ItemsCount::new(pods)).bench_local(|| solve(&snapshot));
}

fn snapshot(workload: &Workload, options: Options) -> Snapshot {
    let types: Vec<FileInstanceType> = workload.types.iter().map(parse).collect();
    let rules = Arc::new(catalog_file::label_rules(&types));
    let instance_types: Vec<_> = types.iter().map(|t| Arc::new(t.to_model(&rules))).collect();
    let mut intake = PodIntake::new(rules.clone());
    let of_kind = |kind: &'static str| workload.objects.iter().filter(move |object| object["kind"] == kind);

    let pools = of_kind("NodePool").map(parse::<NodePool>).map(|pool| PoolTypes {
        pool: Arc::new(convert::node_pool(&rules, &pool, String::new()).expect("the generator's pools are valid")),
        instance_types: instance_types.clone(),
    });
    let catalog = Arc::new(Catalog::new(pools.collect(), (*rules).clone()));
    let mut nodes = BTreeMap::new();
    for (node, claim) in of_kind("Node")
        .map(parse)
        .zip(of_kind("NodeClaim").map(parse::<NodeClaim>))
    {
        let objects = NodeObjects {
            node: Some(&node),
            claim: Some(&claim),
            csi: None,
        };
        let node = convert::node(intake.interner(), objects).expect("the generator's nodes are valid");
        let node = node.expect("there is a node");
        nodes.insert(node.name.clone(), node);
    }
    let mut pending = Vec::new();
    for object in of_kind("Pod").map(parse) {
        let (pod, _) = intake.pod(&object).expect("the generator's pods are valid");
        match pod.node_name.as_ref().and_then(|name| nodes.get_mut(name)) {
            Some(node) => node.bind(Arc::new(pod)),
            None => pending.push(Arc::new(pod)),
        }
    }
    let mut snapshot = Snapshot::new(catalog, options);
    snapshot.pods = pending.into();
    snapshot.nodes = nodes.into_values().map(Arc::new).collect();
    snapshot
}

fn parse<T: DeserializeOwned>(object: &Value) -> T {
    T::deserialize(object).expect("the generator writes valid objects")
}
