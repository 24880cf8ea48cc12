//! Machines that the cloud made by itself become nodes of a NodePool.

use karpenter_cloud::fake::Machine;
use karpenter_cloud::instance::{Adoption, Instance};
use kube::ResourceExt;

use crate::cluster::Cluster;

fn spare() -> Instance {
    Instance {
        provider_id: "fake:///spare".into(),
        labels: [
            ("node.kubernetes.io/instance-type".into(), "fake-2x".into()),
            ("topology.kubernetes.io/zone".into(), "test-zone-1".into()),
            ("karpenter.sh/capacity-type".into(), "on-demand".into()),
        ]
        .into(),
        ..Instance::default()
    }
}

#[tokio::test]
async fn a_machine_that_the_cloud_offers_is_taken_over_once() {
    let cluster = Cluster::start().await;
    cluster.cloud.add_machine(Machine {
        name: "spare".into(),
        instance: spare(),
        boot_id: "1".into(),
        reboots: Default::default(),
        gone_at: None,
    });
    cluster.cloud.offer_for_adoption(Adoption {
        node_pool: "default".into(),
        instance: spare(),
    });
    cluster.minutes(3).await;
    let claims: Vec<karpenter_api::NodeClaim> = cluster.objects().list("");
    let [claim] = claims
        .try_into()
        .expect("one claim, although it was offered several times");
    assert_eq!(claim.provider_id(), Some("fake:///spare"));
    assert_eq!(claim.annotations()["karpenter.sh/adopt-provider-id"], "fake:///spare");
    assert_eq!(claim.labels()["karpenter.sh/nodepool"], "default");
    assert_eq!(cluster.cloud.machines().len(), 1, "nothing was bought");
    let types = claim
        .spec
        .requirements
        .iter()
        .find(|r| r.key == "node.kubernetes.io/instance-type");
    assert_eq!(types.expect("narrowed to what it is").values, ["fake-2x"]);
}

#[tokio::test]
async fn a_machine_for_a_pool_that_is_not_there_is_left_alone() {
    let cluster = Cluster::start().await;
    cluster.cloud.offer_for_adoption(Adoption {
        node_pool: "gone".into(),
        instance: spare(),
    });
    cluster.minutes(2).await;
    assert!(cluster.objects().list::<karpenter_api::NodeClaim>("").is_empty());
}
