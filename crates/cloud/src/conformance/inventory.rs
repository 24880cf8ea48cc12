//! Rules about reading: complete and truthful, or an error.

use std::time::Duration;

use karpenter_api::labels;

use super::{Claims, Environment, Fault, Support, launch, launched};
use crate::{error::ErrorKind, instance::ClaimMark, provider::RebootOperation};

pub async fn a_machine_reads_as_it_was_launched(environment: &dyn Environment) {
    let claim = Claims::of(environment).await.claim(1);
    let made = environment.provider().create(&claim).await.expect("launched");
    let restarted = environment.restart().await;
    let read = restarted.get(&made.provider_id).await.expect("it exists");
    assert_eq!(read.provider_id, made.provider_id);
    assert_eq!(read.claim, made.claim, "the mark of the claim is on the machine");
    for key in [
        labels::INSTANCE_TYPE,
        labels::ZONE,
        labels::CAPACITY_TYPE,
        labels::ARCH,
        labels::OS,
    ] {
        assert_eq!(read.labels.get(key), made.labels.get(key), "label {key}");
    }
    assert_eq!(read.capacity, made.capacity);
    assert_eq!(read.allocatable, made.allocatable);
    assert!(!read.is_terminating());
}

pub async fn the_list_is_complete_and_marked(environment: &dyn Environment) {
    let provider = environment.provider();
    let claims = Claims::of(environment).await;
    let mut made = Vec::new();
    for number in 1..=3 {
        let claim = claims.claim(number);
        let claim = launch(&*provider, &claim).await;
        made.push((
            claim.provider_id().expect("launched").to_owned(),
            Some(ClaimMark::of(&claim)),
        ));
    }
    made.sort_by(|a, b| a.0.cmp(&b.0));
    for provider in [provider, environment.restart().await] {
        let listed = provider.list().await.expect("a list");
        let mut listed: Vec<_> = listed.into_iter().map(|own| (own.provider_id, own.claim)).collect();
        listed.sort_by(|a, b| a.0.cmp(&b.0));
        assert_eq!(listed, made);
    }
}

/// Core deletes claims that a successful list lacks.
pub async fn failed_reads_are_errors(environment: &dyn Environment) {
    let provider = environment.provider();
    let claim = launch(&*provider, &Claims::of(environment).await.claim(1)).await;
    if environment.inject(Fault::FailReads).await == Support::No {
        return;
    }
    let restarted = environment.restart().await;
    for provider in [provider.clone(), restarted] {
        if let Ok(listed) = provider.list().await {
            let ids: Vec<_> = listed.iter().map(|own| own.provider_id.as_str()).collect();
            assert_eq!(
                ids,
                [claim.provider_id().expect("launched")],
                "a list that succeeds is complete"
            );
        }
        if let Err(error) = provider.get(claim.provider_id().expect("launched")).await {
            assert!(!error.is_not_found(), "a failed read is not \"not found\": {error}");
        }
    }
    environment.heal().await;
    assert_eq!(provider.list().await.expect("a list").len(), 1);
}

pub async fn unknown_provider_ids_are_not_found(environment: &dyn Environment) {
    let provider = environment.provider();
    let claim = launch(&*provider, &Claims::of(environment).await.claim(1)).await;
    let unknown = format!("{}-unknown", claim.provider_id().expect("launched"));
    for id in [unknown.as_str(), "other-cloud:///i-1", ""] {
        let error = provider.get(id).await.expect_err("there is no such machine");
        assert!(error.is_not_found(), "{id:?}: {error}");
    }
}

pub async fn a_vanished_machine_is_not_found(environment: &dyn Environment) {
    let provider = environment.provider();
    let claim = launch(&*provider, &Claims::of(environment).await.claim(1)).await;
    let id = claim.provider_id().expect("launched");
    if environment.vanish(id).await == Support::No {
        return;
    }
    environment.pass(Duration::from_secs(60)).await;
    assert!(provider.get(id).await.expect_err("it vanished").is_not_found());
    assert!(
        provider
            .list()
            .await
            .expect("a list")
            .iter()
            .all(|own| own.provider_id != id)
    );
}

pub async fn foreign_machines_are_invisible_and_untouchable(environment: &dyn Environment) {
    let provider = environment.provider();
    let Some(foreign) = environment.add_foreign_machine().await else {
        return;
    };
    let listed = provider.list().await.expect("a list");
    assert!(
        listed.iter().all(|own| own.provider_id != foreign),
        "a machine that is not ours is listed"
    );
    let mut thief = Claims::of(environment).await.claim(1);
    thief.status.get_or_insert_default().provider_id = Some(foreign.clone());
    // Refused or "gone": both are fine, as long as the machine stays.
    let _ = provider.delete(&thief).await;
    environment.pass(Duration::from_secs(60)).await;
    assert!(
        environment.machines().await.contains(&foreign),
        "a machine that is not ours was deleted"
    );
}

pub async fn drift_is_seen_and_only_then(environment: &dyn Environment) {
    let provider = environment.provider();
    let claim = launch(&*provider, &Claims::of(environment).await.claim(1)).await;
    let fresh = provider.is_drifted(&claim).await.expect("readable");
    assert_eq!(fresh, None, "a fresh machine is what its class asks for");
    if environment.cause_drift(&claim).await == Support::No {
        return;
    }
    let drifted = provider.is_drifted(&claim).await.expect("readable");
    assert!(drifted.is_some_and(|reason| !reason.0.is_empty()), "drift has a reason");
}

pub async fn a_reboot_may_be_repeated(environment: &dyn Environment) {
    let provider = environment.provider();
    let claim = launch(&*provider, &Claims::of(environment).await.claim(1)).await;
    let operation = RebootOperation("op-1".to_owned());
    match provider.reboot(&claim, &operation).await {
        Err(error) => assert_eq!(error.kind(), ErrorKind::RebootNotImplemented, "{error}"),
        Ok(()) => provider
            .reboot(&claim, &operation)
            .await
            .expect("the same reboot again is accepted"),
    }
    assert_eq!(environment.machines().await.len(), 1, "a reboot keeps the machine");
}

pub async fn garbage_collection_takes_orphans_only(environment: &dyn Environment) {
    let provider = environment.provider();
    let claims = Claims::of(environment).await;
    let kept = launch(&*provider, &claims.claim(1)).await;
    // Its answer got lost, so the claim does not know the machine yet.
    let launching = claims.claim(2);
    let unknown = provider.create(&launching).await.expect("launched");
    let orphan = launch(&*provider, &claims.claim(3)).await;
    let foreign = environment.add_foreign_machine().await;
    environment.pass(Duration::from_secs(3600)).await;
    if environment.collect_garbage(&[kept.clone(), launching.clone()]).await == Support::No {
        return;
    }
    let mut machines = environment.machines().await;
    machines.retain(|id| Some(id) != foreign.as_ref());
    machines.sort();
    let mut expected = vec![
        kept.provider_id().expect("launched").to_owned(),
        unknown.provider_id.clone(),
    ];
    expected.sort();
    assert_eq!(
        machines, expected,
        "the machine without a claim is collected, and no other"
    );
    assert!(!machines.contains(&orphan.provider_id().expect("launched").to_owned()));
    if let Some(foreign) = foreign {
        assert!(
            environment.machines().await.contains(&foreign),
            "a machine that is not ours was collected"
        );
    }
    let found = provider
        .create(&launching)
        .await
        .expect("the launching claim finds its machine");
    assert_eq!(
        launched(&launching, &found).provider_id(),
        Some(unknown.provider_id.as_str())
    );
}
