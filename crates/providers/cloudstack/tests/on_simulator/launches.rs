//! What is launched, and what becomes of launches that fail.

use std::time::Duration;

use k8s_openapi::api::core::v1::Event;
use karpenter_api::labels::INSTANCE_TYPE;
use karpenter_cloud::{CloudError, CloudProvider, LaunchEffect, conformance::Environment};
use karpenter_cloudstack::{
    settings::Switch,
    sim::{Fault, FaultKind, MachineState, Seed, seed},
    tasks::sweep::Memory,
};
use serde_json::json;

use crate::environment::{Cloud, STEP, claim, class, foreign, pool};

fn deploys(cloud: &Cloud) -> Vec<karpenter_cloudstack::sim::Call> {
    cloud
        .simulator
        .calls()
        .into_iter()
        .filter(|call| call.command == "deployVirtualMachine")
        .collect()
}

fn has_event(cloud: &Cloud, reason: &str) -> bool {
    let events = cloud.sandbox.objects().list::<Event>("");
    events.into_iter().any(|event| event.reason.as_deref() == Some(reason))
}

async fn availability(cloud: &Cloud, name: &str) -> Vec<bool> {
    let types = cloud.provider.instance_types(&pool()).await.expect("types");
    let own = types.iter().find(|own| own.name == name).expect("the type");
    own.offerings.iter().map(|offering| offering.available).collect()
}

#[tokio::test]
async fn the_cheapest_type_that_holds_the_requests_is_launched() {
    let cloud = Cloud::start().await;
    let instance = cloud
        .provider
        .create(&claim(1, "6", json!([])))
        .await
        .expect("launched");
    assert_eq!(instance.labels[INSTANCE_TYPE], "xlarge");
    assert_eq!(cloud.live()[0].cpu, 8);
}

#[tokio::test]
async fn a_launch_without_capacity_goes_on_with_the_next_type_under_another_name() {
    let cloud = Cloud::start().await;
    let text = "No destination found for a deployment for VM instance".to_owned();
    cloud
        .simulator
        .inject(Fault::new("deployVirtualMachine", FaultKind::FailJob(533, text)).times(1));
    let zone = json!([{"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["zone-1"]}]);
    let instance = cloud.provider.create(&claim(1, "500m", zone)).await.expect("launched");
    assert_eq!(instance.labels[INSTANCE_TYPE], "medium");
    let machines = cloud.simulator.machines_ever();
    let names: Vec<&str> = machines.iter().map(|own| own.name.as_str()).collect();
    assert_eq!(names, ["karpenter-default-00001", "karpenter-default-00001-2"]);
    cloud.pass(Duration::from_secs(10)).await;
    let states: Vec<MachineState> = cloud.simulator.machines_ever().iter().map(|own| own.state).collect();
    let wanted = [MachineState::Expunging, MachineState::Running];
    assert_eq!(states, wanted, "the failed record is destroyed");
    assert!(
        availability(&cloud, "small").await.contains(&false),
        "what was refused is not offered"
    );
    cloud.pass(Duration::from_secs(181)).await;
    assert!(
        !availability(&cloud, "small").await.contains(&false),
        "it is offered again after three minutes"
    );
}

#[tokio::test]
async fn a_start_that_every_host_refuses_counts_as_missing_capacity() {
    let cloud = Cloud::start().await;
    cloud
        .simulator
        .operate(|operator| operator.settings().starts_fail = true);
    let wanted = json!([{"key": INSTANCE_TYPE, "operator": "In", "values": ["small"]}]);
    let error = cloud
        .provider
        .create(&claim(1, "500m", wanted))
        .await
        .expect_err("no host takes it");
    assert_eq!(error.launch_effect(), LaunchEffect::DeleteForCapacity, "{error}");
    assert!(
        !availability(&cloud, "small").await.contains(&true),
        "it rests in both zones"
    );
    assert!(availability(&cloud, "large").await.contains(&true));
}

#[tokio::test]
async fn what_affinity_groups_leave_no_room_for_is_still_offered_to_classes_without_them() {
    let cloud = Cloud::with(Seed::default(), json!({"affinityGroups": {"managed": {}}})).await;
    let text = "No destination found for a deployment, Please check the affinity groups provided".to_owned();
    cloud
        .simulator
        .inject(Fault::new("deployVirtualMachine", FaultKind::FailJob(533, text)));
    let wanted = json!([{"key": INSTANCE_TYPE, "operator": "In", "values": ["small"]}]);
    let launched = cloud.provider.create(&claim(1, "500m", wanted)).await;
    launched.expect_err("no host is apart enough");
    assert!(!availability(&cloud, "small").await.contains(&true));
    cloud.simulator.heal();
    cloud.apply_class(json!({})).await;
    assert!(!availability(&cloud, "small").await.contains(&false));
}

#[tokio::test]
async fn a_cpu_quota_hides_what_needs_as_much_and_leaves_the_smaller() {
    let cloud = Cloud::without_class(Seed::default(), STEP, |settings| settings.quota_preflight = Switch::Off).await;
    cloud.apply_class(json!({})).await;
    cloud
        .simulator
        .operate(|operator| operator.limit(seed::ACCOUNT, "cpu", 4));
    let large = json!([{"key": INSTANCE_TYPE, "operator": "In", "values": ["xlarge"]}]);
    let error = cloud
        .provider
        .create(&claim(1, "1", large))
        .await
        .expect_err("above the quota");
    assert_eq!(error.launch_effect(), LaunchEffect::DeleteForCapacity);
    assert!(
        error
            .to_string()
            .contains("the quota of cpu is reached; raise the limit"),
        "{error}"
    );
    assert!(!availability(&cloud, "2xlarge").await.contains(&true));
    assert!(availability(&cloud, "large").await.contains(&true));
    cloud
        .provider
        .create(&claim(2, "1", json!([])))
        .await
        .expect("a smaller one fits");
}

#[tokio::test]
async fn the_quota_is_known_before_it_is_run_into() {
    let cloud = Cloud::start().await;
    cloud
        .simulator
        .operate(|operator| operator.limit(seed::ACCOUNT, "cpu", 4));
    cloud.provider.flush();
    assert!(!availability(&cloud, "xlarge").await.contains(&true));
    assert!(availability(&cloud, "large").await.contains(&true));
}

#[tokio::test]
async fn a_used_up_number_of_machines_ends_the_launch_and_is_told() {
    let cloud = Cloud::without_class(Seed::default(), STEP, |settings| settings.quota_preflight = Switch::Off).await;
    cloud.apply_class(json!({})).await;
    cloud
        .simulator
        .operate(|operator| operator.limit(seed::ACCOUNT, "user_vm", 0));
    let error = cloud
        .provider
        .create(&claim(1, "1", json!([])))
        .await
        .expect_err("above the quota");
    assert_eq!(error.launch_effect(), LaunchEffect::DeleteForCapacity);
    assert_eq!(deploys(&cloud).len(), 1, "nothing else would help");
    assert!(has_event(&cloud, "QuotaExceeded"));
}

#[tokio::test]
async fn a_name_that_something_else_holds_is_passed_over() {
    let cloud = Cloud::start().await;
    let mut other = foreign(&cloud.simulator, "22222222-2222-4333-8444-555555555555");
    other.name = "karpenter-default-00001".to_owned();
    let launched = cloud
        .provider
        .create(&claim(2, "1", json!([])))
        .await
        .expect("launched");
    let id = launched.provider_id.rsplit('/').next().expect("an id").to_owned();
    other.nics = cloud
        .simulator
        .machines()
        .into_iter()
        .find(|own| own.id == id)
        .expect("it exists")
        .nics;
    let zone = json!([{"key": "karpenter.k8s.cloudstack/zone-id", "operator": "In", "values": [launched.labels["karpenter.k8s.cloudstack/zone-id"]]}]);
    cloud.simulator.operate(|operator| operator.add_machine(other));
    cloud.provider.create(&claim(1, "1", zone)).await.expect("launched");
    let names: Vec<String> = cloud.live().into_iter().map(|own| own.name).collect();
    assert!(names.contains(&"karpenter-default-00001-2".to_owned()), "{names:?}");
    assert!(
        names.contains(&"karpenter-default-00001".to_owned()),
        "the foreign one is left alone"
    );
}

#[tokio::test]
async fn a_destroyed_machine_keeps_its_name_and_the_next_attempt_takes_another() {
    let cloud = Cloud::start().await;
    let claim = claim(1, "1", json!([]));
    let first = cloud.provider.create(&claim).await.expect("launched");
    let id = first.provider_id.rsplit('/').next().expect("an id").to_owned();
    cloud.simulator.operate(|operator| {
        let machine = operator.machine(&id).expect("it exists");
        machine.state = MachineState::Destroyed;
    });
    cloud.provider.create(&claim).await.expect("launched again");
    assert_eq!(cloud.live()[0].name, "karpenter-default-00001-2");
}

#[tokio::test]
async fn a_slow_start_is_a_launch_and_its_late_failure_ends_the_claim() {
    let mut seed = Seed::default();
    seed.settings.latency.start = Duration::from_secs(900);
    let cloud = Cloud::with(seed, json!({})).await;
    let text = "No destination found for a deployment".to_owned();
    cloud
        .simulator
        .inject(Fault::new("deployVirtualMachine", FaultKind::FailJob(533, text)).times(1));
    let claim = cloud.launch(&claim(1, "1", json!([]))).await;
    let name = claim.metadata.name.clone().expect("a name");
    assert!(claim.provider_id().is_some(), "launched before its job ended");
    let mut memory = Memory::default();
    cloud.provider.sweep(&mut memory).await.expect("a sweep");
    assert!(cloud.claim_exists(&name), "it is still starting");
    cloud.pass(Duration::from_secs(900)).await;
    cloud.provider.sweep(&mut memory).await.expect("a sweep");
    assert!(!cloud.claim_exists(&name), "one look later the claim is gone");
    assert!(has_event(&cloud, "LaunchFailed"));
}

#[tokio::test]
async fn the_first_copy_of_a_template_may_take_longer_than_a_launch_waits() {
    let mut seed = Seed::default();
    seed.settings.latency.first_copy = Duration::from_secs(600);
    let cloud = Cloud::with(seed, json!({})).await;
    let zone = json!([{"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["zone-1"]}]);
    let first = cloud.launch(&claim(1, "1", zone.clone())).await;
    assert!(first.provider_id().is_some(), "launched, not running");
    assert_eq!(cloud.live()[0].state, MachineState::Starting);
    cloud.pass(Duration::from_secs(700)).await;
    assert_eq!(cloud.live()[0].state, MachineState::Running);
    cloud.launch(&claim(2, "1", zone)).await;
    assert!(
        cloud.live().iter().all(|own| own.state == MachineState::Running),
        "it is there now"
    );
}

#[tokio::test]
async fn a_record_that_a_refused_deploy_leaves_is_destroyed() {
    let cloud = Cloud::with(Seed::default(), json!({"extraConfig": "%3Cx%2F%3E"})).await;
    let error = cloud
        .provider
        .create(&claim(1, "1", json!([])))
        .await
        .expect_err("refused");
    let LaunchEffect::Retry { reason, message, .. } = error.launch_effect() else {
        panic!("{error}")
    };
    assert_eq!(reason, "InvalidLaunchConfiguration");
    assert!(message.contains("extraconfig"), "{message}");
    cloud.pass(Duration::from_secs(10)).await;
    assert!(cloud.live().is_empty(), "no record stays behind");
}

#[tokio::test]
async fn an_exhausted_network_is_found_out_and_avoided() {
    let cloud = Cloud::start().await;
    cloud
        .provider
        .instance_types(&pool())
        .await
        .expect("the caches are warm");
    let networks: Vec<String> = cloud.simulator.operate(|operator| {
        let ids: Vec<String> = operator
            .catalogue()
            .networks
            .iter()
            .map(|own| own["id"].as_str().unwrap_or_default().to_owned())
            .collect();
        for id in &ids {
            operator.catalogue().free_addresses.insert(id.clone(), 0);
        }
        ids
    });
    assert_eq!(networks.len(), 2);
    let error = cloud
        .provider
        .create(&claim(1, "1", json!([])))
        .await
        .expect_err("no address");
    assert_eq!(error.launch_effect(), LaunchEffect::DeleteForCapacity);
    assert!(error.to_string().contains("has no free address; enlarge it"), "{error}");
    cloud.pass(Duration::from_secs(10)).await;
    let records = cloud.simulator.machines_ever();
    assert!(!records.is_empty(), "the server stored a record all the same");
    assert!(
        records.iter().all(|own| own.state == MachineState::Expunging),
        "and none of them stays: {records:?}"
    );
}

#[tokio::test]
async fn a_restart_of_the_server_relaunches_and_leaves_nothing() {
    let mut seed = Seed::default();
    seed.settings.latency.start = Duration::from_secs(60);
    let cloud = Cloud::with(seed, json!({})).await;
    let provider = cloud.provider.clone();
    let launch = tokio::spawn(async move { provider.create(&claim(1, "1", json!([]))).await });
    while cloud.live().is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    cloud.simulator.operate(|operator| operator.restart_management_server());
    let instance = launch.await.expect("no panic").expect("launched");
    cloud.pass(Duration::from_secs(20)).await;
    let live = cloud.live();
    assert_eq!(live.len(), 1);
    assert!(instance.provider_id.ends_with(&live[0].id));
}

#[tokio::test]
async fn a_machine_of_a_project_is_seen_and_goes() {
    let mut seed = Seed::default();
    for network in &mut seed.catalogue.networks {
        network["acltype"] = json!("Domain");
    }
    let cloud = Cloud::with(seed, json!({"project": "team-a"})).await;
    let mut claim = claim(1, "1", json!([]));
    let instance = cloud.provider.create(&claim).await.expect("launched");
    assert!(cloud.live()[0].project.is_some());
    instance.apply_to(&mut claim);
    assert!(cloud.provider.get(&instance.provider_id).await.is_ok(), "seen by id");
    assert_eq!(cloud.provider.list().await.expect("a list").len(), 1);
    for _ in 0..20 {
        if cloud
            .provider
            .delete(&claim)
            .await
            .is_ok_and(|own| own == karpenter_cloud::Deletion::Gone)
        {
            break;
        }
        cloud.pass(Duration::from_secs(5)).await;
    }
    assert!(cloud.live().is_empty());
}

#[tokio::test]
async fn a_key_that_acts_for_another_account_makes_sees_and_ends_the_machines_of_that_account() {
    let cloud = Cloud::start().await;
    let mut settings = cloud.settings.clone();
    settings.scope.account = Some(seed::ACCOUNT.to_owned());
    settings.scope.domain_id = Some("0f90d578-863f-4b7b-bcf2-0aae7fb43a37".to_owned());
    let provider = cloud.provider_with(cloud.simulator.keys("admin"), Default::default(), settings);
    let mut claim = claim(1, "1", json!([]));
    let instance = provider.create(&claim).await.expect("launched");
    assert_eq!(cloud.live()[0].account, seed::ACCOUNT);
    assert_eq!(provider.list().await.expect("a list").len(), 1);
    provider.get(&instance.provider_id).await.expect("seen by id");
    instance.apply_to(&mut claim);
    for _ in 0..20 {
        let deleted = provider.delete(&claim).await;
        if deleted.is_ok_and(|own| own == karpenter_cloud::Deletion::Gone) {
            break;
        }
        cloud.pass(Duration::from_secs(5)).await;
    }
    assert!(cloud.live().is_empty());
    let of_fleet = ["deployVirtualMachine", "listVirtualMachines"];
    for call in cloud.simulator.calls() {
        if call.account == "admin" && of_fleet.contains(&call.command.as_str()) {
            assert_eq!(
                call.params.get("account").map(String::as_str),
                Some(seed::ACCOUNT),
                "{call:?}"
            );
        }
    }
}

#[tokio::test]
async fn a_class_that_changed_since_it_was_looked_at_launches_nothing() {
    let cloud = Cloud::start().await;
    cloud
        .sandbox
        .apply(&class(json!({"rootDiskSize": 50})).to_string())
        .expect("accepted");
    let error = cloud
        .provider
        .create(&claim(1, "1", json!([])))
        .await
        .expect_err("stale");
    assert!(matches!(error, CloudError::NodeClassNotReady { .. }), "{error}");
}

#[tokio::test]
async fn machines_of_a_managed_group_are_spread_over_groups_of_limited_size() {
    let managed = json!({"managed": {"type": "host anti-affinity", "maxSize": 2}});
    let cloud = Cloud::with(Seed::default(), json!({"affinityGroups": managed})).await;
    for number in 1..=3 {
        cloud
            .provider
            .create(&claim(number, "1", json!([])))
            .await
            .expect("launched");
    }
    let mut groups = cloud.simulator.affinity_groups();
    groups.sort();
    assert_eq!(groups, ["karpenter-blue-default", "karpenter-blue-default-2"]);
}

#[tokio::test]
async fn an_offering_that_fails_three_times_without_a_reason_is_avoided() {
    let cloud = Cloud::start().await;
    let text = "something went wrong in a way that nobody foresaw".to_owned();
    cloud
        .simulator
        .inject(Fault::new("deployVirtualMachine", FaultKind::FailJob(530, text)).times(3));
    let wanted = json!([
        {"key": INSTANCE_TYPE, "operator": "In", "values": ["small"]},
        {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["zone-1"]},
    ]);
    for number in 1..=3 {
        let error = cloud
            .provider
            .create(&claim(number, "500m", wanted.clone()))
            .await
            .expect_err("it fails");
        let is_last = number == 3;
        assert_eq!(
            error.launch_effect() == LaunchEffect::DeleteForCapacity,
            is_last,
            "{number}: {error}"
        );
        assert_eq!(
            availability(&cloud, "small").await.contains(&false),
            is_last,
            "{number}"
        );
    }
}

#[tokio::test]
async fn a_template_that_did_not_reach_the_zone_leaves_nothing_behind() {
    let mut seed = Seed::of_zones(&["zone-1"]);
    for template in &mut seed.catalogue.templates {
        template["crossZones"] = json!(true);
    }
    let zone = json!({"zones": ["zone-1"], "networkSelectorTerms": [{"name": "nodes-zone-1"}]});
    let cloud = Cloud::with(seed, zone).await;
    cloud
        .provider
        .instance_types(&pool())
        .await
        .expect("the caches are warm");
    cloud.simulator.operate(|operator| {
        for template in &mut operator.catalogue().templates {
            template["zoneid"] = json!("another zone");
        }
    });
    let error = cloud
        .provider
        .create(&claim(1, "1", json!([])))
        .await
        .expect_err("the template is missing");
    assert!(!matches!(error, CloudError::NodeClassNotReady { .. }), "{error}");
    cloud.pass(Duration::from_secs(10)).await;
    assert_eq!(
        cloud.simulator.machines_ever().len(),
        1,
        "the record that the answer named"
    );
    let left = cloud.simulator.machines_ever();
    assert_eq!(left[0].state, MachineState::Expunging);
}

#[tokio::test]
async fn keys_that_are_rotated_during_a_launch_do_not_disturb_it() {
    let mut seed = Seed::default();
    seed.settings.latency.start = Duration::from_secs(60);
    let cloud = Cloud::with(seed, json!({})).await;
    let provider = cloud.provider.clone();
    let launch = tokio::spawn(async move { provider.create(&claim(1, "1", json!([]))).await });
    while cloud.live().is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    cloud
        .simulator
        .operate(|operator| operator.set_secret(seed::ACCOUNT, "a-new-secret-of-the-same-account"));
    let new = cloud.simulator.keys(seed::ACCOUNT);
    karpenter_cloudstack::credentials::rotate(cloud.provider.client(), new, Switch::Off)
        .await
        .expect("the same account");
    launch.await.expect("no panic").expect("its result was still obtained");
    assert_eq!(cloud.live().len(), 1);
}

#[tokio::test]
async fn a_start_that_was_told_to_go_meanwhile_is_not_a_launch() {
    let mut seed = Seed::default();
    seed.settings.latency.start = Duration::from_secs(60);
    let cloud = Cloud::with(seed, json!({})).await;
    let provider = cloud.provider.clone();
    let launch = tokio::spawn(async move { provider.create(&claim(1, "1", json!([]))).await });
    while cloud.live().is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let first = cloud.live()[0].id.clone();
    cloud
        .provider
        .abandon(&claim(1, "1", json!([])))
        .await
        .expect("accepted");
    if let Ok(instance) = launch.await.expect("no panic") {
        assert!(
            !instance.provider_id.ends_with(&first),
            "its job ended well, but it goes"
        );
    }
    cloud.pass(Duration::from_secs(70)).await;
    assert!(cloud.live().iter().all(|own| own.id != first));
}

#[tokio::test]
async fn a_job_that_the_server_forgot_is_judged_by_its_machine() {
    let cloud = Cloud::start().await;
    cloud
        .simulator
        .inject(Fault::new("deployVirtualMachine", FaultKind::ForgetJob).times(1));
    let instance = cloud
        .provider
        .create(&claim(1, "1", json!([])))
        .await
        .expect("launched");
    cloud.pass(Duration::from_secs(20)).await;
    let live = cloud.live();
    assert_eq!(live.len(), 1, "{live:?}");
    assert!(instance.provider_id.ends_with(&live[0].id));
}

#[tokio::test]
async fn a_cancelled_job_is_a_failed_one() {
    let cloud = Cloud::start().await;
    cloud
        .simulator
        .inject(Fault::new("deployVirtualMachine", FaultKind::CancelJob).times(1));
    let error = cloud.provider.create(&claim(1, "1", json!([]))).await;
    let error = error.expect_err("it was cancelled").to_string();
    assert!(error.contains("Job cancelled explicitly"), "{error}");
    cloud.pass(Duration::from_secs(10)).await;
    assert!(cloud.live().is_empty());
    cloud
        .provider
        .create(&claim(1, "1", json!([])))
        .await
        .expect("the next try");
    assert_eq!(cloud.live()[0].name, "karpenter-default-00001-2");
}

#[tokio::test]
async fn a_machine_that_hangs_in_its_start_is_destroyed_with_its_claim() {
    let cloud = Cloud::start().await;
    cloud
        .simulator
        .inject(Fault::new("deployVirtualMachine", FaultKind::StickJob).times(1));
    let claim = cloud.launch(&claim(1, "1", json!([]))).await;
    assert!(claim.provider_id().is_some(), "the launch ends at its deadline");
    assert_eq!(cloud.live()[0].state, MachineState::Starting);
    cloud.simulator.operate(|operator| operator.restart_management_server());
    for _ in 0..20 {
        let deleted = cloud.provider.delete(&claim).await;
        if deleted.is_ok_and(|own| own == karpenter_cloud::Deletion::Gone) {
            break;
        }
        cloud.pass(Duration::from_secs(5)).await;
    }
    assert!(cloud.live().is_empty());
}

#[tokio::test]
async fn a_pool_whose_class_is_missing_has_no_types_and_is_told() {
    let cloud = Cloud::without_class(Seed::default(), STEP, |_| {}).await;
    let types = cloud.provider.instance_types(&pool()).await.expect("no error");
    assert!(types.is_empty());
    assert!(has_event(&cloud, "NodeClassNotFound"));
    let error = cloud
        .provider
        .create(&claim(1, "1", json!([])))
        .await
        .expect_err("no class");
    assert_eq!(error.launch_effect(), LaunchEffect::DeleteForCapacity);
}
