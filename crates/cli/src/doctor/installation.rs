//! The controller as it is installed: its Deployment, and the Lease that one of its replicas holds.

use clap::ValueEnum;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use karpenter_cloud::Diagnosis;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};

use super::Report;
use crate::providers::Provider;

/// The label that the chart puts on its Deployment.
const SELECTOR: &str = "app.kubernetes.io/name=karpenter";
const LEASE: &str = "karpenter-leader-election";

/// A holder renews every two seconds; this long without it means that nobody leads.
const STALE: SignedDuration = SignedDuration::from_secs(30);

/// What was found of the controller.
#[derive(Debug, Default)]
pub(crate) struct Installation {
    deployment: Option<Deployment>,
    /// Why it could not be looked for.
    problem: Option<String>,
    pub(super) provider: Option<Provider>,
    /// Where it is, or would be.
    pub(crate) namespace: String,
    /// Whom it acts as.
    pub(super) user: Option<String>,
}

impl Installation {
    pub(crate) async fn find(client: &Client, namespace: Option<&str>) -> Self {
        let api: Api<Deployment> = match namespace {
            Some(namespace) => Api::namespaced(client.clone(), namespace),
            None => Api::all(client.clone()),
        };
        let found = match api.list(&ListParams::default().labels(SELECTOR)).await {
            Ok(list) => list.items.into_iter().next(),
            Err(error) => {
                return Self {
                    problem: Some(error.to_string()),
                    namespace: namespace.unwrap_or("karpenter").to_owned(),
                    ..Self::default()
                };
            }
        };
        let at = found.as_ref().and_then(ResourceExt::namespace);
        let at = at
            .or_else(|| namespace.map(str::to_owned))
            .unwrap_or_else(|| "karpenter".to_owned());
        let account = found.as_ref().and_then(|deployment| {
            let pod = deployment.spec.as_ref()?.template.spec.as_ref()?;
            Some(pod.service_account_name.clone().unwrap_or_else(|| "default".to_owned()))
        });
        Self {
            provider: found.as_ref().and_then(provider),
            user: account.map(|account| format!("system:serviceaccount:{at}:{account}")),
            deployment: found,
            problem: None,
            namespace: at,
        }
    }

    pub(super) async fn report(&self, client: &Client, report: &mut Report) {
        let subject = "controller";
        report.add(match (&self.deployment, &self.problem) {
            (Some(deployment), _) => replicas(deployment),
            (None, Some(problem)) => Diagnosis::warn(subject, format!("can't be looked for: {problem}"), ""),
            (None, None) => Diagnosis::warn(
                subject,
                format!("no Deployment with {SELECTOR} was found"),
                "install the chart, or say where it is with --namespace",
            ),
        });
        if self.deployment.is_none() {
            return;
        }
        let leases: Api<Lease> = Api::namespaced(client.clone(), &self.namespace);
        match leases.get_opt(LEASE).await {
            Ok(lease) => report.add(leader(lease.as_ref(), Timestamp::now())),
            Err(error) => report.add(Diagnosis::warn(
                "leader",
                format!("the Lease can't be read: {error}"),
                "",
            )),
        }
    }
}

/// The provider that a Deployment's arguments name.
fn provider(deployment: &Deployment) -> Option<Provider> {
    let pod = deployment.spec.as_ref()?.template.spec.as_ref()?;
    let arguments = pod
        .containers
        .iter()
        .flat_map(|container| container.args.iter().flatten());
    let arguments: Vec<&str> = arguments.map(String::as_str).collect();
    let at = arguments.iter().position(|argument| *argument == "--provider")?;
    Provider::from_str(arguments.get(at + 1)?, false).ok()
}

fn replicas(deployment: &Deployment) -> Diagnosis {
    let name = format!(
        "{}/{}",
        deployment.namespace().unwrap_or_default(),
        deployment.name_any()
    );
    let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let ready = deployment
        .status
        .as_ref()
        .and_then(|status| status.ready_replicas)
        .unwrap_or(0);
    let sentence = format!("{name}: {ready} of {wanted} replicas are ready");
    let remedy = format!("look at them: kubectl get pods -A -l {SELECTOR}");
    match ready {
        0 => Diagnosis::fail("controller", sentence, remedy),
        ready if ready < wanted => Diagnosis::warn("controller", sentence, remedy),
        _ => Diagnosis::ok("controller", sentence),
    }
}

fn leader(lease: Option<&Lease>, now: Timestamp) -> Diagnosis {
    let subject = "leader";
    let spec = lease.and_then(|lease| lease.spec.as_ref());
    let holder = spec
        .and_then(|spec| spec.holder_identity.as_deref())
        .filter(|holder| !holder.is_empty());
    let renewed = spec.and_then(|spec| spec.renew_time.as_ref()).map(|time| time.0);
    match (holder, renewed) {
        (Some(holder), Some(renewed)) if now.duration_since(renewed) <= STALE => {
            Diagnosis::ok(subject, format!("{holder} leads"))
        }
        (Some(holder), _) => Diagnosis::fail(
            subject,
            format!("{holder} holds the Lease but does not renew it"),
            "look at its log; another replica takes over by itself",
        ),
        (None, _) => Diagnosis::fail(
            subject,
            "no replica holds the Lease, so nothing is provisioned",
            "look at the log of the replicas",
        ),
    }
}

#[cfg(test)]
mod tests {
    use karpenter_cloud::Verdict;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_provider_is_read_from_the_arguments() {
        let deployment = |arguments: &[&str]| -> Deployment {
            serde_json::from_value(json!({"spec": {"selector": {}, "template": {"spec": {
                "containers": [{"name": "controller", "args": arguments}],
            }}}}))
            .unwrap()
        };
        assert_eq!(
            provider(&deployment(&["controller", "--provider", "kwok"])),
            Some(Provider::Kwok)
        );
        assert_eq!(provider(&deployment(&["controller", "--provider"])), None);
        assert_eq!(provider(&deployment(&["controller", "--provider", "other"])), None);
    }

    #[test]
    fn a_lease_that_is_not_renewed_has_no_leader() {
        let now: Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
        let lease = |holder: &str, renewed: &str| -> Lease {
            serde_json::from_value(json!({"spec": {"holderIdentity": holder, "renewTime": renewed}})).unwrap()
        };
        let verdict = |lease: Option<&Lease>| leader(lease, now).verdict;
        assert_eq!(verdict(None), Verdict::Fail);
        assert_eq!(verdict(Some(&lease("", "2026-01-01T00:00:58.000000Z"))), Verdict::Fail);
        assert_eq!(verdict(Some(&lease("a", "2026-01-01T00:00:58.000000Z"))), Verdict::Ok);
        assert_eq!(verdict(Some(&lease("a", "2026-01-01T00:00:10.000000Z"))), Verdict::Fail);
    }
}
