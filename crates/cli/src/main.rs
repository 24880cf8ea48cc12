//! `karpenter`: the one binary; argument parsing and wiring, nothing else.

fn main() {}
