//! Finds out what credentials may do without changing anything: reads are made, writes are looked up in the key's own rules.

use karpenter_cloud::diagnosis::Diagnosis;

use super::missing;
use crate::client::{ApiError, ApiErrorKind, AuthMethod, KubeApi, model::CurrentCredential};

const REMEDY: &str = "make a key with `karpenter ovhcloud credentials`";

/// What can be said of the credentials of a cluster, one finding a right; nothing after a refusal of the credentials themselves.
pub async fn check(api: &KubeApi) -> Vec<Diagnosis> {
    let cluster = match api.cluster().await {
        Ok(cluster) => cluster,
        Err(error) => return vec![refused("cluster", &error)],
    };
    let found = format!("{} in {} is {}", cluster.id, cluster.region, cluster.status);
    let mut findings = vec![Diagnosis::ok("cluster", found)];
    let pools = api.pools().await;
    let first = pools.as_ref().ok().and_then(|pools| pools.first()).cloned();
    findings.push(read("node pools", &pools));
    if let Some(pool) = first {
        findings.push(read("one pool", &api.pool(&pool.id).await));
        findings.push(read("its nodes", &api.nodes(&pool.id).await));
    }
    findings.push(read("flavors", &api.flavors().await));
    findings.push(read(
        "flavors of the region",
        &api.region_flavors(&cluster.region).await,
    ));
    findings.push(read("regions", &api.regions().await));
    match api.client().method() {
        AuthMethod::Keys { .. } => findings.extend(rules(api).await),
        AuthMethod::ServiceAccount { .. } | AuthMethod::Token(_) => findings.push(Diagnosis::warn(
            "writes",
            "only a key tells its rules; the rights of a service account are in IAM policies",
            "compare them with docs/providers/ovhcloud/security.md",
        )),
    }
    findings
}

fn read<T>(subject: &str, answer: &Result<T, ApiError>) -> Diagnosis {
    match answer {
        Ok(_) => Diagnosis::ok(subject, "can be read"),
        Err(error) => refused(subject, error),
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
async fn rules(api: &KubeApi) -> Vec<Diagnosis> {
    match api.current_credential().await {
        Ok(credential) => vec![granted(api, &credential), ending(&credential)],
        Err(error) if error.is(ApiErrorKind::NotGranted) => vec![Diagnosis::warn(
            "writes",
            "whether the key may POST, PUT and DELETE is not known: it may not read its own rules",
            "grant GET /auth/currentCredential as well to have them checked",
        )],
        Err(error) => vec![refused("writes", &error)],
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
