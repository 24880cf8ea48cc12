//! What a refusal for the quota is about, as far as its text tells.

/// Words of a refusal that is about the size of machines, of one about their number, and of one about disks.
const SIZE: [&str; 6] = ["cpu", "cpus", "core", "cores", "ram", "memory"];
const NUMBER: [&str; 5] = ["instance", "instances", "server", "servers", "máy"];
const DISKS: [&str; 7] = ["volume", "volumes", "disk", "disks", "storage", "gigabytes", "ổ"];

/// Whether a refusal for the quota may be one for vCPUs or memory, as far as its text tells.
pub(crate) fn may_be_about_size(text: &str) -> bool {
    is_about_size(text) || !(has_word(text, &NUMBER) || has_word(text, &DISKS))
}

/// Whether a refusal for the quota is one for disks, which clusters don't share, and for nothing else.
pub(crate) fn is_about_disks_alone(text: &str) -> bool {
    has_word(text, &DISKS) && !has_word(text, &NUMBER) && !is_about_size(text)
}

fn is_about_size(text: &str) -> bool {
    let lower = text.to_lowercase();
    let mut words = lower.split(|own: char| !own.is_alphanumeric());
    words.any(|word| SIZE.contains(&word.strip_prefix('v').unwrap_or(word))) || lower.contains("bộ nhớ")
}

fn has_word(text: &str, known: &[&str]) -> bool {
    let lower = text.to_lowercase();
    let mut words = lower.split(|own: char| !own.is_alphanumeric());
    words.any(|word| known.contains(&word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_for_volumes_or_servers_is_not_one_for_their_size() {
        for text in [
            "Quota exceeded for cores: requested 4, used 18 of 20",
            "Quota exceeded for instances, ram",
            "Vượt quá hạn mức vCPU",
            "Vượt quá hạn mức bộ nhớ của máy chủ",
            "quota exceeded",
        ] {
            assert!(may_be_about_size(text), "{text}");
        }
        for text in [
            "VolumeLimitExceeded: maximum number of volumes exceeded for quota 'volumes'",
            "Quota exceeded for instances: requested 1, used 10 of 10",
            "Quota exceeded for gigabytes",
            "Vượt quá hạn mức ổ cứng",
            "Vượt quá hạn mức số máy chủ",
        ] {
            assert!(!may_be_about_size(text), "{text}");
        }
    }

    #[test]
    fn a_refusal_for_disks_alone_is_not_one_that_clusters_share() {
        for (text, alone) in [
            ("Quota exceeded for gigabytes", true),
            ("Vượt quá hạn mức ổ cứng", true),
            ("Quota exceeded for volumes, cores", false),
            ("Quota exceeded for instances and volumes", false),
            ("quota exceeded", false),
        ] {
            assert_eq!(is_about_disks_alone(text), alone, "{text}");
        }
    }
}
