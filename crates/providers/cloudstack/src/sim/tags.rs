//! Tags: all of a request or none of it.

use serde_json::json;

use super::{
    jobs::Outcome,
    render,
    state::{Role, State},
};

impl State {
    pub(super) fn create_tags(
        &mut self,
        account: &str,
        kind: &str,
        resources: &[String],
        tags: &[(String, String)],
    ) -> Outcome {
        if !["UserVm", "Volume", "Network", "Template", "ServiceOffering"].contains(&kind) {
            return Outcome::Failure(431, format!("Invalid resource type {kind}"));
        }
        if kind == "ServiceOffering" {
            return Outcome::Failure(
                431,
                "The resource type ServiceOffering doesn't support resource tags".to_owned(),
            );
        }
        for id in resources {
            let owner = match kind {
                "UserVm" => self.machine(id).map(|own| own.account.clone()),
                "Volume" => self
                    .volumes
                    .iter()
                    .find(|own| own.id == *id)
                    .map(|own| own.account.clone()),
                _ => self.catalogue.owner(id).map(str::to_owned),
            };
            let Some(owner) = owner else {
                return Outcome::Failure(431, format!("Unable to find resource by uuid {id} and type {kind}"));
            };
            let is_admin = self.account(account).is_some_and(|own| own.role == Role::RootAdmin);
            if owner != account && !is_admin {
                let text = "Caller does not have permission to operate with provided resource.";
                return Outcome::Failure(530, text.to_owned());
            }
        }
        if let Some((key, _)) = tags.iter().find(|(_, value)| value.is_empty()) {
            return Outcome::Failure(431, format!("Value for the key {key} is either null or empty"));
        }
        for id in resources {
            if let Some((key, _)) = tags
                .iter()
                .find(|(key, _)| self.tags_of(id).iter().any(|(own, _)| own == key))
            {
                return Outcome::Failure(530, format!("tag {key} already on {kind} with id {id}"));
            }
        }
        let owner = self.account(account).cloned();
        for id in resources {
            for (key, value) in tags {
                let cut: String = value.chars().take(255).collect();
                if let Some(own) = self.tags_of_mut(id) {
                    own.push((key.clone(), cut));
                } else if kind == "Network" {
                    // Networks only tell the pair itself.
                    self.catalogue.tag(id, &json!({"key": key, "value": cut}));
                } else if let Some(owner) = &owner {
                    self.catalogue.tag(id, &render::tag(owner, kind, id, key, &cut));
                }
            }
        }
        Outcome::Success(json!({"success": true}))
    }

    pub(super) fn delete_tags(&mut self, resources: &[String], tags: &[(String, String)]) -> Outcome {
        let mut deleted = false;
        for id in resources {
            let Some(own) = self.tags_of_mut(id) else { continue };
            let before = own.len();
            own.retain(|(key, value)| {
                let is_meant = |(wanted, with): &(String, String)| {
                    wanted.eq_ignore_ascii_case(key) && (with.is_empty() || with == value)
                };
                !tags.is_empty() && !tags.iter().any(is_meant)
            });
            deleted |= own.len() < before;
        }
        if deleted {
            Outcome::Success(json!({"success": true}))
        } else {
            Outcome::Failure(530, "Failed to delete tags".to_owned())
        }
    }

    fn tags_of(&self, id: &str) -> &[(String, String)] {
        let machine = self.machine(id).map(|own| own.tags.as_slice());
        let volume = || {
            self.volumes
                .iter()
                .find(|own| own.id == id)
                .map(|own| own.tags.as_slice())
        };
        machine.or_else(volume).unwrap_or_default()
    }

    fn tags_of_mut(&mut self, id: &str) -> Option<&mut Vec<(String, String)>> {
        if let Some(index) = self.machines.iter().position(|own| own.id == id) {
            return Some(&mut self.machines[index].tags);
        }
        let volume = self.volumes.iter_mut().find(|own| own.id == id)?;
        Some(&mut volume.tags)
    }
}
