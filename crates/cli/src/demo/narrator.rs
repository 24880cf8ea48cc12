//! Tells the story: what happens, how long it takes, how many nodes there are and what they cost.

use std::io::{self, Write};
use std::time::Instant;

use parking_lot::Mutex;
use serde::Serialize;

use super::world::{Scene, World};
use crate::commands::demo::Output;
use crate::error::CliError;
use crate::terminal::{Style, Terminal};

pub(crate) struct Narrator {
    output: Output,
    style: Style,
    steps: Mutex<Vec<Step>>,
}

/// One line of the report.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct Step {
    step: String,
    ok: bool,
    seconds: f64,
    nodes: usize,
    pods_running: usize,
    cost_per_hour: f64,
}

/// A step that is being played.
pub(crate) struct Playing<'a> {
    narrator: &'a Narrator,
    title: &'static str,
    started: Instant,
}

impl Narrator {
    pub(crate) fn new(output: Output, terminal: &Terminal) -> Self {
        Self {
            output,
            style: terminal.style(),
            steps: Mutex::default(),
        }
    }

    pub(crate) fn opening(&self, world: &World) {
        self.say(&format!(
            "An embedded cluster is up (a test environment: pods are records, not containers).\n  \
             API        {}\n  kubeconfig {}\n  log        {}\n",
            world.api_url,
            world.kubeconfig.display(),
            world.log.display()
        ));
    }

    pub(crate) fn begin(&self, title: &'static str, text: &str) -> Playing<'_> {
        self.say(&format!("{}\n  {text}", self.style.bold(title)));
        Playing {
            narrator: self,
            title,
            started: Instant::now(),
        }
    }

    pub(crate) fn staying(&self, world: &World) {
        self.say(&format!(
            "\nThe cluster stays up until you press Ctrl-C. Try:\n  kubectl --kubeconfig {} get nodes",
            world.kubeconfig.display()
        ));
    }

    /// The sum of the story.
    pub(crate) fn closing(&self, ok: bool) {
        let steps = self.steps.lock();
        match self.output {
            Output::Text => {
                if steps.is_empty() {
                    return;
                }
                let seconds: f64 = steps.iter().map(|step| step.seconds).sum();
                let verdict = if ok { "every step held" } else { "a step went wrong" };
                self.say(&format!("\n{} steps in {seconds:.1} s: {verdict}.", steps.len()));
            }
            Output::Json => {
                let report = serde_json::json!({ "apiVersion": "karpenter-rs/demo/v1", "ok": ok, "steps": &*steps });
                let _ = writeln!(io::stdout(), "{report:#}");
            }
        }
    }

    fn say(&self, text: &str) {
        if self.output == Output::Text {
            // Nobody reads a closed pipe; the exit code still says how it went.
            let _ = writeln!(io::stdout(), "{text}");
        }
    }
}

impl Playing<'_> {
    /// Reports how the step went and gives back the scene at its end.
    pub(crate) fn end(self, outcome: Result<Scene, Scene>) -> Result<Scene, CliError> {
        let seconds = self.started.elapsed().as_secs_f64();
        let ok = outcome.is_ok();
        let scene = match &outcome {
            Ok(scene) | Err(scene) => scene,
        };
        let mark = if ok {
            self.narrator.style.green("✓")
        } else {
            self.narrator.style.red("✗")
        };
        self.narrator.say(&format!(
            "  {mark} {seconds:>5.1} s   {} nodes   {:.3} an hour   {} pods running{}\n",
            scene.nodes,
            scene.cost,
            scene.running,
            if scene.pending > 0 {
                format!(", {} waiting", scene.pending)
            } else {
                String::new()
            },
        ));
        self.narrator.steps.lock().push(Step {
            step: self.title.to_owned(),
            ok,
            seconds: (seconds * 1000.0).round() / 1000.0,
            nodes: scene.nodes,
            pods_running: scene.running,
            cost_per_hour: (scene.cost * 1e6).round() / 1e6,
        });
        outcome.map_err(|_| CliError::Negative)
    }
}
