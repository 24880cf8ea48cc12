//! Puts the commit that the binary is built from into `karpenter --version`.

use std::env;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=KARPENTER_COMMIT");
    println!("cargo::rerun-if-changed=build.rs");
    // The log of HEAD changes with every commit and checkout. Where there is no git (a source archive), there is none.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo::rerun-if-changed={log}");
    }
    let given = env::var("KARPENTER_COMMIT").ok().filter(|commit| !commit.is_empty());
    let commit = given
        .or_else(|| git(&["rev-parse", "--short=12", "HEAD"]))
        .unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=KARPENTER_COMMIT={commit}");
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
