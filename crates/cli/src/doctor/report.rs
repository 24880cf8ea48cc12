//! Findings and how they are written: a line each, or JSON.

use std::io::{self, Write};

use karpenter_cloud::{Diagnosis, Verdict};
use serde_json::json;

use crate::error::CliError;
use crate::terminal::Style;

/// Everything that was found, in the order in which it was looked at.
#[derive(Debug, Default)]
pub(crate) struct Report {
    findings: Vec<Diagnosis>,
    unreachable: bool,
}

impl Report {
    pub(crate) fn add(&mut self, finding: Diagnosis) {
        self.findings.push(finding);
    }

    /// The cluster does not answer, which ends the examination.
    pub(crate) fn unreachable(&mut self, why: &str) {
        self.unreachable = true;
        self.add(Diagnosis::fail(
            "cluster",
            format!("can't be reached: {why}"),
            "check KUBECONFIG, the current context and the network",
        ));
    }

    pub(crate) fn write_text(&self, style: Style) -> io::Result<()> {
        let mut output = io::stdout().lock();
        let width = self
            .findings
            .iter()
            .map(|finding| finding.subject.chars().count())
            .max();
        let width = width.unwrap_or_default();
        for finding in &self.findings {
            let verdict = match finding.verdict {
                Verdict::Ok => style.green("ok  "),
                Verdict::Warn => style.yellow("warn"),
                Verdict::Fail => style.red("fail"),
            };
            let remedy = match finding.remedy.as_str() {
                "" => String::new(),
                remedy => format!("; {remedy}"),
            };
            writeln!(
                output,
                "{verdict}  {:width$}  {}{remedy}",
                finding.subject, finding.message
            )?;
        }
        let (ok, warn, fail) = self.counts();
        writeln!(output, "\n{ok} ok, {warn} to look at, {fail} failed")?;
        output.flush()
    }

    pub(crate) fn write_json(&self) -> io::Result<()> {
        let checks: Vec<serde_json::Value> = self
            .findings
            .iter()
            .map(|finding| {
                json!({
                    "check": finding.subject,
                    "status": word(finding.verdict),
                    "message": finding.message,
                    "remedy": finding.remedy,
                })
            })
            .collect();
        let (ok, warn, fail) = self.counts();
        let report = json!({
            "apiVersion": "karpenter-rs/doctor/v1",
            "checks": checks,
            "summary": {"ok": ok, "warn": warn, "fail": fail},
        });
        let mut output = io::stdout().lock();
        serde_json::to_writer_pretty(&mut output, &report)?;
        writeln!(output)?;
        output.flush()
    }

    /// The exit code: 3 without a cluster, 1 if anything fails.
    pub(crate) fn outcome(&self) -> Result<(), CliError> {
        if self.unreachable {
            return Err(CliError::unreachable("the cluster can't be reached"));
        }
        match self.counts() {
            (_, _, 0) => Ok(()),
            (_, _, _) => Err(CliError::Negative),
        }
    }

    fn counts(&self) -> (usize, usize, usize) {
        let count = |verdict| {
            self.findings
                .iter()
                .filter(|finding| finding.verdict == verdict)
                .count()
        };
        (count(Verdict::Ok), count(Verdict::Warn), count(Verdict::Fail))
    }
}

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Ok => "ok",
        Verdict::Warn => "warn",
        Verdict::Fail => "fail",
    }
}
