//! What `karpenter doctor` is told of an account.

use karpenter_bizflycloud::sim::PASSWORD;
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
