//! Accepts Go-style flags with a single dash, which manifests written for upstream may use.

use std::ffi::OsString;

use clap::Command;

/// Doubles the dash of every argument that spells a long flag of `command` (or of its subcommands) with only one.
pub fn with_double_dashes(args: impl IntoIterator<Item = OsString>, command: &Command) -> Vec<OsString> {
    let mut flags = Vec::new();
    collect(command, &mut flags);
    let mut literal = false;
    args.into_iter()
        .map(|arg| {
            literal |= arg == "--";
            match arg.to_str() {
                Some(text) if !literal && spells_flag(text, &flags) => OsString::from(format!("-{text}")),
                _ => arg,
            }
        })
        .collect()
}

fn spells_flag(arg: &str, flags: &[String]) -> bool {
    let Some(rest) = arg
        .strip_prefix('-')
        .filter(|rest| !rest.starts_with('-') && rest.len() > 1)
    else {
        return false;
    };
    let name = rest.split_once('=').map_or(rest, |(name, _)| name);
    flags.iter().any(|flag| flag == name)
}

fn collect(command: &Command, flags: &mut Vec<String>) {
    flags.extend(
        command
            .get_arguments()
            .filter_map(|argument| argument.get_long())
            .map(str::to_owned),
    );
    for subcommand in command.get_subcommands() {
        collect(subcommand, flags);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_long_flags_get_a_second_dash() {
        let command = Command::new("karpenter").arg(clap::Arg::new("log-level").long("log-level"));
        let fixed = with_double_dashes(
            ["karpenter", "-log-level=debug", "-o", "-x1", "--", "-log-level"].map(Into::into),
            &command,
        );
        assert_eq!(
            fixed,
            ["karpenter", "--log-level=debug", "-o", "-x1", "--", "-log-level"]
        );
    }
}
