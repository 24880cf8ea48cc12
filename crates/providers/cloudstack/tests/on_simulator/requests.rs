//! What a deploy asks for, by what the class, its offerings and the server are like.

use std::time::Duration;

use karpenter_api::labels::INSTANCE_TYPE;
use karpenter_cloud::{CloudProvider, LaunchEffect, conformance::Environment};
use karpenter_cloudstack::{
    client::{Priority, Request},
    sim::{Call, MachineState, Seed, seed},
};
use serde_json::json;

use crate::environment::{Cloud, claim, pool};

fn deploys(cloud: &Cloud) -> Vec<Call> {
    let calls = cloud.simulator.calls().into_iter();
    calls.filter(|call| call.command == "deployVirtualMachine").collect()
}

#[tokio::test]
async fn long_user_data_travels_compressed() {
    let script = "echo some words that repeat\n".repeat(2000);
    let cloud = Cloud::with(Seed::default(), json!({"userData": script})).await;
    cloud
        .provider
        .create(&claim(1, "1", json!([])))
        .await
        .expect("launched");
    let sent = &deploys(&cloud)[0].params["userdata"];
    assert!(
        sent.starts_with("H4sI") && sent.len() < 32768,
        "{} characters",
        sent.len()
    );
}

#[tokio::test]
async fn user_data_beyond_every_limit_is_refused_before_anything_is_launched() {
    let noise: String = (0..900_000u32)
        .map(|own| char::from(b'!' + (own.wrapping_mul(2_654_435_761) >> 25) as u8 % 90))
        .collect();
    let cloud = Cloud::with(
        Seed::default(),
        json!({"userData": noise, "userDataCompression": "None"}),
    )
    .await;
    let class = cloud.class();
    let condition = class
        .status
        .expect("a status")
        .conditions
        .into_iter()
        .find(|own| own.type_ == "BootstrapReady")
        .expect("there");
    assert_eq!(condition.reason, "UserDataTooLong");
    let error = cloud
        .provider
        .create(&claim(1, "1", json!([])))
        .await
        .expect_err("not ready");
    assert_eq!(error.launch_effect(), LaunchEffect::DeleteForNodeClass);
    assert!(deploys(&cloud).is_empty());
}

#[tokio::test]
async fn a_basic_zone_is_not_told_its_network() {
    let mut seed = Seed::default();
    for zone in &mut seed.catalogue.zones {
        zone["networktype"] = json!("Basic");
    }
    let cloud = Cloud::with(seed, json!({})).await;
    cloud
        .provider
        .create(&claim(1, "1", json!([])))
        .await
        .expect("launched");
    assert!(!deploys(&cloud)[0].params.contains_key("networkids"));
}

#[tokio::test]
async fn a_lease_is_declined() {
    let mut seed = Seed::default();
    seed.settings.leases = true;
    let cloud = Cloud::with(seed, json!({})).await;
    cloud
        .provider
        .create(&claim(1, "1", json!([])))
        .await
        .expect("launched");
    assert_eq!(deploys(&cloud)[0].params["leaseduration"], "-1");
}

#[tokio::test]
async fn an_offering_with_a_lease_does_not_stop_machines_of_ours_but_those_of_others() {
    let mut seed = Seed::default();
    seed.settings.leases = true;
    for offering in &mut seed.catalogue.offerings {
        offering["leaseduration"] = json!(30);
    }
    let cloud = Cloud::with(seed, json!({})).await;
    cloud.launch(&claim(1, "1", json!([]))).await;
    let ours = cloud.live()[0].clone();
    let by_hand = Request::new("deployVirtualMachine")
        .with("zoneid", ours.zone.clone())
        .with("serviceofferingid", ours.offering.clone())
        .with("templateid", ours.template.clone())
        .with("networkids", ours.nics[0].network.clone())
        .with("name", "by-hand");
    let client = cloud.provider.client();
    client.call(&by_hand, Priority::Launch).await.expect("accepted");
    cloud.pass(Duration::from_secs(60)).await;
    let states = || -> Vec<(String, MachineState)> {
        let all = cloud.simulator.machines().into_iter();
        all.map(|own| (own.name, own.state)).collect()
    };
    let named = |state: MachineState| {
        [
            ("karpenter-default-00001".to_owned(), MachineState::Running),
            ("by-hand".to_owned(), state),
        ]
    };
    assert_eq!(states(), named(MachineState::Running));
    cloud.clock.advance(Duration::from_secs(31 * 86400));
    assert_eq!(states(), named(MachineState::Stopped));
}

#[tokio::test]
async fn a_custom_offering_is_told_only_what_it_leaves_open() {
    let mut seed = Seed::default();
    let mut custom = seed::custom_offering("flexible");
    custom["cpuspeed"] = json!(1500);
    custom["serviceofferingdetails"] =
        json!({"mincpunumber": "1", "maxcpunumber": "8", "minmemory": "512", "maxmemory": "16384"});
    seed.catalogue.offerings = vec![custom];
    let shapes = json!([{"cpu": [2, 4, 16], "memoryMiB": [4096, 6144]}]);
    let cloud = Cloud::with(seed, json!({"customOfferings": shapes})).await;
    let types = cloud.provider.instance_types(&pool()).await.expect("types");
    let names: Vec<&str> = types.iter().map(|own| own.name.as_str()).collect();
    assert_eq!(
        names,
        ["flexible-2c-4g", "flexible-2c-6g", "flexible-4c-4g", "flexible-4c-6g"]
    );
    let claim = claim(1, "3", json!([]));
    let instance = cloud.provider.create(&claim).await.expect("launched");
    assert_eq!(instance.labels[INSTANCE_TYPE], "flexible-4c-4g");
    let sent = &deploys(&cloud)[0].params;
    assert_eq!(
        (
            sent["details[0].cpuNumber"].as_str(),
            sent["details[0].memory"].as_str()
        ),
        ("4", "4096")
    );
    assert!(!sent.contains_key("details[0].cpuSpeed"));
    let read = cloud
        .new_provider()
        .await
        .get(&instance.provider_id)
        .await
        .expect("it exists");
    assert_eq!(read.labels[INSTANCE_TYPE], "flexible-4c-4g");
}

#[tokio::test]
async fn the_speed_is_told_where_an_offering_leaves_it_open() {
    let mut seed = Seed::default();
    seed.catalogue.offerings = vec![seed::custom_offering("flexible")];
    let shapes = json!([{"cpu": [2], "ratios": [2048], "cpuSpeed": 1800}]);
    let cloud = Cloud::with(seed, json!({"customOfferings": shapes})).await;
    cloud
        .provider
        .create(&claim(1, "1", json!([])))
        .await
        .expect("launched");
    let sent = &deploys(&cloud)[0].params;
    let get = |name: &str| sent.get(&format!("details[0].{name}")).map(String::as_str);
    assert_eq!(
        (get("cpuNumber"), get("memory"), get("cpuSpeed")),
        (Some("2"), Some("4096"), Some("1800"))
    );
}

#[tokio::test]
async fn gpus_are_counted_and_do_not_keep_other_pods_away() {
    let mut seed = Seed::default();
    let mut gpu = seed::offering("gpu-large", 4, 8192);
    gpu["gpucount"] = json!(2);
    gpu["gpucardname"] = json!("NVIDIA A10");
    seed.catalogue.offerings = vec![gpu, seed::offering("large", 4, 8192)];
    let cloud = Cloud::with(seed, json!({})).await;
    let plain = cloud
        .provider
        .create(&claim(1, "1", json!([])))
        .await
        .expect("launched");
    assert_eq!(plain.labels[INSTANCE_TYPE], "large", "the cheaper one");
    let wanted = json!([{"key": INSTANCE_TYPE, "operator": "In", "values": ["gpu-large"]}]);
    let instance = cloud.provider.create(&claim(2, "1", wanted)).await.expect("launched");
    assert_eq!(instance.capacity.amount("nvidia.com/gpu").value(), 2);
    assert_eq!(
        instance.labels["karpenter.k8s.cloudstack/instance-gpu-name"],
        "NVIDIA-A10"
    );
}

#[tokio::test]
async fn a_newer_template_of_another_architecture_is_not_chosen_for_a_pod_that_cannot_run_on_it() {
    let mut seed = Seed::default();
    let newer = seed.catalogue.zones.iter().map(|zone| {
        let mut arm = seed::template("ubuntu-24.04-kube", zone, "2025-12-31T08:00:00+0000");
        arm["arch"] = json!("aarch64");
        arm
    });
    let newer: Vec<_> = newer.collect();
    let ids: Vec<String> = newer
        .iter()
        .map(|own| own["id"].as_str().expect("an id").to_owned())
        .collect();
    seed.catalogue.templates.extend(newer);
    let cloud = Cloud::with(seed, json!({})).await;
    let arch = |value: &str| json!([{"key": "kubernetes.io/arch", "operator": "In", "values": [value]}]);
    let of_amd = cloud
        .provider
        .create(&claim(1, "1", arch("amd64")))
        .await
        .expect("launched");
    let of_arm = cloud
        .provider
        .create(&claim(2, "1", arch("arm64")))
        .await
        .expect("launched");
    let template =
        |labels: &std::collections::BTreeMap<String, String>| labels["karpenter.k8s.cloudstack/template-id"].clone();
    assert!(!ids.contains(&template(&of_amd.labels)));
    assert!(ids.contains(&template(&of_arm.labels)));
    assert_eq!(of_arm.labels["kubernetes.io/arch"], "arm64");
}

#[tokio::test]
async fn a_public_template_of_another_account_is_used_although_nobody_tells_its_status() {
    let mut seed = Seed::default();
    for template in &mut seed.catalogue.templates {
        template["account"] = json!("other");
        template["ispublic"] = json!(true);
        template.as_object_mut().expect("an object").remove("status");
    }
    let cloud = Cloud::with(seed, json!({})).await;
    cloud
        .provider
        .create(&claim(1, "1", json!([])))
        .await
        .expect("launched");
    assert_eq!(cloud.live().len(), 1);
}

#[tokio::test]
async fn offerings_whose_names_make_the_same_label_are_told_apart_by_their_ids() {
    let mut seed = Seed::default();
    let named = |name: &str, id: &str| {
        let mut offering = seed::offering(name, 2, 2048);
        offering["id"] = json!(id);
        offering
    };
    let (low, high) = (
        "11111111-0000-4000-8000-000000000000",
        "22222222-0000-4000-8000-000000000000",
    );
    // Whatever order the server lists them in.
    seed.catalogue.offerings = vec![named("Medium Instance", high), named("Medium-Instance", low)];
    let cloud = Cloud::with(seed, json!({})).await;
    let types = cloud.provider.instance_types(&pool()).await.expect("types");
    let names: Vec<(&str, bool)> = types
        .iter()
        .map(|own| {
            let id = own.requirements.get("karpenter.k8s.cloudstack/service-offering-id");
            (own.name.as_str(), id.is_some_and(|id| id.has(low)))
        })
        .collect();
    assert_eq!(names, [("Medium-Instance", true), ("Medium-Instance-22222222", false)]);
}

#[tokio::test]
async fn an_old_server_is_asked_for_its_one_data_disk_in_the_way_that_it_knows() {
    let mut seed = Seed::default();
    seed.settings.version = "4.19.1.0".to_owned();
    let cloud = Cloud::with(seed, json!({"dataDisks": [{"offering": "data-custom", "size": 7}]})).await;
    cloud
        .provider
        .create(&claim(1, "1", json!([])))
        .await
        .expect("launched");
    let sent = &deploys(&cloud)[0].params;
    assert_eq!(sent.get("size").map(String::as_str), Some("7"));
    assert!(sent.contains_key("diskofferingid") && !sent.keys().any(|name| name.starts_with("datadisksdetails")));
    let data = cloud
        .simulator
        .volumes()
        .into_iter()
        .filter(|(name, _)| name.starts_with("DATA"));
    assert_eq!(data.count(), 1);
}
