//! Prices of the vendor's billing API: a public list of plans whose form nobody documents, so what can't be read with
//! certainty is left to estimates (§1.7, §5.3).

use std::{sync::Arc, time::Duration};

use http::StatusCode;
use jiff::Timestamp;
use karpenter_cloud::{
    CloudError,
    clock::{Clock, later},
    http::{Endpoint, HttpClient, HttpObserver, HttpSettings, HttpSettingsError, Redactor, RetryPolicy},
};
use parking_lot::Mutex;
use serde_json::Value;

use crate::{
    catalogue::{PLAN_ON_DEMAND, PLAN_SAVING, PLAN_SPOT},
    flavor::{Category, Size},
    prices::{DiskPrices, ON_DEMAND_DISK_FACTOR, ON_DEMAND_FACTOR, PriceEntry, SPOT_FACTOR},
};

/// The list of plans at one address, and what it said last.
#[derive(Debug)]
pub(crate) struct BillingApi {
    clock: Clock,
    http: HttpClient,
    url: String,
    known: Mutex<Known>,
}

#[derive(Clone, Debug, Default)]
struct Known {
    listed: Arc<Vec<PriceEntry>>,
    /// When it was last asked, with or without success.
    asked_at: Option<Timestamp>,
    problem: Option<String>,
}

/// What a plan sells.
#[derive(Clone, Debug, PartialEq)]
enum Ware {
    Flavor(String),
    Vcpu,
    Gib,
    Ssd,
    Hdd,
}

pub(crate) const DEFAULT_URL: &str = "https://billing.bizflycloud.vn/api/v4/plans";
const OPERATION: &str = "list_billing_plans";
/// Tariffs change seldom.
const KEPT: Duration = Duration::from_secs(3600);
const AGAIN: Duration = Duration::from_secs(60);
const TIMEOUT: Duration = Duration::from_secs(15);
const HOURS_A_MONTH: f64 = 720.0;
const ZONES: [&str; 3] = ["hn1", "hn2", "hcm1"];

impl BillingApi {
    /// # Errors
    /// When the settings can't be used.
    pub(crate) fn new(
        clock: Clock,
        base: HttpSettings,
        redactor: Redactor,
        observer: impl HttpObserver,
        url: &str,
    ) -> Result<Self, HttpSettingsError> {
        let settings = HttpSettings {
            timeout: TIMEOUT,
            retry: RetryPolicy {
                attempts: 1,
                ..RetryPolicy::default()
            },
            ..base
        };
        Ok(Self {
            http: HttpClient::new(clock.clone(), settings, redactor, observer)?,
            clock,
            url: url.to_owned(),
            known: Mutex::default(),
        })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// What was listed last.
    pub(crate) fn listed(&self) -> Arc<Vec<PriceEntry>> {
        self.known.lock().listed.clone()
    }

    /// Why the list is not the current one, if so.
    pub(crate) fn problem(&self) -> Option<String> {
        self.known.lock().problem.clone()
    }

    pub(crate) fn was_asked(&self) -> bool {
        self.known.lock().asked_at.is_some()
    }

    /// Reads the list if it is old. What was known stays known where that fails.
    pub(crate) async fn refresh(&self) {
        let now = self.clock.now();
        {
            let known = self.known.lock();
            let pause = if known.problem.is_some() { AGAIN } else { KEPT };
            if known.asked_at.is_some_and(|at| now < later(at, pause)) {
                return;
            }
        }
        let answer = self.read().await;
        let mut known = self.known.lock();
        known.asked_at = Some(now);
        match answer {
            Ok(listed) => {
                known.problem = None;
                if *known.listed != listed {
                    tracing::info!(prices = listed.len(), "prices of the billing API are in use");
                    known.listed = Arc::new(listed);
                }
            }
            Err(problem) => {
                tracing::warn!(problem, "prices of the billing API can't be had");
                known.problem = Some(problem);
            }
        }
    }

    async fn read(&self) -> Result<Vec<PriceEntry>, String> {
        let endpoint = Endpoint::refresh(OPERATION);
        let build = |client: &reqwest::Client| {
            let request = client.get(&self.url).query(&[("embedded", "product,unit_prices")]);
            let request = request.header("Accept", "application/json");
            let request = request.build();
            request.map_err(|error| CloudError::invalid(error.without_url().to_string()))
        };
        let answer = self.http.send(&endpoint, build).await;
        let answer = answer.map_err(|error| error.to_string())?;
        if answer.status != StatusCode::OK {
            return Err(format!("{OPERATION}: HTTP {}", answer.status.as_u16()));
        }
        let told: Value = answer.json().map_err(|error| format!("{OPERATION}: {error}"))?;
        let plans = plans_of(&told);
        let listed: Vec<PriceEntry> = plans.iter().flat_map(entries).collect();
        if listed.is_empty() {
            return Err(format!(
                "{OPERATION}: none of its {} plans tells a price that can be read; write prices into a ConfigMap instead",
                plans.len()
            ));
        }
        Ok(listed)
    }
}

/// The plans, whatever they are wrapped in.
fn plans_of(told: &Value) -> &[Value] {
    let wrapped = ["_items", "data", "plans", "items", "results"]
        .iter()
        .find_map(|key| told[key].as_array());
    told.as_array().or(wrapped).map_or(&[], Vec::as_slice)
}

/// The prices that a plan tells. A monthly price is a subscription's: the published coefficients tell the others.
fn entries(plan: &Value) -> Vec<PriceEntry> {
    let words = words_of(plan);
    let (Some(ware), Some((price, hours))) = (ware(&words), price_of(plan, &words)) else {
        return Vec::new();
    };
    let hourly = price / hours;
    let is_disk = matches!(ware, Ware::Ssd | Ware::Hdd);
    let factors = match plan_named(&words) {
        Some(named) => vec![(named, 1.0)],
        None if hours > 1.0 => vec![
            (PLAN_SAVING, 1.0),
            (
                PLAN_ON_DEMAND,
                if is_disk {
                    ON_DEMAND_DISK_FACTOR
                } else {
                    ON_DEMAND_FACTOR
                },
            ),
            (PLAN_SPOT, if is_disk { 1.0 } else { SPOT_FACTOR }),
        ],
        None => vec![(PLAN_ON_DEMAND, 1.0)],
    };
    let category = words.iter().find_map(|word| word.parse::<Category>().ok());
    let zone = words.iter().find(|word| ZONES.contains(&word.as_str()));
    let of_plan = |(plan, factor): (&str, f64)| {
        let price = hourly * factor;
        let mut entry = PriceEntry {
            category: category.map(|own| own.as_str().to_owned()),
            zone: zone.map(|zone| zone.to_uppercase()),
            plan: Some(plan.to_owned()),
            ..PriceEntry::default()
        };
        match &ware {
            Ware::Flavor(name) => {
                entry.flavor = Some(name.clone());
                entry.category = None;
                entry.hour = Some(price);
            }
            Ware::Vcpu => entry.vcpu_hour = Some(price),
            Ware::Gib => entry.gib_hour = Some(price),
            Ware::Ssd => {
                entry.disk_gib_hour = Some(DiskPrices {
                    ssd: Some(price),
                    hdd: None,
                });
            }
            Ware::Hdd => {
                entry.disk_gib_hour = Some(DiskPrices {
                    ssd: None,
                    hdd: Some(price),
                });
            }
        }
        entry
    };
    factors.into_iter().map(of_plan).collect()
}

/// Everything that names a plan, in words.
fn words_of(plan: &Value) -> Vec<String> {
    let texts = [plan, &plan["product"]].into_iter().flat_map(|own| {
        let text = |key: &str| own[key].as_str().unwrap_or_default().to_lowercase();
        ["name", "code", "billing_plan", "category"].map(text)
    });
    let words = texts.flat_map(|text| {
        let split = text.split(|char: char| char.is_whitespace() || "-/,()".contains(char));
        split
            .filter(|word| !word.is_empty())
            .map(str::to_owned)
            .collect::<Vec<_>>()
    });
    words.collect()
}

/// Words that a plan of a server, or of what servers are made of, is named with. Any other word makes it a plan of something else:
/// of a database's memory, of a snapshot's disk.
const VOCABULARY: [&str; 29] = [
    "bizfly", "machine", "root", "cloud", "server", "servers", "compute", "instance", "máy", "chủ", "cpu", "vcpu",
    "core", "cores", "ram", "memory", "ssd", "hdd", "disk", "volume", "rootdisk", "block", "storage", "on", "demand",
    "per", "gb", "gib", "1",
];

/// What one unit of is sold; nothing where the names leave that open. A bundle of several, or a pack of a hundred, has no price
/// per unit.
fn ware(words: &[String]) -> Option<Ware> {
    let is_known = |own: &String| {
        let word = own.as_str();
        VOCABULARY.contains(&word)
            || ZONES.contains(&word)
            || hours(word).is_some()
            || word.parse::<Category>().is_ok()
            || Size::of_name(word).is_some()
            || plan_named(std::slice::from_ref(own)).is_some()
    };
    if !words.iter().all(is_known) {
        return None;
    }
    let mut flavors: Vec<&String> = words.iter().filter(|word| Size::of_name(word).is_some()).collect();
    flavors.dedup();
    match flavors.as_slice() {
        [] => {}
        [name] => return Some(Ware::Flavor((*name).clone())),
        _ => return None,
    }
    let has = |names: &[&str]| words.iter().any(|word| names.contains(&word.as_str()));
    let named = [
        (has(&["cpu", "vcpu", "core", "cores"]), Ware::Vcpu),
        (has(&["ram", "memory"]), Ware::Gib),
        (has(&["ssd"]), Ware::Ssd),
        (has(&["hdd"]), Ware::Hdd),
    ];
    let mut wares = named
        .into_iter()
        .filter(|(is_named, _)| *is_named)
        .map(|(_, ware)| ware);
    let ware = wares.next()?;
    wares.next().is_none().then_some(ware)
}

fn plan_named(words: &[String]) -> Option<&'static str> {
    let text = words.join("_");
    if text.contains("spot") {
        Some(PLAN_SPOT)
    } else if text.contains("on_demand") {
        Some(PLAN_ON_DEMAND)
    } else if text.contains("saving_plan") || text.contains("subscription") {
        Some(PLAN_SAVING)
    } else {
        None
    }
}

/// The first price that tells what it is for, and for how many hours.
fn price_of(plan: &Value, words: &[String]) -> Option<(f64, f64)> {
    let units: Vec<&Value> = match &plan["unit_prices"] {
        Value::Array(units) => units.iter().collect(),
        own @ Value::Object(_) => vec![own],
        _ => vec![plan],
    };
    units.into_iter().find_map(|unit| {
        let amount = ["price", "amount", "unit_price", "value"].iter().find_map(|key| {
            let own = &unit[key];
            own.as_f64().or_else(|| own.as_str()?.trim().parse().ok())
        });
        let told = [unit, plan].into_iter().find_map(|own| {
            let keys = ["time_unit", "billing_cycle", "period", "cycle", "interval", "unit"];
            keys.iter().find_map(|key| hours(own[key].as_str()?))
        });
        let hours = told.or_else(|| words.iter().find_map(|word| hours(word)))?;
        Some((amount.filter(|price| price.is_finite() && *price > 0.0)?, hours))
    })
}

/// How many hours a word stands for.
fn hours(word: &str) -> Option<f64> {
    match word.to_lowercase().as_str() {
        "hour" | "hourly" | "h" | "giờ" => Some(1.0),
        "day" | "daily" | "ngày" => Some(24.0),
        "month" | "monthly" | "tháng" => Some(HOURS_A_MONTH),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(plan: Value) -> Vec<PriceEntry> {
        entries(&plan)
    }

    #[test]
    fn a_monthly_price_is_a_subscriptions_and_the_coefficients_tell_the_others() {
        let cpu = json!({
            "name": "premium cpu", "product": {"name": "CPU"}, "unit_prices": [{"price": "72000", "time_unit": "month"}],
        });
        let found: Vec<(String, f64)> = read(cpu)
            .into_iter()
            .map(|entry| {
                assert_eq!(entry.category.as_deref(), Some("premium"));
                (entry.plan.expect("a plan"), entry.vcpu_hour.expect("of a vCPU"))
            })
            .collect();
        let expected = [("saving_plan", 100.0), ("on_demand", 150.0), ("spot", 20.0)];
        assert_eq!(found, expected.map(|(plan, price)| (plan.to_owned(), price)));
    }

    #[test]
    fn a_plan_that_names_a_flavor_and_a_plan_is_that_offers_price() {
        let plan = json!({
            "code": "nix.4c_8g on_demand", "product": {"name": "Cloud Server HN1"}, "unit_prices": {"amount": 900, "unit": "hour"},
        });
        let found = read(plan);
        let expected = PriceEntry {
            flavor: Some("nix.4c_8g".to_owned()),
            zone: Some("HN1".to_owned()),
            plan: Some("on_demand".to_owned()),
            hour: Some(900.0),
            ..PriceEntry::default()
        };
        assert_eq!(found, [expected]);
    }

    #[test]
    fn what_is_no_price_of_one_unit_is_not_read_as_one() {
        let priced = |name: &str, product: &str| json!({"name": name, "product": {"name": product}, "unit_prices": [{"price": 5, "unit": "hour"}]});
        assert_eq!(read(priced("SSD", "Cloud Server")).len(), 1);
        for (name, product) in [
            ("4 vCPU 8 GB RAM", "Cloud Server"),
            ("CPU and RAM", "Cloud Server"),
            ("CPU RAM", "Cloud Server"),
            ("SSD 100 GB", "Cloud Server"),
            ("100GB SSD", "Cloud Server"),
            ("8 cores", "Cloud Server"),
            ("RAM", "Cloud Database"),
            ("SSD", "Snapshot"),
            ("SSD HDD", "Volume"),
            ("nix.4c_8g", "Cloud Database"),
            ("nix.4c_8g nix.8c_16g", "Cloud Server"),
        ] {
            assert_eq!(read(priced(name, product)), [], "{name} of {product}");
        }
    }

    #[test]
    fn what_cannot_be_read_with_certainty_is_left_out() {
        for plan in [
            json!({}),
            json!({"name": "CPU"}),
            json!({"name": "CPU", "unit_prices": [{"price": 5}]}),
            json!({"name": "CPU", "unit_prices": [{"price": -5, "unit": "hour"}]}),
            json!({"name": "Load balancer", "unit_prices": [{"price": 5, "unit": "hour"}]}),
        ] {
            assert_eq!(read(plan.clone()), [], "{plan}");
        }
        assert_eq!(plans_of(&json!({"_items": [1, 2]})).len(), 2);
        assert_eq!(plans_of(&json!([1])).len(), 1);
        assert!(plans_of(&json!("html")).is_empty());
    }
}
