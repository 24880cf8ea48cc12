//! A client of BizFly Cloud's API: tokens, the service catalogue, and the calls that a provider needs.

mod breaker;
pub mod error;
pub mod services;
pub mod session;
pub mod wire;
pub mod words;

use std::{fmt, sync::Arc, time::Duration};

use http::Method;
use jiff::Timestamp;
use karpenter_cloud::{
    CloudError,
    clock::Clock,
    http::{
        Endpoint, HttpClient, HttpObserver, HttpSettings, HttpSettingsError, RateLimit, Redactor, RetryPolicy, Safety,
        Unobserved,
    },
};
use secrecy::ExposeSecret;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use url::Url;

pub use error::{ApiError, ErrorClass};
pub use session::{AuthMethod, Identity};

use crate::region::Region;
use breaker::{Breaker, Watched};
use services::Catalogue;
use session::{Session, Token};
use wire::{
    AccountRegion, BkeCluster, CreatedTasks, CustomImage, CustomImages, Firewall, Flavor, KeypairEntry,
    KubernetesVersion, KubernetesVersions, NewServer, Nic, OsFamily, OsImages, Server, Task, TaskState, User,
    UserAnswer, Volume, VolumeType, VolumeTypes, Vpc,
};
use words::Words;

/// A client of one account in one region. Cheap to clone; clones share token, connections and rate limit.
#[derive(Clone)]
pub struct Bizfly {
    shared: Arc<Shared>,
}

struct Shared {
    http: HttpClient,
    breaker: Breaker,
    auth: Auth,
    catalogue: Catalogue,
    region: Region,
    identity: Identity,
    words: Words,
    observer: Box<dyn ApiObserver>,
}

/// Told of attempts, and of refusals whose meaning only their text tells.
pub trait ApiObserver: HttpObserver {
    fn refused(&self, operation: &str, class: ErrorClass);
}

impl ApiObserver for Unobserved {
    fn refused(&self, _operation: &str, _class: ErrorClass) {}
}

enum Auth {
    Token(Box<Session>),
    /// The application credential goes with every request.
    Header,
}

/// How an account is reached.
#[derive(Clone, Debug)]
pub struct Connection {
    /// With or without `/api` at the end.
    pub endpoint: Url,
    pub region: Region,
    pub identity: Identity,
    pub mode: AuthMode,
    pub attempts: u32,
    pub first_delay: Duration,
    pub timeout: Duration,
    pub rate: RateLimit,
    pub words: Words,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthMode {
    Token,
    Header,
}

/// The services that are looked up in the catalogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ServiceName {
    CloudServer,
    KubernetesEngine,
    Account,
}

impl ServiceName {
    pub const fn canonical(self) -> &'static str {
        match self {
            Self::CloudServer => "cloud_server",
            Self::KubernetesEngine => "kubernetes_engine",
            Self::Account => "bizfly_account",
        }
    }
}

type Answer<T> = Result<T, ApiError>;

const MEDIA_TYPE: &str = "application/json; charset=utf-8";
const LONGEST_DELAY: Duration = Duration::from_secs(30);

impl Bizfly {
    /// # Errors
    /// When the connection's settings cannot be used.
    pub fn new(
        clock: Clock,
        connection: Connection,
        base: HttpSettings,
        redactor: Redactor,
        observer: impl ApiObserver + Clone,
    ) -> Result<Self, HttpSettingsError> {
        connection.identity.secrets().for_each(|secret| redactor.add(secret));
        let mut retry = RetryPolicy {
            attempts: connection.attempts,
            first_delay: connection.first_delay,
            longest_delay: LONGEST_DELAY,
            spread: 0.8..=1.2,
            ..RetryPolicy::default()
        };
        retry.transient.push(http::StatusCode::INTERNAL_SERVER_ERROR);
        let settings = HttpSettings {
            timeout: connection.timeout,
            rate: connection.rate,
            retry,
            answer_id_headers: vec!["x-request-id", "x-openstack-request-id", "x-compute-request-id"],
            ..base
        };
        let breaker = Breaker::new(clock.clone());
        let also = observer.clone();
        let observer = Watched {
            breaker: breaker.clone(),
            also: observer,
        };
        let http = HttpClient::new(clock.clone(), settings, redactor, observer)?;
        let identity = connection.identity;
        let auth = match connection.mode {
            AuthMode::Header => Auth::Header,
            AuthMode::Token => {
                let url = token_url(&connection.endpoint);
                Auth::Token(Box::new(Session::new(
                    clock.clone(),
                    http.clone(),
                    url,
                    identity.clone(),
                )))
            }
        };
        let catalogue = Catalogue::new(clock, http.clone(), catalogue_url(&connection.endpoint));
        Ok(Self {
            shared: Arc::new(Shared {
                http,
                breaker,
                auth,
                catalogue,
                region: connection.region,
                identity,
                words: connection.words,
                observer: Box::new(also),
            }),
        })
    }

    /// Proves the credentials; answers the project that requests go to.
    ///
    /// # Errors
    /// Those of the token service, or of a call that needs to be known.
    pub async fn authenticate(&self) -> Answer<String> {
        match &self.shared.auth {
            Auth::Token(session) => Ok(session.token().await?.project_id),
            Auth::Header => {
                self.regions().await?;
                Ok(self.shared.identity.project_id.clone().unwrap_or_default())
            }
        }
    }

    /// When the token in use ends, if there is one.
    pub fn token_expires_at(&self) -> Option<Timestamp> {
        match &self.shared.auth {
            Auth::Token(session) => session.expires_at(),
            Auth::Header => None,
        }
    }

    /// Why the token in use could not be renewed, if so.
    pub fn token_not_renewed(&self) -> Option<String> {
        match &self.shared.auth {
            Auth::Token(session) => session.not_renewed(),
            Auth::Header => None,
        }
    }

    /// Where a service of the region is.
    ///
    /// # Errors
    /// When the catalogue can't be read, or lacks it.
    pub async fn service_url(&self, service: ServiceName) -> Answer<String> {
        self.shared.catalogue.url(service, self.shared.region).await
    }

    /// Until when the API is left alone because it kept failing, if so.
    pub fn left_alone_until(&self) -> Option<Timestamp> {
        self.shared.breaker.open_until()
    }

    // --- account ---

    /// # Errors
    /// Like every call: see [`ErrorClass`].
    pub async fn regions(&self) -> Answer<Vec<AccountRegion>> {
        let regions: std::collections::BTreeMap<String, AccountRegion> =
            self.get(ServiceName::Account, "list_regions", "regions").await?;
        Ok(regions.into_values().collect())
    }

    pub async fn user(&self) -> Answer<User> {
        let answer: UserAnswer = self.get(ServiceName::Account, "get_user", "user").await?;
        Ok(answer.data)
    }

    // --- catalogue of the cloud ---

    /// Old and new flavors by name; of two of one name the new one counts.
    pub async fn flavors(&self) -> Answer<Vec<Flavor>> {
        let legacy: Vec<Flavor> = self.get(ServiceName::CloudServer, "list_flavors", "flavors").await?;
        let new: Vec<Flavor> = self
            .get(ServiceName::CloudServer, "list_flavors", "flavors?new=true")
            .await?;
        let by_name = legacy
            .into_iter()
            .chain(new)
            .map(|flavor| (flavor.name.clone(), flavor));
        let by_name: std::collections::BTreeMap<String, Flavor> = by_name.collect();
        Ok(by_name.into_values().collect())
    }

    pub async fn volume_types(&self) -> Answer<Vec<VolumeType>> {
        let answer: VolumeTypes = self
            .get(ServiceName::CloudServer, "list_volume_types", "volume-types")
            .await?;
        Ok(answer.volume_types)
    }

    pub async fn os_images(&self) -> Answer<Vec<OsFamily>> {
        let answer: OsImages = self
            .get(ServiceName::CloudServer, "list_os_images", "images?os_images=True")
            .await?;
        Ok(answer.os_images)
    }

    pub async fn custom_images(&self) -> Answer<Vec<CustomImage>> {
        let answer: CustomImages = self
            .get(ServiceName::CloudServer, "list_custom_images", "user/images")
            .await?;
        Ok(answer.images)
    }

    pub async fn vpcs(&self) -> Answer<Vec<Vpc>> {
        self.get(ServiceName::CloudServer, "list_vpc_networks", "vpc-networks")
            .await
    }

    pub async fn firewalls(&self) -> Answer<Vec<Firewall>> {
        self.get(ServiceName::CloudServer, "list_firewalls", "firewalls").await
    }

    pub async fn keypairs(&self) -> Answer<Vec<String>> {
        let entries: Vec<KeypairEntry> = self.get(ServiceName::CloudServer, "list_keypairs", "keypairs").await?;
        Ok(entries.into_iter().map(|entry| entry.keypair.name).collect())
    }

    // --- BKE ---

    pub async fn kubernetes_versions(&self) -> Answer<Vec<KubernetesVersion>> {
        let answer: KubernetesVersions = self
            .get(ServiceName::KubernetesEngine, "list_k8s_versions", "k8s_versions")
            .await?;
        Ok(answer.controller_versions)
    }

    pub async fn bke_cluster(&self, id: &str) -> Answer<BkeCluster> {
        self.get(ServiceName::KubernetesEngine, "get_cluster", &format!("_/{id}"))
            .await
    }

    /// Tells the vendor's Kubernetes service that a node is gone.
    pub async fn leave_cluster(&self, id: &str, token: &secrecy::SecretString, node_name: &str) -> Answer<()> {
        let call = Call {
            service: ServiceName::KubernetesEngine,
            operation: "cluster_leave",
            method: Method::POST,
            path: format!("engine/cluster_leave/{id}"),
            body: Some(json!({ "node_name": node_name })),
            safety: Safety::Repeatable,
            cluster_token: Some(token.clone()),
        };
        self.send(&call).await.map(drop)
    }

    // --- servers ---

    /// Orders servers; answers the id of each one's task, in order.
    pub async fn create_servers(&self, servers: &[NewServer]) -> Answer<Vec<String>> {
        let call = Call {
            body: Some(serde_json::to_value(servers).expect("an order is plain data")),
            safety: Safety::Unrepeatable,
            ..Call::new(ServiceName::CloudServer, "create_server", Method::POST, "servers")
        };
        let answer = self.send(&call).await?;
        // The order was taken: an answer that can't be read does not change that.
        let created: CreatedTasks = answer
            .json()
            .map_err(|error| ApiError::new("create_server", ErrorClass::Ambiguous, error.to_string()))?;
        Ok(created.task_id)
    }

    pub async fn servers(&self) -> Answer<Vec<Server>> {
        self.get(ServiceName::CloudServer, "list_servers", "servers").await
    }

    pub async fn server(&self, id: &str) -> Answer<Server> {
        let path = format!("servers/{}", segment(id));
        self.get(ServiceName::CloudServer, "get_server", &path).await
    }

    pub async fn delete_server(&self, id: &str, volumes: &[String]) -> Answer<()> {
        let call = Call {
            body: Some(json!({ "delete_volume": volumes })),
            ..Call::new(
                ServiceName::CloudServer,
                "delete_server",
                Method::DELETE,
                &format!("servers/{}", segment(id)),
            )
        };
        self.send(&call).await.map(drop)
    }

    /// `start`, `stop` or `hard_reboot`: harmless to repeat.
    pub async fn act_on_server(&self, id: &str, action: &'static str) -> Answer<()> {
        self.server_action(id, json!({ "action": action })).await
    }

    pub async fn rename_server(&self, id: &str, name: &str) -> Answer<()> {
        self.server_action(id, json!({ "action": "rename", "new_name": name }))
            .await
    }

    async fn server_action(&self, id: &str, body: Value) -> Answer<()> {
        let call = Call {
            body: Some(body),
            ..Call::new(
                ServiceName::CloudServer,
                "server_action",
                Method::POST,
                &format!("servers/{}/action", segment(id)),
            )
        };
        self.send(&call).await.map(drop)
    }

    pub async fn task(&self, id: &str) -> Answer<TaskState> {
        let path = format!("tasks/{}", segment(id));
        let task: Task = self.get(ServiceName::CloudServer, "get_task", &path).await?;
        Ok(task.state())
    }

    // --- network interfaces ---

    pub async fn nics(&self) -> Answer<Vec<Nic>> {
        let path = "network-interfaces?type=LAN_WAN";
        self.get(ServiceName::CloudServer, "list_network_interfaces", path)
            .await
    }

    /// Puts firewalls on a network interface; those that it has stay.
    pub async fn add_firewalls(&self, nic: &str, firewalls: &[String]) -> Answer<()> {
        let call = Call {
            body: Some(json!({ "action": "add_firewall", "security_groups": firewalls })),
            ..Call::new(
                ServiceName::CloudServer,
                "network_interface_action",
                Method::POST,
                &format!("network-interfaces/{}/action", segment(nic)),
            )
        };
        self.send(&call).await.map(drop)
    }

    // --- volumes ---

    pub async fn volumes(&self) -> Answer<Vec<Volume>> {
        self.get(ServiceName::CloudServer, "list_volumes", "volumes").await
    }

    pub async fn volume(&self, id: &str) -> Answer<Volume> {
        let path = format!("volumes/{}", segment(id));
        self.get(ServiceName::CloudServer, "get_volume", &path).await
    }

    pub async fn delete_volume(&self, id: &str) -> Answer<()> {
        let path = format!("volumes/{}", segment(id));
        let call = Call::new(ServiceName::CloudServer, "delete_volume", Method::DELETE, &path);
        self.send(&call).await.map(drop)
    }

    // --- how a call is made ---

    async fn get<T: DeserializeOwned>(&self, service: ServiceName, operation: &'static str, path: &str) -> Answer<T> {
        let answer = self.send(&Call::new(service, operation, Method::GET, path)).await?;
        answer
            .json()
            .map_err(|error| ApiError::new(operation, ErrorClass::Transient, error.to_string()))
    }

    /// Sends a call. A refused token is replaced once, and the call sent again with its body.
    async fn send(&self, call: &Call) -> Answer<karpenter_cloud::http::Answer> {
        let shared = &self.shared;
        shared.breaker.admit(call.operation)?;
        let base = shared.catalogue.url(call.service, shared.region).await?;
        let url = format!("{}/{}", base.trim_end_matches('/'), call.path);
        let endpoint = Endpoint {
            safety: call.safety,
            ..Endpoint::read(call.operation)
        };
        let mut token = match &shared.auth {
            Auth::Token(session) => Some(session.token().await?),
            Auth::Header => None,
        };
        let mut replaced = false;
        loop {
            let answer = shared
                .http
                .send(&endpoint, |client| self.build(client, call, &url, token.as_ref()))
                .await
                .map_err(|error| ApiError::of_transport(&endpoint, error))?;
            if answer.status.is_success() {
                return Ok(answer);
            }
            if answer.status == http::StatusCode::UNAUTHORIZED
                && !replaced
                && let (Auth::Token(session), Some(refused)) = (&shared.auth, &token)
            {
                token = Some(session.replace(refused).await?);
                replaced = true;
                continue;
            }
            let error = ApiError::of_answer(&endpoint, &answer, shared.http.redactor(), &shared.words);
            if !tells_all(answer.status) {
                shared.observer.refused(call.operation, error.class);
            }
            return Err(error);
        }
    }

    fn build(
        &self,
        client: &reqwest::Client,
        call: &Call,
        url: &str,
        token: Option<&Token>,
    ) -> Result<reqwest::Request, CloudError> {
        let mut request = client
            .request(call.method.clone(), url)
            .header("Content-Type", MEDIA_TYPE)
            .header("Accept", MEDIA_TYPE);
        match (token, &self.shared.identity.method) {
            (Some(token), _) => {
                request = request
                    .header("X-Auth-Type", "token")
                    .header("X-Auth-Token", token.value.expose_secret());
                if !token.project_id.is_empty() {
                    request = request.header("X-Project-ID", &token.project_id);
                }
            }
            (None, AuthMethod::ApplicationCredential { id, secret }) => {
                request = request
                    .header("X-Auth-Type", "application_credential")
                    .header("X-App-Credential-ID", id)
                    .header("X-App-Credential-Secret", secret.expose_secret());
                if let Some(project) = &self.shared.identity.project_id {
                    request = request.header("X-Project-ID", project);
                }
            }
            (None, AuthMethod::Password { .. }) => {
                return Err(CloudError::auth(
                    "authMode: Header needs an application credential; a password works with authMode: Token only",
                ));
            }
        }
        if let Some(token) = &call.cluster_token {
            request = request.header("X-Cluster-Token", token.expose_secret());
        }
        if let Some(body) = &call.body {
            request = request.body(body.to_string());
        }
        request
            .build()
            .map_err(|error| CloudError::invalid(error.without_url().to_string()))
    }
}

impl fmt::Debug for Bizfly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bizfly")
            .field("region", &self.shared.region)
            .field("identity", &self.shared.identity)
            .finish_non_exhaustive()
    }
}

/// Whether a status alone says what an answer means; of others the text must be read too.
pub fn tells_all(status: http::StatusCode) -> bool {
    use http::StatusCode;
    status.is_success()
        || status.is_server_error()
        || matches!(
            status,
            StatusCode::UNAUTHORIZED
                | StatusCode::PAYMENT_REQUIRED
                | StatusCode::NOT_FOUND
                | StatusCode::REQUEST_TIMEOUT
                | StatusCode::TOO_MANY_REQUESTS
        )
}

struct Call {
    service: ServiceName,
    operation: &'static str,
    method: Method,
    path: String,
    body: Option<Value>,
    safety: Safety,
    cluster_token: Option<secrecy::SecretString>,
}

impl Call {
    fn new(service: ServiceName, operation: &'static str, method: Method, path: &str) -> Self {
        Self {
            service,
            operation,
            method,
            path: path.to_owned(),
            body: None,
            safety: Safety::Repeatable,
            cluster_token: None,
        }
    }
}

/// Ids come from the API and from provider IDs that users can write: they must not lead elsewhere.
fn segment(id: &str) -> String {
    url::form_urlencoded::byte_serialize(id.as_bytes()).collect()
}

/// The API's base without trailing slashes and without a final `/api`.
fn base(endpoint: &Url) -> String {
    let text = endpoint.as_str().trim_end_matches('/');
    text.strip_suffix("/api")
        .unwrap_or(text)
        .trim_end_matches('/')
        .to_owned()
}

fn token_url(endpoint: &Url) -> String {
    format!("{}/api/token", base(endpoint))
}

/// Always at the root of the host, whatever path the endpoint has.
fn catalogue_url(endpoint: &Url) -> String {
    let mut root = endpoint.clone();
    root.set_path("/api/auth/service");
    root.set_query(None);
    root.to_string()
}

impl Identity {
    fn secrets(&self) -> impl Iterator<Item = &secrecy::SecretString> {
        let secret = match &self.method {
            AuthMethod::Password { password, .. } => password,
            AuthMethod::ApplicationCredential { secret, .. } => secret,
        };
        std::iter::once(secret)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_spellings_of_the_endpoint_are_the_same_urls() {
        for text in ["https://h", "https://h/", "https://h/api", "https://h/api/"] {
            let endpoint: Url = text.parse().expect("a URL");
            assert_eq!(token_url(&endpoint), "https://h/api/token", "{text}");
            assert_eq!(catalogue_url(&endpoint), "https://h/api/auth/service", "{text}");
        }
    }

    #[test]
    fn an_id_cannot_lead_to_another_path() {
        assert_eq!(segment("a/../b?c"), "a%2F..%2Fb%3Fc");
    }
}
