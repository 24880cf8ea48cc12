//! What the cloud refused lately, and how far a refusal reaches (§1.9).

use std::time::Duration;

use karpenter_cloud::{
    clock::Clock,
    unavailable::{MarkBackoff, UnavailableOfferings},
};

use crate::{
    catalogue::{Availability, PLAN_SPOT},
    client::wire::Flavor,
};

/// A refusal: of one flavor in one zone, or of everything that is at least so big.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Refusal {
    Stock {
        account: String,
        flavor: String,
        zone: String,
        plan: String,
    },
    /// A quota is the project's: what is bigger than the refused one will not fit either, something smaller may.
    Quota {
        account: String,
        plan: String,
        vcpus: u64,
        ram: u64,
    },
    /// The account can't order spot servers, at least not as we do.
    Spot { account: String },
}

#[derive(Debug)]
pub(crate) struct Refusals(UnavailableOfferings<Refusal>);

/// The refusals that concern one account.
#[derive(Debug)]
pub(crate) struct RefusalsOf {
    held: Vec<Refusal>,
}

const HOLD: Duration = Duration::from_secs(3 * 60);
const HOLD_SPOT: Duration = Duration::from_secs(3600);
/// A spot server that was taken away would be taken away again soon.
const HOLD_INTERRUPTED: Duration = Duration::from_secs(10 * 60);

impl Refusals {
    pub(crate) fn new(clock: Clock) -> Self {
        Self(UnavailableOfferings::new(clock, MarkBackoff::constant(HOLD)))
    }

    pub(crate) fn sold_out(&self, account: &str, flavor: &str, zone: &str, plan: &str, why: &str) {
        let refusal = Refusal::Stock {
            account: account.to_owned(),
            flavor: flavor.to_owned(),
            zone: zone.to_owned(),
            plan: plan.to_owned(),
        };
        self.0.mark(refusal, why);
    }

    pub(crate) fn over_quota(&self, account: &str, flavor: &Flavor, plan: &str, why: &str) {
        let refusal = Refusal::Quota {
            account: account.to_owned(),
            plan: plan.to_owned(),
            vcpus: flavor.vcpus,
            ram: flavor.ram,
        };
        self.0.mark(refusal, why);
    }

    /// Spot servers are not ordered for a while.
    pub(crate) fn no_spot(&self, account: &str, why: &str) {
        let refusal = Refusal::Spot {
            account: account.to_owned(),
        };
        self.0.mark_for(refusal, why, HOLD_SPOT);
    }

    /// A spot server was taken away.
    pub(crate) fn interrupted(&self, account: &str, flavor: &str, zone: &str) {
        let refusal = Refusal::Stock {
            account: account.to_owned(),
            flavor: flavor.to_owned(),
            zone: zone.to_owned(),
            plan: PLAN_SPOT.to_owned(),
        };
        self.0
            .mark_for(refusal, "a spot server was taken away", HOLD_INTERRUPTED);
    }

    /// Room was made: a machine is gone.
    pub(crate) fn forget_quotas(&self, account: &str) {
        self.0
            .clear(|refusal, _| matches!(refusal, Refusal::Quota { account: own, .. } if own == account));
    }

    pub(crate) fn of(&self, account: &str) -> RefusalsOf {
        let held = self.0.marks().into_iter().map(|(refusal, _)| refusal);
        RefusalsOf {
            held: held.filter(|refusal| refusal.account() == account).collect(),
        }
    }

    /// Those of all accounts.
    pub(crate) fn all(&self) -> RefusalsOf {
        RefusalsOf {
            held: self.0.marks().into_iter().map(|(refusal, _)| refusal).collect(),
        }
    }

    pub(crate) fn version(&self) -> u64 {
        self.0.version()
    }
}

impl Refusal {
    fn account(&self) -> &str {
        match self {
            Self::Stock { account, .. } | Self::Quota { account, .. } | Self::Spot { account } => account,
        }
    }
}

impl RefusalsOf {
    /// Zone and reason of each, for metrics.
    pub(crate) fn counts(&self) -> Vec<(String, &'static str)> {
        let count = |refusal: &Refusal| match refusal {
            Refusal::Stock { zone, .. } => (zone.clone(), "stock"),
            Refusal::Quota { .. } => (String::new(), "quota"),
            Refusal::Spot { .. } => (String::new(), "spot"),
        };
        self.held.iter().map(count).collect()
    }

    /// Whether a quota holds this flavor back.
    pub(crate) fn is_over_quota(&self, flavor: &Flavor, plan: &str) -> bool {
        self.held.iter().any(|refusal| match refusal {
            Refusal::Quota {
                plan: own, vcpus, ram, ..
            } => own == plan && flavor.vcpus >= *vcpus && flavor.ram >= *ram,
            Refusal::Stock { .. } | Refusal::Spot { .. } => false,
        })
    }

    /// The plans that a quota holds back.
    pub(crate) fn blocks(&self, plan: &str) -> bool {
        self.held
            .iter()
            .any(|refusal| matches!(refusal, Refusal::Quota { plan: own, .. } if own == plan))
    }
}

impl Availability for RefusalsOf {
    fn is_refused(&self, flavor: &Flavor, zone: &str, plan: &str) -> bool {
        let of_offer = |refusal: &Refusal| match refusal {
            Refusal::Stock {
                flavor: own,
                zone: own_zone,
                plan: own_plan,
                ..
            } => *own == flavor.name && own_zone == zone && own_plan == plan,
            Refusal::Spot { .. } => plan == PLAN_SPOT,
            Refusal::Quota { .. } => false,
        };
        self.is_over_quota(flavor, plan) || self.held.iter().any(of_offer)
    }
}

#[cfg(test)]
mod tests {
    use karpenter_cloud::clock::ManualClock;

    use super::*;

    fn flavor(name: &str, vcpus: u64, gib: u64) -> Flavor {
        Flavor {
            name: name.into(),
            vcpus,
            ram: gib * 1024,
            ..Flavor::default()
        }
    }

    #[test]
    fn a_sold_out_flavor_is_refused_in_its_zone_and_plan_for_three_minutes() {
        let clock = ManualClock::starting_at(jiff::Timestamp::UNIX_EPOCH);
        let refusals = Refusals::new(clock.clock());
        let small = flavor("nix.4c_8g", 4, 8);
        refusals.sold_out("default", "nix.4c_8g", "HN1", "on_demand", "sold out");
        let now = refusals.of("default");
        assert!(now.is_refused(&small, "HN1", "on_demand"));
        assert!(!now.is_refused(&small, "HN2", "on_demand") && !now.is_refused(&small, "HN1", "saving_plan"));
        assert!(!refusals.of("other").is_refused(&small, "HN1", "on_demand"));
        clock.advance(HOLD);
        assert!(!refusals.of("default").is_refused(&small, "HN1", "on_demand"));
    }

    #[test]
    fn a_quota_refuses_what_is_as_big_or_bigger_everywhere() {
        let clock = ManualClock::starting_at(jiff::Timestamp::UNIX_EPOCH);
        let refusals = Refusals::new(clock.clock());
        refusals.over_quota("default", &flavor("nix.8c_16g", 8, 16), "on_demand", "quota");
        let now = refusals.of("default");
        assert!(now.is_refused(&flavor("p2.16c_32g", 16, 32), "HN2", "on_demand"));
        assert!(!now.is_refused(&flavor("nix.4c_8g", 4, 8), "HN1", "on_demand"));
        refusals.forget_quotas("default");
        assert!(
            !refusals
                .of("default")
                .is_refused(&flavor("p2.16c_32g", 16, 32), "HN2", "on_demand")
        );
    }
}
