//! Multi-document YAML.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use super::{Manifest, ManifestError, Origin};

pub(super) fn read(
    file: Arc<str>,
    bytes: &[u8],
    each: &mut dyn FnMut(Manifest) -> Result<(), ManifestError>,
) -> Result<(), ManifestError> {
    for (position, document) in serde_norway::Deserializer::from_slice(bytes).enumerate() {
        let origin = Origin {
            file: Arc::clone(&file),
            document: position + 1,
            item: None,
        };
        match Value::deserialize(document) {
            // A separator without content, or only comments.
            Ok(Value::Null) => {}
            Ok(value) => Manifest::flatten(origin, value, each)?,
            Err(error) => {
                return Err(ManifestError::Syntax {
                    origin,
                    problem: error.to_string(),
                });
            }
        }
    }
    Ok(())
}
