//! Controllers on the sandbox's API server, on a clock that the test moves.

#[path = "scenarios/leader_election.rs"]
mod leader_election;
#[path = "scenarios/world.rs"]
mod world;
