//! Labels that the KWOK provider derives from an instance type's name and size.

use karpenter_api::{
    Requirement,
    resources::{CPU, MEMORY},
};

use super::FileInstanceType;

/// The label domain of the KWOK provider; only the labels below are open to users.
pub const DOMAIN: &str = "karpenter.kwok.sh";
pub const INSTANCE_SIZE: &str = "karpenter.kwok.sh/instance-size";
pub const INSTANCE_FAMILY: &str = "karpenter.kwok.sh/instance-family";
pub const INSTANCE_CPU: &str = "karpenter.kwok.sh/instance-cpu";
pub const INSTANCE_MEMORY: &str = "karpenter.kwok.sh/instance-memory";

pub(super) fn labels(instance_type: &FileInstanceType) -> [Requirement; 4] {
    let cpu = instance_type.resources.amount(CPU).to_string();
    let memory = instance_type.resources.amount(MEMORY).to_string();
    let size = size(&instance_type.name).unwrap_or(&cpu).to_owned();
    [
        Requirement::within(INSTANCE_SIZE, [size]),
        Requirement::within(INSTANCE_FAMILY, [family(&instance_type.name)]),
        Requirement::within(INSTANCE_CPU, [cpu]),
        Requirement::within(INSTANCE_MEMORY, [memory]),
    ]
}

/// The size in a name such as `m5.2xlarge`.
fn size(name: &str) -> Option<&str> {
    let (_, size) = name.split_once('.')?;
    let named = matches!(size, "nano" | "micro" | "small" | "medium" | "large" | "metal");
    let multiple = size
        .strip_suffix("xlarge")
        .is_some_and(|number| number.bytes().all(|b| b.is_ascii_digit()));
    (named || multiple).then_some(size)
}

/// The part before the first `.` or `-`; a name without either has its first letter as family.
fn family(name: &str) -> String {
    match name.split_once(['.', '-']) {
        Some((family, _)) => family.to_owned(),
        None => name.chars().take(1).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_from_names_like_aws() {
        assert_eq!(size("m5.2xlarge"), Some("2xlarge"));
        assert_eq!(size("m5.xlarge"), Some("xlarge"));
        assert_eq!(size("t3.nano"), Some("nano"));
        assert_eq!(size("m5.metal"), Some("metal"));
        assert_eq!(size("m5.huge"), None);
        assert_eq!(size("c-4x-amd64-linux"), None);
    }

    #[test]
    fn families_end_at_the_first_dot_or_dash() {
        assert_eq!(family("m5.2xlarge"), "m5");
        assert_eq!(family("c-4x-amd64-linux"), "c");
        assert_eq!(family("large"), "l");
    }
}
