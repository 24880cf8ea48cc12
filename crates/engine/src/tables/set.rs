//! Requirement sets: one requirement per key, hash-consed, with remembered outcomes (scheduling.md §1.5).

use karpenter_api::labels::{self, LabelRules};
use karpenter_api::requirement::Requirement;
use rustc_hash::FxHashMap;

use super::names::{KeyId, Names, ValueId};
use super::req::{Req, ValueSet};

/// A requirement together with its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ReqId(pub(crate) u32);

/// A set of requirements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SetId(pub(crate) u32);

/// Why a node described by one set cannot host a demand: the first key by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Clash {
    /// The demand names a key that the node does not define.
    Undefined(KeyId),
    /// No value satisfies both sides.
    Disjoint(KeyId),
}

/// Sorted by key.
type Entries = Box<[(KeyId, ReqId)]>;

#[derive(Debug, Clone)]
pub(crate) struct Tables {
    pub(crate) names: Names,
    pub(crate) hostname: KeyId,
    rules: LabelRules,
    well_known: Vec<bool>,
    reqs: Vec<(KeyId, Req)>,
    req_ids: FxHashMap<(KeyId, Req), ReqId>,
    sets: Vec<Entries>,
    set_ids: FxHashMap<Entries, SetId>,
    /// Per set, whether some key has minValues.
    min_valued: Vec<bool>,
    intersections: FxHashMap<(ReqId, ReqId), ReqId>,
    meetings: FxHashMap<(ReqId, ReqId), bool>,
    accepted: FxHashMap<(SetId, SetId), Result<SetId, Clash>>,
}

impl Tables {
    pub(crate) const EMPTY: SetId = SetId(0);

    pub(crate) fn new(rules: LabelRules) -> Tables {
        let mut names = Names::default();
        let hostname = names.key(labels::HOSTNAME);
        let empty: Entries = Box::default();
        Tables {
            names,
            hostname,
            rules,
            well_known: Vec::new(),
            reqs: Vec::new(),
            req_ids: FxHashMap::default(),
            set_ids: FxHashMap::from_iter([(empty.clone(), Tables::EMPTY)]),
            sets: vec![empty],
            min_valued: vec![false],
            intersections: FxHashMap::default(),
            meetings: FxHashMap::default(),
            accepted: FxHashMap::default(),
        }
    }

    pub(crate) fn rules(&self) -> &LabelRules {
        &self.rules
    }

    pub(crate) fn is_well_known(&mut self, key: KeyId) -> bool {
        while self.well_known.len() <= key.0 as usize {
            let name = self.names.key_name(KeyId(self.well_known.len() as u32));
            self.well_known.push(self.rules.is_well_known(name));
        }
        self.well_known[key.0 as usize]
    }

    pub(crate) fn req(&self, id: ReqId) -> &Req {
        &self.reqs[id.0 as usize].1
    }

    pub(crate) fn intern(&mut self, key: KeyId, req: Req) -> ReqId {
        let entry = (key, req);
        if let Some(id) = self.req_ids.get(&entry) {
            return *id;
        }
        let id = ReqId(self.reqs.len() as u32);
        self.reqs.push(entry.clone());
        self.req_ids.insert(entry, id);
        id
    }

    /// Interns a requirement of the outside world.
    pub(crate) fn requirement(&mut self, requirement: &Requirement) -> (KeyId, ReqId) {
        let key = self.names.key(requirement.key());
        let mut values = ValueSet::default();
        for value in requirement.values() {
            values.insert(self.names.value(key, value));
        }
        let req = Req {
            complement: requirement.is_complement(),
            values,
            gte: requirement.gte(),
            lte: requirement.lte(),
            min_values: requirement.min_values(),
        };
        (key, self.intern(key, req))
    }

    /// `key In [value]`.
    pub(crate) fn label(&mut self, key: &str, value: &str) -> (KeyId, ReqId) {
        let key = self.names.key(key);
        let value = self.names.value(key, value);
        (key, self.intern(key, Req::within(ValueSet::of(value))))
    }

    pub(crate) fn entries(&self, set: SetId) -> &[(KeyId, ReqId)] {
        &self.sets[set.0 as usize]
    }

    pub(crate) fn has_min_values(&self, set: SetId) -> bool {
        self.min_valued[set.0 as usize]
    }

    pub(crate) fn get(&self, set: SetId, key: KeyId) -> Option<ReqId> {
        let entries = self.entries(set);
        entries
            .binary_search_by_key(&key, |(key, _)| *key)
            .ok()
            .map(|at| entries[at].1)
    }

    /// Whether a value of `key` is allowed by the set; an absent key allows everything.
    pub(crate) fn allows(&self, set: SetId, key: KeyId, value: ValueId) -> bool {
        self.get(set, key).is_none_or(|req| self.has(key, req, value))
    }

    pub(crate) fn has(&self, key: KeyId, req: ReqId, value: ValueId) -> bool {
        self.req(req).has(value, self.names.numbers(key))
    }

    /// The set of these requirements, intersected where a key comes twice.
    pub(crate) fn set_of(&mut self, requirements: impl IntoIterator<Item = (KeyId, ReqId)>) -> SetId {
        let mut all: Vec<(KeyId, ReqId)> = requirements.into_iter().collect();
        all.sort_unstable();
        let mut entries: Vec<(KeyId, ReqId)> = Vec::with_capacity(all.len());
        for (key, req) in all {
            match entries.last_mut() {
                Some(last) if last.0 == key => last.1 = self.intersection(last.1, req),
                _ => entries.push((key, req)),
            }
        }
        self.intern_set(entries.into())
    }

    fn intern_set(&mut self, entries: Entries) -> SetId {
        if let Some(id) = self.set_ids.get(&entries) {
            return *id;
        }
        let id = SetId(self.sets.len() as u32);
        self.min_valued
            .push(entries.iter().any(|(_, req)| self.req(*req).min_values.is_some()));
        self.sets.push(entries.clone());
        self.set_ids.insert(entries, id);
        id
    }

    pub(crate) fn intersection(&mut self, a: ReqId, b: ReqId) -> ReqId {
        if a == b {
            return a;
        }
        let pair = (a.min(b), a.max(b));
        if let Some(id) = self.intersections.get(&pair) {
            return *id;
        }
        let (key, left) = &self.reqs[a.0 as usize];
        let key = *key;
        let merged = left.intersection(self.req(b), self.names.numbers(key));
        let id = self.intern(key, merged);
        self.intersections.insert(pair, id);
        id
    }

    /// Some value satisfies both, or both are satisfied by the label's absence.
    pub(crate) fn meets(&mut self, a: ReqId, b: ReqId) -> bool {
        let pair = (a.min(b), a.max(b));
        if let Some(known) = self.meetings.get(&pair) {
            return *known;
        }
        let (key, left) = &self.reqs[a.0 as usize];
        let right = self.req(b);
        let meets = left.meets(right, self.names.numbers(*key)) || (left.is_negative() && right.is_negative());
        self.meetings.insert(pair, meets);
        meets
    }

    /// Tightens one key of a set.
    pub(crate) fn narrow(&mut self, set: SetId, key: KeyId, req: ReqId) -> SetId {
        let entries = self.entries(set);
        match entries.binary_search_by_key(&key, |(key, _)| *key) {
            Ok(at) => {
                let present = entries[at].1;
                let merged = self.intersection(present, req);
                if merged == present {
                    return set;
                }
                self.replace(set, key, merged)
            }
            Err(at) => {
                let mut entries = self.entries(set).to_vec();
                entries.insert(at, (key, req));
                self.intern_set(entries.into())
            }
        }
    }

    /// Sets one key of a set.
    pub(crate) fn replace(&mut self, set: SetId, key: KeyId, req: ReqId) -> SetId {
        let mut entries = self.entries(set).to_vec();
        match entries.binary_search_by_key(&key, |(key, _)| *key) {
            Ok(at) => entries[at].1 = req,
            Err(at) => entries.insert(at, (key, req)),
        }
        self.intern_set(entries.into())
    }

    /// `a` and `b` together.
    pub(crate) fn merge(&mut self, a: SetId, b: SetId) -> SetId {
        let both: Vec<(KeyId, ReqId)> = self.entries(a).iter().chain(self.entries(b)).copied().collect();
        self.set_of(both)
    }

    /// No key that both name has disjoint values.
    pub(crate) fn intersects(&mut self, a: SetId, b: SetId) -> Result<(), Clash> {
        let mut disjoint: Option<KeyId> = None;
        for at in 0..self.entries(b).len() {
            let (key, want) = self.entries(b)[at];
            let Some(have) = self.get(a, key) else { continue };
            if !self.meets(have, want) {
                disjoint = Some(self.first_by_name(disjoint, key));
            }
        }
        disjoint.map_or(Ok(()), |key| Err(Clash::Disjoint(key)))
    }

    /// Whether a planned node described by `a` can host the demand `b`, and what it is then (well-known keys may be
    /// undefined: the instance type will supply them).
    pub(crate) fn accept(&mut self, a: SetId, b: SetId) -> Result<SetId, Clash> {
        if b == Tables::EMPTY {
            return Ok(a);
        }
        if let Some(known) = self.accepted.get(&(a, b)) {
            return *known;
        }
        let outcome = self.judge(a, b);
        self.accepted.insert((a, b), outcome);
        outcome
    }

    /// Ids depend on the order of the input; what is reported must not.
    fn first_by_name(&self, best: Option<KeyId>, other: KeyId) -> KeyId {
        match best {
            Some(best) if self.names.key_name(best) <= self.names.key_name(other) => best,
            _ => other,
        }
    }

    fn judge(&mut self, a: SetId, b: SetId) -> Result<SetId, Clash> {
        let mut undefined: Option<KeyId> = None;
        for at in 0..self.entries(b).len() {
            let (key, want) = self.entries(b)[at];
            if self.get(a, key).is_none() && !self.req(want).is_negative() && !self.is_well_known(key) {
                undefined = Some(self.first_by_name(undefined, key));
            }
        }
        if let Some(key) = undefined {
            return Err(Clash::Undefined(key));
        }
        self.intersects(a, b)?;
        Ok(self.merge(a, b))
    }

    /// As [`Tables::accept`] without the allowance for well-known keys and without merging (scheduling.md Q-6).
    pub(crate) fn is_strictly_compatible(&mut self, a: SetId, b: SetId) -> bool {
        let defined = self
            .entries(b)
            .iter()
            .all(|(key, want)| self.get(a, *key).is_some() || self.req(*want).is_negative());
        defined && self.intersects(a, b).is_ok()
    }

    /// The requirement as the outside world writes it.
    pub(crate) fn export(&self, key: KeyId, id: ReqId) -> Requirement {
        use karpenter_api::requirement::Operator;
        let req = self.req(id);
        let name = self.names.key_name(key);
        let values = req
            .values
            .iter()
            .map(|value| self.names.value_name(key, value).to_string());
        let operator = if req.complement { Operator::NotIn } else { Operator::In };
        let mut exported = Requirement::new(name, operator, values);
        for (operator, bound) in [(Operator::Gte, req.gte), (Operator::Lte, req.lte)] {
            if let Some(bound) = bound {
                exported = exported.intersection(&Requirement::new(name, operator, [bound.to_string()]));
            }
        }
        exported.with_min_values(req.min_values)
    }
}

#[cfg(test)]
mod tests {
    use karpenter_api::requirement::Operator;

    use super::*;

    /// Every operator over a few values, numeric and not.
    fn samples() -> Vec<Requirement> {
        let lists: [&[&str]; 6] = [&[], &["a"], &["a", "b"], &["1"], &["1", "5", "9"], &["b", "5"]];
        let mut samples = vec![Requirement::exists("k"), Requirement::does_not_exist("k")];
        for values in lists {
            samples.push(Requirement::new("k", Operator::In, values.iter().copied()));
            samples.push(Requirement::new("k", Operator::NotIn, values.iter().copied()));
        }
        for bound in ["0", "1", "4", "5", "9", &i64::MAX.to_string()] {
            for operator in [Operator::Gt, Operator::Lt, Operator::Gte, Operator::Lte] {
                samples.push(Requirement::new("k", operator, [bound]));
            }
        }
        let pairs: Vec<Requirement> = samples
            .iter()
            .zip(samples.iter().rev())
            .map(|(a, b)| a.intersection(b).with_min_values(Some(2)))
            .collect();
        samples.extend(pairs);
        samples
    }

    #[test]
    fn interned_requirements_behave_as_those_they_stand_for() {
        let mut tables = Tables::new(LabelRules::default());
        for a in samples() {
            let (key, left) = tables.requirement(&a);
            assert_eq!(tables.export(key, left), a);
            for b in samples() {
                let (_, right) = tables.requirement(&b);
                let both = tables.intersection(left, right);
                assert_eq!(tables.export(key, both), a.intersection(&b), "{a} and {b}");
                let plainly = tables.req(left).meets(tables.req(right), tables.names.numbers(key));
                assert_eq!(plainly, a.has_intersection(&b), "{a} and {b}");
            }
            for value in ["a", "b", "c", "1", "4", "5", "9"] {
                let id = tables.names.value(key, value);
                assert_eq!(tables.has(key, left, id), a.has(value), "{a} has {value}");
            }
        }
    }

    #[test]
    fn a_label_that_must_be_absent_goes_with_one_that_must_not_have_a_value() {
        let mut tables = Tables::new(LabelRules::default());
        let mut check = |a: Requirement, b: Requirement, expect: bool| {
            let (_, a) = tables.requirement(&a);
            let (_, b) = tables.requirement(&b);
            assert_eq!(tables.meets(a, b), expect);
        };
        check(
            Requirement::new("k", Operator::NotIn, ["a"]),
            Requirement::does_not_exist("k"),
            true,
        );
        check(Requirement::exists("k"), Requirement::does_not_exist("k"), false);
        check(
            Requirement::within("k", ["a"]),
            Requirement::new("k", Operator::Gt, ["1"]),
            false,
        );
    }
}
