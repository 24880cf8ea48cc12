//! Whether a machine fits into a cluster's share of a quota, and who goes on where machines fit into nobody's (§7.4).

use std::cmp::Reverse;

use super::{
    Used, Wanted,
    fair::{self, Stake},
};
use crate::{capacity_share::Amounts, provider_config::Quota};

/// How a quota is shared with other clusters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sharing {
    pub(crate) cluster: String,
    pub(crate) weight: u32,
    /// What this cluster's servers have, as far as they are listed.
    pub(crate) own: Used,
    pub(crate) peers: Vec<Peer>,
}

/// What another cluster told lately.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) cluster: String,
    pub(crate) weight: u32,
    pub(crate) used: Amounts,
    pub(crate) wanted: Amounts,
}

impl Sharing {
    /// What of this cluster's share a machine does not fit into, in a sentence. What peers lack is kept for them, by weight.
    ///
    /// That the whole quota has room for the machine is known already.
    pub(super) fn refuses(&self, quota: &Quota, used: &Used, own: &Used, wanted: &Wanted<'_>) -> Option<String> {
        let us = Peer {
            cluster: self.cluster.clone(),
            weight: self.weight,
            used: own.amounts(),
            wanted: Used::default().and(wanted).amounts(),
        };
        // Every cluster sees the same order.
        let mut clusters: Vec<&Peer> = self.peers.iter().chain([&us]).collect();
        clusters.sort_by(|a, b| a.cluster.cmp(&b.cluster));
        let at = clusters.iter().position(|own| std::ptr::eq(*own, &us))?;
        let scarce = Scarce::all(quota, &used.amounts(), &clusters);
        let tight = scarce.iter().find(|own| !own.fits(at))?;
        if goes_on(at, &clusters, &scarce) {
            return None;
        }
        let Scarce { what, limit, of, .. } = tight;
        Some(format!(
            "{} needs {} {what}, and of the {limit} of spec.quota this cluster's share by weight is {}, of which it has {}; other \
             clusters wait for the rest",
            wanted.flavor.name,
            of(&us.wanted),
            tight.holdings[at].share,
            of(&us.used),
        ))
    }
}

/// Whether a cluster may have a machine that exceeds its share. Where machines fit into nobody's share, what is left would stay
/// with nobody: one at a time goes over its own, by one machine. Of those that have not had their share, and whose machine the
/// quota has room for, that is the one that lacks most; of equals, the first by name.
fn goes_on(us: usize, clusters: &[&Peer], scarce: &[Scarce]) -> bool {
    let may = |at: usize| {
        clusters[at].wanted != Amounts::default() && scarce.iter().all(|own| own.lacks(at) > 0 && own.has_room(at))
    };
    let turn = |at: usize| (Reverse(scarce.first().map_or(0, |own| own.lacks(at))), at);
    let mut others = (0..clusters.len()).filter(|at| *at != us && may(*at));
    may(us) && others.all(|at| scarce.iter().any(|own| !own.fits(at)) && turn(us) < turn(at))
}

/// One of the things that a quota limits.
struct Scarce {
    what: &'static str,
    limit: u64,
    /// By everybody.
    used: u64,
    of: fn(&Amounts) -> u64,
    /// Of each cluster.
    holdings: Vec<Holding>,
}

struct Holding {
    used: u64,
    share: u64,
    /// What the next machine takes; of several that a cluster waits for, the mean.
    machine: u64,
}

impl Scarce {
    /// All that a quota limits, and how it is divided.
    fn all(quota: &Quota, used: &Amounts, clusters: &[&Peer]) -> Vec<Self> {
        type Limited = (&'static str, Option<u64>, fn(&Amounts) -> u64);
        let limited: [Limited; 3] = [
            ("vCPUs", quota.vcpu, |own| own.vcpu),
            ("GiB of memory", quota.ram_gib, |own| own.ram_gib),
            ("servers", quota.servers, |own| own.servers),
        ];
        let limited = limited
            .into_iter()
            .filter_map(|(what, limit, of)| Some((what, limit?, of)));
        limited
            .map(|(what, limit, of)| {
                // What belongs to nobody who shares is not to be had.
                let of_clusters = clusters.iter().fold(0u64, |sum, own| sum.saturating_add(of(&own.used)));
                let foreign = of(used).saturating_sub(of_clusters);
                let stakes: Vec<Stake> = clusters
                    .iter()
                    .map(|own| Stake {
                        weight: u64::from(own.weight),
                        demand: of(&own.used).saturating_add(of(&own.wanted)),
                    })
                    .collect();
                let shares = fair::shares(limit.saturating_sub(foreign), &stakes);
                let holdings = clusters.iter().zip(shares).map(|(own, share)| Holding {
                    used: of(&own.used),
                    share,
                    machine: of(&own.wanted).div_ceil(own.wanted.servers.max(1)),
                });
                Self {
                    what,
                    limit,
                    used: of(used),
                    of,
                    holdings: holdings.collect(),
                }
            })
            .collect()
    }

    fn fits(&self, at: usize) -> bool {
        let Holding { used, share, machine } = self.holdings[at];
        used.saturating_add(machine) <= share
    }

    /// What of its share a cluster has not had yet.
    fn lacks(&self, at: usize) -> u64 {
        self.holdings[at].share.saturating_sub(self.holdings[at].used)
    }

    fn has_room(&self, at: usize) -> bool {
        self.used.saturating_add(self.holdings[at].machine) <= self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::wire::Flavor;

    /// What a cluster has and waits for: its vCPUs now, and how many machines of how many vCPUs.
    #[derive(Clone, Copy)]
    struct Cluster(&'static str, u64, u64, u64);

    /// The clusters that may have their next machine, of equal weight in a quota of 20 vCPUs.
    fn check(clusters: &[Cluster], expected: &[&str]) {
        let quota = Quota {
            vcpu: Some(20),
            ..Quota::default()
        };
        let used = |vcpus| Used {
            vcpus,
            ..Used::default()
        };
        let everybody: u64 = clusters.iter().map(|own| own.1).sum();
        let may = |Cluster(name, has, machines, vcpus): &Cluster| {
            let peers = clusters.iter().filter(|own| own.0 != *name);
            let sharing = Sharing {
                cluster: (*name).to_owned(),
                weight: 1,
                own: used(*has),
                peers: peers
                    .map(|Cluster(name, has, machines, vcpus)| Peer {
                        cluster: (*name).to_owned(),
                        weight: 1,
                        used: used(*has).amounts(),
                        wanted: Amounts {
                            vcpu: machines * vcpus,
                            servers: *machines,
                            ..Amounts::default()
                        },
                    })
                    .collect(),
            };
            let flavor = Flavor {
                vcpus: *vcpus,
                ..Flavor::default()
            };
            let wanted = Wanted {
                flavor: &flavor,
                disks_gib: 0,
            };
            let refused = quota
                .refuses(&used(everybody), &wanted)
                .or_else(|| sharing.refuses(&quota, &used(everybody), &used(*has), &wanted));
            *machines > 0 && refused.is_none()
        };
        let served: Vec<&str> = clusters.iter().filter(|own| may(own)).map(|own| own.0).collect();
        assert_eq!(served, expected);
    }

    #[test]
    fn machines_that_fit_into_nobodys_share_are_had_one_cluster_at_a_time() {
        check(&[Cluster("b", 0, 1, 16), Cluster("a", 0, 1, 16)], &["a"]);
        check(&[Cluster("b", 0, 1, 16), Cluster("a", 16, 1, 16)], &[]);
        check(&[Cluster("a", 4, 1, 12), Cluster("b", 0, 1, 12)], &["b"]);
    }

    #[test]
    fn what_is_left_beside_the_shares_is_had_too() {
        check(&[Cluster("a", 8, 3, 4), Cluster("b", 8, 3, 4)], &["a"]);
    }

    #[test]
    fn who_fits_into_its_share_comes_before_who_does_not() {
        check(&[Cluster("a", 0, 1, 16), Cluster("b", 0, 4, 2)], &["b"]);
    }

    #[test]
    fn who_has_had_its_share_leaves_the_rest_to_who_has_not() {
        check(&[Cluster("a", 12, 1, 4), Cluster("b", 4, 1, 8)], &[]);
    }

    #[test]
    fn what_can_never_be_had_keeps_nobody_waiting() {
        check(&[Cluster("a", 0, 1, 32), Cluster("b", 0, 1, 16)], &["b"]);
    }

    #[test]
    fn absurd_amounts_of_a_peer_are_no_overflow() {
        check(&[Cluster("a", 0, 1, 4), Cluster("b", 0, 1, u64::MAX)], &["a"]);
    }
}
