//! `karpenter validate`: checks manifests offline, one line per finding.

use std::collections::BTreeMap;
use std::io::{self, Write};

use clap::Args;
use karpenter_api::{CapacityBuffer, NodeClaim, NodeOverlay, NodePool};

use crate::error::CliError;
use crate::manifests::{Manifest, ManifestError, Sources};
use crate::terminal::Terminal;

/// Check manifests against Karpenter's CRDs and its runtime rules, without a cluster.
///
/// Every finding is one line, `file:document: kind/name: path: problem`. Exits with 1 if there is any.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  karpenter validate -f manifests/ -f nodepool.yaml\n  kubectl get nodepools -o yaml | karpenter validate -f -"
)]
pub(crate) struct Validate {
    #[command(flatten)]
    sources: Sources,
}

impl Validate {
    pub(crate) fn run(&self, terminal: &Terminal) -> Result<(), CliError> {
        let mut findings = Vec::new();
        let mut skipped: BTreeMap<String, usize> = BTreeMap::new();
        self.sources.read(&mut |manifest| {
            match check(&manifest) {
                Some(found) => findings.extend(found),
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

/// The findings on an object, or nothing when its kind is not ours.
fn check(manifest: &Manifest) -> Option<Vec<String>> {
    let problem = match (manifest.group(), manifest.kind.as_str()) {
        ("karpenter.sh", "NodePool") => manifest.parse::<NodePool>().err(),
        ("karpenter.sh", "NodeClaim") => manifest.parse::<NodeClaim>().err(),
        ("karpenter.sh", "NodeOverlay") => manifest.parse::<NodeOverlay>().err(),
        ("autoscaling.x-k8s.io", "CapacityBuffer") => manifest.parse::<CapacityBuffer>().err(),
        _ => return None,
    };
    Some(problem.iter().map(ManifestError::to_string).collect())
}
