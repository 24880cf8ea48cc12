//! Disruption decisions, case by case: a fleet in a few words, and what the planner makes of it.

mod balanced;
mod blockers;
mod budgets;
mod consolidation;
mod costs;
mod drift;
mod fleet;
mod random;
mod repair;
mod static_drift;
mod terminate_first;
mod tuning;
