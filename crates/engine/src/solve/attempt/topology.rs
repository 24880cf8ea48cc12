//! Topology rules at work: what they allow, what they narrow, and what a placement adds to their counts (scheduling.md §5).

use smallvec::SmallVec;

use super::Asked;
use crate::solve::demand::Demand;
use crate::solve::domains::Counts;
use crate::solve::groups::{GroupId, Rule};
use crate::solve::kinds::Owned;
use crate::solve::run::Run;
use crate::tables::{KeyId, Req, SetId, ValueId, ValueSet};

/// What a rule says about a planned node.
enum Choice {
    /// Nothing to say.
    Free,
    /// The node must be in one of these domains.
    Within(ValueSet),
    Nowhere,
}

/// The rule that leaves a pod nowhere to go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TopologyRefusal {
    pub(crate) rule: Rule,
    pub(crate) key: KeyId,
}

/// A hostname rule that, once it refuses a host, refuses it for the rest of the run.
#[derive(Debug, Clone, Copy)]
pub(super) struct HostRule {
    group: GroupId,
    /// The host may have at most this many matching pods already.
    most: i64,
}

impl Run<'_> {
    /// The rules that apply to a pod: its own, and those that keep it away from others. In order of creation.
    fn rules(&self, asked: Asked) -> SmallVec<[Owned; 8]> {
        let kind = &self.world.kinds[asked.kind as usize];
        let step = &kind.steps[asked.step as usize];
        let away = kind
            .kept_away_by
            .iter()
            .filter(|group| self.inverse_active[group.0 as usize]);
        let away = away.map(|group| Owned {
            group: *group,
            selects_itself: false,
        });
        step.owned.iter().copied().chain(away).collect()
    }

    pub(super) fn host_rules(&self, asked: Asked) -> SmallVec<[HostRule; 4]> {
        let mut rules = SmallVec::new();
        for owned in self.rules(asked) {
            let group = self.world.groups.get(owned.group);
            if group.key != self.world.tables.hostname {
                continue;
            }
            let most = match group.rule {
                Rule::Spread { max_skew, .. } => max_skew - i64::from(owned.selects_itself),
                Rule::AntiAffinity | Rule::Inverse => 0,
                Rule::Affinity => continue,
            };
            rules.push(HostRule {
                group: owned.group,
                most,
            });
        }
        rules
    }

    pub(super) fn host_rules_allow(&self, rules: &[HostRule], claim: u32) -> bool {
        let host = self.world.nodes.hosts + claim as usize;
        rules.iter().all(|rule| self.host_count(rule.group, host) <= rule.most)
    }

    fn host_count(&self, group: GroupId, host: usize) -> i64 {
        match self.counts(group) {
            Counts::Hosts(hosts) => i64::from(hosts.count(host)),
            Counts::Domains(_) => 0,
        }
    }

    /// Planned nodes that hostname rules have not ruled out for this kind and step.
    pub(super) fn open_hosts(&mut self, asked: Asked, rules: &[HostRule]) -> Vec<u32> {
        let mut open = self
            .scratch
            .open_hosts
            .remove(&(asked.kind, asked.step))
            .unwrap_or_default();
        open.claims.extend(open.seen..self.claims.len() as u32);
        open.seen = self.claims.len() as u32;
        open.claims.retain(|claim| self.host_rules_allow(rules, *claim));
        let claims = open.claims.clone();
        self.scratch.open_hosts.insert((asked.kind, asked.step), open);
        claims
    }

    /// All hostname rules allow this host.
    pub(super) fn host_allows(&self, asked: Asked, host: usize) -> bool {
        self.rules(asked)
            .into_iter()
            .all(|owned| self.host_rule_allows(asked, owned, host))
    }

    fn host_rule_allows(&self, asked: Asked, owned: Owned, host: usize) -> bool {
        let Counts::Hosts(hosts) = self.counts(owned.group) else {
            return true;
        };
        match self.world.groups.get(owned.group).rule {
            Rule::Spread { max_skew, .. } => i64::from(hosts.count(host)) + i64::from(owned.selects_itself) <= max_skew,
            Rule::AntiAffinity | Rule::Inverse => hosts.count(host) == 0,
            Rule::Affinity => {
                hosts.count(host) > 0 || (owned.selects_itself && !self.is_company_elsewhere(asked, owned.group))
            }
        }
    }

    /// Pods that this one wants to be near run on a host that it may use.
    fn is_company_elsewhere(&self, asked: Asked, group: GroupId) -> bool {
        let Counts::Hosts(hosts) = self.counts(group) else {
            return false;
        };
        let strict = self.world.kinds[asked.kind as usize].steps[asked.step as usize].strict;
        if strict.host.is_none() {
            return hosts.has_pods();
        }
        let existing = &self.world.nodes.all;
        let allowed = |host: usize| {
            let mut nodes = existing.iter().filter(|node| node.host == host);
            nodes.any(|node| strict.allows_host(&self.world.tables, node.hostname))
        };
        hosts.occupied().any(allowed)
    }

    /// What a planned node with requirements `base` becomes when the pod (and a way to attach its volumes) is added, as far
    /// as requirements and topology go. Remembered for the pod at hand.
    pub(super) fn narrowed(&mut self, asked: Asked, base: SetId, alternative: Option<Demand>) -> Option<SetId> {
        if alternative.is_some() {
            return self.narrow(asked, base, alternative);
        }
        let at = base.0 as usize;
        if let Some((stamp, known)) = self.scratch.narrowed.get(at)
            && *stamp == self.scratch.stamp
        {
            return *known;
        }
        let narrowed = self.narrow(asked, base, None);
        if self.scratch.narrowed.len() <= at {
            self.scratch.narrowed.resize(at + 1, (0, None));
        }
        self.scratch.narrowed[at] = (self.scratch.stamp, narrowed);
        narrowed
    }

    fn narrow(&mut self, asked: Asked, base: SetId, alternative: Option<Demand>) -> Option<SetId> {
        let step = &self.world.kinds[asked.kind as usize].steps[asked.step as usize];
        let full = step.full;
        let mut set = self.world.tables.accept(base, full.set).ok()?;
        if let Some(alternative) = alternative {
            if !alternative.allows_new_host(&self.world.tables) {
                return None;
            }
            set = self.world.tables.accept(set, alternative.set).ok()?;
        }
        self.topology_within(asked, set).ok()
    }

    /// What all rules together leave of a new node with requirements `set`.
    pub(crate) fn topology(&mut self, asked: Asked, set: SetId) -> Result<SetId, TopologyRefusal> {
        let host = self.world.nodes.hosts + self.claims.len();
        if let Some(owned) = self
            .rules(asked)
            .into_iter()
            .find(|owned| !self.host_rule_allows(asked, *owned, host))
        {
            let group = self.world.groups.get(owned.group);
            return Err(TopologyRefusal {
                rule: group.rule,
                key: group.key,
            });
        }
        self.topology_within(asked, set)
    }

    /// Every rule is asked about the same set; what they say is put together afterwards.
    fn topology_within(&mut self, asked: Asked, set: SetId) -> Result<SetId, TopologyRefusal> {
        let mut result = set;
        for owned in self.rules(asked) {
            let group = self.world.groups.get(owned.group);
            let refusal = TopologyRefusal {
                rule: group.rule,
                key: group.key,
            };
            match self.choose(asked, owned, set) {
                Choice::Free => {}
                Choice::Nowhere => return Err(refusal),
                Choice::Within(values) => {
                    let req = self.world.tables.intern(refusal.key, Req::within(values));
                    result = self.world.tables.narrow(result, refusal.key, req);
                    let narrowed = self
                        .world
                        .tables
                        .get(result, refusal.key)
                        .expect("the key was just narrowed");
                    let narrowed = self.world.tables.req(narrowed);
                    if !narrowed.complement && narrowed.values.is_empty() {
                        return Err(refusal);
                    }
                }
            }
        }
        Ok(result)
    }

    /// The domains that a rule leaves to a planned node with requirements `set`.
    fn choose(&mut self, asked: Asked, owned: Owned, set: SetId) -> Choice {
        let group = self.world.groups.get(owned.group).clone();
        let Counts::Domains(domains) = self.counts(owned.group) else {
            return Choice::Free;
        };
        let key = group.key;
        let is_well_known = self
            .world
            .tables
            .rules()
            .is_well_known(self.world.tables.names.key_name(key));
        let can_carry = is_well_known || self.world.tables.get(set, key).is_some();
        let tables = &self.world.tables;
        let strict = self.world.kinds[asked.kind as usize].steps[asked.step as usize]
            .strict
            .set;
        let pod = |value: ValueId| tables.allows(strict, key, value);
        let node = |value: ValueId| tables.allows(set, key, value);
        let both = |value: ValueId| pod(value) && node(value);
        let within = |values: ValueSet| {
            if values.is_empty() {
                Choice::Nowhere
            } else {
                Choice::Within(values)
            }
        };
        match group.rule {
            Rule::AntiAffinity | Rule::Inverse => {
                // A node that cannot carry the key violates nothing (scheduling.md Q-21).
                if !can_carry || domains.known().next().is_none() {
                    return Choice::Free;
                }
                within(domains.empty(&both))
            }
            Rule::Spread { .. } | Rule::Affinity if !can_carry => Choice::Nowhere,
            Rule::Spread { max_skew, min_domains } => {
                let least = i64::from(domains.least(&pod, min_domains));
                let limit = max_skew + least - i64::from(owned.selects_itself);
                domains
                    .spread(&node, limit)
                    .map_or(Choice::Nowhere, |value| Choice::Within(ValueSet::of(value)))
            }
            Rule::Affinity => {
                let occupied = domains.occupied(&both);
                if !occupied.is_empty() {
                    return Choice::Within(occupied);
                }
                if !owned.selects_itself {
                    return Choice::Nowhere;
                }
                domains
                    .bootstrap(&pod, &node)
                    .map_or(Choice::Nowhere, |value| Choice::Within(ValueSet::of(value)))
            }
        }
    }

    /// Per rule of the pod, the most pods that a domain may have already; worked out once for all nodes.
    pub(super) fn skew_limits(&self, asked: Asked) -> SmallVec<[i64; 4]> {
        let tables = &self.world.tables;
        let strict = self.world.kinds[asked.kind as usize].steps[asked.step as usize]
            .strict
            .set;
        let limit = |owned: Owned| {
            let group = self.world.groups.get(owned.group);
            let (Rule::Spread { max_skew, min_domains }, Counts::Domains(domains)) =
                (group.rule, self.counts(owned.group))
            else {
                return 0;
            };
            let pod = |value: ValueId| tables.allows(strict, group.key, value);
            max_skew + i64::from(domains.least(&pod, min_domains)) - i64::from(owned.selects_itself)
        };
        self.rules(asked).into_iter().map(limit).collect()
    }

    pub(super) fn node_topology_allows(&self, asked: Asked, node: usize, skew_limits: &[i64]) -> bool {
        if skew_limits.is_empty() {
            return true;
        }
        let existing = &self.world.nodes.all[node];
        if !self.host_allows(asked, existing.host) {
            return false;
        }
        let tables = &self.world.tables;
        let strict = self.world.kinds[asked.kind as usize].steps[asked.step as usize]
            .strict
            .set;
        self.rules(asked).iter().zip(skew_limits).all(|(owned, limit)| {
            let group = self.world.groups.get(owned.group);
            let Counts::Domains(domains) = self.counts(owned.group) else {
                return true;
            };
            let Some(value) = existing.labels.get(group.key) else {
                return matches!(group.rule, Rule::AntiAffinity | Rule::Inverse);
            };
            let pod = |value: ValueId| tables.allows(strict, group.key, value);
            let domain = domains.find(value);
            match group.rule {
                Rule::Spread { .. } => domain.is_some_and(|domain| i64::from(domain.count) <= *limit),
                Rule::AntiAffinity | Rule::Inverse => domain.is_none_or(|domain| domain.count == 0),
                Rule::Affinity => domain.is_some_and(|domain| {
                    domain.count > 0
                        || (owned.selects_itself && domains.bootstrap(&pod, &|other| other == value).is_some())
                }),
            }
        })
    }

    pub(super) fn record_on_node(&mut self, asked: Asked, node: usize) {
        let kind = &self.world.kinds[asked.kind as usize];
        if kind.counted_by.is_empty() && kind.inverse.is_empty() {
            return;
        }
        for group in kind.counted_by.iter().chain(&kind.inverse) {
            let at = group.0 as usize;
            let definition = self.world.groups.get(*group);
            let existing = &self.world.nodes.all[node];
            if !self.world.counts_node(definition, existing) {
                continue;
            }
            let counts = self.counts[at].get_or_insert_with(|| self.world.counts[at].clone());
            crate::solve::world::add_pod(counts, &self.world.tables, definition, existing);
        }
    }

    /// Anti-affinity blocks every domain that the planned node could end up in; the others count it once it is settled.
    pub(super) fn record_on_claim(&mut self, asked: Asked, template: usize, claim: u32, set: SetId) {
        let kind = &self.world.kinds[asked.kind as usize];
        if kind.counted_by.is_empty() && kind.inverse.is_empty() {
            return;
        }
        let groups: SmallVec<[GroupId; 16]> = kind.counted_by.iter().chain(&kind.inverse).copied().collect();
        let host = self.world.nodes.hosts + claim as usize;
        let pool = self.world.templates[template].pool.clone();
        for group in groups {
            let at = group.0 as usize;
            if !self.world.counts_claim(group, set, &pool.taints) {
                continue;
            }
            let definition = self.world.groups.get(group);
            let counts = self.counts[at].get_or_insert_with(|| self.world.counts[at].clone());
            let domains = match counts {
                Counts::Hosts(hosts) => {
                    hosts.add(host);
                    continue;
                }
                Counts::Domains(domains) => domains,
            };
            let Some(req) = self.world.tables.get(set, definition.key) else {
                continue;
            };
            let req = self.world.tables.req(req);
            let names = &self.world.tables.names;
            match definition.rule {
                Rule::AntiAffinity | Rule::Inverse if !req.complement => {
                    for value in req.values.iter() {
                        domains.add_pod(names, definition.key, value);
                    }
                }
                Rule::AntiAffinity | Rule::Inverse => {}
                Rule::Spread { .. } | Rule::Affinity => {
                    if let Some(value) = req.single() {
                        domains.add_pod(names, definition.key, value);
                    }
                }
            }
        }
    }
}
