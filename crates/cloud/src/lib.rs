//! The CloudProvider trait and the kit that providers are built with.
