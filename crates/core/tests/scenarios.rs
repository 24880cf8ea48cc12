//! Controllers on the sandbox's API server, on a clock that the test moves.

#[path = "scenarios/adoption.rs"]
mod adoption;
#[path = "scenarios/capacity_buffers.rs"]
mod capacity_buffers;
#[path = "scenarios/cluster.rs"]
mod cluster;
#[path = "scenarios/crashes.rs"]
mod crashes;
#[path = "scenarios/deletion_cost.rs"]
mod deletion_cost;
#[path = "scenarios/disruption.rs"]
mod disruption;
#[path = "scenarios/disruption_budgets.rs"]
mod disruption_budgets;
#[path = "scenarios/disruption_loop.rs"]
mod disruption_loop;
#[path = "scenarios/disruption_queue.rs"]
mod disruption_queue;
#[path = "scenarios/faults.rs"]
mod faults;
#[path = "scenarios/handover.rs"]
mod handover;
#[path = "scenarios/kindred.rs"]
mod kindred;
#[path = "scenarios/leader_election.rs"]
mod leader_election;
#[path = "scenarios/lifecycle.rs"]
mod lifecycle;
#[path = "scenarios/node_overlays.rs"]
mod node_overlays;
#[path = "scenarios/operator.rs"]
mod operator;
#[path = "scenarios/provisioning.rs"]
mod provisioning;
#[path = "scenarios/reboot.rs"]
mod reboot;
#[path = "scenarios/repair.rs"]
mod repair;
#[path = "scenarios/rest.rs"]
mod rest;
#[path = "scenarios/static_capacity.rs"]
mod static_capacity;
#[path = "scenarios/storms.rs"]
mod storms;
#[path = "scenarios/termination.rs"]
mod termination;
#[path = "scenarios/upkeep.rs"]
mod upkeep;
#[path = "scenarios/watching.rs"]
mod watching;
#[path = "scenarios/waves.rs"]
mod waves;
#[path = "scenarios/whole_cluster.rs"]
mod whole_cluster;
#[path = "scenarios/world.rs"]
mod world;
