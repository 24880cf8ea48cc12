//! The rules that every provider passes.

use crate::environment::World;

async fn environment() -> World {
    World::start().await
}

karpenter_cloud::conformance_tests!(environment);
