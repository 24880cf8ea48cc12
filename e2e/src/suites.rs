//! All suites, in the order in which they run.

mod availability;
mod behaviour;
mod chart;
pub(crate) mod crds;
mod docs;
mod kubectl;
mod manifests;
mod rbac;
mod scale;
mod scenarios;

use crate::runner::Suite;

pub(crate) fn all() -> Vec<Suite> {
    vec![
        crds::suite(),
        chart::suite(),
        docs::suite(),
        behaviour::suite(),
        kubectl::suite(),
        scenarios::suite(),
        availability::suite(),
        scale::suite(),
    ]
}
