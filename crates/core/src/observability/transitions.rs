//! What changed in an object's status conditions since this process last looked (api.md §5.3).

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

/// A status condition of any kind of object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// CamelCase; may be empty.
    pub reason: String,
    /// For people.
    pub message: String,
    /// When the status last changed.
    pub since: Timestamp,
}

/// The conditions of an object by type.
pub type Conditions = BTreeMap<String, Seen>;

/// A condition whose status is not what it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transition {
    /// The condition's type.
    pub condition: String,
    /// As it is now.
    pub now: Seen,
    /// What it was and for how long; `None` when this process had not seen the condition before.
    pub left: Option<Left>,
}

/// The status that a condition left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// How long it lasted, from one lastTransitionTime to the next.
    pub lasted: SignedDuration,
}

/// Compares two looks at one object. A condition that was not there counts as Unknown.
pub fn transitions(before: &Conditions, now: &Conditions) -> Vec<Transition> {
    now.iter()
        .filter_map(|(condition, seen)| {
            let known = before.get(condition);
            let old_status = known.map_or("Unknown", |known| known.status.as_str());
            if old_status == seen.status {
                return None;
            }
            let left = known.map(|known| Left {
                status: known.status.clone(),
                lasted: seen.since.duration_since(known.since),
            });
            Some(Transition {
                condition: condition.clone(),
                now: seen.clone(),
                left,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conditions(text: &str) -> Conditions {
        let one = |item: &str| {
            let mut parts = item.split(['=', '@']);
            let mut next = || parts.next().unwrap().to_owned();
            let (name, status, second) = (next(), next(), next());
            let since = Timestamp::from_second(second.parse().unwrap()).unwrap();
            (
                name,
                Seen {
                    status,
                    reason: String::new(),
                    message: String::new(),
                    since,
                },
            )
        };
        text.split_whitespace().map(one).collect()
    }

    /// Conditions as `Type=Status@second`; transitions as `Type:old>new(seconds)`.
    fn check(before: &str, now: &str, expected: &str) {
        let found: Vec<String> = transitions(&conditions(before), &conditions(now))
            .into_iter()
            .map(|transition| match transition.left {
                Some(left) => {
                    let seconds = left.lasted.as_secs();
                    format!(
                        "{}:{}>{}({seconds})",
                        transition.condition, left.status, transition.now.status
                    )
                }
                None => format!("{}:>{}", transition.condition, transition.now.status),
            })
            .collect();
        assert_eq!(found.join(" "), expected);
    }

    #[test]
    fn a_changed_status_is_a_transition_that_lasted_from_one_change_to_the_next() {
        check("Launched=Unknown@10", "Launched=True@25", "Launched:Unknown>True(15)");
        check("Launched=True@10", "Launched=True@10", "");
    }

    #[test]
    fn the_first_sight_of_a_condition_counts_unless_it_is_unknown() {
        check("", "Launched=True@5 Ready=Unknown@5", "Launched:>True");
    }
}
