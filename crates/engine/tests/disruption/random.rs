//! Random clusters: budgets hold, the loop comes to rest, and nothing gets dearer.

use std::collections::BTreeMap;

use karpenter_api::budget::UNLIMITED;
use karpenter_engine::disruption::{Budgets, Candidate, Fleet, Method, forecast};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::fleet::{Builder, fleet, minutes, now};

const TYPES: &str = "d1 d2 d3 d4 d6 d8 d16";

/// Over-provisioned nodes in three pools with pods of all sizes.
fn cluster(random: &mut ChaCha8Rng) -> Builder {
    let mut built = fleet(TYPES).pool("b").pool("c");
    for pool in ["default", "b", "c"] {
        let nodes = match random.random_range(0..4) {
            0 => "0".to_owned(),
            1 => random.random_range(1..4).to_string(),
            2 => format!("{}%", random.random_range(5..60)),
            _ => "100%".to_owned(),
        };
        built = built.allow(pool, &nodes);
    }
    for nth in 0..random.random_range(4..20) {
        let pool = ["default", "b", "c"][random.random_range(0..3)];
        let cpus: usize = [2, 4, 8, 16][random.random_range(0..4)];
        let mut left = cpus * 1000;
        let mut pods = Vec::new();
        for _ in 0..random.random_range(0..5) {
            let size = 250 * random.random_range(1..9);
            if size <= left {
                left -= size;
                pods.push(format!("{size}m"));
            }
        }
        let pods: Vec<&str> = pods.iter().map(String::as_str).collect();
        built = built.node_in(pool, &format!("n{nth:02}"), &format!("d{cpus}"), &pods);
        let (leaving, not_ready, drifted) = (
            random.random_bool(0.1),
            random.random_bool(0.1),
            random.random_bool(0.2),
        );
        built = built.standing(|standing| {
            standing.leaving = leaving;
            standing.not_ready = not_ready;
        });
        if drifted {
            let ago = random.random_range(1..500);
            built = built.claim_where(|claim| claim.drifted_since = Some(now() - minutes(ago)));
        }
    }
    built
}

/// As [`cluster`], with every budget open and nothing going on.
fn quiet(random: &mut ChaCha8Rng) -> Fleet {
    let mut fleet = cluster(random)
        .allow("default", "100%")
        .allow("b", "100%")
        .allow("c", "100%")
        .build();
    fleet.members = fleet
        .members
        .iter()
        .map(|member| {
            let mut member = member.clone();
            member.standing = Default::default();
            member
        })
        .collect();
    fleet.snapshot.nodes = fleet.members.iter().map(|member| member.node.clone()).collect();
    fleet
}

fn cost(fleet: &Fleet) -> f64 {
    let price = |name: &str| name[1..].parse::<f64>().unwrap();
    let kinds = fleet
        .members
        .iter()
        .map(|member| &member.node.labels["node.kubernetes.io/instance-type"]);
    kinds.map(|kind| price(kind)).sum()
}

#[test]
fn a_command_never_takes_more_than_the_budget_leaves() {
    let mut decided = 0;
    for seed in 0..300 {
        let fleet = cluster(&mut ChaCha8Rng::seed_from_u64(seed)).build();
        for method in Method::ORDER {
            let Ok(command) = forecast::attempt(&fleet, method) else {
                continue;
            };
            decided += 1;
            let budgets = Budgets::of(&fleet, method.reason());
            let mut taken: BTreeMap<&str, u32> = BTreeMap::new();
            for candidate in &command.candidates {
                *taken.entry(&candidate.pool).or_default() += 1;
            }
            for (pool, budget) in budgets.iter() {
                let taken = taken.get(pool).copied().unwrap_or(0);
                assert!(
                    taken == 0 || budget.disrupting + taken <= budget.allowed,
                    "seed {seed}: {method:?} takes {taken} of {pool}: {budget:?}"
                );
                assert!(budget.allowed <= UNLIMITED);
            }
        }
    }
    assert!(decided > 200, "the clusters give something to decide: {decided}");
}

#[test]
fn the_loop_comes_to_rest_and_replaces_no_replacement() {
    for seed in 0..40 {
        let fleet = quiet(&mut ChaCha8Rng::seed_from_u64(seed));
        let nodes = fleet.members.len();
        let done = forecast::forecast(fleet, 200);
        assert!(
            done.commands.len() <= 2 * nodes,
            "seed {seed}: {} commands for {nodes} nodes",
            done.commands.len()
        );
        assert!(forecast::next(&done.fleet).is_err(), "seed {seed}: a command is left");
        let replaced_again = done.commands.iter().filter(|command| {
            let is_new = |candidate: &Candidate| candidate.name().starts_with("replacement-");
            command.candidates.iter().any(is_new) && !command.replacements.is_empty() && command.candidates.len() == 1
        });
        assert_eq!(replaced_again.count(), 0, "seed {seed}");
    }
}

#[test]
fn consolidation_never_makes_a_cluster_dearer_and_splitting_makes_it_no_dearer_still() {
    let mut cheaper = 0;
    for seed in 0..40 {
        let mut fleet = quiet(&mut ChaCha8Rng::seed_from_u64(seed));
        // Drift replaces at any price.
        fleet.members = fleet
            .members
            .iter()
            .map(|member| {
                let mut member = member.clone();
                std::sync::Arc::make_mut(member.claim.as_mut().unwrap()).drifted_since = None;
                member
            })
            .collect();
        let before = cost(&fleet);
        let done = forecast::forecast(fleet.clone(), 200);
        let mut left = before;
        for command in &done.commands {
            assert!(command.savings > 0.0, "seed {seed}: {command:?}");
            left -= command.savings;
        }
        let after = cost(&done.fleet);
        assert!(
            (after - left).abs() < 1e-6,
            "seed {seed}: {after} is not what the savings come to, {left}"
        );

        let mut splitting = fleet;
        for policy in std::sync::Arc::make_mut(&mut splitting.pools).values_mut() {
            policy.tuning.max_replacements = Some(4);
        }
        let split = cost(&forecast::forecast(splitting, 200).fleet);
        assert!(split <= before, "seed {seed}");
        cheaper += usize::from(split < after - 1e-9);
    }
    println!("splitting was cheaper in {cheaper} of 40 clusters");
}
