//! Puts the commit that the binary is built from into `karpenter --version`, and the functions that a controller runs side by side.

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
    lay_out();
}

/// Has the linker follow `hot-code.ld` (made by hack/hot-code, which says what for).
fn lay_out() {
    println!("cargo::rerun-if-changed=hot-code.ld");
    println!("cargo::rerun-if-env-changed=RUSTC_LINKER");
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|set| set == value);
    // mold knows no such scripts.
    let mentions_mold = |name: &str| env::var(name).is_ok_and(|set| set.contains("mold"));
    let understood = !["RUSTC_LINKER", "CARGO_ENCODED_RUSTFLAGS"]
        .into_iter()
        .any(mentions_mold);
    if is("PROFILE", "release") && is("CARGO_CFG_TARGET_OS", "linux") && understood {
        let directory = env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
        println!("cargo::rustc-link-arg-bins=-Wl,-T,{directory}/hot-code.ld");
    }
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
