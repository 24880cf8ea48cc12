//! What the API would not grant, remembered, and told to those who wait for it.

use super::{Actor, Outcome};
use crate::{
    client::{ApiError, ApiErrorKind},
    pool::{engine::Shared, plan::Failure},
};

impl Shared {
    /// Whether another flavor or zone may be granted where this one was not.
    pub(super) fn is_refusal(&self, error: &ApiError) -> bool {
        use ApiErrorKind as Kind;
        matches!(
            error.kind,
            Kind::Capacity | Kind::Quota | Kind::PoolLimit | Kind::Invalid | Kind::ZoneRequired
        )
    }

    /// Marks what was refused, and tells those who wait.
    pub(super) async fn refuse(&self, actor: &Actor, waiting: &[String], flavor: String, error: &ApiError) {
        let zone = waiting
            .iter()
            .find_map(|uid| self.ledger.get(uid))
            .map(|entry| entry.zone);
        if let Some(zone) = zone {
            match error.kind {
                ApiErrorKind::Capacity => drop(self.mark(Failure::OutOfStock, &flavor, &zone)),
                ApiErrorKind::Quota => drop(self.mark(Failure::Quota, &flavor, &zone)),
                ApiErrorKind::PoolLimit => {}
                _ => self.unavailable.refused(&flavor, &zone, "refused as invalid"),
            }
        }
        self.refuse_all(actor, waiting, error.kind, &error.to_string()).await;
    }

    pub(super) async fn refuse_all(&self, actor: &Actor, waiting: &[String], kind: ApiErrorKind, message: &str) {
        for uid in waiting {
            if let Some(entry) = self.ledger.get(uid) {
                self.withdraw(&entry.claim).await;
            }
            let message = message.to_owned();
            actor.answer(uid, &Outcome::Refused { kind, message });
        }
    }

    pub(super) fn mark(&self, failure: Failure, flavor: &str, zone: &str) -> String {
        match failure {
            Failure::OutOfStock => {
                self.unavailable.out_of_stock(flavor, zone);
                format!("{flavor} is out of stock in {zone}")
            }
            Failure::Quota => {
                let (vcpus, ram) = self.size_of(flavor);
                self.unavailable.over_quota(vcpus, ram);
                let told = self.extras().quota.map(|quota| {
                    format!(
                        " ({} of {} cores and {} of {} instances were in use)",
                        quota.used_cores, quota.max_cores, quota.used_instances, quota.max_instances
                    )
                });
                let told = told.unwrap_or_default();
                format!("the project's quota has no room for another {flavor}{told}")
            }
            Failure::Broken => {
                self.unavailable.refused(flavor, zone, "a machine could not be made");
                format!("OVHcloud could not make a {flavor} in {zone}")
            }
        }
    }
}
