//! Credentials stay where they are.

use karpenter_bizflycloud::sim::{Fault, Often, Operation};
use karpenter_cloud::CloudProvider;
use serde_json::json;

use crate::environment::{claim, secret};
use crate::launching::steady;

#[tokio::test]
async fn nothing_secret_is_in_any_log_line_or_error() {
    use std::sync::{Arc, Mutex};
    use tracing_subscriber::fmt::MakeWriter;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);
    impl std::io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().expect("not poisoned").extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    impl<'a> MakeWriter<'a> for Lines {
        type Writer = Self;
        fn make_writer(&'a self) -> Self {
            self.clone()
        }
    }

    let lines = Lines::default();
    // For the whole process: a subscriber of one thread would miss what another thread's test looked at first.
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter("karpenter_bizflycloud=trace,karpenter_cloud=trace,reqwest=trace")
        .with_writer(lines.clone())
        .finish();
    tracing::subscriber::set_global_default(subscriber).expect("no other test sets one");
    let world = steady().await;
    world.apply(&secret(&format!("{}\n", karpenter_bizflycloud::sim::PASSWORD)));
    world.new_provider().reconcile_classes().await;
    world.cloud.expire_tokens();
    let own = claim(1, json!([]));
    let made = world.provider.create(&own).await.expect("launched");
    let echo = format!("you sent {}", karpenter_bizflycloud::sim::PASSWORD);
    let fault = Fault::Http {
        operation: Operation::Any,
        status: 400,
        body: echo,
        retry_after: None,
    };
    world.cloud.inject(fault, Often::Times(2));
    let error = world.provider.get(&made.provider_id).await.expect_err("refused");
    let text = String::from_utf8_lossy(&lines.0.lock().expect("not poisoned")).into_owned();
    assert!(text.contains("default-00001"), "something was logged");
    assert!(
        text.contains("a value has white space around it"),
        "the newline of the password is warned about"
    );
    for secret in [
        karpenter_bizflycloud::sim::PASSWORD,
        karpenter_bizflycloud::sim::BKE_TOKEN,
        "token-value-",
    ] {
        assert!(!text.contains(secret), "{secret} was logged");
        assert!(!format!("{error} {error:?} {made:?} {:?}", world.provider).contains(secret));
    }
}
