//! Runs suites, each on a fresh control plane and some beside each other, and reports progress and the sum.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures::future::LocalBoxFuture;
use futures::{FutureExt, StreamExt};

use crate::controlplane::{Binary, ControlPlane};

/// Cases that share one control plane.
#[derive(Debug)]
pub(crate) struct Suite {
    pub(crate) name: &'static str,
    pub(crate) runs: Runs,
    pub(crate) cases: Vec<Case>,
}

/// What else may run at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Runs {
    BesideOthers,
    /// It measures: after all others, and by itself.
    Alone,
}

/// One behaviour, named as a sentence with underscores.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) run: Run,
    pub(crate) limit: Duration,
}

pub(crate) type Run = Box<dyn for<'a> Fn(&'a mut Environment) -> LocalBoxFuture<'a, Result<()>>>;

/// What a case finds: the control plane, and the binary under test.
#[derive(Debug)]
pub(crate) struct Environment {
    pub(crate) control_plane: ControlPlane,
    pub(crate) karpenter: PathBuf,
    /// Upstream's controller, if ours is to be compared with it.
    pub(crate) upstream: Option<PathBuf>,
    pub(crate) logs: PathBuf,
}

/// What is tested, and where it leaves its logs.
#[derive(Debug)]
struct Subject {
    control_plane: Binary,
    karpenter: PathBuf,
    upstream: Option<PathBuf>,
    logs: PathBuf,
}

#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) filter: Option<String>,
    pub(crate) logs: PathBuf,
    pub(crate) karpenter: PathBuf,
    pub(crate) upstream: Option<PathBuf>,
    /// How many suites run at a time.
    pub(crate) jobs: usize,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed,
    Failed,
}

pub(crate) fn list(suites: &[Suite], filter: Option<&str>) {
    for suite in suites {
        for case in &suite.cases {
            let name = format!("{}/{}", suite.name, case.name);
            if filter.is_none_or(|text| name.contains(text)) {
                println!("{name}");
            }
        }
    }
}

pub(crate) async fn run(suites: Vec<Suite>, settings: Settings) -> Result<Outcome> {
    let started = Instant::now();
    let module = Path::new("e2e/control-plane");
    println!("control plane: building, or taking it from the cache");
    let subject = Subject {
        control_plane: Binary::obtain(module)?,
        karpenter: std::path::absolute(&settings.karpenter)?,
        upstream: settings.upstream.as_deref().map(std::path::absolute).transpose()?,
        logs: std::path::absolute(&settings.logs)?,
    };
    let logs = &subject.logs;
    let _ = std::fs::remove_dir_all(logs);
    std::fs::create_dir_all(logs).with_context(|| format!("cannot create {}", logs.display()))?;

    let filter = settings.filter.as_deref();
    // Suites mostly wait, each for a control plane of its own, so that several at a time take little longer than one.
    let beside = suites.iter().filter(|suite| suite.runs == Runs::BesideOthers);
    let mut tallies: Vec<Result<Tally>> = futures::stream::iter(beside)
        .map(|suite| suite.run(filter, &subject))
        .buffer_unordered(settings.jobs.max(1))
        .collect()
        .await;
    for suite in suites.iter().filter(|suite| suite.runs == Runs::Alone) {
        tallies.push(suite.run(filter, &subject).await);
    }
    let mut sum = Tally::default();
    for tally in tallies {
        let tally = tally?;
        sum.passed += tally.passed;
        sum.failed.extend(tally.failed);
    }
    println!();
    for name in &sum.failed {
        println!("failed: {name}");
    }
    println!("took {:.0} s", seconds(started));
    println!("e2e: {} passed, {} failed", sum.passed, sum.failed.len());
    Ok(if sum.failed.is_empty() {
        Outcome::Passed
    } else {
        Outcome::Failed
    })
}

/// What came of the cases.
#[derive(Debug, Default)]
struct Tally {
    passed: usize,
    failed: Vec<String>,
}

// === impl Suite ===

impl Suite {
    /// Runs the cases that are asked for, one after the other, on a control plane that starts empty and is stopped at the end.
    async fn run(&self, filter: Option<&str>, subject: &Subject) -> Result<Tally> {
        let wanted = |case: &Case| filter.is_none_or(|text| format!("{}/{}", self.name, case.name).contains(text));
        let cases: Vec<&Case> = self.cases.iter().filter(|case| wanted(case)).collect();
        let mut tally = Tally::default();
        if cases.is_empty() {
            return Ok(tally);
        }
        let started = Instant::now();
        let dir = subject.logs.join(self.name);
        let control_plane = ControlPlane::start(&subject.control_plane, &dir).await?;
        println!(
            "{}: {} cases; control plane up in {:.1} s",
            self.name,
            cases.len(),
            seconds(started)
        );
        let mut environment = Environment {
            control_plane,
            karpenter: subject.karpenter.clone(),
            upstream: subject.upstream.clone(),
            logs: dir,
        };
        for (index, case) in cases.iter().enumerate() {
            let started = Instant::now();
            let result = std::panic::AssertUnwindSafe(tokio::time::timeout(case.limit, (case.run)(&mut environment)))
                .catch_unwind()
                .await;
            let verdict = match result {
                Ok(Ok(Ok(()))) => Ok(()),
                Ok(Ok(Err(error))) => Err(format!("{error:#}")),
                Ok(Err(_)) => Err(format!("not done after {:?}", case.limit)),
                Err(panic) => Err(panic_text(&*panic)),
            };
            let position = format!("{} [{}/{}]", self.name, index + 1, cases.len());
            match verdict {
                Ok(()) => {
                    tally.passed += 1;
                    println!("  {position} ok   {} ({:.1} s)", case.name, seconds(started));
                }
                Err(reason) => {
                    println!(
                        "  {position} FAIL {} ({:.1} s)\n       {reason}",
                        case.name,
                        seconds(started)
                    );
                    tally.failed.push(format!("{}/{}", self.name, case.name));
                }
            }
        }
        environment.control_plane.stop().await;
        Ok(tally)
    }
}

fn seconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64()
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "panicked".to_owned())
}

// === impl Case ===

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Case").field("name", &self.name).finish_non_exhaustive()
    }
}
