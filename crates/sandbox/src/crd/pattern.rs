//! Regular expressions as a real server reads them: Go's RE2, where `\d`, `\w`, `\s` and `\b` know ASCII only.

use std::fmt::Write as _;
use std::sync::Arc;

use regex::Regex;

use super::compiled::Compiled;

/// A compiled `pattern` that remembers how it was written.
#[derive(Clone, Debug)]
pub(super) struct Pattern {
    source: String,
    regex: Arc<Regex>,
}

static COMPILED: Compiled<Regex> = Compiled::keeping(4096);

impl Pattern {
    pub(super) fn new(source: &str) -> Result<Self, regex::Error> {
        let regex = COMPILED.of(source, || Regex::new(&translate(source)))?;
        Ok(Self {
            source: source.to_owned(),
            regex,
        })
    }

    pub(super) fn is_match(&self, text: &str) -> bool {
        self.regex.is_match(text)
    }

    /// As it was written.
    pub(super) fn as_str(&self) -> &str {
        &self.source
    }

    pub(super) fn regex(&self) -> &Regex {
        &self.regex
    }
}

/// Says in Rust's dialect what the text says in Go's.
fn translate(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut characters = source.chars().peekable();
    // Whether we are between `[` and `]`, and how many members the class has so far (a first `]` is a member).
    let mut class: Option<usize> = None;
    while let Some(character) = characters.next() {
        match (character, class) {
            ('\\', inside) => {
                let escaped = characters.next();
                match escaped {
                    Some('d') => out.push_str("[0-9]"),
                    Some('D') => out.push_str("[^0-9]"),
                    Some('w') => out.push_str("[0-9A-Za-z_]"),
                    Some('W') => out.push_str("[^0-9A-Za-z_]"),
                    Some('s') => out.push_str(r"[\t\n\f\r ]"),
                    Some('S') => out.push_str(r"[^\t\n\f\r ]"),
                    Some('b') if inside.is_none() => out.push_str(r"(?-u:\b)"),
                    Some(other) => drop(write!(out, "\\{other}")),
                    None => out.push('\\'),
                }
                class = inside.map(|members| members + 1);
            }
            ('[', None) => {
                out.push('[');
                if characters.next_if_eq(&'^').is_some() {
                    out.push('^');
                }
                class = Some(0);
            }
            ('[', Some(members)) if characters.peek() == Some(&':') => {
                // A class by name, such as [:alpha:].
                out.push('[');
                for inner in characters.by_ref() {
                    out.push(inner);
                    if inner == ']' {
                        break;
                    }
                }
                class = Some(members + 1);
            }
            (']', Some(members)) if members > 0 => {
                out.push(']');
                class = None;
            }
            // Operators and brackets inside a class in Rust, plain characters in Go.
            ('[' | ']' | '&' | '~', Some(members)) => {
                out.push('\\');
                out.push(character);
                class = Some(members + 1);
            }
            (other, inside) => {
                out.push(other);
                class = inside.map(|members| members + 1);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pattern: &str, matching: &[&str], others: &[&str]) {
        let compiled = Pattern::new(pattern).expect("a valid pattern");
        for text in matching {
            assert!(compiled.is_match(text), "{pattern} matches {text:?}");
        }
        for text in others {
            assert!(!compiled.is_match(text), "{pattern} does not match {text:?}");
        }
        assert_eq!(compiled.as_str(), pattern);
    }

    #[test]
    fn classes_by_letter_are_ascii() {
        check(r"^\d+$", &["42"], &["٤٢", "a"]);
        check(r"^[\d-]+$", &["4-2"], &["٤"]);
        check(r"^\w+$", &["ab_1"], &["ü"]);
        check(r"^[^\s]+$", &["a\u{a0}b"], &["a b"]);
        check(r"^\S+$", &["a\u{2003}b"], &["a\tb"]);
        check(r"^\W$", &["ü"], &["u"]);
    }

    #[test]
    fn word_boundaries_are_ascii() {
        check(r"\bb", &["üb", "b"], &["ab"]);
    }

    #[test]
    fn brackets_inside_a_class_are_characters() {
        check(r"^[[]$", &["["], &["a"]);
        check(r"^[]a]+$", &["]a"], &["b"]);
        check(r"^[^]]$", &["a"], &["]"]);
        check(r"^[[:alpha:]&&]+$", &["ab&"], &["1"]);
        check(r"^[a\]]+$", &["a]"], &["b"]);
    }

    #[test]
    fn escapes_outside_a_class_stay() {
        check(r"^a\.b\[c\]$", &["a.b[c]"], &["axb[c]"]);
        check(r"^(\d+(s|m|h))+$", &["1h30m"], &["h"]);
    }
}
