//! Cluster state and controllers: watches become facts, plans become effects.
