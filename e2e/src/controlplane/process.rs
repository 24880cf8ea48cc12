//! A child process with its own log file, stopped by its pid.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::process::{Child, Command};

/// How long one look at a process may take: a busy one may accept a connection and never answer it.
const LOOK: Duration = Duration::from_secs(20);

/// Killed when dropped, so that nothing outlives a failed or interrupted run.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    log: PathBuf,
    child: Child,
}

// === impl Process ===

impl Process {
    /// Starts `program` in `dir` with its output appended to `<dir>/<name>.log`.
    pub(crate) fn start(
        name: &str,
        dir: &Path,
        program: &Path,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Result<Self> {
        let log = dir.join(format!("{name}.log"));
        let out = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log)
            .with_context(|| format!("cannot open {}", log.display()))?;
        let child = Command::new(program)
            .args(arguments)
            .envs(environment.iter().copied())
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        Ok(Self {
            name: name.to_owned(),
            log,
            child,
        })
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Whether it still runs; one that has ended but was not waited for yet (state `Z`) does not.
    pub(crate) fn is_alive(&self) -> bool {
        let Some(pid) = self.pid() else { return false };
        std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
            stat.rsplit_once(')')
                .is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
        })
    }

    /// Waits for a condition, and fails early with the log's last lines when the process ends first.
    pub(crate) async fn wait_until<F, Fut>(&self, what: &str, limit: Duration, mut holds: F) -> Result<()>
    where
        F: FnMut() -> Fut,
        Fut: Future<Output = bool>,
    {
        let deadline = tokio::time::Instant::now() + limit;
        loop {
            if tokio::time::timeout(LOOK, holds()).await.unwrap_or(false) {
                return Ok(());
            }
            if !self.is_alive() {
                bail!("{} ended before it was {what}:\n{}", self.name, self.log_tail(8));
            }
            if tokio::time::Instant::now() > deadline {
                bail!("{} is not {what} after {limit:?}:\n{}", self.name, self.log_tail(8));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Asks the process to end, and kills it when it does not within ten seconds.
    pub(crate) async fn stop(&mut self) {
        self.signal("TERM").await;
        if tokio::time::timeout(Duration::from_secs(10), self.child.wait())
            .await
            .is_err()
        {
            self.kill().await;
        }
    }

    /// Ends the process at once, as a crashed machine would.
    pub(crate) async fn kill(&mut self) {
        // An error here means that it has ended already, which is what we want.
        let _ = self.child.kill().await;
    }

    /// Sends a signal by name (`TERM`, `STOP`, `CONT`).
    pub(crate) async fn signal(&self, signal: &str) {
        let Some(pid) = self.pid() else { return };
        let sent = Command::new("kill")
            .args([&format!("-{signal}"), &pid.to_string()])
            .status()
            .await;
        if !matches!(sent, Ok(status) if status.success()) {
            eprintln!("could not send {signal} to {} (pid {pid})", self.name);
        }
    }

    pub(crate) fn log_tail(&self, lines: usize) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let all: Vec<&str> = text.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }

    /// CPU seconds used so far and the peak of the resident memory in MiB, as the kernel counts them.
    pub(crate) fn usage(&self) -> Option<Usage> {
        let pid = self.pid()?;
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // Fields after the command name, which may hold spaces: utime and stime are the 12th and 13th of them.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let ticks: f64 = fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        let kib: f64 = peak.trim().trim_end_matches("kB").trim().parse().ok()?;
        Some(Usage {
            cpu_seconds: ticks / 100.0,
            peak_mib: kib / 1024.0,
        })
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Usage {
    pub(crate) cpu_seconds: f64,
    pub(crate) peak_mib: f64,
}
