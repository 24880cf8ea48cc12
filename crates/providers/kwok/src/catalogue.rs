//! The instance types that exist: built in, or from a file in upstream's format.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use karpenter_api::{
    Quantity, ResourceList,
    labels::LabelRules,
    resources::{CPU, MEMORY},
};
use karpenter_cloud::InstanceTypes;
use karpenter_engine::catalog_file::{self, CatalogFileError, FileInstanceType, FileOverhead};
use thiserror::Error;

/// Names a file that replaces the built-in instance types.
pub const FILE_VARIABLE: &str = "INSTANCE_TYPES_FILE_PATH";

/// Instance types, ready to be offered, and the label rules that follow from them.
#[derive(Clone, Debug)]
pub struct Catalogue {
    types: InstanceTypes,
    rules: LabelRules,
}

/// Why a catalogue cannot be used.
#[derive(Debug, Error)]
pub enum CatalogueError {
    #[error("cannot read the instance types of {path}: {source}")]
    Read { path: PathBuf, source: io::Error },
    #[error("the instance types of {path} cannot be used: {source}")]
    Content { path: PathBuf, source: CatalogFileError },
}

impl Catalogue {
    /// 144 types: amd64 and arm64, Linux and Windows, four zones, spot and on-demand.
    pub fn built_in() -> Self {
        Self::new(&catalog_file::built_in())
    }

    /// The built-in types, or those of the file that [`FILE_VARIABLE`] names.
    ///
    /// # Errors
    /// When there is such a file and it cannot be used.
    pub fn from_env() -> Result<Self, CatalogueError> {
        match std::env::var_os(FILE_VARIABLE).filter(|path| !path.is_empty()) {
            Some(path) => Self::from_file(Path::new(&path)),
            None => Ok(Self::built_in()),
        }
    }

    /// # Errors
    /// When the file cannot be read, or says nothing sensible.
    pub fn from_file(path: &Path) -> Result<Self, CatalogueError> {
        let json = fs::read(path).map_err(|source| CatalogueError::Read {
            path: path.to_owned(),
            source,
        })?;
        let types = catalog_file::parse(&json).map_err(|source| CatalogueError::Content {
            path: path.to_owned(),
            source,
        })?;
        Ok(Self::new(&types))
    }

    pub fn new(types: &[FileInstanceType]) -> Self {
        let rules = catalog_file::label_rules(types);
        let offered = |own: &FileInstanceType| {
            let mut model = own.to_model(&rules);
            if own.overhead == FileOverhead::default() {
                model.overhead.kube_reserved = kube_reserved();
            }
            Arc::new(model)
        };
        Self {
            types: types.iter().map(offered).collect(),
            rules,
        }
    }

    /// Always the same `Arc`: nothing ever changes.
    pub fn types(&self) -> InstanceTypes {
        self.types.clone()
    }

    pub fn rules(&self) -> &LabelRules {
        &self.rules
    }
}

/// What upstream's provider reserves on every node, where the file does not say otherwise.
fn kube_reserved() -> ResourceList {
    ResourceList::new()
        .with(CPU, Quantity::from_milli(100))
        .with(MEMORY, Quantity::from_bytes(10 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_catalogue_has_upstreams_144_types() {
        assert_eq!(Catalogue::built_in().types().len(), 144);
    }

    #[test]
    fn a_custom_catalogue_replaces_the_types_and_its_offering_keys_become_well_known() {
        let json = br#"[{"name": "tiny", "architecture": "arm64", "operatingSystems": ["linux"],
            "resources": {"cpu": "2", "memory": "2Gi"},
            "offerings": [{"Price": 0.01, "Available": true, "Requirements": [
                {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"]},
                {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["here"]},
                {"key": "example.com/rack", "operator": "In", "values": ["r1"]}]}]}]"#;
        let catalogue = Catalogue::new(&catalog_file::parse(json).expect("a catalogue"));
        let types = catalogue.types();
        assert_eq!(types.len(), 1);
        assert_eq!(types[0].overhead.kube_reserved, kube_reserved());
        assert!(catalogue.rules().is_well_known("example.com/rack"));
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = Catalogue::from_file(Path::new("/does/not/exist.json")).expect_err("no such file");
        assert!(
            error
                .to_string()
                .starts_with("cannot read the instance types of /does/not/exist.json: "),
            "{error}"
        );
    }
}
