//! The templates that machines may boot from.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use karpenter_api::{
    labels::{ARCH, OS},
    requirement::{Operator, Requirement, Requirements},
};

use super::{Problem, ResolvedTemplate, choice, is, names, of_tags, tags_match};
use crate::{client::model::Template, node_class::TemplateTerm};

/// On a template's tags: further requirements.
const REQUIREMENT_TAG: &str = "requirement.karpenter.k8s.cloudstack/";

fn template_matches(term: &TemplateTerm, own: &Template) -> bool {
    let os_is = |wanted: &String| own.ostypename.as_ref() == Some(wanted) || own.ostypeid.as_ref() == Some(wanted);
    is(&term.id, &own.id)
        && is(&term.name, &own.name)
        && term.os_type.as_ref().is_none_or(os_is)
        && term
            .arch
            .is_none_or(|arch| arch_of(own).as_deref() == Some(arch.label()))
        && tags_match(&term.tags, of_tags(&own.tags))
}

/// The architecture in Kubernetes' words; `None` for one that Kubernetes does not run on.
fn arch_of(own: &Template) -> Option<String> {
    match own.arch.as_deref() {
        Some("x86_64") => Some("amd64".to_owned()),
        Some("aarch64") => Some("arm64".to_owned()),
        Some("s390x") => Some("s390x".to_owned()),
        Some("i686") => None,
        Some(_) | None => Some(own.tag(ARCH).unwrap_or("amd64").to_owned()),
    }
}

/// Ids of those that the terms may select and that only hosts with a tag run.
pub fn wanting_hosts<'a>(terms: &[TemplateTerm], all: &'a [Template]) -> impl Iterator<Item = &'a str> {
    let is_tagged = |own: &&Template| own.templatetag.as_ref().is_some_and(|tag| !tag.is_empty());
    let is_meant = |own: &&Template| terms.iter().any(|term| template_matches(term, own));
    all.iter().filter(is_tagged).filter(is_meant).map(|own| own.id.as_str())
}

pub(super) fn select(
    terms: &[TemplateTerm],
    all: &[Template],
    hosted: &BTreeMap<String, Arc<BTreeSet<String>>>,
) -> Result<Vec<ResolvedTemplate>, Problem> {
    let is_image =
        |own: &&Template| own.format.as_deref() != Some("ISO") && own.hypervisor.is_some() && arch_of(own).is_some();
    let newest_first =
        |a: &Template, b: &Template| (b.created_at(), &a.name, &a.id).cmp(&(a.created_at(), &b.name, &b.id));
    let mut found: Vec<ResolvedTemplate> = Vec::new();
    let mut unready = Vec::new();
    for term in terms {
        let mut matching: Vec<&Template> = Vec::new();
        for own in all.iter().filter(is_image).filter(|own| template_matches(term, own)) {
            if own.isready {
                matching.push(own);
            } else {
                unready.push(own.name.as_str());
            }
        }
        matching.sort_by(|a, b| newest_first(a, b));
        if term.newest == Some(true) {
            matching.truncate(1);
        }
        for own in matching {
            let is_pinned = term.id.is_some();
            match found.iter_mut().find(|known| known.template.id == own.id) {
                Some(known) => known.is_pinned |= is_pinned,
                None => found.push(resolved_template(own, is_pinned, hosted.get(&own.id).cloned())),
            }
        }
    }
    if !found.is_empty() {
        found.sort_by(|a, b| newest_first(&a.template, &b.template));
        return Ok(found);
    }
    Err(if unready.is_empty() {
        Problem {
            reason: "TemplateNotFound",
            message: format!(
                "no template matches templateSelectorTerms; {}",
                choice(all.iter().map(|own| own.name.as_str()))
            ),
        }
    } else {
        Problem {
            reason: "TemplateNotReady",
            message: format!("template {} is not ready yet", names(unready.into_iter())),
        }
    })
}

fn resolved_template(own: &Template, is_pinned: bool, hosted_by: Option<Arc<BTreeSet<String>>>) -> ResolvedTemplate {
    let arch = arch_of(own).expect("templates without an architecture were left out");
    let is_windows = own.ostypename.as_deref().is_some_and(|name| name.contains("Windows"));
    let os = if is_windows { "windows" } else { "linux" }.to_owned();
    let mut requirements = Requirements::new();
    requirements.add(Requirement::within(ARCH, [arch.clone()]));
    requirements.add(Requirement::within(OS, [os.clone()]));
    for tag in &own.tags {
        if let (Some(key), Some(values)) = (tag.key.strip_prefix(REQUIREMENT_TAG), &tag.value) {
            requirements.add(Requirement::new(key, Operator::In, values.split(',').map(str::trim)));
        }
    }
    ResolvedTemplate {
        template: own.clone(),
        arch,
        os,
        is_pinned,
        requirements,
        hosted_by,
    }
}
