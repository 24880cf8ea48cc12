//! Behaviour of cluster state, fed with objects as the watches would.
