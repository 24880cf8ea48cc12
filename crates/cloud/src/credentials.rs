//! Credentials that follow their Secret: a rotated key is used by the next request, without a restart.

use std::{collections::BTreeMap, fmt, sync::Arc};

use arc_swap::ArcSwapOption;
use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Client,
    runtime::{WatchStreamExt, watcher::watch_object},
};
use secrecy::{ExposeSecret, SecretString};
use tokio::sync::watch;

use crate::{error::CloudError, http::Redactor};

/// Where a provider reads its credentials from. Cheap to clone; clones see the same.
#[derive(Clone)]
pub struct CredentialSource {
    shared: Arc<Shared>,
}

struct Shared {
    /// For errors: "secret karpenter/ovh-credentials" or "the environment".
    origin: String,
    required: Vec<String>,
    current: ArcSwapOption<Credentials>,
    version: watch::Sender<u64>,
    redactor: Redactor,
}

/// A set of secret values by key, never shown.
#[derive(Clone)]
pub struct Credentials {
    values: BTreeMap<String, SecretString>,
}

impl CredentialSource {
    /// Credentials from environment variables, given as (key, variable).
    pub fn from_env(names: &[(&str, &str)], redactor: Redactor) -> Self {
        Self::from_lookup(names, redactor, |name| std::env::var(name).ok())
    }

    fn from_lookup(names: &[(&str, &str)], redactor: Redactor, lookup: impl Fn(&str) -> Option<String>) -> Self {
        let values = names
            .iter()
            .filter_map(|(key, name)| Some(((*key).to_owned(), lookup(name)?)));
        let source = Self::empty(
            "the environment".to_owned(),
            names.iter().map(|(key, _)| *key),
            redactor,
        );
        source.replace(Some(Credentials::new(values)));
        source
    }

    /// Credentials from a Secret, and the stream that keeps them current.
    ///
    /// The stream must be polled for as long as the credentials are used; each item is a change that took effect.
    /// `required` keys that the Secret lacks are named when the credentials are asked for.
    pub fn from_secret(
        client: Client,
        namespace: &str,
        name: &str,
        required: &[&str],
        redactor: Redactor,
    ) -> (Self, impl Stream<Item = ()> + Send + use<>) {
        let origin = format!("secret {namespace}/{name}");
        let source = Self::empty(origin, required.iter().copied(), redactor);
        let api: Api<Secret> = Api::namespaced(client, namespace);
        let changes = watch_object(api, name).default_backoff();
        let follower = source.clone();
        let followed = changes.filter_map(move |change| {
            let applied = follower.apply(change);
            async move { applied }
        });
        (source, followed)
    }

    /// The credentials as they are now.
    ///
    /// # Errors
    /// [`CloudError::Auth`] that names what is missing.
    pub fn current(&self) -> Result<Arc<Credentials>, CloudError> {
        let origin = &self.shared.origin;
        let Some(current) = self.shared.current.load_full() else {
            return Err(CloudError::auth(format!("{origin} does not exist or was not read yet")));
        };
        let missing: Vec<&str> = self
            .shared
            .required
            .iter()
            .map(String::as_str)
            .filter(|key| current.get(key).is_none())
            .collect();
        if !missing.is_empty() {
            return Err(CloudError::auth(format!("{origin} lacks {}", missing.join(", "))));
        }
        Ok(current)
    }

    /// Notifies of every change, e.g. to probe new credentials or to drop a session made with old ones.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.shared.version.subscribe()
    }

    fn empty<'a>(origin: String, required: impl Iterator<Item = &'a str>, redactor: Redactor) -> Self {
        let shared = Shared {
            origin,
            required: required.map(str::to_owned).collect(),
            current: ArcSwapOption::empty(),
            version: watch::Sender::new(0),
            redactor,
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    fn apply(&self, change: Result<Option<Secret>, kube::runtime::watcher::Error>) -> Option<()> {
        match change {
            Ok(secret) => {
                let credentials = secret.map(|secret| Credentials::of(&secret));
                self.replace(credentials).then(|| {
                    tracing::info!(source = self.shared.origin, "credentials changed");
                })
            }
            Err(error) => {
                // What was read last stays in use; the watch retries by itself.
                tracing::warn!(source = self.shared.origin, %error, "credentials cannot be watched");
                None
            }
        }
    }

    /// Takes new credentials into use. Answers whether they differ from the old ones.
    fn replace(&self, new: Option<Credentials>) -> bool {
        let old = self.shared.current.load_full();
        if old.as_deref().map(Credentials::exposed) == new.as_ref().map(Credentials::exposed) {
            return false;
        }
        for secret in new.iter().flat_map(|credentials| credentials.values.values()) {
            self.shared.redactor.add(secret);
        }
        self.shared.current.store(new.map(Arc::new));
        self.shared.version.send_modify(|version| *version += 1);
        true
    }
}

impl Credentials {
    /// Values are trimmed of white space around them (`--from-file` and hand-made base64 leave newlines); an empty value
    /// counts as missing.
    pub fn new(values: impl IntoIterator<Item = (String, String)>) -> Self {
        let values = values
            .into_iter()
            .map(|(key, value)| (key, value.trim().to_owned()))
            .filter(|(_, value)| !value.is_empty())
            .map(|(key, value)| (key, SecretString::from(value)))
            .collect();
        Self { values }
    }

    fn of(secret: &Secret) -> Self {
        let data = secret.data.iter().flatten();
        // A value that is not text cannot be a credential of an HTTP API; it counts as missing.
        Self::new(data.filter_map(|(key, value)| Some((key.clone(), String::from_utf8(value.0.clone()).ok()?))))
    }

    pub fn get(&self, key: &str) -> Option<&SecretString> {
        self.values.get(key)
    }

    fn exposed(&self) -> BTreeMap<&str, &str> {
        self.values
            .iter()
            .map(|(key, value)| (key.as_str(), value.expose_secret()))
            .collect()
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("keys", &self.values.keys())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for CredentialSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CredentialSource")
            .field("origin", &self.shared.origin)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::json;

    use super::*;
    use crate::error::ErrorKind;

    const KEYS: [(&str, &str); 2] = [("key", "TEST_KEY"), ("secret", "TEST_SECRET")];

    fn env(values: &'static [(&str, &str)]) -> CredentialSource {
        let lookup = |name: &str| {
            values
                .iter()
                .find(|(own, _)| *own == name)
                .map(|(_, value)| (*value).to_owned())
        };
        CredentialSource::from_lookup(&KEYS, Redactor::default(), lookup)
    }

    fn secret(data: &[(&str, &str)]) -> Secret {
        let data = data
            .iter()
            .map(|(key, value)| ((*key).to_owned(), k8s_openapi::ByteString(value.as_bytes().to_vec())));
        Secret {
            data: Some(data.collect()),
            ..Secret::default()
        }
    }

    fn followed() -> CredentialSource {
        CredentialSource::empty("secret ns/name".into(), ["key"].into_iter(), Redactor::default())
    }

    #[test]
    fn values_are_trimmed_and_an_empty_one_is_missing() {
        let source = env(&[("TEST_KEY", " abcdef\n"), ("TEST_SECRET", "  ")]);
        let error = source.current().expect_err("one is missing");
        assert_eq!(error.kind(), ErrorKind::Auth);
        assert_eq!(error.to_string(), "not authorised: the environment lacks secret");
        let source = env(&[("TEST_KEY", " abcdef\n"), ("TEST_SECRET", "x")]);
        assert_eq!(
            source
                .current()
                .expect("complete")
                .get("key")
                .expect("there")
                .expose_secret(),
            "abcdef"
        );
    }

    #[test]
    fn a_changed_secret_takes_effect_and_is_announced() {
        let source = followed();
        let mut changes = source.changes();
        assert!(source.current().is_err());
        assert!(source.apply(Ok(Some(secret(&[("key", "first-key")])))).is_some());
        assert!(changes.has_changed().expect("the source lives"));
        changes.mark_unchanged();
        assert!(
            source.apply(Ok(Some(secret(&[("key", "first-key")])))).is_none(),
            "nothing changed"
        );
        assert!(!changes.has_changed().expect("the source lives"));
        source.apply(Ok(Some(secret(&[("key", "second-key")]))));
        assert_eq!(
            source
                .current()
                .expect("there")
                .get("key")
                .expect("there")
                .expose_secret(),
            "second-key"
        );
    }

    #[test]
    fn a_deleted_secret_is_an_authorisation_error_that_names_it() {
        let source = followed();
        source.apply(Ok(Some(secret(&[("key", "first-key")]))));
        source.apply(Ok(None));
        let error = source.current().expect_err("deleted");
        assert_eq!(
            error.to_string(),
            "not authorised: secret ns/name does not exist or was not read yet"
        );
    }

    #[test]
    fn every_value_is_known_to_the_redactor_also_after_a_rotation() {
        let source = followed();
        source.apply(Ok(Some(secret(&[("key", "first-key")]))));
        source.apply(Ok(Some(secret(&[("key", "second-key")]))));
        assert_eq!(source.shared.redactor.redact("first-key second-key"), "*** ***");
    }

    #[test]
    fn the_debug_form_shows_no_value() {
        let credentials = Credentials::of(&secret(&[("key", "first-key")]));
        assert_eq!(format!("{credentials:?}"), r#"Credentials { keys: ["key"], .. }"#);
    }

    #[tokio::test]
    async fn the_secret_is_read_through_a_watch_of_that_one_object() {
        let api = tower_service(|request: &Request<Body>| {
            let query = request.uri().query().unwrap_or_default();
            assert!(query.contains("fieldSelector=metadata.name%3Dname"), "{query}");
            if query.contains("watch=true") {
                return json!({"type": "BOOKMARK", "object": {
                    "apiVersion": "v1", "kind": "Secret", "metadata": {"resourceVersion": "2"}}});
            }
            json!({"apiVersion": "v1", "kind": "SecretList", "metadata": {"resourceVersion": "1"}, "items": [
                {"metadata": {"name": "name", "namespace": "ns"}, "data": {"key": "Zmlyc3Qta2V5"}}]})
        });
        let client = Client::new(api, "default");
        let (source, changes) = CredentialSource::from_secret(client, "ns", "name", &["key"], Redactor::default());
        futures::pin_mut!(changes);
        changes.next().await.expect("a change");
        assert_eq!(
            source
                .current()
                .expect("there")
                .get("key")
                .expect("there")
                .expose_secret(),
            "first-key"
        );
    }

    type Answered = std::future::Ready<Result<Response<Body>, std::convert::Infallible>>;

    fn tower_service(
        answer: impl Fn(&Request<Body>) -> serde_json::Value + Clone + Send + 'static,
    ) -> impl tower::Service<
        Request<Body>,
        Response = Response<Body>,
        Error = std::convert::Infallible,
        Future = Answered,
    > + Clone
    + Send
    + 'static {
        tower::service_fn(move |request: Request<Body>| {
            let body = Body::from(answer(&request).to_string().into_bytes());
            std::future::ready(Ok(Response::new(body)))
        })
    }
}
