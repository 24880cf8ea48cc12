//! The Kubernetes kinds of Karpenter, and the vocabulary that every other crate shares.
