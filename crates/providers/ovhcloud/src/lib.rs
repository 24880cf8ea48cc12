//! The OVHcloud Managed Kubernetes provider.
