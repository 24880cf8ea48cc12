//! `karpenter validate`: checks manifests offline, one line per finding.

use std::collections::BTreeMap;
use std::io::{self, Write};

use clap::Args;

use crate::error::CliError;
use crate::manifests::Sources;
use crate::terminal::Terminal;
use crate::verdict::Rules;

/// Check manifests against Karpenter's CRDs and its runtime rules, without a cluster.
///
/// Every finding is one line, `file:document: kind/name: path: problem`. Exits with 1 if there is any.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  karpenter validate -f manifests/ -f nodepool.yaml\n  kubectl get nodepools.karpenter.sh -o yaml | karpenter validate -f -"
)]
pub(crate) struct Validate {
    #[command(flatten)]
    sources: Sources,
}

impl Validate {
    pub(crate) fn run(&self, terminal: &Terminal) -> Result<(), CliError> {
        let rules = Rules::new();
        let mut findings = Vec::new();
        let mut skipped: BTreeMap<String, usize> = BTreeMap::new();
        self.sources.read(&mut |manifest| {
            let subject = format!("{}: {}/{}", manifest.origin, manifest.kind, manifest.name());
            match rules.check(&manifest) {
                Some(verdict) => {
                    findings.extend(verdict.findings.iter().map(|finding| format!("{subject}: {finding}")));
                    for note in verdict.notes {
                        terminal.note(&format!("{subject}: {note}"));
                    }
                }
                None => {
                    let kind = format!("{} {}", manifest.api_version, manifest.kind);
                    *skipped.entry(kind).or_default() += 1;
                }
            }
            Ok(())
        })?;
        for (kind, count) in skipped {
            terminal.note(&format!("skipped {count} of kind {kind}, which is not Karpenter's"));
        }
        let mut output = io::stdout().lock();
        for finding in &findings {
            writeln!(output, "{finding}")?;
        }
        output.flush()?;
        if findings.is_empty() {
            Ok(())
        } else {
            Err(CliError::Negative)
        }
    }
}
