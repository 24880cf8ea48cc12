//! Where log lines go: standard output, standard error, files, or several of them.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};

use parking_lot::Mutex;

/// One or more destinations.
#[derive(Debug)]
pub struct Output(Mutex<Vec<Destination>>);

#[derive(Debug)]
enum Destination {
    Stdout,
    Stderr,
    File(File),
    Memory(Vec<String>),
}

impl Output {
    /// `stdout`, `stderr` or the paths of files, which are appended to.
    ///
    /// # Errors
    /// When a file cannot be opened.
    pub fn open(paths: &[String]) -> io::Result<Self> {
        let open = |path: &String| match path.as_str() {
            "stdout" => Ok(Destination::Stdout),
            "stderr" => Ok(Destination::Stderr),
            path => OpenOptions::new()
                .create(true)
                .append(true)
                .open(path)
                .map(Destination::File)
                .map_err(|error| io::Error::new(error.kind(), format!("cannot log to {path}: {error}"))),
        };
        Ok(Self(Mutex::new(paths.iter().map(open).collect::<io::Result<_>>()?)))
    }

    /// Keeps lines in memory, for tests.
    pub fn memory() -> Self {
        Self(Mutex::new(vec![Destination::Memory(Vec::new())]))
    }

    /// The lines that were kept in memory.
    pub fn lines(&self) -> Vec<String> {
        let destinations = self.0.lock();
        let kept = destinations.iter().filter_map(|destination| match destination {
            Destination::Memory(lines) => Some(lines.clone()),
            Destination::Stdout | Destination::Stderr | Destination::File(_) => None,
        });
        kept.flatten().collect()
    }

    pub(super) fn write_line(&self, line: &str) {
        for destination in self.0.lock().iter_mut() {
            // Where a log line cannot be written there is nowhere to say so.
            let _ = match destination {
                Destination::Stdout => writeln!(io::stdout().lock(), "{line}"),
                Destination::Stderr => writeln!(io::stderr().lock(), "{line}"),
                Destination::File(file) => writeln!(file, "{line}"),
                Destination::Memory(lines) => {
                    lines.push(line.to_owned());
                    Ok(())
                }
            };
        }
    }
}
