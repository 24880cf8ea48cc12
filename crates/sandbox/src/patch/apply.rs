//! Server-side apply: merges what a manager wants and remembers which fields it wanted.

use std::collections::{BTreeMap, BTreeSet};

/// One step into an object: a map key or a list item found by its keys or value.
pub(crate) type Path = Vec<String>;

/// Which fields each manager applied, per subresource.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct FieldOwners(pub(crate) BTreeMap<(String, String), BTreeSet<Path>>);
