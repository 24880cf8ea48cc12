//! The rules that every provider keeps.

use crate::environment::Cloud;

async fn environment() -> Cloud {
    Cloud::start().await
}

karpenter_cloud::conformance_tests!(environment);
