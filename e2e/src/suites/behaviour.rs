//! The sandbox's behaviour suite on the real API server: what our tests rely on is what Kubernetes does.

use std::time::Duration;

use anyhow::{anyhow, ensure};
use karpenter_sandbox::behaviour::{self, Behaviour, Target};

use crate::runner::{Case, Runs, Suite};

pub(crate) fn suite() -> Suite {
    Suite {
        name: "behaviour",
        runs: Runs::BesideOthers,
        cases: behaviour::all().into_iter().map(case).chain([slow()]).collect(),
    }
}

/// What takes a cluster a minute, all at once.
fn slow() -> Case {
    Case {
        name: "what_takes_a_minute".into(),
        run: Box::new(|environment| {
            Box::pin(async move {
                let access = environment.control_plane.access().await?;
                let checks = behaviour::slow().into_iter().map(|behaviour| {
                    let access = access.clone();
                    async move {
                        let outcome = behaviour.check(access, Target::Real).await;
                        outcome.map_err(|reason| {
                            format!("{} (sandbox.md §{}): {reason}", behaviour.name, behaviour.section)
                        })
                    }
                });
                let outcomes = futures::future::join_all(checks).await;
                let failures: Vec<String> = outcomes.into_iter().filter_map(Result::err).collect();
                ensure!(failures.is_empty(), "{}", failures.join("\n       "));
                Ok(())
            })
        }),
        limit: Duration::from_secs(1_200),
    }
}

fn case(behaviour: Behaviour) -> Case {
    Case {
        name: behaviour.name.into(),
        run: Box::new(move |environment| {
            Box::pin(async move {
                let access = environment.control_plane.access().await?;
                let outcome = behaviour.check(access, Target::Real).await;
                outcome.map_err(|reason| anyhow!("sandbox.md §{}: {reason}", behaviour.section))
            })
        }),
        limit: Duration::from_secs(900),
    }
}
