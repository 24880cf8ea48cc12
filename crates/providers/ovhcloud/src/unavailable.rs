//! What OVHcloud refused lately: flavors out of stock in a zone, and sizes beyond the project's quota.

use std::time::Duration;

use karpenter_cloud::{
    clock::Clock,
    unavailable::{MarkBackoff, UnavailableOfferings},
};

use crate::client::model::Flavor;

/// Marks that hold for a while. Cheap to ask.
#[derive(Debug)]
pub struct Unavailable {
    /// By flavor and zone.
    offerings: UnavailableOfferings<(String, String)>,
    /// By vCPUs and RAM of the machine that did not fit the quota.
    quota: UnavailableOfferings<(u32, u32)>,
}

const MINUTE: Duration = Duration::from_secs(60);

impl Unavailable {
    pub fn new(clock: &Clock) -> Self {
        let stock = MarkBackoff {
            first: MINUTE * 3,
            longest: MINUTE * 30,
            memory: MINUTE * 60,
        };
        Self {
            offerings: UnavailableOfferings::new(clock.clone(), stock),
            quota: UnavailableOfferings::new(clock.clone(), MarkBackoff::constant(MINUTE * 5)),
        }
    }

    pub fn out_of_stock(&self, flavor: &str, zone: &str) {
        self.offerings
            .mark((flavor.to_owned(), zone.to_owned()), "out of stock");
    }

    /// The API refused the flavor as such.
    pub fn refused(&self, flavor: &str, zone: &str, why: &str) {
        self.offerings
            .mark_for((flavor.to_owned(), zone.to_owned()), why, MINUTE * 10);
    }

    /// The project has no quota left for a machine of this size, nor for a bigger one.
    pub fn over_quota(&self, vcpus: u32, ram: u32) {
        self.quota.mark((vcpus, ram), "over the project's quota");
    }

    /// Why a flavor should not be asked for in a zone now, if so.
    pub fn why(&self, flavor: &Flavor, zone: &str) -> Option<String> {
        let key = (flavor.name.clone(), zone.to_owned());
        if let Some(mark) = self.offerings.get(&key) {
            return Some(mark.reason);
        }
        let marks = self.quota.marks();
        let exceeded = marks
            .into_iter()
            .find(|((vcpus, ram), _)| flavor.vcpus >= *vcpus && flavor.ram >= *ram);
        exceeded.map(|(_, mark)| mark.reason)
    }

    /// How many offerings are marked, by reason.
    pub fn marks(&self) -> Vec<(String, String, String)> {
        let marks = self.offerings.marks().into_iter();
        marks
            .map(|((flavor, zone), mark)| (flavor, zone, mark.reason))
            .collect()
    }

    /// Differs whenever what holds differs.
    pub fn version(&self) -> (u64, u64) {
        (self.offerings.version(), self.quota.version())
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use karpenter_cloud::clock::ManualClock;

    use super::*;
    use crate::catalogue::flavors::built_in;

    #[test]
    fn stock_is_per_flavor_and_zone_and_quota_for_all_that_is_bigger() {
        let clock = ManualClock::starting_at(Timestamp::UNIX_EPOCH);
        let unavailable = Unavailable::new(&clock.clock());
        let flavor = |name: &str| built_in(name).expect("known");
        unavailable.out_of_stock("b3-8", "a");
        assert!(unavailable.why(&flavor("b3-8"), "a").is_some());
        assert!(unavailable.why(&flavor("b3-8"), "b").is_none());
        unavailable.over_quota(8, 30);
        assert!(unavailable.why(&flavor("b3-64"), "b").is_some(), "16 vCPUs and 64 GiB");
        assert!(unavailable.why(&flavor("c3-16"), "b").is_none(), "8 vCPUs but 16 GiB");
        clock.advance(MINUTE * 5);
        assert!(unavailable.why(&flavor("b3-64"), "b").is_none());
        assert!(unavailable.why(&flavor("b3-8"), "a").is_none());
    }
}
