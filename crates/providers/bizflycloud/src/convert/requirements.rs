//! Requirements of a Provisioner, key by key (§4.2).

use karpenter_api::{
    Quantity,
    labels::{self, CAPACITY_TYPE, INSTANCE_TYPE, REGION, ZONE},
    names,
    requirement::{NodeSelectorRequirement, Operator},
};
use serde_json::{Value, json};

use super::Draft;
use crate::{
    flavor::Size,
    images::is_uuid,
    labels::{self as own, ON_DEMAND_SPELLINGS, SAVING_PLAN_SPELLINGS},
    region::RegionChoice,
};

const OLD_SPOT: &str = "karpenter.bizflycloud.sh/instance-spot";
const OLD_CPU: &str = "karpenter.bizflycloud.sh/instance-cpu";
const OLD_MEMORY: &str = "karpenter.bizflycloud.sh/instance-memory";
const OLD_GPU: &str = "karpenter.bizflycloud.sh/instance-gpu";
const OLD_GPU_ENABLED: &str = "karpenter.bizflycloud.sh/instance-gpu-enabled";
const PROVISIONER_NAME: &str = "karpenter.sh/provisioner-name";
const MIB: f64 = 1_048_576.0;

pub(super) fn convert(
    draft: &mut Draft,
    requirements: &[NodeSelectorRequirement],
    region: Option<&RegionChoice>,
    listed: Option<&[String]>,
) {
    for (index, requirement) in requirements.iter().enumerate() {
        let path = format!("spec.requirements[{index}]");
        let before = draft.findings.len();
        check(draft, &path, requirement);
        if draft.findings.len() == before {
            one(draft, &path, requirement, region, listed);
        }
    }
}

fn check(draft: &mut Draft, path: &str, requirement: &NodeSelectorRequirement) {
    let values = &requirement.values;
    match requirement.operator {
        Operator::In if values.is_empty() => draft.refuse(format!("{path}.values"), "In needs at least one value"),
        Operator::Gt | Operator::Lt => {
            let is_number = matches!(values.as_slice(), [one] if one.parse::<u64>().is_ok());
            if !is_number {
                let problem = format!(
                    "{} needs exactly one whole number of at least 0",
                    requirement.operator.as_str()
                );
                draft.refuse(format!("{path}.values"), problem);
            }
        }
        Operator::Gte | Operator::Lte => {
            draft.refuse(format!("{path}.operator"), "v1alpha5 has no Gte and Lte");
        }
        Operator::In | Operator::NotIn | Operator::Exists | Operator::DoesNotExist => {}
    }
    for value in values {
        if let Err(error) = names::check_label_value(value) {
            draft.refuse(format!("{path}.values"), format!("\"{value}\" {error}"));
        }
    }
}

fn one(
    draft: &mut Draft,
    path: &str,
    requirement: &NodeSelectorRequirement,
    region: Option<&RegionChoice>,
    listed: Option<&[String]>,
) {
    let key = labels::canonical_key(&requirement.key).into_owned();
    let (operator, values) = (requirement.operator, &requirement.values);
    match key.as_str() {
        PROVISIONER_NAME => draft.refuse(format!("{path}.key"), "is set by Karpenter; remove the requirement"),
        INSTANCE_TYPE => {
            let expanded = values.iter().flat_map(|value| spellings(value, listed)).collect();
            draft.put(&key, operator, dedup(expanded));
        }
        ZONE => zone(draft, path, operator, values, region),
        REGION => {
            let short = |value: &String| match RegionChoice::parse(value) {
                Ok(choice) => choice.region.short().to_owned(),
                Err(_) => value.clone(),
            };
            draft.put(&key, operator, dedup(values.iter().map(short).collect()));
        }
        own::IMAGE_ID => {
            match operator {
                Operator::In => {
                    let term = |value: &String| {
                        if is_uuid(value) {
                            json!({ "id": value })
                        } else {
                            json!({ "alias": value })
                        }
                    };
                    draft.image_terms.extend(values.iter().map(term));
                }
                Operator::Gt | Operator::Lt | Operator::Gte | Operator::Lte => {
                    return draft.refuse(format!("{path}.operator"), "images can't be compared by size");
                }
                Operator::NotIn | Operator::Exists | Operator::DoesNotExist => {}
            }
            draft.put(&key, operator, values.clone());
        }
        OLD_SPOT => spot(draft, path, operator, values),
        OLD_CPU => draft.put(own::INSTANCE_CPU, operator, values.clone()),
        OLD_GPU => draft.put(own::INSTANCE_GPU_COUNT, operator, values.clone()),
        OLD_MEMORY => {
            let mib = |value: &String| {
                value
                    .parse::<Quantity>()
                    .ok()
                    .map(|own| (own.to_f64() / MIB).round() as i64)
            };
            let plain = |value: &String| {
                if value.parse::<u64>().is_ok() {
                    Some(value.clone())
                } else {
                    mib(value).map(|own| own.to_string())
                }
            };
            match values.iter().map(plain).collect::<Option<Vec<String>>>() {
                Some(values) => draft.put(own::INSTANCE_MEMORY, operator, values),
                None => draft.refuse(format!("{path}.values"), "is not an amount of memory"),
            }
        }
        OLD_GPU_ENABLED => {
            let wants = operator == Operator::In && values.iter().any(|value| value == "true");
            let (operator, value) = if wants {
                (Operator::Gt, "0")
            } else {
                (Operator::In, "0")
            };
            draft.put(own::INSTANCE_GPU_COUNT, operator, vec![value.to_owned()]);
        }
        CAPACITY_TYPE => {
            for value in values {
                if ON_DEMAND_SPELLINGS.contains(&value.as_str()) || SAVING_PLAN_SPELLINGS.contains(&value.as_str()) {
                    draft.notes.push(format!(
                        "capacity type {value} is an old spelling and kept; v1 says on-demand, and the plan is the label {}",
                        own::BILLING_PLAN
                    ));
                }
            }
            draft.spot |= operator == Operator::In && values.iter().any(|value| value == "spot");
            draft.put(&key, operator, values.clone());
        }
        key if own::rules().is_restricted(key) => {
            draft.refuse(
                format!("{path}.key"),
                format!("{key} is not a label that nodes can be chosen by"),
            );
        }
        key => draft.put(key, operator, values.clone()),
    }
}

/// A name that the cloud lists stays. A short one becomes every spelling of that size, because servers report a listed name
/// and a pool that says `4c_8g` while its node says `nix.4c_8g` would replace the node for ever.
fn spellings(value: &str, listed: Option<&[String]>) -> Vec<String> {
    let Some(size) = Size::parse(value) else {
        return vec![value.to_owned()];
    };
    match listed {
        Some(listed) if listed.iter().any(|name| name == value) => vec![value.to_owned()],
        Some(listed) => {
            let of_size: Vec<String> = listed
                .iter()
                .filter(|name| Size::of_name(name) == Some(size) && !name.ends_with("_vps"))
                .cloned()
                .collect();
            if of_size.is_empty() { size.spellings() } else { of_size }
        }
        None => size.spellings(),
    }
}

fn zone(draft: &mut Draft, path: &str, operator: Operator, values: &[String], region: Option<&RegionChoice>) {
    let mut zones = Vec::new();
    for value in values {
        let plain = match value.split_once('-') {
            Some((zone, suffix)) if RegionChoice::parse(zone).is_ok() && suffix.len() == 1 => {
                draft.notes.push(format!("zone {value} never existed; {zone} is meant"));
                zone.to_owned()
            }
            _ => value.clone(),
        };
        let elsewhere = region.filter(|choice| !choice.region.zones().contains(&plain.as_str()));
        if let (Some(choice), Operator::In) = (elsewhere, operator) {
            draft
                .notes
                .push(format!("zone {plain} is not in region {} and left out", choice.region));
            continue;
        }
        zones.push(plain);
    }
    if zones.is_empty() && !values.is_empty() {
        let region = region.map_or_else(String::new, |choice| choice.region.to_string());
        return draft.refuse(
            format!("{path}.values"),
            format!("none of the zones is in region {region}"),
        );
    }
    draft.put(ZONE, operator, dedup(zones));
}

fn spot(draft: &mut Draft, path: &str, operator: Operator, values: &[String]) {
    let wants = |text: &str| values.iter().any(|value| value == text);
    if operator != Operator::In || values.iter().any(|value| value != "true" && value != "false") {
        return draft.refuse(path, "instance-spot takes In with true or false");
    }
    let mut kinds = Vec::new();
    if wants("true") {
        kinds.push("spot".to_owned());
        draft.spot = true;
    }
    if wants("false") {
        kinds.push("on-demand".to_owned());
    }
    draft.put(CAPACITY_TYPE, Operator::In, kinds);
}

fn dedup(values: Vec<String>) -> Vec<String> {
    let mut seen = std::collections::BTreeSet::new();
    values.into_iter().filter(|value| seen.insert(value.clone())).collect()
}

impl Draft {
    fn put(&mut self, key: &str, operator: Operator, values: Vec<String>) {
        let mut requirement = json!({ "key": key, "operator": operator.as_str() });
        if !values.is_empty() {
            requirement["values"] = Value::from(values);
        }
        self.requirements.push(requirement);
    }
}
