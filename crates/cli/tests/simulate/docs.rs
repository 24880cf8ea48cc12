//! The examples of docs/simulate.md do what the page says.

use std::path::Path;

use super::{POOL, claims, pod, run, simulate};

fn page() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/simulate.md");
    std::fs::read_to_string(path).unwrap()
}

/// The fenced block that starts with `opening`.
fn block(page: &str, opening: &str) -> String {
    let start = page
        .find(opening)
        .unwrap_or_else(|| panic!("{opening} is not on the page"))
        + opening.len();
    let length = page[start..].find("```").unwrap();
    page[start..start + length].to_owned()
}

#[test]
fn the_first_example_prints_what_the_page_shows() {
    let page = page();
    let manifests = block(&page, "```yaml\n");
    let shown = block(&page, "$ karpenter simulate -f shop.yaml\n");
    let output = run(&["-f", "-"], &manifests);
    let printed = String::from_utf8(output.stdout).unwrap();
    let without_timing = |text: &str| {
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let (timing, rest) = lines.split_last().unwrap();
        assert!(timing.starts_with("decided in "), "{timing}");
        rest.join("\n")
    };
    assert_eq!(without_timing(&printed), without_timing(&shown));
}

#[test]
fn the_catalogue_on_the_page_can_be_read() {
    let catalogue = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(catalogue.path(), block(&page(), "```json\n")).unwrap();
    let input = format!("{POOL}{}", pod("web", "3", ""));
    let report = simulate(&input, &["--instance-types", catalogue.path().to_str().unwrap()]);
    assert_eq!(claims(&report)[0]["cheapest"]["instanceType"], "m-4x");
}
