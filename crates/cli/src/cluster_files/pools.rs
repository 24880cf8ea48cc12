//! What can be bought: NodePools, the catalogue of instance types, and NodeOverlays on it.

use std::{fs, path::Path, sync::Arc};

use karpenter_api::{NodePool, labels::LabelRules, validation};
use karpenter_engine::{
    Catalog, PoolTypes,
    catalog_file::{self, FileInstanceType},
    convert,
    model::InstanceType,
    overlay,
};
use serde_json::Value;

use super::ClusterFiles;
use crate::error::CliError;

/// The instance types of a run and the label rules that come with them.
#[derive(Debug)]
pub(crate) struct Market {
    pub(crate) rules: LabelRules,
    pub(crate) instance_types: Vec<Arc<InstanceType>>,
}

impl Market {
    /// The catalogue of a file, or the built-in one.
    pub(crate) fn load(file: Option<&Path>) -> Result<Self, CliError> {
        let Some(path) = file else {
            return Ok(Self::new(&catalog_file::built_in()));
        };
        let unusable = |problem: String| CliError::Usage(format!("{}: {problem}", path.display()));
        let bytes = fs::read(path).map_err(|cause| unusable(format!("can't be read: {cause}; give a JSON file")))?;
        let types = catalog_file::parse(&bytes).map_err(|error| unusable(error.to_string()))?;
        Ok(Self::new(&types))
    }

    fn new(types: &[FileInstanceType]) -> Self {
        let rules = catalog_file::label_rules(types);
        let instance_types = types
            .iter()
            .map(|instance_type| Arc::new(instance_type.to_model(&rules)))
            .collect();
        Self { rules, instance_types }
    }
}

/// What an object says about itself in its `Ready` condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Readiness {
    NotReady,
    /// Ready, or silent about it.
    Fine,
}

impl Readiness {
    pub(super) fn of(object: &Value) -> Self {
        let conditions = object["status"]["conditions"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default();
        match conditions
            .iter()
            .any(|c| c["type"] == "Ready" && c["status"] == "False")
        {
            true => Self::NotReady,
            false => Self::Fine,
        }
    }
}

impl ClusterFiles {
    /// The pools that may launch nodes, with their types as the overlays leave them.
    pub(super) fn catalog(&mut self, market: &Market) -> Arc<Catalog> {
        let mut pools = Vec::new();
        let mut given = std::mem::take(&mut self.pools);
        given.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        for pool in &given {
            let name = pool.metadata.name.as_deref().unwrap_or_default();
            if let Some(reason) = self.unusable(pool, &market.rules) {
                self.notes.push(format!("NodePool {name} launches nothing: {reason}"));
                continue;
            }
            match convert::node_pool(&market.rules, pool, pool.static_hash()) {
                Ok(model) => {
                    let instance_types = market.instance_types.clone();
                    pools.push(PoolTypes {
                        pool: Arc::new(model),
                        instance_types,
                    });
                }
                Err(error) => self.notes.push(format!("NodePool {name} launches nothing: {error}")),
            }
        }
        self.pools = given;
        let overlaid = overlay::apply(&self.overlays, pools, &market.rules);
        for rejected in overlaid.rejected {
            self.notes.push(format!(
                "NodeOverlay {} has no effect: {}",
                rejected.overlay, rejected.reason
            ));
        }
        Arc::new(Catalog::new(overlaid.pools, market.rules.clone()))
    }

    fn unusable(&self, pool: &NodePool, rules: &LabelRules) -> Option<String> {
        if pool.metadata.deletion_timestamp.is_some() {
            return Some("it is being deleted".to_owned());
        }
        let findings = pool.validate(rules);
        if !findings.is_empty() {
            return Some(validation::message(&findings));
        }
        let class = &pool.spec.template.spec.node_class_ref;
        let key = (class.group.clone(), class.kind.clone(), class.name.clone());
        match self.other.get(&key) {
            Some(Readiness::NotReady) => Some(format!("its {} {} is not ready", class.kind, class.name)),
            Some(Readiness::Fine) | None => None,
        }
    }
}
