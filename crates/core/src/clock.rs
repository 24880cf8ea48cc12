//! Time as the controllers see it: the one clock of the house, which providers use too.

pub use karpenter_cloud::clock::{Clock, ManualClock, TimeSource, later};
