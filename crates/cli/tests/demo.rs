//! The demo's story, told once: every step holds, and no machine is left.

use std::process::Command;

#[test]
fn the_story_holds_from_the_first_pod_to_the_last_machine() {
    tell("kwok");
}

#[test]
fn the_story_holds_on_the_simulated_bizfly_cloud() {
    tell("bizflycloud");
}

#[test]
fn the_story_holds_on_the_simulated_cloudstack() {
    tell("cloudstack");
}

#[test]
fn the_story_holds_on_the_simulated_ovhcloud() {
    tell("ovhcloud");
}

fn tell(provider: &str) {
    let output = Command::new(env!("CARGO_BIN_EXE_karpenter"))
        .args(["demo", "--provider", provider, "--once", "--speed", "20", "-o", "json"])
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{told}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let report: serde_json::Value = serde_json::from_str(&told).unwrap();
    let steps = report["steps"].as_array().unwrap();
    assert!(
        steps.len() >= 5 && steps.iter().all(|step| step["ok"] == true),
        "{report:#}"
    );
    let last = steps.last().unwrap();
    assert_eq!(
        (&last["nodes"], &last["costPerHour"]),
        (&0.into(), &0.0.into()),
        "{last:#}"
    );
}

#[test]
fn a_speed_that_makes_no_sense_is_refused() {
    let output = Command::new(env!("CARGO_BIN_EXE_karpenter"))
        .args(["demo", "--speed", "0"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--speed"));
}
