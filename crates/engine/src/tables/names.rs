//! Label keys and, per key, label values as dense integers.

use std::sync::Arc;

use rustc_hash::FxHashMap;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct KeyId(pub(crate) u32);

/// A value of one key; ids of different keys have nothing to do with each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ValueId(pub(crate) u32);

#[derive(Debug, Clone, Default)]
pub(crate) struct Names {
    keys: FxHashMap<Arc<str>, KeyId>,
    columns: Vec<Column>,
}

#[derive(Debug, Clone)]
struct Column {
    key: Arc<str>,
    ids: FxHashMap<Arc<str>, ValueId>,
    names: Vec<Arc<str>>,
    /// The value as an integer, where it is one: bounds apply to those only.
    numbers: Vec<Option<i64>>,
}

impl Names {
    pub(crate) fn key(&mut self, key: &str) -> KeyId {
        if let Some(id) = self.keys.get(key) {
            return *id;
        }
        let id = KeyId(self.columns.len() as u32);
        let key: Arc<str> = key.into();
        self.keys.insert(key.clone(), id);
        self.columns.push(Column {
            key,
            ids: FxHashMap::default(),
            names: Vec::new(),
            numbers: Vec::new(),
        });
        id
    }

    pub(crate) fn key_name(&self, key: KeyId) -> &Arc<str> {
        &self.columns[key.0 as usize].key
    }

    pub(crate) fn value(&mut self, key: KeyId, value: &str) -> ValueId {
        let column = &mut self.columns[key.0 as usize];
        if let Some(id) = column.ids.get(value) {
            return *id;
        }
        let id = ValueId(column.names.len() as u32);
        let name: Arc<str> = value.into();
        column.numbers.push(value.parse().ok());
        column.ids.insert(name.clone(), id);
        column.names.push(name);
        id
    }

    pub(crate) fn value_name(&self, key: KeyId, value: ValueId) -> &Arc<str> {
        &self.columns[key.0 as usize].names[value.0 as usize]
    }

    pub(crate) fn numbers(&self, key: KeyId) -> &[Option<i64>] {
        &self.columns[key.0 as usize].numbers
    }
}
