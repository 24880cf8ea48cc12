//! Behaviour of the scheduler, one line of the specification's test list each.

mod claims;
mod cost;
mod daemons;
mod limits;
mod min_values;
mod nodes;
mod queue;
mod relaxation;
mod requirements;
mod reserved;
mod robustness;
mod simulations;
mod support;
mod taints;
mod topology;
mod volumes;
mod zones;
