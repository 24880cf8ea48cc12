//! What must exist in the account: key pairs, registered user data, the project.

use super::{Lists, Resolution, choice, is, problem};
use crate::node_class::{
    CloudStackNodeClass,
    status::{BOOTSTRAP_READY, ZONE_READY},
};

pub(super) fn belongings(class: &CloudStackNodeClass, lists: &Lists, resolution: &mut Resolution) {
    for name in class.ssh_key_pairs() {
        if lists.key_pairs.iter().all(|own| own.name != name) {
            let all = choice(lists.key_pairs.iter().map(|own| own.name.as_str()));
            let message = format!("SSH key pair {name} does not exist in the account; {all}");
            problem(&mut resolution.problems, BOOTSTRAP_READY, "SSHKeyPairNotFound", message);
        }
    }
    let registered = class
        .spec
        .user_data_ref
        .as_ref()
        .and_then(|own| own.registered.as_ref());
    if let Some(wanted) = registered {
        let found = lists
            .user_data
            .iter()
            .find(|own| is(&wanted.id, &own.id) && is(&wanted.name, &own.name));
        match found {
            Some(own) => resolution.registered_user_data = Some(own.id.clone()),
            None => {
                let all = choice(lists.user_data.iter().map(|own| own.name.as_str()));
                let message = format!("the registered user data does not exist in the account; {all}");
                problem(&mut resolution.problems, BOOTSTRAP_READY, "SecretNotFound", message);
            }
        }
    }
    if let Some(wanted) = &class.spec.project {
        let found = lists
            .projects
            .iter()
            .find(|own| own.id == *wanted || own.name == *wanted);
        match found {
            Some(own) => resolution.project = Some(own.clone()),
            None => {
                let all = choice(lists.projects.iter().map(|own| own.name.as_str()));
                let message = format!("project {wanted} does not exist or the API key is not in it; {all}");
                problem(&mut resolution.problems, ZONE_READY, "ProjectNotFound", message);
            }
        }
    }
}
