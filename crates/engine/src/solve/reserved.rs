//! Reserved capacity: slots of reservations are held by planned nodes that could use them (scheduling.md §4.7).

use rustc_hash::FxHashMap;

use super::templates::{Template, is_compatible_offer};
use crate::catalog::{Catalog, reservation};
use crate::model::{ReservedCapacity, ReservedMode, Snapshot};
use crate::tables::{SetId, Tables};

/// Which slots are left.
#[derive(Debug, Clone, Default)]
pub(crate) struct Book {
    mode: Option<ReservedMode>,
    ids: FxHashMap<String, u32>,
    names: Vec<Slot>,
}

#[derive(Debug, Clone)]
struct Slot {
    label: String,
    id: String,
    left: i64,
    credited: bool,
}

pub(crate) enum Verdict {
    /// The planned node may hold exactly these.
    Hold(Vec<u32>),
    /// Others hold the slots in this pass: wait, do not fall back.
    Wait,
    /// An ordinary refusal.
    Refuse,
}

impl Book {
    pub(crate) fn new(snapshot: &Snapshot, mode: ReservedMode, credits: &[(String, u32)]) -> Book {
        let catalog = &snapshot.catalog;
        if !catalog.has_reservations || snapshot.options.reserved_capacity == ReservedCapacity::Off {
            return Book::default();
        }
        let mut book = Book {
            mode: Some(mode),
            ..Book::default()
        };
        book.fill(catalog);
        for (id, slots) in credits {
            if let Some(at) = book.ids.get(id) {
                let slot = &mut book.names[*at as usize];
                slot.left += i64::from(*slots);
                slot.credited = true;
            }
        }
        book
    }

    /// A reservation has the least capacity that any offering of it states, available or not.
    fn fill(&mut self, catalog: &Catalog) {
        let types = catalog.pools().iter().flat_map(|entry| &entry.instance_types);
        for reservation in types.flat_map(|t| &t.offerings).filter_map(reservation) {
            let capacity = i64::from(reservation.capacity);
            match self.ids.get(&reservation.id) {
                Some(at) => {
                    let slot = &mut self.names[*at as usize];
                    slot.left = slot.left.min(capacity);
                }
                None => {
                    self.ids.insert(reservation.id.clone(), self.names.len() as u32);
                    let slot = Slot {
                        label: reservation.key,
                        id: reservation.id,
                        left: capacity,
                        credited: false,
                    };
                    self.names.push(slot);
                }
            }
        }
    }

    /// There are reservations to look after.
    pub(crate) fn is_active(&self) -> bool {
        self.mode.is_some()
    }

    /// What a planned node with these rows could hold, given what it holds already.
    pub(crate) fn judge(
        &self,
        tables: &mut Tables,
        template: &Template,
        set: SetId,
        rows: &[u64],
        held: &[u32],
    ) -> Verdict {
        let Some(mode) = self.mode else {
            return Verdict::Hold(Vec::new());
        };
        let (mut fallback, mut full, mut with_capacity) = (false, false, false);
        let mut reservable: Vec<u32> = Vec::new();
        for offer in &template.rows.offers {
            let row = offer.row as usize;
            if rows[row / 64] >> (row % 64) & 1 == 0 || !is_compatible_offer(tables, set, &offer.entries) {
                continue;
            }
            let Some(reservation) = &offer.reservation else {
                fallback = true;
                continue;
            };
            let Some(at) = self.ids.get(&reservation.id) else {
                continue;
            };
            let slot = &self.names[*at as usize];
            if reservation.capacity == 0 && !slot.credited {
                full = true;
                continue;
            }
            with_capacity = true;
            if (held.contains(at) || slot.left > 0) && !reservable.contains(at) {
                reservable.push(*at);
            }
        }
        let only_full = full && !with_capacity && !fallback;
        let taken = with_capacity && reservable.is_empty();
        let would_lose = !held.is_empty() && reservable.is_empty();
        match mode {
            ReservedMode::Strict if taken || only_full || would_lose => Verdict::Wait,
            ReservedMode::Fallback if only_full => Verdict::Refuse,
            ReservedMode::Strict | ReservedMode::Fallback => {
                reservable.sort_unstable();
                Verdict::Hold(reservable)
            }
        }
    }

    /// A planned node now holds `new` instead of `old`.
    pub(crate) fn swap(&mut self, old: &[u32], new: &[u32]) {
        for at in old.iter().filter(|at| !new.contains(at)) {
            self.names[*at as usize].left += 1;
        }
        for at in new.iter().filter(|at| !old.contains(at)) {
            self.names[*at as usize].left -= 1;
        }
    }

    /// The provider's label and the ids of held reservations.
    pub(crate) fn held(&self, held: &[u32]) -> Vec<(&str, &str)> {
        held.iter()
            .map(|at| &self.names[*at as usize])
            .map(|slot| (slot.label.as_str(), slot.id.as_str()))
            .collect()
    }
}
