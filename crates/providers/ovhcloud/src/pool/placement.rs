//! Chooses the pool that a claim's machine shall come from: the cheapest that has room, within the number of pools.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    key::{PoolDesign, PoolOwner},
    ledger::Place,
};
use crate::client::model::{Pool, PoolClass};

/// One way to satisfy a claim.
#[derive(Clone, Debug)]
pub struct Wish {
    pub design: PoolDesign,
    pub price: f64,
}

/// The pools as they are, and who has a place in them.
#[derive(Debug)]
pub struct Shelf<'a> {
    pub pools: &'a [Pool],
    /// Claims with a place, by pool name, also of pools that do not exist yet.
    pub taken: &'a BTreeMap<String, u32>,
    /// Claims with a place, by NodePool and zone.
    pub zones: &'a BTreeMap<(String, String), u32>,
    /// Names of pools that are being deleted.
    pub closing: &'a BTreeSet<String>,
    pub limit: u32,
}

/// From this part of the limit on, existing pools are preferred to cheaper new ones.
const PRESSURE: f64 = 0.9;
/// More shards than this of one key cannot exist within any limit.
const MOST_SHARDS: u32 = 1000;

impl Shelf<'_> {
    /// Pools that exist or are about to.
    pub fn used(&self) -> u32 {
        let names: BTreeSet<&str> = self.pools.iter().map(|pool| pool.name.as_str()).collect();
        let planned = self
            .taken
            .keys()
            .filter(|name| !name.is_empty() && !names.contains(name.as_str()))
            .count();
        (self.pools.len() + planned) as u32
    }

    pub fn is_under_pressure(&self) -> bool {
        f64::from(self.used()) >= f64::from(self.limit) * PRESSURE
    }

    /// The best place, and the index of the wish that it fulfils; `None` when only new pools would do and there may be none.
    pub fn choose(&self, wishes: &[Wish]) -> Option<(usize, Place)> {
        let by_name: BTreeMap<&str, &Pool> = self.pools.iter().map(|pool| (pool.name.as_str(), pool)).collect();
        let used = self.used();
        let pressed = self.is_under_pressure();
        let mut best: Option<(Rank<'_>, usize, String)> = None;
        for (index, wish) in wishes.iter().enumerate() {
            let Some(shard) = self.shard(&wish.design, &by_name) else {
                continue;
            };
            if shard.is_new && used >= self.limit {
                continue;
            }
            let key = &wish.design.key;
            let rank = Rank {
                new_under_pressure: pressed && shard.is_new,
                price: wish.price,
                no_spare: !shard.has_spare,
                is_new: shard.is_new,
                crowd: self
                    .zones
                    .get(&(key.node_pool.clone(), key.zone.clone()))
                    .copied()
                    .unwrap_or(0),
                zone: &key.zone,
                flavor: &key.flavor,
            };
            if best.as_ref().is_none_or(|(old, ..)| rank.is_before(old)) {
                best = Some((rank, index, shard.name));
            }
        }
        let (_, index, pool) = best?;
        let key = &wishes[index].design.key;
        let place = Place {
            pool,
            flavor: key.flavor.clone(),
            zone: key.zone.clone(),
        };
        Some((index, place))
    }

    /// The lowest shard of a key that has room.
    fn shard(&self, design: &PoolDesign, by_name: &BTreeMap<&str, &Pool>) -> Option<Shard> {
        for number in 0..MOST_SHARDS {
            let name = design.pool_name(number);
            if self.closing.contains(&name) {
                continue;
            }
            let taken = self.taken.get(&name).copied().unwrap_or(0);
            let Some(pool) = by_name.get(name.as_str()) else {
                if taken >= design.cap {
                    continue;
                }
                return Some(Shard {
                    name,
                    is_new: taken == 0,
                    has_spare: false,
                });
            };
            let is_ours = PoolOwner::of(pool) == PoolOwner::Owned && design.key.is_of(pool);
            if !is_ours || pool.class() == PoolClass::Gone || taken.max(pool.desired_nodes) >= design.cap.max(1) {
                // A spare is worth having even in a full pool.
                let has_spare = is_ours && pool.class() != PoolClass::Gone && pool.desired_nodes > taken;
                if has_spare && pool.desired_nodes <= design.cap {
                    return Some(Shard {
                        name,
                        is_new: false,
                        has_spare,
                    });
                }
                continue;
            }
            return Some(Shard {
                name,
                is_new: false,
                has_spare: pool.desired_nodes > taken,
            });
        }
        None
    }
}

struct Shard {
    name: String,
    is_new: bool,
    has_spare: bool,
}

/// Better first: price, then what is there already, then the zone with the fewest nodes.
struct Rank<'a> {
    new_under_pressure: bool,
    price: f64,
    no_spare: bool,
    is_new: bool,
    crowd: u32,
    zone: &'a str,
    flavor: &'a str,
}

impl Rank<'_> {
    fn is_before(&self, other: &Self) -> bool {
        let key = |own: &Self| (own.no_spare, own.is_new, own.crowd);
        self.new_under_pressure
            .cmp(&other.new_under_pressure)
            .then(self.price.total_cmp(&other.price))
            .then_with(|| key(self).cmp(&key(other)))
            .then_with(|| (self.zone, self.flavor).cmp(&(other.zone, other.flavor)))
            .is_lt()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{catalogue::types::ZoneKind, names, node_class::OvhNodeClass, pool::key::PoolKey};

    fn wish(node_pool: &str, flavor: &str, zone: &str, price: f64, cap: u32) -> Wish {
        let class: OvhNodeClass = serde_json::from_value(json!({
            "apiVersion": "karpenter.ovhcloud.sh/v1alpha1", "kind": "OVHNodeClass",
            "metadata": {"name": "default"}, "spec": {},
        }))
        .expect("a class");
        let key = PoolKey::new(node_pool, &class, flavor, zone, &[]);
        Wish {
            design: PoolDesign::new(key, &class, ZoneKind::Several, cap),
            price,
        }
    }

    /// A pool of ours for a wish.
    fn pool(wish: &Wish, shard: u32, desired: u32) -> Pool {
        let design = &wish.design;
        serde_json::from_value(json!({
            "id": "p", "name": design.pool_name(shard), "flavor": design.key.flavor, "desiredNodes": desired,
            "template": {"metadata": {"labels": {names::POOL_KEY: design.key.label()}}},
        }))
        .expect("a pool")
    }

    struct World {
        pools: Vec<Pool>,
        taken: BTreeMap<String, u32>,
        zones: BTreeMap<(String, String), u32>,
        closing: BTreeSet<String>,
        limit: u32,
    }

    impl World {
        fn new(limit: u32) -> Self {
            Self {
                pools: Vec::new(),
                taken: BTreeMap::new(),
                zones: BTreeMap::new(),
                closing: BTreeSet::new(),
                limit,
            }
        }

        fn choose(&self, wishes: &[Wish]) -> Option<(usize, String)> {
            let shelf = Shelf {
                pools: &self.pools,
                taken: &self.taken,
                zones: &self.zones,
                closing: &self.closing,
                limit: self.limit,
            };
            shelf.choose(wishes).map(|(index, place)| (index, place.pool))
        }
    }

    #[test]
    fn the_cheapest_wins_whatever_the_order() {
        let wishes = [
            wish("x", "b3-32", "a", 0.2, 100),
            wish("x", "b3-8", "a", 0.05, 100),
            wish("x", "b3-16", "a", 0.1, 100),
        ];
        assert_eq!(World::new(100).choose(&wishes).expect("a place").0, 1);
    }

    #[test]
    fn equal_prices_go_to_the_emptiest_zone() {
        let wishes = [wish("x", "b3-8", "a", 0.05, 100), wish("x", "b3-8", "b", 0.05, 100)];
        let mut world = World::new(100);
        world.zones.insert(("x".into(), "a".into()), 3);
        world.pools = vec![pool(&wishes[0], 0, 1), pool(&wishes[1], 0, 1)];
        world.taken = world.pools.iter().map(|pool| (pool.name.clone(), 1)).collect();
        assert_eq!(world.choose(&wishes).expect("a place").0, 1);
    }

    #[test]
    fn a_full_pool_is_continued_by_the_next_shard() {
        let own = wish("x", "b3-8", "a", 0.05, 5);
        let mut world = World::new(100);
        world.pools = vec![pool(&own, 0, 5)];
        world.taken.insert(own.design.pool_name(0), 5);
        assert_eq!(
            world.choose(std::slice::from_ref(&own)).expect("a place").1,
            own.design.pool_name(1)
        );
    }

    #[test]
    fn a_pool_of_our_name_that_is_not_ours_is_passed_over() {
        let own = wish("x", "b3-8", "a", 0.05, 100);
        let mut stranger = pool(&own, 0, 0);
        stranger.template = None;
        let mut world = World::new(100);
        world.pools = vec![stranger];
        assert_eq!(
            world.choose(std::slice::from_ref(&own)).expect("a place").1,
            own.design.pool_name(1)
        );
        world.pools[0] = pool(&own, 0, 0);
        world.pools[0].status = "DELETING".into();
        assert_eq!(
            world.choose(std::slice::from_ref(&own)).expect("a place").1,
            own.design.pool_name(1)
        );
    }

    #[test]
    fn at_the_limit_only_existing_pools_take_claims() {
        let (cheap, dear) = (wish("x", "b3-8", "a", 0.05, 100), wish("x", "b3-16", "a", 0.1, 100));
        let mut world = World::new(2);
        world.pools = vec![pool(&dear, 0, 1), pool(&wish("y", "c3-4", "a", 1.0, 100), 0, 1)];
        assert_eq!(world.choose(&[cheap.clone(), dear.clone()]).expect("a place").0, 1);
        assert_eq!(world.choose(std::slice::from_ref(&cheap)), None);
        world.limit = 3;
        world.taken.insert("planned".into(), 1);
        assert_eq!(world.choose(std::slice::from_ref(&cheap)), None, "planned pools count");
    }
}
