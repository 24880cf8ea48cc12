//! Bootstrap tokens of kubeadm that are made for one NodeClaim and go with its registration (cloudstack.md §11.1).

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use karpenter_api::{NodeClaim, conditions::StatusConditions};
use karpenter_cloud::{ClaimMark, CloudError, clock::later, error::CloudContext};
use kube::{
    Api,
    api::{DeleteParams, ListParams, PostParams},
};
use rand::Rng;
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::{
    node_class::{Bootstrap, CloudStackNodeClass},
    provider::Shared,
};

const NAMESPACE: &str = "kube-system";
const PREFIX: &str = "bootstrap-token-";
/// Whose tokens: those of this cluster's Karpenter, by the claim that each is for.
const CLAIM_UID: &str = "karpenter.k8s.cloudstack/nodeclaim-uid";
const GROUP: &str = "system:bootstrappers:kubeadm:default-node-token";
const SECRET_LENGTH: usize = 16;

/// The id of a claim's token: the same however often the launch is repeated.
fn token_id(mark: &ClaimMark) -> String {
    const ALPHABET: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    let digest = Sha256::digest(mark.uid.as_bytes());
    digest
        .iter()
        .take(6)
        .map(|byte| char::from(ALPHABET[usize::from(*byte) % ALPHABET.len()]))
        .collect()
}

fn random_secret() -> String {
    const ALPHABET: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    let mut random = rand::rng();
    (0..SECRET_LENGTH)
        .map(|_| char::from(ALPHABET[random.random_range(0..ALPHABET.len())]))
        .collect()
}

/// `id.secret` of a stored token, if it still holds.
fn usable(secret: &Secret, now: Timestamp) -> Option<String> {
    let data = secret.data.as_ref()?;
    let get = |key: &str| String::from_utf8(data.get(key)?.0.clone()).ok();
    let expires: Timestamp = get("expiration")?.parse().ok()?;
    (expires > now)
        .then(|| Some(format!("{}.{}", get("token-id")?, get("token-secret")?)))
        .flatten()
}

impl Shared {
    /// The token that the machine of a claim joins with; made if there is none yet.
    pub(crate) async fn managed_token(&self, claim: &NodeClaim, bootstrap: &Bootstrap) -> Result<String, CloudError> {
        let mark = ClaimMark::of(claim);
        let id = token_id(&mark);
        let name = format!("{PREFIX}{id}");
        let secrets: Api<Secret> = Api::namespaced(self.kube.clone(), NAMESPACE);
        let now = self.clock.now();
        if let Some(found) = secrets
            .get_opt(&name)
            .await
            .cloud_context("reading a bootstrap token")?
        {
            if let Some(token) = usable(&found, now) {
                return Ok(token);
            }
            self.delete_token(&secrets, &name).await?;
        }
        let secret = random_secret();
        let expires = later(now, bootstrap.token_ttl());
        let fields: BTreeMap<&str, String> = [
            ("token-id", id.clone()),
            ("token-secret", secret.clone()),
            ("description", mark.name.clone()),
            ("expiration", expires.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()),
            ("usage-bootstrap-authentication", "true".to_owned()),
            ("usage-bootstrap-signing", "true".to_owned()),
            ("auth-extra-groups", GROUP.to_owned()),
        ]
        .into();
        let object: Secret = serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": NAMESPACE, "labels": {CLAIM_UID: mark.uid}},
            "type": "bootstrap.kubernetes.io/token",
        }))
        .expect("a Secret");
        let data = fields
            .into_iter()
            .map(|(key, value)| (key.to_owned(), k8s_openapi::ByteString(value.into_bytes())));
        let object = Secret {
            data: Some(data.collect()),
            ..object
        };
        secrets
            .create(&PostParams::default(), &object)
            .await
            .cloud_context("making a bootstrap token; Karpenter needs the right to create Secrets in kube-system")?;
        Ok(format!("{id}.{secret}"))
    }

    /// Every token that was made for a claim.
    ///
    /// Where no class has them made, Karpenter has no business in kube-system; what such a class left expires by itself.
    pub(crate) async fn tokens_of_claims(&self) -> Result<Vec<Secret>, CloudError> {
        let classes: Api<CloudStackNodeClass> = Api::all(self.kube.clone());
        let classes = classes
            .list(&ListParams::default())
            .await
            .cloud_context("listing CloudStackNodeClasses")?;
        let manages =
            |class: &CloudStackNodeClass| class.spec.bootstrap.as_ref().is_some_and(Bootstrap::manages_tokens);
        if !classes.items.iter().any(manages) {
            return Ok(Vec::new());
        }
        let secrets: Api<Secret> = Api::namespaced(self.kube.clone(), NAMESPACE);
        let listed = secrets
            .list(&ListParams::default().labels(CLAIM_UID))
            .await
            .cloud_context("listing bootstrap tokens; Karpenter needs the right to list Secrets in kube-system")?;
        Ok(listed.items)
    }

    /// Deletes those of the tokens whose claim is registered, is going, or is gone.
    ///
    /// `claims` must have been listed after the tokens: a claim is there before its token is.
    pub(crate) async fn collect_tokens(&self, tokens: Vec<Secret>, claims: &[NodeClaim]) -> Result<(), CloudError> {
        let secrets: Api<Secret> = Api::namespaced(self.kube.clone(), NAMESPACE);
        for secret in tokens {
            let uid = secret.metadata.labels.as_ref().and_then(|own| own.get(CLAIM_UID));
            let claim = claims.iter().find(|claim| claim.metadata.uid.as_ref() == uid);
            let is_needed =
                claim.is_some_and(|claim| claim.metadata.deletion_timestamp.is_none() && !claim.is_true("Registered"));
            if !is_needed && let Some(name) = &secret.metadata.name {
                self.delete_token(&secrets, name).await?;
            }
        }
        Ok(())
    }

    async fn delete_token(&self, secrets: &Api<Secret>, name: &str) -> Result<(), CloudError> {
        match secrets.delete(name, &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            deleted => deleted.map(drop).cloud_context("deleting a bootstrap token"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_always_has_the_same_token_id_in_kubeadms_form() {
        let mark = |uid: &str| ClaimMark {
            name: "a".to_owned(),
            uid: uid.to_owned(),
        };
        let id = token_id(&mark("1"));
        assert_eq!(id, token_id(&mark("1")));
        assert_ne!(id, token_id(&mark("2")));
        assert!(
            id.len() == 6 && id.chars().all(|own| own.is_ascii_lowercase() || own.is_ascii_digit()),
            "{id}"
        );
        assert_eq!(random_secret().len(), SECRET_LENGTH);
    }
}
