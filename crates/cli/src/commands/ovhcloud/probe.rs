//! `karpenter ovhcloud probe`: how a real cluster behaves where the documentation is silent.

use std::io::{self, BufRead, Write};

use clap::Args;
use karpenter_core::clock::Clock;
use karpenter_ovhcloud::contract::{Answer, Contract, Ending, MACHINES, NoTrial, Outcome, Trial, Tried};
use kube::Client;
use serde_json::json;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::connection::{Place, refused};
use crate::commands::doctor::Format;
use crate::error::CliError;
use crate::terminal::Terminal;

/// Ask a real cluster how it behaves where OVHcloud's documentation is silent, and print a report.
///
/// It only reads, unless --create-pool says otherwise: then it makes a node pool of its own, tainted so that nobody's pods run there,
/// grows it, shrinks it in odd ways, and deletes it in the end, also after Ctrl-C or SIGTERM; a second one leaves it there. That costs money,
/// so it says how much and asks first. Other pools are not touched. Exits with 1 if it may not do something, its machines do not come up, it was
/// stopped, or it left something behind, with 3 if OVHcloud can't be
/// reached or stops answering; what was seen until then is printed all the same.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  karpenter ovhcloud probe --service-name <project> --kube-id <cluster> --secret karpenter/ovh-credentials\n  \
                        karpenter ovhcloud probe --service-name <project> --kube-id <cluster> --create-pool --flavor b3-8"
)]
pub(super) struct Probe {
    #[command(flatten)]
    place: Place,
    /// The Secret that has the credentials, as NAMESPACE/NAME [default: the environment's OVH_… variables].
    #[arg(long, value_name = "NAMESPACE/NAME")]
    secret: Option<String>,
    /// Try things out on a node pool made for that. Costs money; asks first.
    #[arg(long)]
    create_pool: bool,
    /// The flavor of its machines [default: the cheapest].
    #[arg(long, value_name = "FLAVOR", requires = "create_pool")]
    flavor: Option<String>,
    /// The zone of its machines [default: one that the cluster is known to have].
    #[arg(long, value_name = "ZONE", requires = "create_pool")]
    zone: Option<String>,
    /// Do not ask before spending.
    #[arg(long, requires = "create_pool")]
    yes: bool,
    /// How the report is written.
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: Format,
}

impl Probe {
    pub(super) async fn run(&self, terminal: &Terminal) -> Result<(), CliError> {
        let api = self.place.connect(self.secret.as_deref(), None).await?;
        let cluster = match Client::try_default().await {
            Ok(client) => Some(client),
            Err(error) => {
                terminal.note(&format!("the cluster's Nodes are not looked at: {error}"));
                None
            }
        };
        let subsidiary = api.client().endpoint().subsidiary().to_owned();
        let contract = Contract::new(api, cluster, Clock::system());
        let mut answers = contract.look().await.map_err(refused)?;
        let tried = match self.create_pool {
            true => self.try_out(&contract, &subsidiary, terminal).await,
            false => Ok(None),
        };
        // What was seen is worth telling even if nothing may be tried.
        let outcome = match tried {
            Ok(None) => Ok(()),
            Ok(Some(tried)) => {
                let outcome = outcome(&tried);
                answers.extend(tried.answers);
                outcome
            }
            Err(error) => Err(error),
        };
        match self.output {
            Format::Text => write_text(&answers)?,
            Format::Json => write_json(&answers)?,
        }
        outcome
    }

    async fn try_out(
        &self,
        contract: &Contract,
        subsidiary: &str,
        terminal: &Terminal,
    ) -> Result<Option<Tried>, CliError> {
        let trial = contract.trial(self.flavor.as_deref(), self.zone.as_deref(), subsidiary);
        let trial = trial.await.map_err(|error| match error {
            NoTrial::Api(error) => refused(error),
            NoTrial::Flavor { .. } => CliError::usage(format!("--flavor: {error}")),
            NoTrial::NoFlavor => CliError::failed(error.to_string()),
        })?;
        terminal.note(&offer(&trial));
        if !self.yes && !is_agreed()? {
            return Err(CliError::failed("not agreed to; nothing was made"));
        }
        // Waited for from here on, so that none goes unheard between two of them.
        let mut signals = Signals::new()
            .map_err(|error| CliError::failed(format!("signals can't be waited for, so nothing was made: {error}")))?;
        let stop = CancellationToken::new();
        let trying = contract.try_out(&trial, stop.clone());
        let stopping = || {
            terminal.note(&format!(
                "stopping; node pool {} is being deleted, for up to twenty minutes; a second signal leaves it there",
                trial.pool
            ));
            stop.cancel();
        };
        match unless_stopped_twice(trying, async || signals.next().await, stopping).await {
            Some(tried) => Ok(Some(tried)),
            None => Err(CliError::failed(format!(
                "stopped before everything was deleted: delete the node pools whose names begin with {} by hand",
                trial.pool
            ))),
        }
    }
}

/// What comes of `work`, which the first signal asks to end; `None` if it has not by the second.
async fn unless_stopped_twice<T>(
    work: impl Future<Output = T>,
    mut signal: impl AsyncFnMut(),
    first: impl FnOnce(),
) -> Option<T> {
    let stopped_twice = async {
        signal().await;
        first();
        signal().await;
    };
    tokio::select! {
        biased;
        done = work => Some(done),
        () = stopped_twice => None,
    }
}

/// Kubernetes ends a pod with SIGTERM, people end a process with Ctrl-C.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// What is left behind goes before everything else, since somebody has to see to it.
fn outcome(tried: &Tried) -> Result<(), CliError> {
    if !tried.left.is_empty() {
        return Err(CliError::Negative);
    }
    match &tried.ending {
        Ending::Done => Ok(()),
        Ending::Incomplete | Ending::Stopped => Err(CliError::Negative),
        Ending::Failed(error) => Err(refused(error.clone())),
    }
}

/// What will be made, and what it costs.
fn offer(trial: &Trial) -> String {
    let zone = trial
        .zone
        .as_ref()
        .map(|zone| format!(" in {zone}"))
        .unwrap_or_default();
    let cost = match trial.price {
        Some(price) => format!(
            "about {:.2} {} for every hour that begins",
            price * f64::from(MACHINES),
            trial.currency
        ),
        None => "at a price that is not known".to_owned(),
    };
    format!(
        "this makes the node pool {} with {MACHINES} machines of flavor {}{zone}, {cost}; it takes about half an hour and deletes the pool",
        trial.pool, trial.flavor
    )
}

fn is_agreed() -> io::Result<bool> {
    let mut terminal = io::stderr().lock();
    write!(terminal, "Type yes to go on: ")?;
    terminal.flush()?;
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    Ok(line.trim() == "yes")
}

fn write_text(answers: &[Answer]) -> io::Result<()> {
    let mut output = io::stdout().lock();
    for answer in answers {
        let told = match &answer.outcome {
            Outcome::Seen(seen) => seen.clone(),
            Outcome::Unknown(why) => format!("not known: {why}"),
        };
        writeln!(output, "{}\n  {told}", answer.question)?;
    }
    output.flush()
}

fn write_json(answers: &[Answer]) -> io::Result<()> {
    let answers: Vec<serde_json::Value> = answers
        .iter()
        .map(|answer| match &answer.outcome {
            Outcome::Seen(seen) => json!({"question": answer.question, "answer": seen}),
            Outcome::Unknown(why) => json!({"question": answer.question, "answer": null, "unknown": why}),
        })
        .collect();
    let mut output = io::stdout().lock();
    let report = json!({"apiVersion": "karpenter-rs/ovhcloud-probe/v1", "answers": answers});
    serde_json::to_writer_pretty(&mut output, &report)?;
    writeln!(output)?;
    output.flush()
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    #[tokio::test]
    async fn the_first_signal_asks_the_trial_to_end_and_the_second_ends_it() {
        let stop = CancellationToken::new();
        let stuck = async {
            stop.cancelled().await;
            pending::<()>().await;
        };
        assert_eq!(unless_stopped_twice(stuck, async || (), || stop.cancel()).await, None);
        assert!(stop.is_cancelled());

        let stop = CancellationToken::new();
        let mut signals = vec![true];
        let once = async || match signals.pop() {
            Some(_) => (),
            None => pending().await,
        };
        let orderly = async {
            stop.cancelled().await;
            "cleaned up"
        };
        let done = unless_stopped_twice(orderly, once, || stop.cancel()).await;
        assert_eq!(done, Some("cleaned up"));

        let undisturbed = unless_stopped_twice(ready("done"), async || pending().await, || panic!("no signal")).await;
        assert_eq!(undisturbed, Some("done"));
    }
}
