//! Where people read: errors and notes on stderr, with colours when it is a terminal.

use std::env;
use std::io::{self, IsTerminal, Write};

use crate::error::CliError;

/// How to talk to the person at the other end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terminal {
    /// Colours on stderr.
    color: bool,
    /// Colours on stdout.
    output_color: bool,
}

impl Terminal {
    /// Colours where there is a terminal and nobody asked for none (`NO_COLOR`, `TERM=dumb`).
    pub(crate) fn detect() -> Self {
        let unwanted = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let incapable = env::var_os("TERM").is_some_and(|value| value == "dumb");
        let wanted = !unwanted && !incapable;
        Self {
            color: io::stderr().is_terminal() && wanted,
            output_color: io::stdout().is_terminal() && wanted,
        }
    }

    pub(crate) fn plain() -> Self {
        Self {
            color: false,
            output_color: false,
        }
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

    /// How to write on stdout.
    pub(crate) fn style(&self) -> Style {
        Style {
            color: self.output_color,
        }
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

/// Emphasis on stdout: colours on a terminal, plain text elsewhere.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Style {
    color: bool,
}

impl Style {
    pub(crate) fn bold(self, text: &str) -> String {
        self.paint("1", text)
    }

    pub(crate) fn dim(self, text: &str) -> String {
        self.paint("2", text)
    }

    pub(crate) fn red(self, text: &str) -> String {
        self.paint("31", text)
    }

    pub(crate) fn green(self, text: &str) -> String {
        self.paint("32", text)
    }

    pub(crate) fn yellow(self, text: &str) -> String {
        self.paint("33", text)
    }

    pub(crate) fn cyan(self, text: &str) -> String {
        self.paint("36", text)
    }

    fn paint(self, code: &str, text: &str) -> String {
        match self.color {
            true => format!("\u{1b}[{code}m{text}\u{1b}[0m"),
            false => text.to_owned(),
        }
    }
}
