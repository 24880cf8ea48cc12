//! Checks of a provider that hold back a node's registration until the cloud is done with it.

use std::time::Duration;

use async_trait::async_trait;
use karpenter_api::NodeClaim;

use crate::error::CloudError;

/// Asked on every attempt to register a claim's node; all hooks run in parallel.
#[async_trait]
pub trait RegistrationHook: Send + Sync + 'static {
    /// Shown in the message of `Registered=Unknown` while the hook is pending.
    fn name(&self) -> &str;

    /// May change the claim; its labels are synced to the Node again afterwards.
    ///
    /// # Errors
    /// Registration stays pending and is retried with backoff.
    async fn registered(&self, claim: &mut NodeClaim) -> Result<HookVerdict, CloudError>;
}

/// What a hook thinks of registering the node now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookVerdict {
    Proceed,
    /// Ask again with the queue's backoff.
    Wait,
    WaitFor(Duration),
}

impl std::fmt::Debug for dyn RegistrationHook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RegistrationHook").field("name", &self.name()).finish()
    }
}

/// What all hooks together say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HookOutcome {
    Proceed,
    Pending {
        /// The names of the pending hooks, as they appear in the condition's message.
        hooks: Vec<String>,
        /// The shortest wait that was asked for, if any named one.
        retry_after: Option<Duration>,
    },
}

impl HookOutcome {
    /// Merges the verdicts of all hooks; an error counts as pending.
    pub fn of<'a>(verdicts: impl IntoIterator<Item = (&'a str, Option<HookVerdict>)>) -> Self {
        let mut hooks = Vec::new();
        let mut retry_after: Option<Duration> = None;
        for (name, verdict) in verdicts {
            match verdict {
                Some(HookVerdict::Proceed) => continue,
                Some(HookVerdict::Wait) | None => {}
                Some(HookVerdict::WaitFor(wait)) => {
                    retry_after = Some(retry_after.map_or(wait, |shortest| shortest.min(wait)));
                }
            }
            hooks.push(name.to_owned());
        }
        if hooks.is_empty() {
            Self::Proceed
        } else {
            Self::Pending { hooks, retry_after }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registration_waits_for_every_hook_and_for_the_shortest_delay() {
        let seconds = Duration::from_secs;
        let outcome = HookOutcome::of([
            ("a", Some(HookVerdict::Proceed)),
            ("b", Some(HookVerdict::WaitFor(seconds(30)))),
            ("c", Some(HookVerdict::WaitFor(seconds(5)))),
            ("failed", None),
        ]);
        let hooks = vec!["b".to_owned(), "c".to_owned(), "failed".to_owned()];
        assert_eq!(
            outcome,
            HookOutcome::Pending {
                hooks,
                retry_after: Some(seconds(5))
            }
        );
        assert_eq!(
            HookOutcome::of([("a", Some(HookVerdict::Proceed))]),
            HookOutcome::Proceed
        );
        assert_eq!(HookOutcome::of([]), HookOutcome::Proceed);
    }
}
