//! Taints, tolerations, and whether the second cover the first.

use std::fmt;

/// What a taint does to pods that do not tolerate it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Effect {
    NoSchedule,
    PreferNoSchedule,
    NoExecute,
}

impl Effect {
    pub fn parse(text: &str) -> Option<Effect> {
        match text {
            "NoSchedule" => Some(Effect::NoSchedule),
            "PreferNoSchedule" => Some(Effect::PreferNoSchedule),
            "NoExecute" => Some(Effect::NoExecute),
            _ => None,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Effect::NoSchedule => "NoSchedule",
            Effect::PreferNoSchedule => "PreferNoSchedule",
            Effect::NoExecute => "NoExecute",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Taint {
    pub key: String,
    pub value: String,
    pub effect: Effect,
}

impl Taint {
    /// Two taints are the same one when key and effect agree; the value does not matter (scheduling.md §2.1).
    pub fn is_same_as(&self, other: &Taint) -> bool {
        self.key == other.key && self.effect == other.effect
    }

    /// Taints that Kubernetes or Karpenter put on a node while it starts and take away by themselves.
    pub fn is_ephemeral(&self) -> bool {
        match (self.key.as_str(), self.effect) {
            ("node.kubernetes.io/not-ready", Effect::NoSchedule | Effect::NoExecute)
            | ("node.kubernetes.io/unreachable", Effect::NoSchedule)
            | ("node.cloudprovider.kubernetes.io/uninitialized", Effect::NoSchedule)
            | ("karpenter.sh/unregistered", Effect::NoExecute) => true,
            (key, _) => key.starts_with("readiness.k8s.io/"),
        }
    }
}

impl fmt::Display for Taint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.value.is_empty() {
            write!(f, "{}:{}", self.key, self.effect.as_str())
        } else {
            write!(f, "{}={}:{}", self.key, self.value, self.effect.as_str())
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TolerationOperator {
    Equal,
    Exists,
    Lt,
    Gt,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Toleration {
    /// Empty tolerates every key.
    pub key: String,
    pub operator: TolerationOperator,
    pub value: String,
    /// `None` tolerates every effect.
    pub effect: Option<Effect>,
}

impl Toleration {
    /// Tolerates every `PreferNoSchedule` taint: the last step of relaxation.
    pub fn prefer_no_schedule() -> Toleration {
        Toleration {
            key: String::new(),
            operator: TolerationOperator::Exists,
            value: String::new(),
            effect: Some(Effect::PreferNoSchedule),
        }
    }

    pub fn tolerates(&self, taint: &Taint) -> bool {
        if self.effect.is_some_and(|effect| effect != taint.effect) {
            return false;
        }
        if !self.key.is_empty() && self.key != taint.key {
            return false;
        }
        match self.operator {
            TolerationOperator::Exists => true,
            TolerationOperator::Equal => self.value == taint.value,
            TolerationOperator::Lt => numbers(taint, self).is_some_and(|(taint, own)| taint < own),
            TolerationOperator::Gt => numbers(taint, self).is_some_and(|(taint, own)| taint > own),
        }
    }
}

/// Numeric tolerations compare canonical decimal integers only: `+1`, `01` and `1.0` never match.
fn numbers(taint: &Taint, toleration: &Toleration) -> Option<(i64, i64)> {
    let canonical = |text: &str| text.parse::<i64>().ok().filter(|number| number.to_string() == text);
    Some((canonical(&taint.value)?, canonical(&toleration.value)?))
}

/// Every taint is tolerated by some toleration, whatever its effect (scheduling.md §2.1).
pub fn tolerates(tolerations: &[Toleration], taints: &[Taint]) -> bool {
    taints
        .iter()
        .all(|taint| tolerations.iter().any(|toleration| toleration.tolerates(taint)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(key: &str, operator: TolerationOperator, value: &str, expect: bool) {
        let taint = Taint {
            key: "gpu".into(),
            value: "5".into(),
            effect: Effect::NoSchedule,
        };
        let toleration = Toleration {
            key: key.into(),
            operator,
            value: value.into(),
            effect: None,
        };
        assert_eq!(toleration.tolerates(&taint), expect, "{toleration:?}");
    }

    #[test]
    fn a_toleration_matches_by_key_operator_and_value() {
        check("gpu", TolerationOperator::Equal, "5", true);
        check("gpu", TolerationOperator::Equal, "6", false);
        check("cpu", TolerationOperator::Exists, "", false);
        check("", TolerationOperator::Exists, "", true);
        check("gpu", TolerationOperator::Gt, "4", true);
        check("gpu", TolerationOperator::Gt, "5", false);
        check("gpu", TolerationOperator::Lt, "06", false);
        check("gpu", TolerationOperator::Lt, "6", true);
    }

    #[test]
    fn readiness_taints_are_ephemeral_by_prefix_only() {
        let taint = |key: &str| Taint {
            key: key.into(),
            value: String::new(),
            effect: Effect::NoExecute,
        };
        assert!(taint("readiness.k8s.io/x").is_ephemeral());
        assert!(!taint("example.com/readiness.k8s.io").is_ephemeral());
        assert!(taint("node.kubernetes.io/not-ready").is_ephemeral());
        assert!(!taint("node.kubernetes.io/unreachable").is_ephemeral());
    }
}
