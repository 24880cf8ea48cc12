//! Voluntary disruption: which nodes to remove, replace or repair, in which order, and why the others stay.
//!
//! The planner reads a [`Fleet`]: the scheduling snapshot plus what only disruption asks about (claims' conditions, pod
//! disruption budgets, pool policies, what is in flight already). Each method first turns members of the fleet into
//! [`Candidate`]s or [`Blocked`] reasons, then looks for a [`Command`]. Nothing here waits, writes or remembers: the
//! controllers carry a command out, and hand what they learned back in the next fleet.

pub mod balanced;
pub mod blocked;
pub mod budget;
pub mod candidate;
pub mod command;
pub mod consolidation;
pub mod cost;
pub mod deletion_cost;
pub mod drift;
pub mod emptiness;
pub mod fleet;
pub mod forecast;
pub mod pdb;
pub mod pods;
pub mod price;
pub mod rehearsal;
pub mod repair;
pub mod static_drift;
pub mod terminate_first;
pub mod tuning;
pub mod validation;

pub use blocked::Blocked;
pub use budget::{Budgets, PoolBudget};
pub use candidate::{Candidate, Class};
pub use command::{Command, Decision, Method, TerminateFirst};
pub use fleet::{ClaimFacts, FixedSize, Fleet, Gates, Health, Member, PoolPolicy, Standing, Swap};
pub use pdb::{PodDisruptionBudget, PodDisruptionBudgets};
pub use repair::{Ailment, RepairAction};
pub use tuning::{Pause, Saving, Tuning};
