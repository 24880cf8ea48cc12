//! Finds out what credentials may do without changing anything: reads are made, writes are looked up in the key's own rules.

use karpenter_cloud::diagnosis::Diagnosis;

use super::missing;
use crate::client::{ApiError, ApiErrorKind, AuthMethod, KubeApi, model::CurrentCredential};

const REMEDY: &str = "make a key with `karpenter ovhcloud credentials`";

/// What was found out about credentials.
#[derive(Debug, Default)]
pub struct Checked {
    /// One a right; nothing after a refusal of the credentials themselves.
    pub findings: Vec<Diagnosis>,
    /// A question that got no answer, which is no fault of the credentials. Nothing was asked after it.
    pub unanswered: Option<ApiError>,
}

/// What can be said of the credentials of a cluster.
pub async fn check(api: &KubeApi) -> Checked {
    let mut checked = Checked::default();
    if let Err(unanswered) = checked.ask(api).await {
        checked.findings.push(refused("API", &unanswered));
        checked.unanswered = Some(unanswered);
    }
    checked
}

impl Checked {
    async fn ask(&mut self, api: &KubeApi) -> Result<(), ApiError> {
        let Some(cluster) = self.read("cluster", api.cluster().await)? else {
            return Ok(());
        };
        let found = format!("{} in {} is {}", cluster.id, cluster.region, cluster.status);
        self.findings = vec![Diagnosis::ok("cluster", found)];
        let pools = self.read("node pools", api.pools().await)?;
        if let Some(pool) = pools.and_then(|pools| pools.into_iter().next()) {
            self.read("one pool", api.pool(&pool.id).await)?;
            self.read("its nodes", api.nodes(&pool.id).await)?;
        }
        self.read("flavors", api.flavors().await)?;
        self.read("flavors of the region", api.region_flavors(&cluster.region).await)?;
        self.read("regions", api.regions().await)?;
        match api.client().method() {
            AuthMethod::Keys { .. } => self.findings.extend(rules(api).await?),
            AuthMethod::ServiceAccount { .. } | AuthMethod::Token(_) => self.findings.push(Diagnosis::warn(
                "writes",
                "only a key tells its rules; the rights of a service account are in IAM policies",
                "compare them with docs/providers/ovhcloud/security.md",
            )),
        }
        Ok(())
    }

    /// Notes whether something can be read; an error only if that was not answered.
    fn read<T>(&mut self, subject: &str, answer: Result<T, ApiError>) -> Result<Option<T>, ApiError> {
        match answer {
            Ok(found) => {
                self.findings.push(Diagnosis::ok(subject, "can be read"));
                Ok(Some(found))
            }
            Err(error) if error.is_unanswered() => Err(error),
            Err(error) => {
                self.findings.push(refused(subject, &error));
                Ok(None)
            }
        }
    }
}

fn refused(subject: &str, error: &ApiError) -> Diagnosis {
    let remedy = match error.kind {
        ApiErrorKind::Auth | ApiErrorKind::NotGranted => REMEDY,
        ApiErrorKind::NotFound => "check project and cluster, and that the endpoint is theirs",
        ApiErrorKind::Transport | ApiErrorKind::Server | ApiErrorKind::RateLimited => "try again later",
        _ => "",
    };
    Diagnosis::fail(subject, error.to_string(), remedy)
}

/// What the key says of itself. That it may not be asked is no fault.
async fn rules(api: &KubeApi) -> Result<Vec<Diagnosis>, ApiError> {
    match api.current_credential().await {
        Ok(credential) => Ok(vec![granted(api, &credential), ending(&credential)]),
        Err(error) if error.is(ApiErrorKind::NotGranted) => Ok(vec![Diagnosis::warn(
            "writes",
            "whether the key may POST, PUT and DELETE is not known: it may not read its own rules",
            "grant GET /auth/currentCredential as well to have them checked",
        )]),
        Err(error) if error.is_unanswered() => Err(error),
        Err(error) => Ok(vec![refused("writes", &error)]),
    }
}

fn granted(api: &KubeApi, credential: &CurrentCredential) -> Diagnosis {
    let missing = missing(&credential.rules, api.service(), api.kube_id());
    if missing.is_empty() {
        return Diagnosis::ok("rules", "grant everything that is needed");
    }
    let missing: Vec<String> = missing
        .iter()
        .map(|rule| format!("{} {}", rule.method, rule.path))
        .collect();
    Diagnosis::fail("rules", format!("do not grant {}", missing.join(", ")), REMEDY)
}

fn ending(credential: &CurrentCredential) -> Diagnosis {
    match credential.expiration {
        Some(at) => Diagnosis::warn("validity", format!("the key ends at {at}"), "rotate it before"),
        None => Diagnosis::ok("validity", "the key does not end by itself"),
    }
}
