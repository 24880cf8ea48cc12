//! What the API server can't check of a NodeClass: rules over several fields and over text (§3.3).

use std::collections::{BTreeMap, BTreeSet};

use karpenter_api::validation::Finding;
use karpenter_cloud::user_data::UserData;

use super::{BizflyCloudNodeClassSpec, ImageSelectorTerm};
use crate::{bootstrap, region::RegionChoice, tags};

const LEAST_DATA_DISK: u32 = 10;

/// Why a NodeClass cannot be used as it is written.
pub fn findings(spec: &BizflyCloudNodeClassSpec, tag_prefix: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let region = spec.region.as_deref().map(RegionChoice::parse);
    if let Some(Err(error)) = &region {
        findings.push(Finding::new("spec.region", error.to_string()));
    }
    let mut seen = BTreeSet::new();
    for zone in &spec.zones {
        if !seen.insert(zone) {
            findings.push(Finding::new("spec.zones", format!("{zone} is there twice")));
        }
    }
    if let Err(mut own) = parse_tags(spec, tag_prefix) {
        findings.append(&mut own);
    }
    for (index, term) in spec.image_selector_terms.iter().enumerate() {
        if term.asked().is_none() {
            let path = format!("spec.imageSelectorTerms[{index}]");
            findings.push(Finding::new(path, "has not exactly one of id, name and alias"));
        }
    }
    if let Some(kubelet) = &spec.kubelet {
        findings.extend(kubelet.findings("spec.kubelet"));
    }
    let spread = spec.placement_strategy.iter().flat_map(|own| &own.spread);
    for zone in spread.flat_map(|spread| &spread.zones) {
        if !spec.zones.is_empty() && !spec.zones.contains(zone) {
            let problem = format!("{zone} is not one of spec.zones");
            findings.push(Finding::new("spec.placementStrategy.spread.zones", problem));
        }
    }
    if let Some(bootstrap) = &spec.bootstrap
        && bootstrap.mode.as_deref() == Some("UserData")
        && bootstrap.bke.is_some()
    {
        findings.push(Finding::new(
            "spec.bootstrap.bke",
            "is for mode BKE; remove it or the mode",
        ));
    }
    findings.extend(data_disk_findings(spec));
    findings.extend(warm_pool_findings(spec));
    if let Some(text) = &spec.user_data {
        findings.extend(user_data_findings(text));
    }
    findings
}

fn data_disk_findings(spec: &BizflyCloudNodeClassSpec) -> impl Iterator<Item = Finding> + '_ {
    let small = spec
        .data_disks
        .iter()
        .enumerate()
        .filter(|(_, disk)| disk.size < LEAST_DATA_DISK);
    small.map(|(index, disk)| {
        let problem = format!("{} GB is too small; a disk has at least {LEAST_DATA_DISK}", disk.size);
        Finding::new(format!("spec.dataDisks[{index}].size"), problem)
    })
}

/// What a warm server must be able to do: boot without joining, and join later.
fn warm_pool_findings(spec: &BizflyCloudNodeClassSpec) -> Vec<Finding> {
    if spec.warm_pool.is_none() {
        return Vec::new();
    }
    let mode = spec.bootstrap.as_ref().and_then(|own| own.mode.as_deref());
    let mut findings = Vec::new();
    if mode != Some("UserData") {
        let problem = "needs bootstrap.mode UserData: workers of BKE join when they first boot";
        findings.push(Finding::new("spec.warmPool", problem));
    }
    if !spec.user_data.as_deref().is_some_and(|text| text.contains("bootcmd")) {
        let problem = "needs userData with a bootcmd that puts off joining until the server is needed";
        findings.push(Finding::new("spec.warmPool", problem));
    }
    findings
}

fn user_data_findings(text: &str) -> Vec<Finding> {
    let path = "spec.userData";
    if text.len() > bootstrap::LONGEST_USER_DATA {
        let problem = format!(
            "is {} bytes; at most {} are allowed",
            text.len(),
            bootstrap::LONGEST_USER_DATA
        );
        return vec![Finding::new(path, problem)];
    }
    match UserData::parse(&bootstrap::from_go_template(text)) {
        Err(error) => vec![Finding::new(path, error.to_string())],
        Ok(template) => template
            .variables()
            .into_iter()
            .filter(|name| !bootstrap::VARIABLES.contains(&name.as_str()))
            .map(|name| {
                let known = bootstrap::VARIABLES.join(", ");
                Finding::new(path, format!("{name} is not a variable; there are {known}"))
            })
            .collect(),
    }
}

/// The tags of a class as a map.
///
/// # Errors
/// For each that is malformed or reserved.
pub fn parse_tags(spec: &BizflyCloudNodeClassSpec, tag_prefix: &str) -> Result<BTreeMap<String, String>, Vec<Finding>> {
    let mut parsed = BTreeMap::new();
    let mut findings = Vec::new();
    for (index, tag) in spec.tags.iter().enumerate() {
        let path = format!("spec.tags[{index}]");
        match tag.split_once('=') {
            Some((key, value)) if !key.is_empty() => {
                if let Some(problem) = tags::problem_of(key, value, tag_prefix) {
                    findings.push(Finding::new(path, problem));
                } else {
                    parsed.insert(key.to_owned(), value.to_owned());
                }
            }
            _ => findings.push(Finding::new(path, format!("\"{tag}\" is not key=value"))),
        }
    }
    if findings.is_empty() { Ok(parsed) } else { Err(findings) }
}

impl ImageSelectorTerm {
    /// What the term asks for, if it asks for exactly one thing.
    pub fn asked(&self) -> Option<&str> {
        match (&self.id, &self.name, &self.alias) {
            (Some(own), None, None) | (None, Some(own), None) | (None, None, Some(own)) => Some(own),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(spec: serde_json::Value, expected: &[&str]) {
        let spec: BizflyCloudNodeClassSpec = serde_json::from_value(spec).expect("a spec");
        let found: Vec<String> = findings(&spec, "karpenter.bizflycloud.sh/")
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        check(json!({}), &[]);
        check(
            json!({"tags": ["novalue"]}),
            &["spec.tags[0]: \"novalue\" is not key=value"],
        );
        check(
            json!({"tags": ["karpenter-managed=true"]}),
            &["spec.tags[0]: karpenter-managed is reserved; use another key"],
        );
        check(json!({"zones": ["HN1", "HN1"]}), &["spec.zones: HN1 is there twice"]);
        check(
            json!({"imageSelectorTerms": [{"id": "a", "name": "b"}]}),
            &["spec.imageSelectorTerms[0]: has not exactly one of id, name and alias"],
        );
        check(
            json!({"bootstrap": {"mode": "UserData", "bke": {}}}),
            &["spec.bootstrap.bke: is for mode BKE; remove it or the mode"],
        );
    }

    #[test]
    fn an_unknown_variable_in_user_data_is_refused() {
        check(json!({"userData": "#!/bin/sh\necho {{ .NodeName }}"}), &[]);
        let spec: BizflyCloudNodeClassSpec =
            serde_json::from_value(json!({"userData": "{{ .Nodename }}"})).expect("a spec");
        let found = findings(&spec, "").remove(0).to_string();
        assert!(
            found.starts_with("spec.userData: Nodename is not a variable; there are "),
            "{found}"
        );
    }
}
