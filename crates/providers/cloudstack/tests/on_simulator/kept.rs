//! What was not found is believed for half a minute, and looked for in new lists then (cloudstack.md §13).

use std::time::Duration;

use karpenter_api::conditions::StatusConditions;
use karpenter_cloudstack::sim::Seed;
use serde_json::{Value, json};

use crate::environment::{Cloud, class};

/// Time stands still unless a test moves it.
const STILL: Duration = Duration::from_nanos(1);
const UNKNOWN_ZONE: &str = "99999999-9999-4999-8999-999999999999";

async fn with_class(spec: Value) -> Cloud {
    let cloud = Cloud::without_class(Seed::default(), STILL, |_| {}).await;
    cloud.apply_class(spec).await;
    cloud
}

fn rename_templates(cloud: &Cloud) {
    cloud.simulator.operate(|operator| {
        for template in &mut operator.catalogue().templates {
            template["name"] = json!("late");
        }
    });
}

async fn becomes_ready(cloud: &Cloud) -> bool {
    cloud.provider.reconcile_class("default").await.expect("reconciled");
    cloud.class().is_ready()
}

#[tokio::test]
async fn a_template_that_was_not_found_is_looked_for_again_after_half_a_minute() {
    let cloud = with_class(json!({"templateSelectorTerms": [{"name": "late"}]})).await;
    assert!(!cloud.class().is_ready());
    rename_templates(&cloud);
    let reads = cloud.calls("listTemplates");
    cloud.clock.advance(Duration::from_secs(29));
    assert!(!becomes_ready(&cloud).await);
    assert_eq!(cloud.calls("listTemplates"), reads, "what was not found is believed");
    cloud.clock.advance(Duration::from_secs(2));
    assert!(becomes_ready(&cloud).await, "long before the list of templates is old");
}

#[tokio::test]
async fn a_class_that_wants_something_new_does_not_wait_for_old_lists() {
    let cloud = with_class(json!({})).await;
    assert!(cloud.class().is_ready());
    rename_templates(&cloud);
    let changed = class(json!({"templateSelectorTerms": [{"name": "late"}]}));
    cloud.sandbox.apply(&changed.to_string()).expect("accepted");
    assert!(becomes_ready(&cloud).await);
}

#[tokio::test]
async fn a_zone_that_does_not_exist_is_asked_for_once_in_half_a_minute() {
    let cloud = with_class(json!({"zones": [UNKNOWN_ZONE]})).await;
    let asked = || {
        let calls = cloud.simulator.calls();
        let own = calls.iter().filter(|call| call.command == "listZones");
        own.filter(|call| call.params.get("id").is_some_and(|id| id == UNKNOWN_ZONE))
            .count()
    };
    let at_first = asked();
    for _ in 0..3 {
        assert!(!becomes_ready(&cloud).await);
    }
    assert_eq!(asked(), at_first);
    cloud.clock.advance(Duration::from_secs(31));
    assert!(!becomes_ready(&cloud).await);
    assert!(asked() > at_first);
}
