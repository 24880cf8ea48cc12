//! `karpenter`: the one binary; argument parsing and wiring, nothing else.

mod cluster_files;
mod commands;
mod cost;
mod demo;
mod doctor;
mod error;
mod manifests;
mod providers;
mod terminal;
mod verdict;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use crate::commands::Command;
use crate::terminal::Terminal;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("KARPENTER_COMMIT"), ")");

/// A Kubernetes node autoscaler: launches the machines that pods need, and removes the ones that they don't.
#[derive(Debug, Parser)]
#[command(name = "karpenter", version = VERSION, propagate_version = true, arg_required_else_help = true)]
#[command(after_help = "Example:\n  karpenter validate -f manifests/")]
struct Cli {
    /// Write without colours, whatever the terminal can do.
    #[arg(long, global = true)]
    no_color: bool,
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    // Both the cluster's and the clouds' clients need a crypto library; saying which keeps the choice ours.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let arguments = karpenter_core::options::with_double_dashes(std::env::args_os(), &Cli::command());
    let cli = Cli::parse_from(arguments);
    let terminal = if cli.no_color {
        Terminal::plain()
    } else {
        Terminal::detect()
    };
    match cli.command.run(&terminal) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            terminal.report(&error);
            error.exit_code()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_shows_an_example_in_its_help() {
        let cli = Cli::command();
        for command in std::iter::once(&cli).chain(cli.get_subcommands()) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Example"), "{} has no example", command.get_name());
        }
    }
}
