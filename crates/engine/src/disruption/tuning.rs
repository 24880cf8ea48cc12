//! What a NodePool may ask for beyond upstream's rules, by annotation. Without annotations nothing here has an effect.

use jiff::{SignedDuration, Timestamp};

use super::blocked::Blocked;
use super::candidate::Candidate;
use super::command::Command;
use super::fleet::Fleet;

/// A pool's wishes. `karpenter.sh/` annotations, so that the NodePool's schema stays upstream's.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Tuning {
    pub pause: Pause,
    /// Into how many cheaper nodes one may be split; upstream and the default are 1.
    pub max_replacements: Option<usize>,
    pub minimum_saving: Option<Saving>,
    /// What moving one pod counts for when a saving is judged, per hour.
    pub pod_cost: f64,
    /// How old a node must be before its pods are moved to save money. With it, no node is replaced by its own type.
    pub cooldown: Option<SignedDuration>,
    /// After how many failed registrations in a row drift stops.
    pub drift_halt_after: Option<u32>,
    /// It has stopped.
    pub drift_halted: bool,
    /// An annotation that cannot be read. Consolidation then leaves the pool alone: what was meant to hold it back must not
    /// vanish by a typing error.
    pub unreadable: Option<String>,
}

/// Whether anything of a pool may be disrupted voluntarily.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Pause {
    #[default]
    Off,
    /// The pool itself asks for it.
    Pool,
    /// The whole cluster is paused, by an annotation of this Namespace.
    Everything(String),
}

/// What a consolidation must save at least.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Saving {
    PerHour(f64),
    /// Of what the candidates cost.
    Percent(f64),
}

impl Tuning {
    /// Whether consolidation may look at a node that was created then.
    pub(super) fn check_candidate(&self, created: Timestamp, now: Timestamp) -> Result<(), Blocked> {
        if let Some(annotation) = &self.unreadable {
            return Err(Blocked::UnreadableAnnotation(annotation.clone()));
        }
        match self.cooldown {
            Some(cooldown) if now.duration_since(created) < cooldown => Err(Blocked::CoolingDown),
            _ => Ok(()),
        }
    }
}

/// Whether a consolidation saves as much as every pool that it touches asks for, the moving counted in.
pub(super) fn check_saving(fleet: &Fleet, command: &Command) -> Result<(), Blocked> {
    let price: f64 = command.candidates.iter().map(|candidate| candidate.price).sum();
    let moving: f64 = command
        .candidates
        .iter()
        .map(|candidate| candidate.policy(fleet).tuning.pod_cost * candidate.reschedulable_pods().count() as f64)
        .sum();
    let saving = command.savings - moving;
    for candidate in &command.candidates {
        let tuning = &candidate.policy(fleet).tuning;
        let least = match tuning.minimum_saving {
            Some(Saving::PerHour(least)) => least,
            Some(Saving::Percent(percent)) => price * percent / 100.0,
            None if tuning.pod_cost > 0.0 => f64::MIN_POSITIVE,
            None => continue,
        };
        if saving < least {
            return Err(Blocked::SavingTooSmall { saving, least });
        }
    }
    Ok(())
}

/// Into how many nodes these candidates may be consolidated: splitting is for one node at a time.
pub(super) fn max_replacements(fleet: &Fleet, candidates: &[&Candidate]) -> usize {
    match candidates {
        [only] => only.policy(fleet).tuning.max_replacements.unwrap_or(1).max(1),
        _ => 1,
    }
}
