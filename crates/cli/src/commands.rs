//! The commands of the binary; each is a module with its arguments and its `run`.

pub(crate) mod controller;
mod convert;
mod cost;
mod crds;
pub(crate) mod demo;
pub(crate) mod doctor;
mod ovhcloud;
mod simulate;
mod validate;

use clap::Subcommand;

use crate::error::CliError;
use crate::terminal::Terminal;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the autoscaler in a cluster.
    Controller(Box<controller::Controller>),
    /// Start an embedded cluster with the autoscaler, and play a story on it.
    Demo(demo::Demo),
    /// Print the CustomResourceDefinitions that a cluster needs.
    Crds(crds::Crds),
    /// Check an installation and its cloud from the outside, and say what to fix.
    Doctor(Box<doctor::Doctor>),
    /// Tell what nodes at BizFly Cloud cost, per hour and this month, and what could be saved.
    Cost(cost::Cost),
    /// Make and check the API key that the OVHcloud provider works with.
    Ovhcloud(ovhcloud::Ovhcloud),
    /// Print v1 manifests for v1alpha5 Provisioners.
    Convert(convert::Convert),
    /// Work out offline which nodes would be launched, where pods would land, and what it would cost.
    Simulate(simulate::Simulate),
    /// Check manifests against Karpenter's CRDs and its runtime rules, without a cluster.
    Validate(validate::Validate),
}

impl Command {
    pub(crate) fn run(self, terminal: &Terminal) -> Result<(), CliError> {
        match self {
            Self::Controller(controller) => controller.run(),
            Self::Demo(demo) => demo.run(terminal),
            Self::Crds(crds) => crds.run(),
            Self::Doctor(doctor) => doctor.run(terminal),
            Self::Cost(cost) => cost.run(terminal),
            Self::Ovhcloud(ovhcloud) => ovhcloud.run(terminal),
            Self::Convert(convert) => convert.run(terminal),
            Self::Simulate(simulate) => simulate.run(terminal),
            Self::Validate(validate) => validate.run(terminal),
        }
    }
}
