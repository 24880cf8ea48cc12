//! The calls of a project and its cluster, each with its exact path.

use std::{fmt, sync::Arc};

use http::Method;
use karpenter_cloud::http::Lane;
use serde::de::DeserializeOwned;

use super::{
    ApiError, ApiErrorKind, Call, OvhClient,
    model::{Cluster, CurrentCredential, Flavor, NewPool, Pool, PoolNode, PoolUpdate, ProjectFlavor, Quota, Region},
    parsed,
};
use crate::catalogue::catalog::Catalog;

/// One cluster of one project. Cheap to clone.
#[derive(Clone)]
pub struct KubeApi {
    client: Arc<OvhClient>,
    service: String,
    kube: String,
}

const CLUSTER: &str = "/cloud/project/{serviceName}/kube/{kubeId}";
const POOLS: &str = "/cloud/project/{serviceName}/kube/{kubeId}/nodepool";
const POOL: &str = "/cloud/project/{serviceName}/kube/{kubeId}/nodepool/{id}";
const POOL_NODES: &str = "/cloud/project/{serviceName}/kube/{kubeId}/nodepool/{id}/nodes";
const NODES: &str = "/cloud/project/{serviceName}/kube/{kubeId}/node";
const NODE: &str = "/cloud/project/{serviceName}/kube/{kubeId}/node/{id}";
const FLAVORS: &str = "/cloud/project/{serviceName}/kube/{kubeId}/flavors";
const NEXT_CURSOR: &str = "x-pagination-cursor-next";
/// More pages than this are a cursor that goes in circles.
const MOST_PAGES: usize = 1000;

impl KubeApi {
    pub fn new(client: Arc<OvhClient>, service: impl Into<String>, kube: impl Into<String>) -> Self {
        Self {
            client,
            service: service.into(),
            kube: kube.into(),
        }
    }

    pub fn client(&self) -> &Arc<OvhClient> {
        &self.client
    }

    pub fn service(&self) -> &str {
        &self.service
    }

    pub fn kube_id(&self) -> &str {
        &self.kube
    }

    /// The same project and credentials, another cluster.
    pub fn of_cluster(&self, kube: &str) -> Self {
        Self {
            kube: kube.to_owned(),
            ..self.clone()
        }
    }

    fn project(&self, rest: &str) -> String {
        format!("/cloud/project/{}{rest}", self.service)
    }

    fn path(&self, rest: &str) -> String {
        self.project(&format!("/kube/{}{rest}", self.kube))
    }

    pub async fn cluster(&self) -> Result<Cluster, ApiError> {
        self.client.get(self.path(""), CLUSTER, Lane::Urgent).await
    }

    pub async fn pools(&self) -> Result<Vec<Pool>, ApiError> {
        self.client.get(self.path("/nodepool"), POOLS, Lane::Urgent).await
    }

    pub async fn pool(&self, id: &str) -> Result<Pool, ApiError> {
        self.client
            .get(self.path(&format!("/nodepool/{id}")), POOL, Lane::Urgent)
            .await
    }

    /// All nodes of a pool that are not deleted yet. Every page, or an error.
    pub async fn nodes(&self, pool: &str) -> Result<Vec<PoolNode>, ApiError> {
        self.paged(self.path(&format!("/nodepool/{pool}/nodes")), POOL_NODES)
            .await
    }

    /// All nodes of all pools in one call. Not among the minimal rights.
    pub async fn all_nodes(&self) -> Result<Vec<PoolNode>, ApiError> {
        self.paged(self.path("/node"), NODES).await
    }

    /// Ends a node and takes its place from its pool. Not among the minimal rights, and not needed where pools can be told
    /// which nodes to remove.
    pub async fn delete_node(&self, id: &str) -> Result<(), ApiError> {
        let path = self.path(&format!("/node/{id}"));
        self.client
            .write(Method::DELETE, path, NODE, Vec::new())
            .await
            .map(drop)
    }

    async fn paged<T: DeserializeOwned>(&self, path: String, label: &str) -> Result<Vec<T>, ApiError> {
        let mut call = Call::new(Method::GET, path, label, Lane::Urgent);
        let mut all = Vec::new();
        for _ in 0..MOST_PAGES {
            let answer = self.client.call(&call).await?;
            let page: Vec<T> = parsed(&answer, &call)?;
            all.extend(page);
            let next = answer.headers.get(NEXT_CURSOR).and_then(|cursor| cursor.to_str().ok());
            match next.filter(|cursor| !cursor.is_empty()) {
                Some(cursor) => call.cursor = Some(cursor.to_owned()),
                None => return Ok(all),
            }
        }
        Err(call.failed(ApiErrorKind::Server, "the list of nodes has no last page"))
    }

    pub async fn create_pool(&self, pool: &NewPool) -> Result<Pool, ApiError> {
        let body = serde_json::to_vec(pool).expect("a pool is plain data");
        let answer = self
            .client
            .write(Method::POST, self.path("/nodepool"), POOLS, body)
            .await?;
        let call = Call::new(Method::POST, String::new(), POOLS, Lane::Urgent);
        parsed(&answer, &call)
    }

    pub async fn update_pool(&self, id: &str, update: &PoolUpdate) -> Result<(), ApiError> {
        let body = serde_json::to_vec(update).expect("an update is plain data");
        let path = self.path(&format!("/nodepool/{id}"));
        self.client.write(Method::PUT, path, POOL, body).await.map(drop)
    }

    pub async fn delete_pool(&self, id: &str) -> Result<(), ApiError> {
        let path = self.path(&format!("/nodepool/{id}"));
        self.client
            .write(Method::DELETE, path, POOL, Vec::new())
            .await
            .map(drop)
    }

    /// The flavors that this cluster may use.
    pub async fn flavors(&self) -> Result<Vec<Flavor>, ApiError> {
        self.client.get(self.path("/flavors"), FLAVORS, Lane::Background).await
    }

    /// The flavors that a region offers.
    pub async fn region_flavors(&self, region: &str) -> Result<Vec<Flavor>, ApiError> {
        let path = self.project(&format!("/capabilities/kube/flavors?region={region}"));
        let label = "/cloud/project/{serviceName}/capabilities/kube/flavors";
        self.client.get(path, label, Lane::Background).await
    }

    /// The regions that have managed Kubernetes.
    pub async fn regions(&self) -> Result<Vec<String>, ApiError> {
        let label = "/cloud/project/{serviceName}/capabilities/kube/regions";
        let path = self.project("/capabilities/kube/regions");
        self.client.get(path, label, Lane::Background).await
    }

    /// The ids of the project's clusters. Not among the minimal rights.
    pub async fn clusters(&self) -> Result<Vec<String>, ApiError> {
        let label = "/cloud/project/{serviceName}/kube";
        self.client.get(self.project("/kube"), label, Lane::Background).await
    }

    /// Not among the minimal rights.
    pub async fn project_flavors(&self, region: &str) -> Result<Vec<ProjectFlavor>, ApiError> {
        let label = "/cloud/project/{serviceName}/flavor";
        let path = self.project(&format!("/flavor?region={region}"));
        self.client.get(path, label, Lane::Background).await
    }

    /// Not among the minimal rights.
    pub async fn region(&self, region: &str) -> Result<Region, ApiError> {
        let label = "/cloud/project/{serviceName}/region/{region}";
        let path = self.project(&format!("/region/{region}"));
        self.client.get(path, label, Lane::Background).await
    }

    /// Not among the minimal rights.
    pub async fn quota(&self, region: &str) -> Result<Quota, ApiError> {
        let label = "/cloud/project/{serviceName}/region/{region}/quota";
        let path = self.project(&format!("/region/{region}/quota"));
        self.client.get(path, label, Lane::Background).await
    }

    /// The key in use. Not among the minimal rights.
    pub async fn current_credential(&self) -> Result<CurrentCredential, ApiError> {
        let label = "/auth/currentCredential";
        self.client.get(label.to_owned(), label, Lane::Background).await
    }

    /// The public price list of a subsidiary.
    pub async fn catalog(&self, subsidiary: &str) -> Result<Catalog, ApiError> {
        let path = format!("/order/catalog/public/cloud?ovhSubsidiary={subsidiary}");
        self.client.get_public(&path, "/order/catalog/public/cloud").await
    }
}

impl fmt::Debug for KubeApi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KubeApi")
            .field("service", &self.service)
            .field("kube", &self.kube)
            .finish_non_exhaustive()
    }
}
