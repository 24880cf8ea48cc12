//! Which taints a pod tolerates, and the taints that Karpenter itself sets or waits for.

use k8s_openapi::api::core::v1::{Taint, Toleration};

pub const NO_SCHEDULE: &str = "NoSchedule";
pub const PREFER_NO_SCHEDULE: &str = "PreferNoSchedule";
pub const NO_EXECUTE: &str = "NoExecute";

/// A node joins with it; registration removes it.
pub const UNREGISTERED_KEY: &str = "karpenter.sh/unregistered";
/// On nodes that are being disrupted or terminated.
pub const DISRUPTED_KEY: &str = "karpenter.sh/disrupted";
/// Fences a node off while it reboots.
pub const REBOOTING_KEY: &str = "karpenter.sh/rebooting";
/// Taints of this family are removed by whoever gates the node's readiness.
pub const READINESS_PREFIX: &str = "readiness.k8s.io/";

const EPHEMERAL: [(&str, &str); 5] = [
    ("node.kubernetes.io/not-ready", NO_SCHEDULE),
    ("node.kubernetes.io/not-ready", NO_EXECUTE),
    ("node.kubernetes.io/unreachable", NO_SCHEDULE),
    ("node.cloudprovider.kubernetes.io/uninitialized", NO_SCHEDULE),
    (UNREGISTERED_KEY, NO_EXECUTE),
];

pub fn unregistered() -> Taint {
    without_value(UNREGISTERED_KEY, NO_EXECUTE)
}

pub fn disrupted() -> Taint {
    without_value(DISRUPTED_KEY, NO_SCHEDULE)
}

pub fn rebooting() -> Taint {
    without_value(REBOOTING_KEY, NO_SCHEDULE)
}

fn without_value(key: &str, effect: &str) -> Taint {
    Taint {
        key: key.to_owned(),
        effect: effect.to_owned(),
        ..Taint::default()
    }
}

/// Taints are the same when key and effect are; the value does not count (scheduling.md §2.1).
pub fn same(a: &Taint, b: &Taint) -> bool {
    a.key == b.key && a.effect == b.effect
}

/// Adds those of `more` that are the same as none of `taints`.
pub fn merge(taints: &mut Vec<Taint>, more: &[Taint]) {
    for taint in more {
        if !taints.iter().any(|present| same(present, taint)) {
            taints.push(taint.clone());
        }
    }
}

/// `key[=value]:effect`, as kubectl writes it.
pub fn text(taint: &Taint) -> String {
    match taint.value.as_deref() {
        None | Some("") => format!("{}:{}", taint.key, taint.effect),
        Some(value) => format!("{}={value}:{}", taint.key, taint.effect),
    }
}

/// Whether the taint goes away by itself while a node starts, so that scheduling looks past it until then.
pub fn is_known_ephemeral(taint: &Taint) -> bool {
    taint.key.starts_with(READINESS_PREFIX)
        || EPHEMERAL
            .iter()
            .any(|(key, effect)| taint.key == *key && taint.effect == *effect)
}

/// The first taint that none of the tolerations covers.
pub fn first_untolerated<'a>(
    taints: impl IntoIterator<Item = &'a Taint>,
    tolerations: &[Toleration],
) -> Option<&'a Taint> {
    taints
        .into_iter()
        .find(|taint| !tolerations.iter().any(|toleration| tolerates(toleration, taint)))
}

/// Whether the toleration covers the taint, by Kubernetes' rules including the numeric `Lt` and `Gt` operators.
pub fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let effect = toleration.effect.as_deref().unwrap_or_default();
    if !effect.is_empty() && effect != taint.effect {
        return false;
    }
    let key = toleration.key.as_deref().unwrap_or_default();
    if !key.is_empty() && key != taint.key {
        return false;
    }
    let wanted = toleration.value.as_deref().unwrap_or_default();
    let actual = taint.value.as_deref().unwrap_or_default();
    match toleration.operator.as_deref().unwrap_or_default() {
        "" | "Equal" => wanted == actual,
        "Exists" => true,
        "Gt" => canonical_int(actual)
            .zip(canonical_int(wanted))
            .is_some_and(|(actual, wanted)| actual > wanted),
        "Lt" => canonical_int(actual)
            .zip(canonical_int(wanted))
            .is_some_and(|(actual, wanted)| actual < wanted),
        _ => false,
    }
}

/// A decimal integer without sign games or leading zeros, as Kubernetes demands for numeric tolerations.
fn canonical_int(text: &str) -> Option<i64> {
    text.parse::<i64>().ok().filter(|number| number.to_string() == text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taint(text: &str) -> Taint {
        let (rest, effect) = text.split_once(':').unwrap();
        let (key, value) = rest
            .split_once('=')
            .map_or((rest, None), |(key, value)| (key, Some(value.to_owned())));
        Taint {
            key: key.to_owned(),
            value,
            effect: effect.to_owned(),
            time_added: None,
        }
    }

    #[test]
    fn merging_keeps_what_is_there_and_adds_what_is_not() {
        let mut taints = vec![taint("a=1:NoSchedule")];
        merge(
            &mut taints,
            &[taint("a=2:NoSchedule"), taint("a=2:NoExecute"), taint("b:NoSchedule")],
        );
        let texts: Vec<String> = taints.iter().map(text).collect();
        assert_eq!(texts, ["a=1:NoSchedule", "a=2:NoExecute", "b:NoSchedule"]);
    }

    fn toleration(key: &str, operator: &str, value: &str, effect: &str) -> Toleration {
        let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Toleration {
            key: text(key),
            operator: text(operator),
            value: text(value),
            effect: text(effect),
            ..Toleration::default()
        }
    }

    #[test]
    fn tolerations_match_as_kubernetes_does() {
        for (tolerated, wanted, expected) in [
            (toleration("a", "", "1", "NoSchedule"), "a=1:NoSchedule", true),
            (toleration("a", "Equal", "2", "NoSchedule"), "a=1:NoSchedule", false),
            (toleration("a", "Equal", "", ""), "a:NoSchedule", true),
            (toleration("a", "Exists", "", ""), "a=1:NoExecute", true),
            (toleration("a", "Exists", "", "NoSchedule"), "a=1:NoExecute", false),
            (toleration("", "Exists", "", ""), "b=1:PreferNoSchedule", true),
            (toleration("b", "Exists", "", ""), "a:NoSchedule", false),
            (toleration("a", "Gt", "5", ""), "a=7:NoSchedule", true),
            (toleration("a", "Gt", "7", ""), "a=7:NoSchedule", false),
            (toleration("a", "Lt", "7", ""), "a=5:NoSchedule", true),
            (toleration("a", "Lt", "7", ""), "a=05:NoSchedule", false),
            (toleration("a", "Lt", "7", ""), "a=x:NoSchedule", false),
            (toleration("a", "Near", "7", ""), "a=7:NoSchedule", false),
        ] {
            assert_eq!(
                tolerates(&tolerated, &taint(wanted)),
                expected,
                "{tolerated:?} of {wanted}"
            );
        }
    }

    #[test]
    fn every_taint_must_be_tolerated_by_some_toleration() {
        let taints = [taint("a:NoSchedule"), taint("b:PreferNoSchedule")];
        let tolerations = [toleration("a", "Exists", "", "")];
        assert_eq!(first_untolerated(&taints, &tolerations), Some(&taints[1]));
        let tolerations = [toleration("a", "Exists", "", ""), toleration("b", "Exists", "", "")];
        assert_eq!(first_untolerated(&taints, &tolerations), None);
    }

    #[test]
    fn ephemeral_taints_are_known_by_key_and_effect() {
        for text in [
            "node.kubernetes.io/not-ready:NoSchedule",
            "node.kubernetes.io/not-ready:NoExecute",
            "node.kubernetes.io/unreachable:NoSchedule",
            "node.cloudprovider.kubernetes.io/uninitialized=true:NoSchedule",
            "karpenter.sh/unregistered:NoExecute",
            "readiness.k8s.io/x:NoExecute",
        ] {
            assert!(is_known_ephemeral(&taint(text)), "{text}");
        }
        for text in [
            "node.kubernetes.io/unreachable:NoExecute",
            "my.readiness.k8s.io/x:NoSchedule",
            "karpenter.sh/disrupted:NoSchedule",
        ] {
            assert!(!is_known_ephemeral(&taint(text)), "{text}");
        }
    }

    #[test]
    fn values_do_not_tell_taints_apart() {
        assert!(same(&taint("a=1:NoSchedule"), &taint("a=2:NoSchedule")));
        assert!(!same(&taint("a=1:NoSchedule"), &taint("a=1:NoExecute")));
    }
}
