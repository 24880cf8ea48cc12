//! What each of several clusters may have of something scarce: weighted max-min (§7.4).

use std::cmp::Reverse;

/// What a cluster asks for, and how much its asking counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stake {
    pub(crate) weight: u64,
    pub(crate) demand: u64,
}

/// What each gets: nobody more than it asks for, and nobody less than its weight's part of what the others leave. Of what can't be
/// divided, one each goes to those who lose most by it, and of equals to those who come first.
pub(crate) fn shares(capacity: u64, stakes: &[Stake]) -> Vec<u64> {
    let mut granted = vec![0; stakes.len()];
    let mut left = u128::from(capacity);
    let mut open: Vec<usize> = (0..stakes.len()).collect();
    loop {
        let weights: u128 = open.iter().map(|index| u128::from(stakes[*index].weight.max(1))).sum();
        if weights == 0 {
            return granted;
        }
        let part = |index: usize| left * u128::from(stakes[index].weight.max(1)) / weights;
        let (modest, greedy): (Vec<usize>, Vec<usize>) = open
            .iter()
            .partition(|index| u128::from(stakes[**index].demand) <= part(**index));
        if modest.is_empty() {
            for index in &greedy {
                granted[*index] = u64::try_from(part(*index)).unwrap_or(u64::MAX);
            }
            let given: u128 = greedy.iter().map(|index| part(*index)).sum();
            let lost = |index: usize| left * u128::from(stakes[index].weight.max(1)) % weights;
            let mut by_loss = greedy;
            by_loss.sort_by_key(|index| (Reverse(lost(*index)), *index));
            let rest = usize::try_from(left - given).unwrap_or(usize::MAX);
            for index in by_loss.into_iter().take(rest) {
                granted[index] += 1;
            }
            return granted;
        }
        for index in modest {
            granted[index] = stakes[index].demand;
            left = left.saturating_sub(u128::from(stakes[index].demand));
        }
        open = greedy;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(capacity: u64, stakes: &[(u64, u64)], expected: &[u64]) {
        let stakes: Vec<Stake> = stakes
            .iter()
            .map(|(weight, demand)| Stake {
                weight: *weight,
                demand: *demand,
            })
            .collect();
        assert_eq!(shares(capacity, &stakes), expected, "{capacity} among {stakes:?}");
    }

    #[test]
    fn what_is_enough_for_all_is_given_to_all() {
        check(100, &[(1, 30), (1, 40)], &[30, 40]);
        check(100, &[(9, 0), (1, 100)], &[0, 100]);
    }

    #[test]
    fn what_is_scarce_is_given_by_weight_and_what_one_leaves_to_the_others() {
        check(100, &[(1, 100), (1, 100)], &[50, 50]);
        check(100, &[(3, 100), (1, 100)], &[75, 25]);
        check(100, &[(1, 10), (1, 100), (2, 100)], &[10, 30, 60]);
        check(0, &[(1, 10), (1, 10)], &[0, 0]);
        check(100, &[], &[]);
    }

    #[test]
    fn what_cannot_be_divided_is_not_lost() {
        check(20, &[(1, 20), (1, 20), (1, 20)], &[7, 7, 6]);
        check(10, &[(1, 9), (2, 9)], &[3, 7]);
        check(11, &[(1, 1), (1, 9), (1, 9)], &[1, 5, 5]);
        check(1, &[(1, 4), (1, 4)], &[1, 0]);
    }
}
