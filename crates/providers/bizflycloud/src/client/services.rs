//! The service catalogue: which host serves what in which region.

use std::time::Duration;

use jiff::Timestamp;
use karpenter_cloud::{
    CloudError,
    clock::{Clock, later},
    http::{Endpoint, HttpClient},
};
use parking_lot::Mutex;

use super::{
    ServiceName,
    error::{ApiError, ErrorClass},
    wire::{Service, Services},
    words::Words,
};
use crate::region::Region;

/// The catalogue of one host, read when it is needed and kept for an hour.
#[derive(Debug)]
pub(super) struct Catalogue {
    clock: Clock,
    http: HttpClient,
    url: String,
    known: Mutex<Option<Known>>,
    reading: tokio::sync::Mutex<()>,
}

#[derive(Clone, Debug)]
struct Known {
    services: Vec<Service>,
    read_at: Timestamp,
}

const KEEP: Duration = Duration::from_secs(3600);
const OPERATION: &str = "service_catalogue";

impl Catalogue {
    pub(super) fn new(clock: Clock, http: HttpClient, url: String) -> Self {
        Self {
            clock,
            http,
            url,
            known: Mutex::new(None),
            reading: tokio::sync::Mutex::new(()),
        }
    }

    /// Where a service of a region is.
    ///
    /// There is no fallback to another host: a request for HCM must never land in HN.
    pub(super) async fn url(&self, service: ServiceName, region: Region) -> Result<String, ApiError> {
        let asked_at = self.clock.now();
        if let Some(url) = self.look_up(service, region) {
            return Ok(url);
        }
        let _reading = self.reading.lock().await;
        // Somebody else may have read it meanwhile; then the answer is final for now.
        let is_news = self
            .known
            .lock()
            .as_ref()
            .is_some_and(|known| known.read_at >= asked_at);
        if !is_news {
            self.read().await?;
        }
        self.look_up(service, region).ok_or_else(|| {
            let message = format!(
                "the service catalogue has no {} in region {} ({})",
                service.canonical(),
                region.short(),
                region.canonical()
            );
            ApiError::new(OPERATION, ErrorClass::ServiceNotInCatalog, message)
        })
    }

    fn look_up(&self, service: ServiceName, region: Region) -> Option<String> {
        let known = self.known.lock();
        let known = known.as_ref()?;
        if self.clock.now() >= later(known.read_at, KEEP) {
            return None;
        }
        let of_service =
            |entry: &&Service| entry.canonical_name == service.canonical() && !entry.service_url.is_empty();
        let entries = || known.services.iter().filter(of_service);
        let found = entries()
            .find(|entry| region.is(&entry.region))
            // Global services have no region.
            .or_else(|| entries().find(|entry| entry.region.is_empty()))?;
        Some(found.service_url.clone())
    }

    async fn read(&self) -> Result<(), ApiError> {
        let endpoint = Endpoint::refresh(OPERATION);
        let answer = self
            .http
            .send(&endpoint, |client| {
                let request = client.get(&self.url).build();
                request.map_err(|error| CloudError::invalid(error.without_url().to_string()))
            })
            .await
            .map_err(|error| ApiError::of_transport(&endpoint, error))?;
        if !answer.status.is_success() {
            return Err(ApiError::of_answer(
                &endpoint,
                &answer,
                self.http.redactor(),
                &Words::default(),
            ));
        }
        let told: Services = answer
            .json()
            .map_err(|error| ApiError::new(OPERATION, ErrorClass::Transient, error.to_string()))?;
        *self.known.lock() = Some(Known {
            services: told.services,
            read_at: self.clock.now(),
        });
        Ok(())
    }
}
