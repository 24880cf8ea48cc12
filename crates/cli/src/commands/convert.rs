//! `karpenter convert`: v1alpha5 Provisioners as v1 manifests.

use std::io::{self, Write};

use clap::Args;
use karpenter_bizflycloud::convert::{Conversion, convert};
use karpenter_bizflycloud::provider_config::ProviderConfig;
use karpenter_bizflycloud::provisioner::Provisioner;

use crate::error::CliError;
use crate::manifests::{Manifest, Sources};
use crate::terminal::Terminal;

/// Print NodePools and NodeClasses that mean what v1alpha5 Provisioners mean.
///
/// The output begins with comments that say what changed in meaning or could not be carried over. ProviderConfigs among the
/// input are used to tell regions and zones apart; other objects are skipped. Exits with 1 if a Provisioner can't be converted.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  karpenter convert -f provisioner.yaml -f provider-config.yaml > v1.yaml\n  kubectl get provisioners -o yaml | karpenter convert -f -"
)]
pub(crate) struct Convert {
    #[command(flatten)]
    sources: Sources,
}

impl Convert {
    pub(crate) fn run(&self, terminal: &Terminal) -> Result<(), CliError> {
        let (mut provisioners, mut configs) = (Vec::new(), Vec::new());
        self.sources.read(&mut |manifest| {
            match (manifest.kind.as_str(), manifest.api_version.as_str()) {
                ("Provisioner", "karpenter.sh/v1alpha5") => provisioners.push(manifest),
                ("ProviderConfig", _) => configs.push(manifest),
                _ => {}
            }
            Ok(())
        })?;
        if provisioners.is_empty() {
            return Err(CliError::usage(
                "there is no Provisioner of karpenter.sh/v1alpha5 in the input; give a file that has one",
            ));
        }
        let mut findings = Vec::new();
        let mut conversions = Vec::new();
        for manifest in &provisioners {
            match self.one(manifest, &configs)? {
                Ok(conversion) => conversions.push(conversion),
                Err(own) => {
                    let subject = format!("{}: {}/{}", manifest.origin, manifest.kind, manifest.name());
                    findings.extend(own.into_iter().map(|finding| format!("{subject}: {finding}")));
                }
            }
        }
        if !findings.is_empty() {
            for finding in findings {
                terminal.note(&finding);
            }
            return Err(CliError::Negative);
        }
        let mut output = io::stdout().lock();
        for conversion in conversions {
            output.write_all(conversion.to_yaml().as_bytes())?;
        }
        Ok(output.flush()?)
    }

    fn one(
        &self,
        manifest: &Manifest,
        configs: &[Manifest],
    ) -> Result<Result<Conversion, Vec<karpenter_api::validation::Finding>>, CliError> {
        let provisioner: Provisioner = manifest.parse()?;
        let wanted = provisioner
            .spec
            .provider_ref
            .as_ref()
            .map(|reference| reference.name.clone());
        let config = configs.iter().find(|config| Some(config.name()) == wanted);
        let config: Option<ProviderConfig> = match config {
            Some(config) => Some(config.parse()?),
            None => None,
        };
        Ok(convert(&provisioner, config.as_ref(), None))
    }
}
