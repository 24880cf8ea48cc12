//! All suites, in the order in which they start.

mod availability;
mod behaviour;
mod chart;
mod clouds;
pub(crate) mod crds;
mod docs;
mod kubectl;
pub(crate) mod manifests;
pub(crate) mod rbac;
mod scale;
mod scenarios;

use crate::runner::Suite;

pub(crate) fn all() -> Vec<Suite> {
    // The longest first, so that the others fill the time beside them.
    let mut suites = vec![availability::suite(), scenarios::suite()];
    suites.extend(clouds::suites());
    suites.extend([
        scenarios::periods(),
        behaviour::suite(),
        docs::suite(),
        chart::suite(),
        crds::suite(),
        kubectl::suite(),
        scale::suite(),
    ]);
    suites
}
