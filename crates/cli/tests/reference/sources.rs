//! Reads our own source text, for what can't be asked of the code at run time.

use std::fs;
use std::path::Path;

use crate::repository;

/// Every source file below a folder with its text, tests at its end cut off, in the order of their paths.
pub(crate) fn sources(folder: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    walk(&repository(folder), &mut found);
    found.sort();
    found
}

fn walk(folder: &Path, found: &mut Vec<(String, String)>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_dir() {
            walk(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") && !is_test(&path) {
            let text = fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
            found.push((path.to_string_lossy().into_owned(), code.to_owned()));
        }
    }
}

fn is_test(path: &Path) -> bool {
    path.components()
        .any(|part| part.as_os_str() == "tests" || part.as_os_str() == "tests.rs")
}

/// The source folders of the provider kit and of every provider.
pub(crate) fn provider_folders() -> Vec<String> {
    let mut folders = vec!["crates/cloud/src".to_owned()];
    let mut providers: Vec<String> = fs::read_dir(repository("crates/providers"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| repository(&format!("crates/providers/{name}/src")).is_dir())
        .map(|name| format!("crates/providers/{name}/src"))
        .collect();
    providers.sort();
    folders.append(&mut providers);
    folders
}

/// A Rust string literal's text, line continuations joined.
pub(crate) fn unescaped(literal: &str) -> String {
    let mut text = String::new();
    let mut characters = literal.chars().peekable();
    while let Some(character) = characters.next() {
        match (character, characters.peek()) {
            ('\\', Some('\n')) => {
                while characters.peek().is_some_and(|next| next.is_whitespace()) {
                    characters.next();
                }
            }
            ('\\', Some(_)) => text.extend(characters.next()),
            (character, _) => text.push(character),
        }
    }
    text
}
