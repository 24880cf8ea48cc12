//! An embedded Kubernetes control plane for tests and demos: API server, scheduler, workload controllers, kubelets.

pub mod crd;
