//! What machines cost per hour: what users say, what operators wrote on offerings, tariffs, or a formula (cloudstack.md §7.6).

use jiff::{Timestamp, tz::TimeZone};

use crate::{
    client::model::{ServiceOffering, Tariff},
    node_class::{CapacityType, PriceSource, Pricing},
    resolve::PRICE_DETAIL,
    settings::Prices,
};

/// A machine to be priced.
#[derive(Clone, Copy, Debug)]
pub struct Priced<'a> {
    pub instance_type: &'a str,
    pub offering: &'a ServiceOffering,
    pub capacity_type: CapacityType,
    pub cpu: i64,
    /// MiB.
    pub memory: i64,
    pub gpus: i64,
    pub root_gib: i64,
}

const RUNNING_VM: i64 = 1;
const VOLUME: i64 = 6;
/// Keeps the order of sizes where a tariff is the same for all.
const TIE_BREAK: f64 = 1e-6;
/// No machine is free, or consolidation would have nothing to compare.
const LEAST: f64 = 1e-6;

/// The price per hour, always more than 0.
pub fn price(
    own: &Priced<'_>,
    pricing: Option<&Pricing>,
    defaults: &Prices,
    tariffs: &[Tariff],
    now: Timestamp,
) -> f64 {
    if let Some(price) = overridden(own, pricing) {
        return price;
    }
    let number = |text: Option<&String>, default: f64| text.and_then(|text| text.parse().ok()).unwrap_or(default);
    let per = |read: fn(&Pricing) -> Option<&String>, default: f64| number(pricing.and_then(read), default);
    let formula = own.cpu as f64 * per(|own| own.per_vcpu.as_ref(), defaults.per_vcpu)
        + own.memory as f64 / 1024.0 * per(|own| own.per_gib.as_ref(), defaults.per_memory_gib)
        + own.gpus as f64 * per(|own| own.per_gpu.as_ref(), defaults.per_gpu)
        + own.root_gib as f64 * per(|own| own.per_disk_gib.as_ref(), defaults.per_disk_gib);
    let of_detail = own.offering.serviceofferingdetails.get(PRICE_DETAIL);
    let of_detail = of_detail
        .and_then(|text| text.trim().parse::<f64>().ok())
        .filter(|price| *price > 0.0);
    let uses_tariffs = pricing.and_then(|pricing| pricing.source) == Some(PriceSource::Quota);
    let of_tariffs = || {
        let hourly = uses_tariffs.then(|| by_tariff(tariffs, own.root_gib, now)).flatten()?;
        Some(hourly + TIE_BREAK * formula)
    };
    let on_demand = of_detail.or_else(of_tariffs).unwrap_or(formula);
    let factor = match own.capacity_type {
        CapacityType::OnDemand => 1.0,
        CapacityType::Spot => per(|own| own.spot_factor.as_ref(), defaults.spot_factor),
    };
    (on_demand * factor).max(LEAST)
}

fn overridden(own: &Priced<'_>, pricing: Option<&Pricing>) -> Option<f64> {
    let overrides = pricing?.overrides.iter().flatten();
    let found = overrides.filter(|entry| {
        let is_type = entry
            .instance_type
            .as_deref()
            .is_some_and(|name| name == own.instance_type);
        let is_offering = entry
            .offering
            .as_deref()
            .is_some_and(|name| name == own.offering.id || name == own.offering.name);
        let is_capacity = entry.capacity_type.is_none_or(|kind| kind == own.capacity_type);
        (is_type || is_offering) && is_capacity
    });
    found
        .filter_map(|entry| entry.price.parse::<f64>().ok())
        .find(|price| *price > 0.0)
}

/// Monthly tariffs spread over the hours of this month. A tariff with a rule cannot be evaluated here.
fn by_tariff(tariffs: &[Tariff], root_gib: i64, now: Timestamp) -> Option<f64> {
    let running: Vec<&Tariff> = tariffs.iter().filter(|own| own.usage_type == RUNNING_VM).collect();
    let has_rule = |own: &&Tariff| own.activation_rule.as_deref().is_some_and(|rule| !rule.is_empty());
    if running.is_empty() || running.iter().any(&has_rule) {
        return None;
    }
    let month = now.to_zoned(TimeZone::UTC).date();
    let hours = 24.0 * f64::from(month.days_in_month());
    let per_machine: f64 = running.iter().map(|own| own.tariff_value / hours).sum();
    let volumes = tariffs.iter().filter(|own| own.usage_type == VOLUME && !has_rule(own));
    let per_gib: f64 = volumes.map(|own| own.tariff_value / hours).sum();
    let price = per_machine + per_gib * root_gib as f64;
    (price > 0.0).then(|| (price * 1e8).round_ties_even() / 1e8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_class::PriceOverride;

    fn offering(price: Option<&str>) -> ServiceOffering {
        let mut own = ServiceOffering {
            id: "o-1".into(),
            name: "Medium".into(),
            ..ServiceOffering::default()
        };
        own.serviceofferingdetails
            .extend(price.map(|price| (PRICE_DETAIL.to_owned(), price.to_owned())));
        own
    }

    fn priced(offering: &ServiceOffering) -> Priced<'_> {
        Priced {
            instance_type: "Medium",
            offering,
            capacity_type: CapacityType::OnDemand,
            cpu: 2,
            memory: 4096,
            gpus: 0,
            root_gib: 10,
        }
    }

    fn at(offering: &ServiceOffering, pricing: &Pricing, tariffs: &[Tariff], when: &str) -> f64 {
        let now: Timestamp = when.parse().expect("a moment");
        price(&priced(offering), Some(pricing), &Prices::default(), tariffs, now)
    }

    const MARCH: &str = "2026-03-10T00:00:00Z";

    fn tariff(value: f64, rule: Option<&str>) -> Tariff {
        Tariff {
            usage_type: RUNNING_VM,
            tariff_value: value,
            activation_rule: rule.map(str::to_owned),
            ..Tariff::default()
        }
    }

    #[test]
    fn an_override_beats_a_detail_beats_tariffs_beat_the_formula() {
        let quota = Pricing {
            source: Some(PriceSource::Quota),
            ..Pricing::default()
        };
        let overriding = Pricing {
            overrides: Some(vec![PriceOverride {
                offering: Some("Medium".into()),
                price: "9".into(),
                ..PriceOverride::default()
            }]),
            ..quota.clone()
        };
        let tariffs = [tariff(744.0, None)];
        assert_eq!(at(&offering(Some("0.5")), &overriding, &tariffs, MARCH), 9.0);
        assert_eq!(at(&offering(Some("0.5")), &quota, &tariffs, MARCH), 0.5);
        assert!((at(&offering(None), &quota, &tariffs, MARCH) - 1.0).abs() < 1e-5);
        assert!((at(&offering(None), &Pricing::default(), &tariffs, MARCH) - 0.1).abs() < 1e-9);
    }

    #[test]
    fn a_tariff_with_a_rule_is_not_used() {
        let quota = Pricing {
            source: Some(PriceSource::Quota),
            ..Pricing::default()
        };
        let price = at(&offering(None), &quota, &[tariff(744.0, Some("x"))], MARCH);
        assert!((price - 0.1).abs() < 1e-9, "{price}");
    }

    #[test]
    fn february_has_fewer_hours_than_march() {
        let quota = Pricing {
            source: Some(PriceSource::Quota),
            ..Pricing::default()
        };
        let in_month = |month: &str| at(&offering(None), &quota, &[tariff(672.0, None)], month);
        assert!((in_month("2026-02-10T00:00:00Z") - 1.0).abs() < 1e-5);
        assert!((in_month(MARCH) - 672.0 / 744.0).abs() < 1e-5);
    }

    #[test]
    fn spot_costs_a_part_of_on_demand() {
        let own = offering(Some("1"));
        let spot = Priced {
            capacity_type: CapacityType::Spot,
            ..priced(&own)
        };
        let price = price(&spot, None, &Prices::default(), &[], Timestamp::UNIX_EPOCH);
        assert_eq!(price, 0.4);
    }
}
