//! Keeps what was compiled from a text for whoever has the same text again.
//!
//! The same few patterns and rules are in every CRD and are evaluated on every write, and compiling one costs far more than
//! using it.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;

/// By text.
pub(super) struct Compiled<T> {
    known: LazyLock<Mutex<HashMap<String, Arc<T>>>>,
    most: usize,
}

impl<T> Compiled<T> {
    /// Keeps `most` at a time: a cluster that makes texts up has them all forgotten now and then.
    pub(super) const fn keeping(most: usize) -> Self {
        Self {
            known: LazyLock::new(Mutex::default),
            most,
        }
    }

    /// What was compiled from the text before, else what `compile` makes of it.
    pub(super) fn of<E>(&self, text: &str, compile: impl FnOnce() -> Result<T, E>) -> Result<Arc<T>, E> {
        if let Some(known) = self.known.lock().get(text) {
            return Ok(Arc::clone(known));
        }
        let compiled = Arc::new(compile()?);
        let mut known = self.known.lock();
        if known.len() >= self.most {
            known.clear();
        }
        known.insert(text.to_owned(), Arc::clone(&compiled));
        Ok(compiled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_compiled_once_and_an_error_is_not_kept() {
        let compiled = Compiled::keeping(2);
        assert_eq!(compiled.of("a", || Err("not yet")), Err("not yet"));
        let first = compiled.of("a", || Ok::<_, &str>(1)).expect("compiled");
        let again = compiled.of("a", || Ok::<_, &str>(2)).expect("known");
        assert_eq!((*first, *again), (1, 1));
    }

    #[test]
    fn a_cluster_that_makes_texts_up_does_not_fill_the_memory() {
        let compiled = Compiled::keeping(2);
        for number in 0..3 {
            compiled
                .of(&number.to_string(), || Ok::<_, ()>(number))
                .expect("compiled");
        }
        assert_eq!(compiled.known.lock().len(), 1);
    }
}
