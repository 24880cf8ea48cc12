//! Pages that are made from the code: they are current, or a test fails. `UPDATE_DOCS=1 cargo test -p karpenter --test reference`
//! writes them anew.

mod chart;
mod events;
mod manifests;
mod metrics;
mod observability;
mod pages;
mod settings;
mod sources;

use std::fs;
use std::path::{Path, PathBuf};

/// A file of the repository.
fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn read(path: &str) -> String {
    fs::read_to_string(repository(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Fails when a page is not what the code says; writes it when asked to.
fn check_page(path: &str, expected: &str) {
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(repository(path), expected).unwrap();
    }
    let written = fs::read_to_string(repository(path)).unwrap_or_default();
    assert!(
        written == expected,
        "{path} is out of date; run UPDATE_DOCS=1 cargo test -p karpenter --test reference"
    );
}

/// A cell of a Markdown table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}
