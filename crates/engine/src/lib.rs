//! Scheduling and disruption decisions: pure functions from a snapshot to a plan with reasons.
