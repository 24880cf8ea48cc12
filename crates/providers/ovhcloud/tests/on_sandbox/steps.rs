//! The steps of `examples/ovhcloud/demo`, one after the other, with what each of them promises.

use std::{collections::BTreeSet, fs, path::PathBuf};

use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod};
use karpenter_api::NodePool;
use karpenter_ovhcloud::{OvhNodeClass, sim::World};
use karpenter_sandbox::DeleteOptions;
use kube::ResourceExt;

use crate::environment::MINUTE;
use crate::whole::{INSTANCE_TYPE, Whole, ZONE_LABEL};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../examples/ovhcloud/demo")
}

/// Applies a step, as `kubectl apply -f` does.
fn apply(whole: &Whole, step: &str) {
    let file = folder().join(step);
    let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    for document in text.split("---\n") {
        let applied = whole.cluster.sandbox.apply(document);
        applied.unwrap_or_else(|error| panic!("{step}: {error}"));
    }
}

impl Whole {
    /// Values of a label of the nodes that an app's pods run on; one for each pod.
    fn nodes_of(&self, app: &str, label: &str) -> Vec<String> {
        let pods = self.pods();
        let of_app = |pod: &&Pod| pod.labels().get("app").is_some_and(|own| own == app);
        let names: BTreeSet<String> = pods.iter().filter(of_app).map(ResourceExt::name_any).collect();
        let running = self.running().into_iter().filter(|(pod, _)| names.contains(pod));
        let nodes = self.nodes();
        let value = |node: &str| {
            let own = nodes.iter().find(|own| own.name_any() == node)?;
            own.labels().get(label).cloned()
        };
        let mut values: Vec<String> = running.filter_map(|(_, node)| value(&node)).collect();
        values.sort();
        values
    }
}

#[tokio::test]
async fn every_step_of_the_demo_does_what_it_says_and_the_last_leaves_nothing() {
    let whole = Whole::start(World::default(), &[]).await;
    // The keys are those of the simulated cloud, not the ones to be replaced in step 01.
    for step in ["02-nodeclass.yaml", "03-nodepool.yaml", "04-inflate.yaml"] {
        apply(&whole, step);
    }
    whole.cluster.until_ready().await;
    whole.until_running(5).await;
    let flavors: BTreeSet<String> = whole.nodes_of("inflate", INSTANCE_TYPE).into_iter().collect();
    assert!(
        flavors.iter().all(|own| ["b3-8", "b3-16"].contains(&own.as_str())),
        "{flavors:?}"
    );

    apply(&whole, "05-multi-flavor.yaml");
    apply(&whole, "06-small.yaml");
    whole.until_running(8).await;
    assert_eq!(whole.nodes_of("small", INSTANCE_TYPE), ["b3-8"; 3]);
    let shared: BTreeSet<String> = whole.nodes_of("small", "kubernetes.io/hostname").into_iter().collect();
    assert_eq!(shared.len(), 1, "they share a node");
    apply(&whole, "07-large.yaml");
    whole.until_running(9).await;
    assert_eq!(whole.nodes_of("large", INSTANCE_TYPE), ["b3-32"]);

    apply(&whole, "08-multi-zone.yaml");
    apply(&whole, "09-zone-spread.yaml");
    whole.until_running(15).await;
    let zones = ["eu-west-par-a", "eu-west-par-b", "eu-west-par-c"];
    let twice: Vec<&str> = zones.iter().flat_map(|zone| [*zone; 2]).collect();
    assert_eq!(whole.nodes_of("zone-spread", ZONE_LABEL), twice);

    apply(&whole, "10-monthly-class.yaml");
    apply(&whole, "11-monthly-pool.yaml");
    whole.until_running(16).await;
    assert_eq!(whole.nodes_of("monthly", INSTANCE_TYPE), ["b2-7"]);
    apply(&whole, "12-anti-affinity-class.yaml");
    whole.until_running(18).await;
    whole.cluster.sim(|sim| {
        assert_eq!(sim.pools.values().filter(|pool| pool.monthly).count(), 1);
        assert!(sim.pools.values().any(|pool| pool.anti_affinity && pool.max == 5));
    });

    let objects = whole.cluster.sandbox.objects();
    let options = DeleteOptions::default();
    // What the last script deletes is everything that the steps made, in its order.
    let script = fs::read_to_string(folder().join("99-clean-up.sh")).expect("the script");
    let named = |kind: &str| -> Vec<String> {
        let line = script
            .lines()
            .find(|line| line.contains(&format!("kubectl delete {kind}")));
        let words = line
            .unwrap_or_else(|| panic!("{kind}"))
            .split("--ignore-not-found ")
            .nth(1);
        words.expect("names").split(' ').map(str::to_owned).collect()
    };
    for name in named("deployments.apps") {
        objects
            .delete::<Deployment>("default", &name, &options)
            .expect("made by a step");
    }
    for name in named("nodepools.karpenter.sh") {
        objects.delete::<NodePool>("", &name, &options).expect("made by a step");
    }
    for name in named("ovhnodeclasses.karpenter.ovhcloud.sh") {
        objects
            .delete::<OvhNodeClass>("", &name, &options)
            .expect("made by a step");
    }
    let is_gone = || {
        let (classes, pools): (Vec<OvhNodeClass>, Vec<NodePool>) = (objects.list(""), objects.list(""));
        classes.is_empty() && pools.is_empty() && whole.claims().is_empty() && whole.nodes().is_empty()
    };
    assert!(whole.cluster.until(is_gone).await, "finalizers are released");
    whole.cluster.pass(MINUTE).await;
    assert!(whole.cluster.sim(|sim| sim.pools.is_empty() && sim.nodes.is_empty()));
    assert!(whole.pods().is_empty());
}
