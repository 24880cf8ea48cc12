//! docs/reference/settings.md: every flag of `karpenter controller`, as its help prints them.

use std::fmt::Write;
use std::process::Command;

use crate::{cell, check_page};

/// A flag with its place in the help.
#[derive(Debug)]
pub(crate) struct Flag {
    heading: String,
    flag: String,
    value: String,
    pub(crate) variable: String,
    default: String,
    help: String,
}

#[test]
fn the_reference_of_settings_is_current() {
    check_page("docs/reference/settings.md", &page());
}

fn page() -> String {
    let mut page = String::from(
        "# Settings\n\nEvery flag of `karpenter controller`, generated from its `--help`. Each can also be set through the environment \
         variable beside it; a flag wins over the environment, the environment over the default. The Helm chart sets the common ones from \
         its [values](https://github.com/karpenter-rs/karpenter/blob/main/charts/karpenter/README.md) and takes all others through `controller.env`.\n\nA number, boolean or duration \
         in the environment that can't be read means the default, as it does upstream; on the command line it is an error.\n",
    );
    let mut heading = String::new();
    for flag in flags() {
        if flag.heading != heading {
            heading.clone_from(&flag.heading);
            write!(
                page,
                "\n## {heading}\n\n| Flag | Variable | Default | Meaning |\n|---|---|---|---|\n"
            )
            .unwrap();
        }
        let quoted = |text: &str| match text {
            "" => String::new(),
            text => format!("`{text}`"),
        };
        let value = match flag.value.as_str() {
            "" => String::new(),
            value => format!(" {value}"),
        };
        writeln!(
            page,
            "| `{}{}` | {} | {} | {} |",
            flag.flag,
            cell(&value),
            quoted(&flag.variable),
            quoted(&flag.default),
            cell(&flag.help)
        )
        .unwrap();
    }
    page
}

/// The flags in the order of the help text.
pub(crate) fn flags() -> Vec<Flag> {
    let output = Command::new(env!("CARGO_BIN_EXE_karpenter"))
        .args(["controller", "--help"])
        .env("COLUMNS", "1000")
        .output()
        .unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    let mut flags: Vec<Flag> = Vec::new();
    let mut heading = String::new();
    for line in help.lines() {
        let text = line.trim();
        if text == "Example:" {
            break;
        }
        if !line.starts_with(' ') {
            if let Some(title) = text.strip_suffix(':') {
                heading = title.to_owned();
            }
        } else if let Some(start) = text.find("--").filter(|at| *at == 0 || text.starts_with('-')) {
            let (flag, value) = match text[start..].split_once([' ', '[']) {
                Some((flag, value)) => (flag, value.trim_start_matches('=').trim_end_matches(']')),
                None => (&text[start..], ""),
            };
            flags.push(Flag {
                heading: heading_of(&heading),
                flag: flag.to_owned(),
                value: value.to_owned(),
                variable: String::new(),
                default: String::new(),
                help: String::new(),
            });
        } else if let Some(flag) = flags.last_mut().filter(|_| !text.is_empty()) {
            if !flag.help.is_empty() {
                flag.help.push(' ');
            }
            flag.help.push_str(text);
        }
    }
    let skipped = ["--help", "--version"];
    let mut flags: Vec<Flag> = flags
        .into_iter()
        .filter(|flag| !skipped.contains(&flag.flag.as_str()))
        .collect();
    for flag in &mut flags {
        flag.default = take(&mut flag.help, "[default: ");
        flag.variable = take(&mut flag.help, "[env: ").trim_end_matches('=').to_owned();
        let has_variables = ["Controller", "BizFly Cloud"]
            .iter()
            .any(|own| flag.heading.starts_with(own));
        if flag.variable.is_empty() && has_variables {
            flag.variable = flag.flag.trim_start_matches('-').replace('-', "_").to_uppercase();
        }
        take(&mut flag.help, "[possible values: ");
        // What a choice means is told by the guides, not in a cell.
        let help = flag.help.split("Possible values:").next().unwrap_or_default();
        flag.help = help.replace(" .", ".").trim().to_owned();
    }
    flags
}

fn heading_of(title: &str) -> String {
    match title.split_once(" (") {
        Some((title, _)) => title.to_owned(),
        None => title.to_owned(),
    }
}

/// Cuts `[prefix…]` out of a help text.
fn take(help: &mut String, prefix: &str) -> String {
    let Some(start) = help.find(prefix) else {
        return String::new();
    };
    let Some(length) = help[start..].find(']') else {
        return String::new();
    };
    let value = help[start + prefix.len()..start + length].to_owned();
    help.replace_range(start..=start + length, "");
    value
}
