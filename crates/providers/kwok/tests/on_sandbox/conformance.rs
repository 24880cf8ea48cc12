//! The KWOK provider passes the suite that every provider has to pass.

use crate::environment::KwokEnvironment;

async fn environment() -> KwokEnvironment {
    KwokEnvironment::start()
}

karpenter_cloud::conformance_tests!(environment);
