//! What flavor names say, and the flavors that are known without asking.

use crate::client::model::Flavor;

/// Size, vCPUs, RAM in GiB and GPUs.
type Size = (u32, u32, u32, u32);

/// Families and their sizes.
const BUILT_IN: &[(&str, &[Size])] = &[
    (
        "b2",
        &[
            (7, 2, 7, 0),
            (15, 4, 15, 0),
            (30, 8, 30, 0),
            (60, 16, 60, 0),
            (120, 32, 120, 0),
        ],
    ),
    (
        "b3",
        &[
            (8, 2, 8, 0),
            (16, 4, 16, 0),
            (32, 8, 32, 0),
            (64, 16, 64, 0),
            (128, 32, 128, 0),
            (256, 64, 256, 0),
            (512, 128, 512, 0),
            (640, 160, 640, 0),
        ],
    ),
    (
        "c2",
        &[
            (7, 2, 7, 0),
            (15, 4, 15, 0),
            (30, 8, 30, 0),
            (60, 16, 60, 0),
            (120, 32, 120, 0),
        ],
    ),
    (
        "c3",
        &[
            (4, 2, 4, 0),
            (8, 4, 8, 0),
            (16, 8, 16, 0),
            (32, 16, 32, 0),
            (64, 32, 64, 0),
            (128, 64, 128, 0),
            (256, 128, 256, 0),
            (320, 160, 320, 0),
        ],
    ),
    (
        "r2",
        &[
            (15, 2, 15, 0),
            (30, 2, 30, 0),
            (60, 4, 60, 0),
            (120, 8, 120, 0),
            (240, 16, 240, 0),
        ],
    ),
    (
        "r3",
        &[
            (16, 2, 16, 0),
            (32, 4, 32, 0),
            (64, 8, 64, 0),
            (128, 16, 128, 0),
            (256, 32, 256, 0),
            (512, 64, 512, 0),
            (1024, 128, 1024, 0),
        ],
    ),
    ("d2", &[(4, 2, 4, 0), (8, 4, 8, 0)]),
    ("i1", &[(45, 8, 45, 0), (90, 16, 90, 0), (180, 32, 180, 0)]),
    ("t1", &[(45, 8, 45, 1), (90, 18, 90, 2), (180, 36, 180, 4)]),
    ("t1-le", &[(45, 8, 45, 1), (90, 16, 90, 2), (180, 32, 180, 4)]),
    ("t2", &[(45, 15, 45, 1), (90, 30, 90, 2), (180, 60, 180, 4)]),
    ("t2-le", &[(45, 14, 45, 1)]),
    ("a10", &[(45, 30, 45, 1), (90, 60, 90, 2), (180, 120, 180, 4)]),
    ("a100", &[(180, 15, 180, 1), (360, 30, 360, 2), (720, 60, 720, 4)]),
    ("l4", &[(90, 22, 90, 1), (180, 45, 180, 2), (360, 90, 360, 4)]),
    ("l40s", &[(90, 15, 90, 1), (180, 30, 180, 2), (360, 60, 360, 4)]),
    ("h100", &[(380, 30, 380, 1), (760, 60, 760, 2), (1520, 120, 1520, 4)]),
    ("rtx5000", &[(28, 4, 28, 1), (56, 8, 56, 2), (84, 16, 84, 3)]),
];

/// Root disks in GB where they are known.
const DISKS: [(&str, u32); 13] = [
    ("b2-7", 50),
    ("b2-15", 100),
    ("b2-30", 200),
    ("b2-60", 400),
    ("b2-120", 400),
    ("b3-8", 50),
    ("b3-16", 100),
    ("b3-32", 200),
    ("b3-64", 400),
    ("b3-128", 400),
    ("b3-256", 400),
    ("b3-512", 400),
    ("b3-640", 400),
];
const SMALLEST_DISK_GB: u32 = 50;
const MONTHLY_FAMILIES: [&str; 4] = ["b2", "c2", "d2", "r2"];

/// All flavors that are known without asking, as available.
pub fn all() -> Vec<Flavor> {
    let of = |family: &str, (size, vcpus, ram, gpus): Size| Flavor {
        name: format!("{family}-{size}"),
        category: family[..1].to_owned(),
        state: "available".to_owned(),
        vcpus,
        gpus,
        ram,
    };
    BUILT_IN
        .iter()
        .flat_map(|(family, sizes)| sizes.iter().map(move |size| of(family, *size)))
        .collect()
}

pub fn built_in(name: &str) -> Option<Flavor> {
    all().into_iter().find(|flavor| flavor.name == name)
}

/// Everything before the last hyphen: `b3`, `t1-le`, `a100`.
pub fn family(name: &str) -> &str {
    name.rsplit_once('-').map_or(name, |(family, _)| family)
}

/// Everything after the last hyphen.
pub fn size(name: &str) -> Option<&str> {
    name.rsplit_once('-').map(|(_, size)| size)
}

/// The digit of families that are a letter and a digit: `3` of b3, nothing of a100.
pub fn generation(name: &str) -> Option<&str> {
    let family = family(name);
    let is_plain = family.len() == 2 && family.starts_with(|first: char| first.is_ascii_lowercase());
    is_plain
        .then(|| &family[1..])
        .filter(|digit| digit.parse::<u8>().is_ok())
}

/// Whether the service bills this family by the month.
pub fn is_monthly_family(name: &str) -> bool {
    MONTHLY_FAMILIES.contains(&family(name))
}

/// The root disk where nobody tells.
pub fn disk_gb(name: &str) -> u32 {
    DISKS
        .iter()
        .find(|(own, _)| *own == name)
        .map_or(SMALLEST_DISK_GB, |(_, disk)| *disk)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_apart_at_the_last_hyphen() {
        assert_eq!((family("t1-le-45"), size("t1-le-45")), ("t1-le", Some("45")));
        assert_eq!((family("a100-180"), generation("a100-180")), ("a100", None));
        assert_eq!(
            (generation("b3-8"), generation("i1-45"), generation("l4-90")),
            (Some("3"), Some("1"), Some("4"))
        );
    }

    #[test]
    fn only_generation_2_of_four_families_is_billed_by_the_month() {
        let monthly: Vec<String> = all()
            .into_iter()
            .map(|flavor| flavor.name)
            .filter(|name| is_monthly_family(name))
            .collect();
        assert_eq!(monthly.len(), 17);
        assert!(!is_monthly_family("t2-45"));
    }
}
