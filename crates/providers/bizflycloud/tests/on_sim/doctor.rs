//! What `karpenter doctor` is told of an account.

use karpenter_bizflycloud::{provider::orphans::OrphanEnd, sim::PASSWORD};
use karpenter_cloud::{CloudProvider, Diagnosis, diagnosis::Verdict};

use crate::environment::{World, secret};

async fn examined(world: &World) -> Vec<Diagnosis> {
    world.provider.diagnose().await
}

fn worst(found: &[Diagnosis]) -> Verdict {
    found
        .iter()
        .map(|own| own.verdict)
        .max()
        .expect("something was looked at")
}

fn of<'a>(found: &'a [Diagnosis], subject: &str) -> Vec<&'a Diagnosis> {
    found.iter().filter(|own| own.subject == subject).collect()
}

#[tokio::test]
async fn an_account_in_order_is_told_to_be_so_in_every_respect() {
    let world = World::start().await;
    let found = examined(&world).await;
    assert_eq!(worst(&found), Verdict::Ok, "{found:#?}");
    let credentials = of(&found, "credentials");
    assert!(
        credentials[0].message.contains("project project-1") && credentials[0].message.contains("minutes"),
        "{credentials:?}"
    );
    assert_eq!(of(&found, "catalogue").len(), 3);
    assert_eq!((of(&found, "region").len(), of(&found, "balance").len()), (1, 1));
}

#[tokio::test]
async fn wrong_credentials_fail_with_what_to_do_and_without_the_password() {
    let world = World::start().await;
    world.apply(&secret("wrong-password"));
    world.clock.sleep(std::time::Duration::from_secs(3)).await;
    let found = examined(&world).await;
    assert_eq!(worst(&found), Verdict::Fail);
    let credentials = of(&found, "credentials");
    assert!(
        credentials[0].message.contains("does not accept the credentials"),
        "{credentials:?}"
    );
    assert!(credentials[0].remedy.contains("Secret"), "{credentials:?}");
    let text = format!("{found:?}");
    assert!(!text.contains("wrong-password") && !text.contains(PASSWORD));
}

#[tokio::test]
async fn debts_hidden_services_and_leftover_disks_are_named() {
    let world = World::start().await;
    world.cloud.set_balance(-5);
    world.cloud.hide_service("kubernetes_engine");
    let foreign = world.cloud.add_foreign_server("old-node");
    world
        .client(|_| {})
        .delete_server(&foreign, &[])
        .await
        .expect("deleted");
    world.clock.sleep(std::time::Duration::from_secs(3601)).await;
    let found = examined(&world).await;
    let fails = |subject: &str| of(&found, subject).iter().any(|own| own.verdict == Verdict::Fail);
    assert!(fails("balance") && fails("catalogue"), "{found:#?}");
    let left = of(&found, "leftovers");
    assert!(left[0].message.contains("old-node_rootdisk"), "{left:?}");
}

#[tokio::test]
async fn root_disks_that_somebody_left_are_listed_and_go_only_when_that_is_asked_for() {
    let world = World::start().await;
    let mut same = world.config(serde_json::json!({"region": "HN"}));
    same["metadata"]["name"] = "same-project".into();
    world.apply(&same);
    let kept = world.cloud.add_foreign_server("kept");
    let left = world.cloud.add_foreign_server("left");
    let client = world.client(|_| {});
    client.delete_server(&left, &[]).await.expect("deleted");
    world.clock.sleep(std::time::Duration::from_secs(60)).await;
    assert_eq!(
        world.provider.orphan_volumes().await.expect("read"),
        [],
        "it may be a launch's"
    );
    world.clock.sleep(std::time::Duration::from_secs(600)).await;
    let found = world.provider.orphan_volumes().await.expect("read");
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(
        (found[0].account.as_str(), found[0].name.as_str(), found[0].size_gb),
        ("default", "left_rootdisk", 20)
    );
    assert_eq!(
        world.count("DELETE", &format!("/volumes/{}", found[0].id)),
        0,
        "listing deletes nothing"
    );
    let mut in_use = found[0].clone();
    let servers = world.cloud.servers();
    let own = servers.iter().find(|server| server.id == kept).expect("there");
    own.root_volume.clone_into(&mut in_use.id);
    let end = world.provider.delete_orphan_volume(&in_use).await.expect("asked");
    assert_eq!(end, OrphanEnd::InUse);
    let end = world.provider.delete_orphan_volume(&found[0]).await.expect("deleted");
    assert_eq!(end, OrphanEnd::Deleted);
    assert_eq!(world.provider.orphan_volumes().await.expect("read"), []);
    assert!(world.cloud.volume_exists(&in_use.id));
}
