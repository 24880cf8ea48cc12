//! Rules about launching: what was asked for, once, whatever goes wrong.

use std::{future::poll_fn, pin::pin, task::Poll, time::Duration};

use futures::future::join_all;
use karpenter_api::{
    Quantity, ResourceList, labels,
    requirement::{NodeSelectorRequirementWithMinValues, Operator, Requirements},
    resources::CPU,
};

use super::{Claims, Environment, Fault, Support, launch, new_machines, rules};
use crate::{error::LaunchEffect, instance::ClaimMark, selection};

/// The machine has the labels and resources of one of the offerings that the claim allows.
pub async fn a_launch_satisfies_its_claim(environment: &dyn Environment) {
    let provider = environment.provider();
    let claims = Claims::of(environment).await;
    let rules = rules(&*provider);
    let claim = claims.claim(1);
    let instance = provider.create(&claim).await.expect("launched");

    assert!(
        !instance.provider_id.is_empty(),
        "a launched instance has a provider ID"
    );
    assert_eq!(
        instance.claim,
        Some(ClaimMark::of(&claim)),
        "the machine is marked with its claim"
    );
    let name = &instance.labels[labels::INSTANCE_TYPE];
    let own = claims
        .types()
        .iter()
        .find(|own| own.name == *name)
        .expect("its type is one of the offered");
    let zone = instance.labels.get(labels::ZONE).expect("a zone label");
    let capacity_type = instance
        .labels
        .get(labels::CAPACITY_TYPE)
        .expect("a capacity type label");
    let price = selection::running_price(own, zone, capacity_type);
    assert!(price.is_some(), "{name} is not sold as {capacity_type} in {zone}");
    for key in [labels::ARCH, labels::OS] {
        assert!(instance.labels.contains_key(key), "label {key} is missing");
    }

    let asked = Requirements::from_wire(&rules, &claim.spec.requirements);
    let got = Requirements::from_labels(&rules, &instance.labels);
    assert_eq!(asked.intersects(&got), Ok(()), "labels contradict the claim");
    assert_eq!(
        own.requirements.intersects(&got),
        Ok(()),
        "labels contradict the instance type"
    );

    let requests = claim.spec.resources.requests.clone().unwrap_or_default();
    assert!(
        requests.fits(&instance.allocatable),
        "the requests do not fit what pods get"
    );
    assert!(
        instance.allocatable.fits(&instance.capacity),
        "pods get more than the machine has"
    );
    assert_eq!(
        environment.machines().await,
        [instance.provider_id],
        "exactly this machine exists"
    );
}

pub async fn repeated_launches_of_a_claim_are_one_machine(environment: &dyn Environment) {
    let provider = environment.provider();
    let claim = Claims::of(environment).await.claim(1);
    let first = provider.create(&claim).await.expect("launched");
    let second = provider.create(&claim).await.expect("launched already");
    assert_eq!(first.provider_id, second.provider_id);
    assert_eq!(first.labels, second.labels);
    assert_eq!(environment.machines().await.len(), 1);
}

pub async fn concurrent_launches_of_a_claim_are_one_machine(environment: &dyn Environment) {
    let provider = environment.provider();
    let claim = Claims::of(environment).await.claim(1);
    let all = join_all((0..8).map(|_| provider.create(&claim))).await;
    let ids: Vec<String> = all
        .into_iter()
        .filter_map(Result::ok)
        .map(|instance| instance.provider_id)
        .collect();
    assert!(!ids.is_empty(), "at least one of the concurrent launches succeeds");
    assert!(ids.iter().all(|id| *id == ids[0]), "all see the same machine");
    assert_eq!(environment.machines().await.len(), 1);
}

/// A NodeClaim that was deleted and made anew under its old name is another claim.
pub async fn claims_of_the_same_name_do_not_share_a_machine(environment: &dyn Environment) {
    let provider = environment.provider();
    let claim = Claims::of(environment).await.claim(1);
    let mut namesake = claim.clone();
    namesake.metadata.uid = Some("99999999-0000-4000-8000-000000000000".to_owned());
    let first = provider.create(&claim).await.expect("launched");
    let second = provider.create(&namesake).await.expect("launched");
    assert_ne!(first.provider_id, second.provider_id);
    assert_eq!(environment.machines().await.len(), 2);
}

pub async fn a_restarted_process_finds_the_machine(environment: &dyn Environment) {
    let claim = Claims::of(environment).await.claim(1);
    let first = environment.provider().create(&claim).await.expect("launched");
    let restarted = environment.restart().await;
    let second = restarted.create(&claim).await.expect("launched already");
    assert_eq!(first.provider_id, second.provider_id);
    assert_eq!(environment.machines().await.len(), 1);
}

pub async fn a_lost_answer_does_not_lose_or_double_the_machine(environment: &dyn Environment) {
    let claims = Claims::of(environment).await;
    for (number, restarts) in [(1, 0), (2, 1)] {
        let claim = claims.claim(number);
        let before = environment.machines().await;
        if environment.inject(Fault::LoseLaunchAnswer).await == Support::No {
            return;
        }
        let mut provider = environment.provider();
        // A provider may well notice by itself that the launch happened.
        let answered = provider.create(&claim).await.ok();
        environment.heal().await;
        for _ in 0..restarts {
            provider = environment.restart().await;
        }
        let instance = provider.create(&claim).await.expect("the machine is found");
        assert!(answered.is_none_or(|answered| answered.provider_id == instance.provider_id));
        assert_eq!(new_machines(environment, &before).await, [instance.provider_id]);
    }
}

/// Core drops a launch whenever it loses the lead or the claim; the next one continues it.
pub async fn a_launch_that_is_dropped_anywhere_is_continued(environment: &dyn Environment) {
    let claims = Claims::of(environment).await;
    for polls in 0..25 {
        let claim = claims.claim(100 + polls);
        let before = environment.machines().await;
        let provider = environment.provider();
        let finished = {
            let mut launch = pin!(provider.create(&claim));
            let mut finished = false;
            for _ in 0..polls {
                finished = poll_fn(|context| Poll::Ready(launch.as_mut().poll(context).is_ready())).await;
                if finished {
                    break;
                }
                tokio::task::yield_now().await;
            }
            finished
        };
        // What was on its way when the launch was dropped may still arrive.
        environment.pass(Duration::from_secs(1)).await;
        let restarted = environment.restart().await;
        let instance = restarted.create(&claim).await.expect("continued");
        environment.pass(Duration::from_secs(1)).await;
        assert_eq!(
            new_machines(environment, &before).await,
            [instance.provider_id],
            "dropped after {polls} polls"
        );
        if finished {
            return;
        }
    }
}

pub async fn a_failed_launch_leaves_nothing_and_can_be_repeated(environment: &dyn Environment) {
    let provider = environment.provider();
    let claim = Claims::of(environment).await.claim(1);
    if environment.inject(Fault::FailLaunch).await == Support::No {
        return;
    }
    if let Err(error) = provider.create(&claim).await {
        assert!(
            matches!(error.launch_effect(), LaunchEffect::Retry { .. }),
            "a temporary failure must not delete the claim: {error}"
        );
        assert!(environment.machines().await.is_empty(), "nothing was launched");
    }
    environment.heal().await;
    launch(&*provider, &claim).await;
    assert_eq!(environment.machines().await.len(), 1);
}

pub async fn a_claim_that_nothing_satisfies_is_insufficient_capacity(environment: &dyn Environment) {
    let provider = environment.provider();
    let claims = Claims::of(environment).await;
    let huge = claims.with_requirements(
        1,
        vec![],
        ResourceList::new().with(CPU, Quantity::from_units(1_000_000)),
    );
    let nowhere = NodeSelectorRequirementWithMinValues::new(labels::ZONE, Operator::In, ["no-such-zone"]);
    let nowhere = claims.with_requirements(2, vec![nowhere], ResourceList::new());
    for claim in [huge, nowhere] {
        let error = provider.create(&claim).await.expect_err("nothing satisfies the claim");
        assert_eq!(error.launch_effect(), LaunchEffect::DeleteForCapacity, "{error}");
    }
    assert!(environment.machines().await.is_empty());
}

pub async fn a_sold_out_cloud_is_insufficient_capacity(environment: &dyn Environment) {
    let provider = environment.provider();
    let claims = Claims::of(environment).await;
    if environment.inject(Fault::SellOutEverything).await == Support::No {
        return;
    }
    // One launch need not try everything that the claim allows, but a few must get to the end of it.
    let mut refused = 0;
    for number in 1..=50 {
        let error = provider
            .create(&claims.claim(number))
            .await
            .expect_err("nothing can be had");
        if error.launch_effect() == LaunchEffect::DeleteForCapacity {
            refused += 1;
        }
    }
    assert!(refused > 0, "a sold-out cloud is reported as insufficient capacity");
    assert!(
        environment.machines().await.is_empty(),
        "refused launches leave nothing"
    );
    let types = provider.instance_types(&environment.node_pool()).await.expect("types");
    let unavailable = types
        .iter()
        .flat_map(|own| &own.offerings)
        .filter(|offering| !offering.available)
        .count();
    assert!(unavailable > 0, "what was refused is offered as unavailable at once");
    environment.heal().await;
}

pub async fn a_node_class_out_of_service_launches_nothing(environment: &dyn Environment) {
    let claims = Claims::of(environment).await;
    if environment.unready_node_class().await == Support::No {
        return;
    }
    let error = environment
        .provider()
        .create(&claims.claim(1))
        .await
        .expect_err("the class is not ready");
    assert_eq!(error.launch_effect(), LaunchEffect::DeleteForNodeClass, "{error}");
    assert!(environment.machines().await.is_empty());
}
