//! Months, gaps, clocks that jump, and pages that stay small.

use super::*;

fn at(text: &str) -> Timestamp {
    text.parse().expect("a time")
}

fn node(pool: &str, hourly: f64) -> Paid<'_> {
    Paid {
        node_pool: pool,
        currency: "VND",
        hourly,
        since: None,
    }
}

fn spent(page: &CostPage, pool: &str) -> f64 {
    let own = page.node_pools.iter().find(|own| own.node_pool == pool);
    own.map_or(f64::NAN, |own| own.amount)
}

fn check(page: &CostPage, amount: f64) {
    let found = spent(page, "web");
    assert!((found - amount).abs() < 1e-6, "{found} instead of {amount}: {page:?}");
}

#[test]
fn nodes_are_paid_for_from_look_to_look_or_from_their_beginning() {
    let mut page = CostPage::begin(at("2026-11-10T00:00:00Z"));
    page.count(at("2026-11-10T00:00:00Z"), [node("web", 60.0)]);
    check(&page, 0.0);
    page.count(at("2026-11-10T00:01:00Z"), [node("web", 60.0), node("web", 120.0)]);
    check(&page, 3.0);
    let young = Paid {
        since: Some(at("2026-11-10T00:01:30Z")),
        ..node("web", 120.0)
    };
    page.count(at("2026-11-10T00:02:00Z"), [node("web", 60.0), young]);
    check(&page, 5.0);
    page.count(at("2026-11-10T00:03:00Z"), []);
    check(&page, 5.0);
    assert_eq!(
        (page.since, page.at),
        (at("2026-11-10T00:00:00Z"), at("2026-11-10T00:03:00Z"))
    );
    assert_eq!(page.unwatched_seconds, 0);
}

#[test]
fn time_that_nobody_watched_is_told_and_not_counted() {
    let mut page = CostPage::begin(at("2026-11-10T00:00:00Z"));
    page.count(at("2026-11-10T00:15:00Z"), [node("web", 60.0)]);
    check(&page, 15.0);
    page.count(at("2026-11-10T00:30:01Z"), [node("web", 60.0)]);
    check(&page, 15.0);
    assert_eq!(page.unwatched_seconds, 901);
    page.count(at("2026-11-10T00:31:01Z"), [node("web", 60.0)]);
    check(&page, 16.0);
    assert_eq!(page.since, at("2026-11-10T00:00:00Z"), "the first moment stays");
}

#[test]
fn a_month_that_was_awaited_begins_at_its_first_moment() {
    let mut page = CostPage::begin(at("2026-11-30T23:50:00Z"));
    page.count(at("2026-11-30T23:55:00Z"), [node("web", 60.0)]);
    page.count(at("2026-12-01T00:05:00Z"), [node("web", 60.0)]);
    check(&page, 5.0);
    assert_eq!(
        (page.month.as_str(), page.since),
        ("2026-12", at("2026-12-01T00:00:00Z"))
    );
    assert!(page.is_of_month(at("2026-12-31T23:59:59Z")) && !page.is_of_month(at("2027-01-01T00:00:00Z")));
}

#[test]
fn a_month_that_nobody_awaited_begins_with_its_first_look() {
    let mut page = CostPage::begin(at("2026-10-05T00:00:00Z"));
    page.count(at("2026-10-05T00:10:00Z"), [node("web", 60.0)]);
    page.count(at("2026-11-03T00:00:00Z"), [node("web", 60.0)]);
    check(&page, 0.0);
    assert_eq!((page.since, page.unwatched_seconds), (at("2026-11-03T00:00:00Z"), 0));
}

#[test]
fn clocks_that_jump_cost_nothing() {
    let mut page = CostPage::begin(at("2026-11-10T12:00:00Z"));
    page.count(at("2026-11-10T12:10:00Z"), [node("web", 60.0)]);
    for jump in ["2026-11-10T02:00:00Z", "2026-11-20T12:00:00Z", "2026-11-10T12:00:00Z"] {
        page.count(at(jump), [node("web", 60.0)]);
        check(&page, 10.0);
    }
    assert!(page.since <= page.at, "{page:?}");
    page.count(at("2026-11-10T12:01:00Z"), [node("web", 60.0)]);
    check(&page, 11.0);
}

#[test]
fn a_clock_that_is_set_right_at_the_turn_of_the_month_does_not_begin_the_old_one_again() {
    let mut page = CostPage::begin(at("2026-12-01T00:00:00Z"));
    page.count(at("2026-12-01T00:00:30Z"), [node("web", 120.0)]);
    let before = page.clone();
    page.count(at("2026-11-30T23:59:50Z"), [node("web", 120.0)]);
    assert_eq!(page, before);
    page.count(at("2026-12-01T00:01:00Z"), [node("web", 120.0)]);
    check(&page, 2.0);
}

#[test]
fn the_least_of_too_many_pools_are_summed_up_and_nothing_is_lost() {
    let names: Vec<String> = (0..300).map(|number| format!("pool-{number:03}")).collect();
    let mut page = CostPage::begin(at("2026-11-10T00:00:00Z"));
    for minute in 1..=3 {
        let nodes = names
            .iter()
            .zip(1_u32..)
            .map(|(name, price)| node(name, 60.0 * f64::from(price)));
        page.count(at(&format!("2026-11-10T00:0{minute}:00Z")), nodes);
    }
    assert!(page.node_pools.len() <= MOST_POOLS, "{}", page.node_pools.len());
    let all: f64 = page.node_pools.iter().map(|own| own.amount).sum();
    assert!((all - 3.0 * 45_150.0).abs() < 1e-6, "{all}");
    assert!((spent(&page, "pool-299") - 900.0).abs() < 1e-6);
    assert!(spent(&page, OTHERS) > 0.0);
    let text = serde_json::to_string(&page).expect("plain data");
    assert!(text.len() < 50_000, "{}", text.len());
    let read: CostPage = serde_json::from_str(&text).expect("its own form");
    assert_eq!(read.node_pools.len(), page.node_pools.len());
}
