//! Keeps the page of costs: counts with every look, recommends every quarter of an hour, and stores every five minutes.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use karpenter_cloud::{CloudError, clock::later};
use parking_lot::Mutex;

use super::{Member, savings};
use crate::{
    account::Account,
    cost::{self, CostPage, Paid, Saving},
    metrics::FleetReport,
    node_class::BizflyCloudNodeClass,
    provider::Shared,
};

/// The page, and when what of it is due.
#[derive(Debug, Default)]
pub(crate) struct Costs(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    /// `None` until the page of an earlier process was asked for.
    page: Option<CostPage>,
    stored_at: Option<Timestamp>,
    recommended_at: Option<Timestamp>,
    /// What is looked for only when recommendations are due.
    seldom: Vec<Saving>,
}

const STORED: Duration = Duration::from_secs(5 * 60);
const RECOMMENDED: Duration = Duration::from_secs(15 * 60);

/// Counts what the fleet cost since the last look, and adds to the report what could be saved besides.
///
/// What goes wrong is told and tried again with the next look: nothing depends on it.
pub(super) async fn keep(
    shared: &Shared,
    members: &[Member<'_>],
    classes: &BTreeMap<String, BizflyCloudNodeClass>,
    accounts: &[Arc<Account>],
    report: &mut FleetReport,
) {
    let now = shared.clock.now();
    let known = shared.costs.0.lock().page.clone();
    let mut page = match known {
        Some(page) => page,
        None => match read(shared, now).await {
            Ok(page) => page,
            Err(error) => {
                tracing::warn!(%error, "what the month has cost so far cannot be read, so nothing is counted yet");
                return;
            }
        },
    };
    page.count(
        now,
        report.costs.iter().map(|cost| Paid {
            node_pool: &cost.node_pool,
            currency: &cost.currency,
            hourly: cost.hourly,
            since: cost.since,
        }),
    );
    let must_recommend = is_due(shared.costs.0.lock().recommended_at, RECOMMENDED, now);
    if must_recommend {
        let found = savings::seldom(shared, members, classes, accounts).await;
        let mut kept = shared.costs.0.lock();
        kept.seldom = found;
        kept.recommended_at = Some(now);
    }
    report.savings.extend(shared.costs.0.lock().seldom.iter().cloned());
    if must_recommend {
        page.recommendations = cost::recommendations(&report.savings);
        page.recommended_at = Some(now);
    }
    shared.metrics.month_to_date(&page);
    let must_store = {
        let mut kept = shared.costs.0.lock();
        kept.page = Some(page.clone());
        // A new month at once: the stored one tells nothing of it.
        let is_of_another = kept.stored_at.is_some_and(|at| !page.is_of_month(at));
        must_recommend || is_of_another || is_due(kept.stored_at, STORED, now)
    };
    if !must_store {
        return;
    }
    let text = serde_json::to_string(&page).expect("a page is plain data");
    match shared.ledger.write_page(cost::PAGE, &text).await {
        Ok(()) => shared.costs.0.lock().stored_at = Some(now),
        Err(error) => tracing::warn!(%error, "what the month has cost so far is not stored yet"),
    }
}

/// What an earlier process counted, or a page that begins now.
async fn read(shared: &Shared, now: Timestamp) -> Result<CostPage, CloudError> {
    let Some(text) = shared.ledger.stored_page(cost::PAGE).await? else {
        return Ok(CostPage::begin(now));
    };
    Ok(serde_json::from_str(&text).unwrap_or_else(|error| {
        tracing::warn!(page = cost::PAGE, %error, "a page of the ledger cannot be read and is begun anew");
        CostPage::begin(now)
    }))
}

/// Also where a clock was set back: what lies ahead tells nothing.
fn is_due(last: Option<Timestamp>, every: Duration, now: Timestamp) -> bool {
    last.is_none_or(|last| now < last || now >= later(last, every))
}
