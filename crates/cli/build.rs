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
    pack_relocations();
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

/// Has the linker write down in a few kilobytes where addresses have to be put in at start, which is 1.7 MiB otherwise, all of it read
/// and then kept in memory for nothing. Needs a C library that reads that; one that does not would refuse the binary.
fn pack_relocations() {
    let same = env::var("HOST").is_ok_and(|host| env::var("TARGET").is_ok_and(|target| host == target));
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|set| set == value);
    let glibc = is("CARGO_CFG_TARGET_OS", "linux") && is("CARGO_CFG_TARGET_ENV", "gnu");
    if is("PROFILE", "release") && same && glibc && glibc_version().is_some_and(|version| version >= (2, 36)) {
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}

/// The version of the C library that the binary will be linked with, `glibc 2.36` for one.
fn glibc_version() -> Option<(u32, u32)> {
    let text = output("getconf", &["GNU_LIBC_VERSION"])?;
    let (major, minor) = text.strip_prefix("glibc ")?.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn git(arguments: &[&str]) -> Option<String> {
    output("git", arguments)
}

fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
