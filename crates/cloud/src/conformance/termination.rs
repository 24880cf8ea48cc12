//! Rules about ending machines: all of ours that should go, and nothing else.

use std::time::Duration;

use super::{Claims, Environment, Fault, Support, launch, terminate};
use crate::provider::Deletion;

pub async fn a_terminated_machine_is_gone_and_stays_gone(environment: &dyn Environment) {
    let provider = environment.provider();
    let claim = launch(&*provider, &Claims::of(environment).await.claim(1)).await;
    terminate(environment, &*provider, &claim).await;
    assert!(environment.machines().await.is_empty());
    let id = claim.provider_id().expect("launched");
    let error = provider.get(id).await.expect_err("gone");
    assert!(error.is_not_found(), "a machine that is gone is not found: {error}");
    let listed = provider.list().await.expect("a list");
    assert!(
        listed.iter().all(|own| own.provider_id != id || own.is_terminating()),
        "gone, but listed as live"
    );
    let again = Deletion::settle(provider.delete(&claim).await).expect("deleting what is gone is no error");
    assert_eq!(again, Deletion::Gone);
    environment.pass(Duration::from_secs(600)).await;
    assert!(environment.machines().await.is_empty(), "it does not come back");
}

pub async fn terminating_one_machine_leaves_the_others(environment: &dyn Environment) {
    let provider = environment.provider();
    let claims = Claims::of(environment).await;
    let doomed = launch(&*provider, &claims.claim(1)).await;
    let kept = launch(&*provider, &claims.claim(2)).await;
    terminate(environment, &*provider, &doomed).await;
    let id = kept.provider_id().expect("launched");
    assert_eq!(environment.machines().await, [id]);
    assert!(!provider.get(id).await.expect("still there").is_terminating());
}

/// "Gone" releases finalizers, so it must never be said of a machine that could not be asked about.
pub async fn a_failed_termination_is_not_gone(environment: &dyn Environment) {
    let provider = environment.provider();
    let claim = launch(&*provider, &Claims::of(environment).await.claim(1)).await;
    for fault in [Fault::FailTerminations, Fault::FailReads] {
        if environment.inject(fault).await == Support::No {
            continue;
        }
        let answer = Deletion::settle(provider.delete(&claim).await);
        assert!(
            !matches!(answer, Ok(Deletion::Gone)),
            "{fault:?}: said to be gone although the cloud failed"
        );
        environment.heal().await;
    }
    terminate(environment, &*provider, &claim).await;
    assert!(environment.machines().await.is_empty());
}

pub async fn terminating_a_vanished_machine_is_gone(environment: &dyn Environment) {
    let provider = environment.provider();
    let claim = launch(&*provider, &Claims::of(environment).await.claim(1)).await;
    if environment.vanish(claim.provider_id().expect("launched")).await == Support::No {
        return;
    }
    terminate(environment, &*provider, &claim).await;
}

/// A claim that is deleted before it heard of its machine must not leave the machine behind.
pub async fn an_abandoned_launch_leaves_nothing(environment: &dyn Environment) {
    let provider = environment.provider();
    let claim = Claims::of(environment).await.claim(1);
    let nothing = provider.abandon(&claim).await.expect("there is nothing to abandon");
    assert_eq!(nothing, Deletion::Gone);
    // The answer is lost: the claim has no provider ID.
    provider.create(&claim).await.expect("launched");
    let restarted = environment.restart().await;
    for _ in 0..200 {
        if Deletion::settle(restarted.abandon(&claim).await).expect("no faults") == Deletion::Gone {
            break;
        }
        environment.pass(Duration::from_secs(5)).await;
    }
    assert!(
        environment.machines().await.is_empty(),
        "the machine of an abandoned launch is gone"
    );
}
