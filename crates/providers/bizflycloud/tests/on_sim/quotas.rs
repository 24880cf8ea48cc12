//! What an account may use: as its owner says, and as refusals teach.

use std::time::Duration;

use futures::future::join_all;
use karpenter_api::labels::INSTANCE_TYPE;
use karpenter_bizflycloud::sim::{Fault, Often};
use karpenter_cloud::{CloudProvider, LaunchEffect};
use serde_json::json;

use crate::environment::{claim, pool};
use crate::launching::{only, orders, steady};

#[tokio::test]
async fn a_quota_leaves_smaller_flavors_to_try() {
    let world = steady().await;
    world.cloud.inject(Fault::VcpuQuota(4), Often::Always);
    let error = world
        .provider
        .create(&claim(1, only("nix.16c_32g")))
        .await
        .expect_err("over quota");
    assert_eq!(error.launch_effect(), LaunchEffect::DeleteForCapacity);
    assert!(error.to_string().contains("Quota exceeded"), "{error}");
    let types = world.provider.instance_types(&pool(json!([]))).await.expect("types");
    for (name, available) in [("nix.24c_64g", false), ("nix.16c_32g", false), ("nix.4c_8g", true)] {
        let own = types.iter().find(|own| own.name == name).expect("listed");
        assert_eq!(
            own.offerings.iter().any(|offering| offering.available),
            available,
            "{name}"
        );
    }
    world
        .provider
        .create(&claim(2, only("nix.4c_8g")))
        .await
        .expect("a smaller one fits");
}

#[tokio::test]
async fn a_quota_that_the_user_sets_is_kept_to_with_everybodys_servers_and_orders_counted() {
    let world = steady().await;
    world.cloud.add_foreign_server("somebody-elses"); // 2 vCPUs
    world.apply(&world.config(json!({"region": "HN", "quota": {"vCPU": 14}})));
    world.clock.sleep(Duration::from_secs(3)).await;
    // Three at once: 2 + 4 + 4 + 4 are 14; a fourth of them has no room.
    let claims: Vec<_> = (1..=4).map(|number| claim(number, only("nix.4c_8g"))).collect();
    let made = join_all(claims.iter().map(|claim| world.provider.create(claim))).await;
    let refused: Vec<String> = made
        .iter()
        .filter_map(|made| made.as_ref().err())
        .map(ToString::to_string)
        .collect();
    assert_eq!(refused.len(), 1, "{refused:?}");
    let sentence = "nix.4c_8g needs 4 vCPUs, and 14 of the 14 of spec.quota are used";
    assert!(
        refused[0].contains("QuotaExceeded") && refused[0].contains(sentence),
        "{refused:?}"
    );
    assert_eq!(world.events("QuotaExceeded").len(), 1);
    assert_eq!(
        orders(&world)
            .iter()
            .map(|order| order.as_array().map_or(0, Vec::len))
            .sum::<usize>(),
        3,
        "nothing was ordered that has no room"
    );
}

#[tokio::test]
async fn a_quota_with_room_for_something_smaller_is_used_for_that() {
    let world = steady().await;
    world.apply(
        &world.config(json!({"region": "HN", "quota": {"vCPU": 4, "servers": 2, "ramGiB": 8, "volumesGiB": 40}})),
    );
    world.clock.sleep(Duration::from_secs(3)).await;
    let either = json!([{"key": INSTANCE_TYPE, "operator": "In", "values": ["nix.8c_16g", "nix.4c_8g"]}]);
    let mut big = claim(1, either);
    big.spec.resources.requests = Some(serde_json::from_value(json!({"cpu": "1"})).expect("requests"));
    let made = world.provider.create(&big).await.expect("the smaller one fits");
    assert_eq!(made.labels[INSTANCE_TYPE], "nix.4c_8g");
    let error = world
        .provider
        .create(&claim(2, only("nix.1c_1g")))
        .await
        .expect_err("full");
    assert_eq!(error.launch_effect(), LaunchEffect::DeleteForCapacity);
}

#[tokio::test]
async fn disks_that_are_ordered_count_against_the_quota_before_they_show() {
    let world = steady().await;
    world.cloud.inject(Fault::DisksShowLate, Often::Always);
    // A root disk is of 20 GB here: two have room, a third has not.
    world.apply(&world.config(json!({"region": "HN", "quota": {"volumesGiB": 59}})));
    world.clock.sleep(Duration::from_secs(3)).await;
    let claims: Vec<_> = (1..=3).map(|number| claim(number, only("nix.4c_8g"))).collect();
    let made = join_all(claims.iter().map(|claim| world.provider.create(claim))).await;
    let refused: Vec<String> = made
        .into_iter()
        .filter_map(|made| Some(made.err()?.to_string()))
        .collect();
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert!(refused[0].contains("GiB of disk"), "{refused:?}");
}

#[tokio::test]
async fn what_a_refusal_taught_of_the_quota_is_kept_to_until_there_is_room() {
    let world = steady().await;
    let mut first = world.stored(&claim(1, only("nix.4c_8g")));
    world
        .provider
        .create(&first)
        .await
        .expect("launched")
        .apply_to(&mut first);
    world.cloud.inject(Fault::VcpuQuota(8), Often::Always);
    let big = |number| claim(number, only("nix.8c_16g"));
    world.provider.create(&big(2)).await.expect_err("4 + 8 are too many");
    let ordered = orders(&world).len();
    // The refusal itself is forgotten after three minutes, what it taught is not.
    world.clock.sleep(Duration::from_secs(200)).await;
    let error = world.provider.create(&big(3)).await.expect_err("as many as before");
    assert_eq!(error.launch_effect(), LaunchEffect::DeleteForCapacity);
    let sentence = "nix.8c_16g would make 12 vCPUs and 24 GiB of memory in the project";
    assert!(error.to_string().contains(sentence), "{error}");
    assert_eq!(orders(&world).len(), ordered, "it was not even asked for");
    assert!(world.events("QuotaExceeded").iter().any(|told| told.contains(sentence)));
    world
        .provider
        .create(&claim(4, only("nix.2c_4g")))
        .await
        .expect("less has room");
    world.terminate(&world.provider, &first).await;
    world
        .provider
        .create(&claim(5, only("nix.4c_8g")))
        .await
        .expect("room was made");
}
