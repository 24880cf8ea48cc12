//! The documentation as a whole: links lead somewhere, every page is in the book, commands are unambiguous, the image is what it says.

use std::fs;
use std::path::{Path, PathBuf};

use regex::Regex;

use crate::{read, repository};

/// Every Markdown file that readers see, with its path below the repository.
fn pages() -> Vec<(String, String)> {
    let mut found = Vec::new();
    for file in [
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "SECURITY.md",
        "charts/karpenter/README.md",
    ] {
        found.push((file.to_owned(), read(file)));
    }
    walk(Path::new("docs"), &mut found);
    found.sort();
    found
}

fn walk(folder: &Path, found: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(repository(&folder.to_string_lossy())).unwrap() {
        let entry = entry.unwrap();
        let path = folder.join(entry.file_name());
        if entry.path().is_dir() {
            // The built site is no source.
            if path != Path::new("docs/book") {
                walk(&path, found);
            }
        } else if path.extension().is_some_and(|extension| extension == "md") {
            let text = fs::read_to_string(entry.path()).unwrap();
            found.push((path.to_string_lossy().into_owned(), text));
        }
    }
}

/// The files of this repository, seen from the site that the documentation is built into.
const FORGE: &str = "https://github.com/karpenter-rs/karpenter/";

#[test]
fn every_link_leads_to_a_file() {
    let link = Regex::new(r"\]\(([^)#\s]*)(?:#[^)]*)?\)").unwrap();
    let mut broken = Vec::new();
    for (page, text) in pages() {
        for found in link.captures_iter(&text) {
            let target = &found[1];
            let on_the_forge = target.strip_prefix(FORGE).and_then(|path| {
                path.strip_prefix("blob/main/")
                    .or_else(|| path.strip_prefix("tree/main/"))
            });
            let path: PathBuf = match on_the_forge {
                Some(path) => path.into(),
                None if target.is_empty() || target.contains("://") || target.starts_with("mailto:") => continue,
                None => Path::new(&page).parent().unwrap().join(target),
            };
            if !repository(&path.to_string_lossy()).exists() {
                broken.push(format!("{page}: {target}"));
            }
        }
    }
    assert!(broken.is_empty(), "links that lead nowhere:\n{}", broken.join("\n"));
}

#[test]
fn links_between_pages_of_the_book_stay_in_the_book() {
    let up = Regex::new(r"\]\(((?:\.\./)+)").unwrap();
    for (page, text) in pages() {
        let Some(below_docs) = page.strip_prefix("docs/") else {
            continue;
        };
        for found in up.captures_iter(&text) {
            assert!(
                found[1].len() / 3 <= below_docs.matches('/').count(),
                "{page} links out of docs/, which the site does not have: begin that link with {FORGE}blob/main/"
            );
        }
    }
}

#[test]
fn every_page_is_in_the_book() {
    let summary = read("docs/SUMMARY.md");
    for (page, _) in pages() {
        let Some(page) = page.strip_prefix("docs/").filter(|page| *page != "SUMMARY.md") else {
            continue;
        };
        // A provider's pages are linked from its first one.
        if page.starts_with("providers/") {
            continue;
        }
        assert!(
            summary.contains(&format!("({page})")),
            "docs/SUMMARY.md does not have {page}"
        );
    }
}

/// OVHcloud's clusters have a kind `nodepools` too.
#[test]
fn kubectl_is_told_which_nodepools() {
    let ambiguous = Regex::new(r"kubectl [^`\n]*\bnodepools?(?:$|[^.\w/-])").unwrap();
    for (page, text) in pages() {
        for line in text.lines() {
            assert!(
                !ambiguous.is_match(line),
                "{page}: write nodepools.karpenter.sh: {line}"
            );
        }
    }
}

#[test]
fn the_image_is_built_with_the_toolchain_of_the_repository_and_has_no_shell() {
    let dockerfile = read("Dockerfile");
    let toolchain = read("rust-toolchain.toml");
    let version = Regex::new(r#"channel = "([^"]+)""#)
        .unwrap()
        .captures(&toolchain)
        .unwrap()[1]
        .to_owned();
    assert!(dockerfile.contains(&format!("FROM rust:{version}-alpine")));
    assert!(dockerfile.contains(&format!("RUSTUP_TOOLCHAIN={version}")));
    let last = dockerfile.rsplit("\nFROM ").next().unwrap();
    assert!(last.starts_with("gcr.io/distroless/static-debian12:nonroot"), "{last}");
    assert!(
        last.contains("\nUSER 65532:65532\n") && last.contains("\nENTRYPOINT [\"/karpenter\"]\n"),
        "{last}"
    );
    assert!(!last.contains("\nRUN "), "nothing runs in an image without a shell");
}
