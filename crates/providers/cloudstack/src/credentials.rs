//! Keys from the environment, a mounted Secret or a Secret of the cluster; new ones are tried before they are used
//! (cloudstack.md §12.2).

use std::{collections::BTreeMap, path::Path, time::Duration};

use k8s_openapi::api::core::v1::Secret;
use karpenter_cloud::CloudError;
use kube::Api;
use secrecy::SecretString;

use crate::{
    client::{ApiError, Client, Keys, Priority, Request, api_url, model::Account},
    settings::{CredentialsFrom, ProviderSettings, Switch},
};

/// How often a mounted file or Secret is looked at.
pub const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Reads the keys from where the settings say.
///
/// # Errors
/// What is missing, by name.
pub async fn read(settings: &ProviderSettings, kube: &kube::Client) -> Result<Keys, CloudError> {
    match &settings.credentials {
        CredentialsFrom::Environment => {
            let names = [
                ("api-url", "CLOUDSTACK_API_URL"),
                ("api-key", "CLOUDSTACK_API_KEY"),
                ("secret-key", "CLOUDSTACK_SECRET_KEY"),
            ];
            let values = names
                .iter()
                .filter_map(|(key, name)| Some(((*key).to_owned(), std::env::var(name).ok()?)));
            keys(&values.collect(), "the environment")
        }
        CredentialsFrom::Directory(directory) => {
            keys(&files(directory)?, &format!("directory {}", directory.display()))
        }
        CredentialsFrom::Secret { namespace, name } => {
            let origin = format!("Secret {namespace}/{name}");
            let api: Api<Secret> = Api::namespaced(kube.clone(), namespace);
            let found = api.get_opt(name).await.map_err(CloudError::from)?;
            let found = found.ok_or_else(|| CloudError::auth(format!("{origin} does not exist")))?;
            let data = found.data.unwrap_or_default().into_iter();
            let values = data.filter_map(|(key, value)| Some((key, String::from_utf8(value.0).ok()?)));
            keys(&values.collect(), &origin)
        }
    }
}

fn files(directory: &Path) -> Result<BTreeMap<String, String>, CloudError> {
    let entries = std::fs::read_dir(directory)
        .map_err(|error| CloudError::auth(format!("{} cannot be read: {error}", directory.display())))?;
    let mut values = BTreeMap::new();
    for entry in entries.flatten() {
        // Mounted Secrets also hold links that begin with dots.
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with('.')
            && let Ok(text) = std::fs::read_to_string(entry.path())
        {
            values.insert(name, text);
        }
    }
    Ok(values)
}

/// Both spellings of the keys work; the one with hyphens wins.
fn keys(values: &BTreeMap<String, String>, origin: &str) -> Result<Keys, CloudError> {
    let get = |kebab: &str, camel: &str| {
        let found = [kebab, camel]
            .iter()
            .filter_map(|key| values.get(*key))
            .map(|value| value.trim())
            .find(|value| !value.is_empty());
        found.map(str::to_owned)
    };
    let url = get("api-url", "apiUrl");
    let api_key = get("api-key", "apiKey");
    let secret = get("secret-key", "secretKey");
    let missing: Vec<&str> = [("api-url", &url), ("api-key", &api_key), ("secret-key", &secret)]
        .iter()
        .filter(|(_, value)| value.is_none())
        .map(|(name, _)| *name)
        .collect();
    let (Some(url), Some(api_key), Some(secret)) = (url, api_key, secret) else {
        return Err(CloudError::auth(format!("{origin} lacks {}", missing.join(", "))));
    };
    let url = api_url(&url).map_err(CloudError::invalid)?;
    if url.scheme() == "http" {
        tracing::warn!(
            "CLOUDSTACK_API_URL is plain http: keys are signed with, but answers can be read by anyone on the way"
        );
    }
    Ok(Keys {
        url,
        api_key,
        secret_key: SecretString::from(secret),
    })
}

/// Takes new keys into use, if they work and belong to the same account; the old ones stay otherwise.
///
/// # Errors
/// Why the new ones are not used.
pub async fn rotate(client: &Client, new: Keys, account_change: Switch) -> Result<(), CloudError> {
    let candidate = client
        .with_keys(new.clone())
        .map_err(|error| CloudError::invalid(error.to_string()))?;
    candidate.capabilities().await?;
    if account_change == Switch::Off {
        let (old_account, new_account) = (account(client).await, account(&candidate).await?);
        // Old keys that were revoked cannot say whose they were.
        if let Ok(old_account) = old_account
            && old_account != new_account
        {
            return Err(CloudError::auth(
                "the new keys belong to another account, under which every machine would look gone; \
                 set CLOUDSTACK_ALLOW_ACCOUNT_CHANGE=true and restart if that is meant",
            ));
        }
    }
    client.use_keys(new);
    tracing::info!("new CloudStack keys are in use");
    Ok(())
}

async fn account(client: &Client) -> Result<String, ApiError> {
    let accounts: Vec<Account> = client
        .list(&Request::new("listAccounts"), "account", Priority::Launch)
        .await?;
    Ok(accounts.into_iter().next().map(|own| own.id).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;

    fn of(values: &[(&str, &str)]) -> Result<Keys, CloudError> {
        keys(
            &values
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect(),
            "Secret a/b",
        )
    }

    #[test]
    fn both_spellings_of_the_keys_work_and_hyphens_win() {
        let camel = of(&[("apiUrl", "https://x"), ("apiKey", "k"), ("secretKey", "s\n")]).expect("complete");
        assert_eq!((camel.api_key.as_str(), camel.secret_key.expose_secret()), ("k", "s"));
        let both = of(&[
            ("api-url", "https://x"),
            ("api-key", "kebab"),
            ("apiKey", "camel"),
            ("secret-key", "s"),
        ])
        .expect("complete");
        assert_eq!(both.api_key, "kebab");
    }

    #[test]
    fn what_is_missing_is_named() {
        let error = of(&[("api-url", "https://x")]).expect_err("incomplete");
        assert_eq!(
            error.to_string(),
            "not authorised: Secret a/b lacks api-key, secret-key"
        );
    }
}
