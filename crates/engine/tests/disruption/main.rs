//! Disruption decisions, case by case: a fleet in a few words, and what the planner makes of it.

mod balanced;
mod blockers;
mod budgets;
mod consolidation;
mod cost;
mod costs;
mod deletion_cost;
mod destinations;
mod drift;
mod fleet;
mod prices;
mod random;
mod repair;
mod search;
mod static_drift;
mod terminate_first;
mod tuning;
mod validation;
