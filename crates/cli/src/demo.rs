//! The demo: an embedded control plane, a simulated cloud and the real controllers, in one process.

mod clouds;
mod narrator;
mod story;
mod world;

use std::path::PathBuf;

use tokio_util::sync::CancellationToken;

use crate::commands::demo::{Output, Story};
use crate::error::CliError;
use crate::providers::Provider;
use crate::terminal::Terminal;

use narrator::Narrator;
use world::World;

#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) provider: Provider,
    pub(crate) story: Story,
    pub(crate) speed: f64,
    pub(crate) once: bool,
    pub(crate) port: u16,
    pub(crate) kubeconfig: Option<PathBuf>,
    pub(crate) output: Output,
}

/// Starts everything, plays the story, and stays until Ctrl-C unless it was asked to end.
pub(crate) async fn run(settings: Settings, terminal: &Terminal) -> Result<(), CliError> {
    let stop = CancellationToken::new();
    tokio::spawn(crate::commands::controller::stop_on_signal(stop.clone()));
    let narrator = Narrator::new(settings.output, terminal);
    let world = World::start(&settings).await?;
    narrator.opening(&world);
    let told = match settings.story {
        Story::None => Ok(()),
        Story::Tour => tokio::select! {
            told = story::play(&world, &narrator) => told,
            () = stop.cancelled() => Ok(()),
        },
    };
    if !settings.once && told.is_ok() && !stop.is_cancelled() {
        narrator.staying(&world);
        stop.cancelled().await;
    }
    narrator.closing(told.is_ok());
    world.stop().await?;
    told
}
