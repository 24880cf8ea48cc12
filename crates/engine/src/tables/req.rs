//! One requirement as a bitset over the interned values of its key (scheduling.md §1.1–§1.4).

use smallvec::SmallVec;

use super::names::ValueId;

/// A set of values of one key. Trailing empty words are never kept, so that equal sets are equal values.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct ValueSet(SmallVec<[u64; 2]>);

impl ValueSet {
    pub(crate) fn of(value: ValueId) -> ValueSet {
        let mut set = ValueSet::default();
        set.insert(value);
        set
    }

    pub(crate) fn insert(&mut self, value: ValueId) {
        let (word, bit) = (value.0 as usize / 64, value.0 % 64);
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << bit;
    }

    fn remove(&mut self, value: ValueId) {
        let (word, bit) = (value.0 as usize / 64, value.0 % 64);
        if let Some(word) = self.0.get_mut(word) {
            *word &= !(1 << bit);
        }
    }

    pub(crate) fn contains(&self, value: ValueId) -> bool {
        self.0
            .get(value.0 as usize / 64)
            .is_some_and(|word| word >> (value.0 % 64) & 1 == 1)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = ValueId> + '_ {
        self.0.iter().enumerate().flat_map(|(at, word)| {
            let mut word = *word;
            std::iter::from_fn(move || {
                if word == 0 {
                    return None;
                }
                let bit = word.trailing_zeros();
                word &= word - 1;
                Some(ValueId(at as u32 * 64 + bit))
            })
        })
    }

    fn zip(&self, other: &ValueSet, length: usize, op: impl Fn(u64, u64) -> u64) -> ValueSet {
        let word = |set: &ValueSet, at: usize| set.0.get(at).copied().unwrap_or(0);
        let mut result = ValueSet((0..length).map(|at| op(word(self, at), word(other, at))).collect());
        result.trim();
        result
    }

    pub(crate) fn union(&self, other: &ValueSet) -> ValueSet {
        self.zip(other, self.0.len().max(other.0.len()), |a, b| a | b)
    }

    pub(crate) fn intersection(&self, other: &ValueSet) -> ValueSet {
        self.zip(other, self.0.len().min(other.0.len()), |a, b| a & b)
    }

    pub(crate) fn difference(&self, other: &ValueSet) -> ValueSet {
        self.zip(other, self.0.len(), |a, b| a & !b)
    }

    fn trim(&mut self) {
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Req {
    /// `values` are the excluded ones.
    pub(crate) complement: bool,
    pub(crate) values: ValueSet,
    pub(crate) gte: Option<i64>,
    pub(crate) lte: Option<i64>,
    pub(crate) min_values: Option<u32>,
}

impl Req {
    pub(crate) fn within(values: ValueSet) -> Req {
        Req {
            complement: false,
            values,
            gte: None,
            lte: None,
            min_values: None,
        }
    }

    /// The operator amounts to `NotIn` or `DoesNotExist`: a node without the label satisfies it.
    pub(crate) fn is_negative(&self) -> bool {
        self.complement != self.values.is_empty()
    }

    pub(crate) fn is_bounded(&self) -> bool {
        self.gte.is_some() || self.lte.is_some()
    }

    /// `numbers` are the integers behind the values of this requirement's key.
    pub(crate) fn has(&self, value: ValueId, numbers: &[Option<i64>]) -> bool {
        self.values.contains(value) != self.complement && within(self.gte, self.lte, value, numbers)
    }

    /// The one value that is possible, if there is exactly one.
    pub(crate) fn single(&self) -> Option<ValueId> {
        if self.complement || self.values.len() != 1 {
            return None;
        }
        self.values.iter().next()
    }

    pub(crate) fn intersection(&self, other: &Req, numbers: &[Option<i64>]) -> Req {
        let (gte, lte) = tighter(self, other);
        let min_values = self.min_values.max(other.min_values);
        if gte.zip(lte).is_some_and(|(gte, lte)| gte > lte) {
            return Req {
                min_values,
                ..Req::within(ValueSet::default())
            };
        }
        let mut values = match (self.complement, other.complement) {
            (true, true) => self.values.union(&other.values),
            (true, false) => other.values.difference(&self.values),
            (false, true) => self.values.difference(&other.values),
            (false, false) => self.values.intersection(&other.values),
        };
        if gte.is_some() || lte.is_some() {
            let outside: Vec<ValueId> = values
                .iter()
                .filter(|value| !within(gte, lte, *value, numbers))
                .collect();
            for value in outside {
                values.remove(value);
            }
            values.trim();
        }
        let complement = self.complement && other.complement;
        // A concrete set has the bounds applied already.
        let (gte, lte) = if complement { (gte, lte) } else { (None, None) };
        Req {
            complement,
            values,
            gte,
            lte,
            min_values,
        }
    }

    pub(crate) fn meets(&self, other: &Req, numbers: &[Option<i64>]) -> bool {
        let (gte, lte) = tighter(self, other);
        if gte.zip(lte).is_some_and(|(gte, lte)| gte > lte) {
            return false;
        }
        let candidates = match (self.complement, other.complement) {
            (true, true) => return true,
            (true, false) => other.values.difference(&self.values),
            (false, true) => self.values.difference(&other.values),
            (false, false) => self.values.intersection(&other.values),
        };
        candidates.iter().any(|value| within(gte, lte, value, numbers))
    }
}

fn tighter(a: &Req, b: &Req) -> (Option<i64>, Option<i64>) {
    let lte = match (a.lte, b.lte) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (bound, None) | (None, bound) => bound,
    };
    (a.gte.max(b.gte), lte)
}

/// With any bound set, a value that is no integer is outside.
fn within(gte: Option<i64>, lte: Option<i64>, value: ValueId, numbers: &[Option<i64>]) -> bool {
    if gte.is_none() && lte.is_none() {
        return true;
    }
    let Some(number) = numbers[value.0 as usize] else {
        return false;
    };
    gte.is_none_or(|gte| number >= gte) && lte.is_none_or(|lte| number <= lte)
}
