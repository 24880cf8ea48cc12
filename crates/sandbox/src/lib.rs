//! An embedded Kubernetes control plane for tests and demos: API server, scheduler, workload controllers, kubelets.

mod admission;
pub mod behaviour;
mod bell;
mod boot;
pub mod clock;
mod controllers;
pub mod crd;
mod events;
pub mod faults;
mod http;
pub mod object;
pub mod objects;
mod patch;
mod quantity;
pub mod requests;
pub mod resource;
mod sandbox;
mod selector;
pub mod server;
pub mod settle;
pub mod status;
pub mod store;
pub mod tcp;

pub use clock::{Clock, Sleep};
pub use controllers::{Controllers, Heartbeats, Kubelets, Machine, NodeConditionOrder, Timing};
pub use object::Object;
pub use objects::{Kind, ObjectEvent, ObjectWatch, Objects, UntypedWatch};
pub use resource::{Resource, Scope};
pub use sandbox::{Sandbox, SandboxBuilder};
pub use server::{
    DeleteOptions, Endpoint, FieldValidation, Outcome, Patch, Propagation, Server, WriteOptions, Written,
};
pub use settle::{Busy, Progress};
pub use status::{ApiError, Cause, Details, FieldError};
pub use store::{Change, Event, Snapshot, Store, TooOld, Watch};
