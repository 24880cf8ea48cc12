//! Finds out how a NodeClass reaches its cluster: credentials, endpoint, cluster, region and zones.

mod detect;
pub(crate) mod zones;

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Secret};
use karpenter_cloud::{
    CloudError,
    clock::{Clock, later},
    credentials::Credentials,
    http::Redactor,
};
use kube::{Api, Client, api::ListParams};
use parking_lot::Mutex;
use secrecy::ExposeSecret;
use sha2::{Digest, Sha256};

use crate::{
    catalogue::Zones,
    client::{
        ApiEndpoint, ApiError, ApiErrorKind, AuthMethod, CredentialProblem, KubeApi, OvhClient, auth,
        model::{AccessRule, Cluster, ClusterClass, CurrentCredential, InstanceQuota},
    },
    metrics::Metrics,
    node_class::{OvhNodeClass, SecretReference, condition},
    pool::engine::Extras,
    rights,
    settings::OvhSettings,
};

/// How NodeClasses reach their cluster.
pub struct Directory {
    client: Client,
    clock: Clock,
    settings: OvhSettings,
    environment: Credentials,
    redactor: Redactor,
    metrics: Metrics,
    clients: Mutex<BTreeMap<(ApiEndpoint, String), Arc<OvhClient>>>,
    /// With when each was read, and when all rights were last tried.
    probes: Mutex<BTreeMap<String, (Probe, Timestamp, Timestamp)>>,
    /// The cluster that this process runs in, once it is known for sure.
    verified: Mutex<Option<String>>,
    /// The cluster that was found out for a project: looked for once.
    detected: Mutex<BTreeMap<String, String>>,
    known: Mutex<BTreeMap<String, Arc<Connection>>>,
}

/// A NodeClass's way to its cluster.
#[derive(Clone, Debug)]
pub struct Connection {
    pub api: KubeApi,
    pub cluster: Cluster,
    pub zones: Zones,
    pub probe: Probe,
}

/// What credentials can do beyond the minimum, and what that told.
#[derive(Clone, Debug, Default)]
pub struct Probe {
    pub credential: Option<CurrentCredential>,
    /// Root disks in GB by flavor.
    pub disks: BTreeMap<String, u32>,
    /// Flavors that the project says are out of stock.
    pub sold_out: Vec<String>,
    pub region_zones: Vec<String>,
    /// The one zone that a region of one names.
    pub single_zone: Option<String>,
    /// Whether the key's rules let machines be deleted one by one.
    pub deletes_nodes: bool,
    pub quota: Option<InstanceQuota>,
    pub rights: Vec<String>,
}

/// Why a NodeClass cannot be used, and which of its conditions says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub condition: &'static str,
    pub reason: &'static str,
    pub message: String,
    /// It may pass by itself.
    pub temporary: bool,
}

/// What the default Secret, the environment or a NodeClass gave.
struct Found {
    credentials: Credentials,
    origin: String,
}

impl Connection {
    /// The zone to name if this one-zone cluster wants its pools to name one.
    pub fn zone_if_demanded(&self) -> String {
        let told = self.probe.single_zone.clone();
        told.unwrap_or_else(|| self.cluster.region.to_lowercase())
    }
}

impl Probe {
    /// What the pools can make use of.
    pub fn extras(&self) -> Extras {
        Extras {
            lists_nodes: self.rights.iter().any(|right| right == LIST_NODES),
            deletes_nodes: self.deletes_nodes,
            quota: self.quota.clone(),
        }
    }
}

const LIST_NODES: &str = "node/get";
const PROBE_AGAIN: Duration = Duration::from_secs(4 * 60);
const PROBE_ALL: Duration = Duration::from_secs(6 * 60 * 60);

impl Directory {
    pub fn new(
        client: Client,
        clock: Clock,
        settings: OvhSettings,
        environment: Credentials,
        redactor: Redactor,
        metrics: Metrics,
    ) -> Self {
        Self {
            client,
            clock,
            settings,
            environment,
            redactor,
            metrics,
            clients: Mutex::default(),
            probes: Mutex::default(),
            verified: Mutex::default(),
            detected: Mutex::default(),
            known: Mutex::default(),
        }
    }

    /// The way that was found last.
    pub fn known(&self, class: &str) -> Option<Arc<Connection>> {
        self.known.lock().get(class).cloned()
    }

    pub fn forget(&self, class: &str) {
        self.known.lock().remove(class);
    }

    /// Which Secret a class's credentials are in, if they are in one.
    pub fn secret_of(&self, class: &OvhNodeClass) -> SecretReference {
        let default = || SecretReference {
            name: self.settings.secret_name.clone(),
            namespace: self.settings.secret_namespace.clone(),
        };
        class.spec.credentials_secret_ref.clone().unwrap_or_else(default)
    }

    /// Finds the way to a class's cluster, checking everything that can be checked.
    ///
    /// # Errors
    /// With the condition that users should read.
    pub async fn resolve(&self, class: &OvhNodeClass) -> Result<Arc<Connection>, Problem> {
        let (client, origin) = self.client_of(class).await?;
        // Which credentials: those of a Secret that was just changed are not the ones that worked before.
        let blame = |mut problem: Problem| {
            if problem.reason == "InvalidCredentials" {
                problem.message = format!("{origin}: {}", problem.message);
            }
            problem
        };
        let service = class
            .spec
            .service_name
            .as_deref()
            .unwrap_or(&self.settings.service_name);
        let project = KubeApi::new(client.clone(), service, "");
        let nodes = self.nodes().await?;
        let configured = class.spec.kube_id.as_ref().or(self.settings.kube_id.as_ref());
        let kube_id = match configured {
            Some(id) => id.clone(),
            None => self.detected(&project, &nodes).await.map_err(blame)?,
        };
        let api = project.of_cluster(&kube_id);
        let cluster = api.cluster().await;
        let cluster = cluster.map_err(|error| blame(cluster_problem(error, &kube_id)))?;
        if let Some(offset) = client.clock_offset() {
            self.metrics.clock_offset(offset);
        }
        self.check(class, &cluster, &api).await?;
        self.verify(&api, &nodes).await?;
        let probe = self.probe(&api, &cluster.region).await;
        self.check_credential(&probe, &api)?;
        let zones = zones::zones(&class.spec.availability_zones, &cluster, &probe, &api, &nodes).await?;
        let connection = Arc::new(Connection {
            api,
            cluster,
            zones,
            probe,
        });
        self.known.lock().insert(class.name().to_owned(), connection.clone());
        Ok(connection)
    }

    async fn detected(&self, project: &KubeApi, nodes: &[Node]) -> Result<String, Problem> {
        if let Some(known) = self.detected.lock().get(project.service()).cloned() {
            return Ok(known);
        }
        let found = detect::kube_id(project, nodes).await?;
        self.detected.lock().insert(project.service().to_owned(), found.clone());
        Ok(found)
    }

    /// The client with a class's credentials, and where those are from.
    async fn client_of(&self, class: &OvhNodeClass) -> Result<(Arc<OvhClient>, String), Problem> {
        let Found { credentials, origin } = self.credentials(class).await?;
        let method = AuthMethod::of(&credentials).map_err(|problem| {
            let reason = match problem {
                CredentialProblem::Incomplete { .. } | CredentialProblem::None => "SecretIncomplete",
                CredentialProblem::Ambiguous { .. } => "AmbiguousCredentials",
            };
            Problem::credentials(reason, format!("{origin}: {problem}"))
        })?;
        let own = credentials
            .get(auth::ENDPOINT)
            .map(|own| own.expose_secret().to_owned());
        let endpoint = class
            .spec
            .endpoint
            .clone()
            .or(own)
            .unwrap_or_else(|| self.settings.endpoint.clone());
        let endpoint = ApiEndpoint::parse(&endpoint, self.settings.token_url.as_deref())
            .map_err(|error| Problem::credentials("InvalidCredentials", format!("{origin}: {error}")))?;
        let key = (endpoint.clone(), fingerprint(&credentials));
        if let Some(known) = self.clients.lock().get(&key) {
            return Ok((known.clone(), origin));
        }
        if let AuthMethod::Token(_) = &method {
            tracing::warn!(
                origin,
                "an access token lives about an hour; use application keys or a service account"
            );
        }
        let client = OvhClient::new(
            self.clock.clone(),
            endpoint,
            method,
            &self.settings.client,
            self.redactor.clone(),
            self.metrics.clone(),
        )
        .map_err(|error| Problem::credentials("InvalidCredentials", error.to_string()))?;
        let client = Arc::new(client);
        self.clients.lock().insert(key, client.clone());
        Ok((client, origin))
    }

    /// The class's Secret, else the default one, else the environment.
    async fn credentials(&self, class: &OvhNodeClass) -> Result<Found, Problem> {
        let reference = self.secret_of(class);
        let is_own = class.spec.credentials_secret_ref.is_some();
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &reference.namespace);
        let origin = format!("secret {}/{}", reference.namespace, reference.name);
        let refused = match secrets.get_opt(&reference.name).await {
            Ok(Some(secret)) => {
                let version = secret.metadata.resource_version.clone().unwrap_or_default();
                let data = secret.data.into_iter().flatten();
                let text = data.filter_map(|(key, value)| Some((key, String::from_utf8(value.0).ok()?)));
                let credentials = Credentials::new(text);
                for key in auth::ENVIRONMENT.map(|(key, _)| key) {
                    if let Some(value) = credentials.get(key) {
                        self.redactor.add(value);
                    }
                }
                let origin = format!("{origin} (version {version})");
                return Ok(Found { credentials, origin });
            }
            Ok(None) => format!("{origin} does not exist"),
            Err(kube::Error::Api(status)) if status.code == 403 => {
                format!("{origin} may not be read; name it in the chart's credentials.additionalSecrets")
            }
            Err(error) => {
                return Err(Problem {
                    temporary: true,
                    ..Problem::credentials("SecretNotFound", format!("{origin} cannot be read: {error}"))
                });
            }
        };
        if !is_own && !matches!(AuthMethod::of(&self.environment), Err(CredentialProblem::None)) {
            return Ok(Found {
                credentials: self.environment.clone(),
                origin: "the environment".to_owned(),
            });
        }
        Err(Problem::credentials("SecretNotFound", refused))
    }

    async fn check(&self, class: &OvhNodeClass, cluster: &Cluster, api: &KubeApi) -> Result<(), Problem> {
        let wanted = class.spec.region.as_ref().or(self.settings.region.as_ref());
        if let Some(wanted) = wanted.filter(|wanted| !wanted.eq_ignore_ascii_case(&cluster.region)) {
            // Only to help with a misspelt name: what OVHcloud lists is no reason to refuse anything.
            let known = api.regions().await.unwrap_or_default();
            let hint = if known.is_empty() || known.iter().any(|own| own.eq_ignore_ascii_case(wanted)) {
                String::new()
            } else {
                format!(" ({wanted} is none of {})", known.join(", "))
            };
            let message = format!(
                "the class asks for region {wanted}, but the cluster is in {}; correct or remove spec.region{hint}",
                cluster.region
            );
            return Err(Problem::cluster("RegionMismatch", message));
        }
        let reason = match cluster.class() {
            ClusterClass::Open | ClusterClass::Transient => return Ok(()),
            ClusterClass::Closed if cluster.status.starts_with("SUSPEND") => "ClusterSuspended",
            ClusterClass::Closed => "ClusterDeleting",
        };
        Err(Problem::cluster(
            reason,
            format!("cluster {} is {}; no nodes can be launched", cluster.id, cluster.status),
        ))
    }

    /// A key that tells its rules is held to them before the first launch needs one that is missing.
    fn check_credential(&self, probe: &Probe, api: &KubeApi) -> Result<(), Problem> {
        if let Some(error) = api.client().lacking_right() {
            return Err(Problem::of(error, condition::CREDENTIALS_READY, "MissingRights"));
        }
        let Some(credential) = probe.credential.as_ref() else {
            return Ok(());
        };
        let missing = rights::missing(&credential.rules, api.service(), api.kube_id());
        // A key that tells no rules at all is one whose rules are not told.
        if missing.is_empty() || credential.rules.is_empty() {
            return Ok(());
        }
        let missing: Vec<String> = missing
            .iter()
            .map(|rule| format!("{} {}", rule.method, rule.path))
            .collect();
        let message = format!(
            "the key's rules do not grant {}; make a key with the eight rights of the security page",
            missing.join(", ")
        );
        Err(Problem::credentials("MissingRights", message))
    }

    /// Nodes of another cluster could never join this one: launches would only cost money.
    async fn verify(&self, api: &KubeApi, nodes: &[Node]) -> Result<(), Problem> {
        let verified = self.verified.lock().clone();
        match verified {
            Some(id) if id == api.kube_id() => return Ok(()),
            Some(id) => {
                let message = format!(
                    "cluster {} is not the one that Karpenter runs in, which is {id}; correct spec.kubeId",
                    api.kube_id()
                );
                return Err(Problem::cluster("ClusterMismatch", message));
            }
            None => {}
        }
        match detect::has_a_node_of(api, nodes).await? {
            detect::Match::Yes => *self.verified.lock() = Some(api.kube_id().to_owned()),
            detect::Match::Unknown => {}
            detect::Match::No => {
                let message = format!(
                    "none of the Nodes here is a machine of cluster {}; correct spec.kubeId or OVH_KUBE_ID",
                    api.kube_id()
                );
                return Err(Problem::cluster("ClusterMismatch", message));
            }
        }
        Ok(())
    }

    /// Tries the rights beyond the minimum; what is refused is not used, and not tried again for hours.
    async fn probe(&self, api: &KubeApi, region: &str) -> Probe {
        let key = format!("{:p}/{}/{}", Arc::as_ptr(api.client()), api.service(), api.kube_id());
        let now = self.clock.now();
        let known = self.probes.lock().get(&key).cloned();
        let (old, tried_at) = match known {
            Some((probe, read_at, _)) if now < later(read_at, PROBE_AGAIN) => return probe,
            Some((probe, _, tried_at)) if now < later(tried_at, PROBE_ALL) => (Some(probe), tried_at),
            Some(_) | None => (None, now),
        };
        let is_tried = |right: &str| old.as_ref().is_none_or(|old| old.rights.iter().any(|own| own == right));
        let mut probe = Probe::default();
        let is_key = matches!(api.client().method(), AuthMethod::Keys { .. });
        if is_key && is_tried("credential") {
            probe.credential = granted(api.current_credential().await);
            probe
                .rights
                .extend(probe.credential.is_some().then(|| "credential".to_owned()));
            let delete = AccessRule {
                method: "DELETE".to_owned(),
                path: format!("/cloud/project/{}/kube/{}/node/*", api.service(), api.kube_id()),
            };
            let rules = probe.credential.iter().flat_map(|own| &own.rules);
            probe.deletes_nodes = rules.into_iter().any(|rule| rights::grants(rule, &delete));
            probe
                .rights
                .extend(probe.deletes_nodes.then(|| "node/delete".to_owned()));
        }
        if is_tried(LIST_NODES) && granted(api.all_nodes().await).is_some() {
            probe.rights.push(LIST_NODES.to_owned());
        }
        if is_tried("flavor")
            && let Some(flavors) = granted(api.project_flavors(region).await)
        {
            probe.rights.push("flavor".to_owned());
            let linux = flavors
                .iter()
                .filter(|own| own.os_type == "linux" && own.region.eq_ignore_ascii_case(region));
            for flavor in linux {
                probe.disks.insert(flavor.name.clone(), flavor.disk);
                if !flavor.available {
                    probe.sold_out.push(flavor.name.clone());
                }
            }
        }
        if is_tried("region")
            && let Some(own) = granted(api.region(region).await)
        {
            probe.rights.push("region".to_owned());
            match own.availability_zones.as_slice() {
                [only] => probe.single_zone = Some(only.clone()),
                _ if own.kind == "region-3-az" => probe.region_zones = own.availability_zones,
                _ => {}
            }
        }
        if is_tried("quota")
            && let Some(quota) = granted(api.quota(region).await)
        {
            probe.rights.push("quota".to_owned());
            probe.quota = Some(quota.instance);
        }
        let expiry = probe.credential.as_ref().and_then(|own| own.expiration);
        self.metrics.credential_expiry(expiry.map_or(0, |at| at.as_second()));
        self.probes.lock().insert(key, (probe.clone(), now, tried_at));
        probe
    }

    async fn nodes(&self) -> Result<Vec<Node>, Problem> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        // Read from the API server: caches may not have started yet.
        let listed = nodes.list(&ListParams::default()).await;
        listed.map(|list| list.items).map_err(|error| Problem {
            temporary: true,
            ..Problem::cluster("ClusterNotDetected", format!("Nodes cannot be listed: {error}"))
        })
    }
}

/// What an optional call told, if it is granted.
fn granted<T>(answer: Result<T, ApiError>) -> Option<T> {
    match answer {
        Ok(told) => Some(told),
        Err(error) => {
            tracing::debug!(%error, "an optional right is not granted");
            None
        }
    }
}

/// Tells two sets of credentials apart without keeping them.
fn fingerprint(credentials: &Credentials) -> String {
    let mut hash = Sha256::new();
    for (key, _) in auth::ENVIRONMENT {
        let value = credentials.get(key);
        hash.update(value.map(|value| value.expose_secret().as_bytes()).unwrap_or_default());
        hash.update([0]);
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn cluster_problem(error: ApiError, kube_id: &str) -> Problem {
    if error.is(ApiErrorKind::NotFound) {
        return Problem::cluster(
            "ClusterNotFound",
            format!(
                "the project has no cluster {kube_id}; check spec.kubeId, spec.serviceName and OVH_ENDPOINT ({error})"
            ),
        );
    }
    Problem::of(error, condition::CLUSTER_READY, "ClusterNotFound")
}

impl Problem {
    fn credentials(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            condition: condition::CREDENTIALS_READY,
            reason,
            message: message.into(),
            temporary: false,
        }
    }

    fn cluster(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            condition: condition::CLUSTER_READY,
            reason,
            message: message.into(),
            temporary: false,
        }
    }

    /// Credentials are to blame for some errors, whatever was being done.
    pub fn of(error: ApiError, condition: &'static str, reason: &'static str) -> Self {
        let temporary = error.is_temporary();
        let message = match error.kind {
            ApiErrorKind::Server | ApiErrorKind::Transport => {
                format!("{error}; if this stays, check OVH_ENDPOINT")
            }
            _ => error.to_string(),
        };
        let (condition, reason) = match error.kind {
            ApiErrorKind::Auth | ApiErrorKind::Clock => (condition::CREDENTIALS_READY, "InvalidCredentials"),
            ApiErrorKind::NotGranted => (condition::CREDENTIALS_READY, "MissingRights"),
            ApiErrorKind::Expired => (condition::CREDENTIALS_READY, "ServiceExpired"),
            _ => (condition, reason),
        };
        Self {
            condition,
            reason,
            message,
            temporary,
        }
    }
}

impl From<Problem> for CloudError {
    fn from(problem: Problem) -> Self {
        let message = format!("{}: {}", problem.reason, problem.message);
        if problem.temporary {
            Self::transient(message)
        } else {
            Self::auth(message)
        }
    }
}

impl fmt::Debug for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Directory")
            .field("known", &self.known.lock().keys())
            .finish_non_exhaustive()
    }
}
