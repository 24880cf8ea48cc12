//! Where people read: errors and notes on stderr, with colours when it is a terminal.

use std::env;
use std::io::{self, IsTerminal, Write};

use crate::error::CliError;

/// How to talk to the person at the other end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terminal {
    color: bool,
}

impl Terminal {
    /// Colours if stderr is a terminal and nobody asked for none (`NO_COLOR`, `TERM=dumb`).
    pub(crate) fn detect() -> Self {
        let unwanted = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let incapable = env::var_os("TERM").is_some_and(|value| value == "dumb");
        Self {
            color: io::stderr().is_terminal() && !unwanted && !incapable,
        }
    }

    pub(crate) fn plain() -> Self {
        Self { color: false }
    }

    /// One line on stderr for an error that ends the command.
    pub(crate) fn report(&self, error: &CliError) {
        if !error.is_silent() {
            self.line("error:", "31", &error.to_string());
        }
    }

    /// One line on stderr that is worth knowing and changes nothing.
    pub(crate) fn note(&self, text: &str) {
        self.line("note:", "36", text);
    }

    fn line(&self, label: &str, color: &str, text: &str) {
        let label = if self.color {
            format!("\u{1b}[1;{color}m{label}\u{1b}[0m")
        } else {
            label.to_owned()
        };
        // When even stderr is gone there is nobody left to tell.
        let _ = writeln!(io::stderr(), "{label} {text}");
    }
}
