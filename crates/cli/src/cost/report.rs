//! The bill as people and as programs read it.

use std::collections::BTreeMap;
use std::io::{self, Write};

use jiff::{SignedDuration, Timestamp};
use karpenter_bizflycloud::cost::{CostPage, LONGEST_GAP};
use serde_json::{Value, json};

use super::{Bill, PoolCost};
use crate::terminal::Style;

/// Everything, with names that stay.
pub(crate) fn write_json(bill: &Bill, output: &mut dyn Write) -> io::Result<()> {
    let page = bill.page.as_ref();
    let since = bill.counted().map(|page| page.since);
    let pools: Vec<Value> = bill
        .pools
        .iter()
        .map(|pool| {
            json!({
                "nodePool": pool.node_pool,
                "nodes": pool.nodes,
                "perHour": pool.per_hour,
                "monthToDate": pool.month_to_date,
                "since": since,
                "currency": pool.currency,
            })
        })
        .collect();
    let totals: Vec<Value> = totals(&bill.pools)
        .iter()
        .map(|total| {
            json!({
                "nodes": total.nodes,
                "perHour": total.per_hour,
                "monthToDate": total.month_to_date,
                "currency": total.currency,
            })
        })
        .collect();
    let recommendations: Vec<Value> = page
        .iter()
        .flat_map(|page| &page.recommendations)
        .map(|own| {
            json!({
                "kind": own.kind,
                "nodePool": own.node_pool,
                "resource": own.resource,
                "sentence": own.sentence,
                "perMonth": own.per_month,
                "currency": own.currency,
            })
        })
        .collect();
    let report = json!({
        "apiVersion": "karpenter-rs/cost/v1",
        "nodePools": pools,
        "totals": totals,
        "recommendations": recommendations,
        "recommendedAt": page.and_then(|page| page.recommended_at),
        "snapshot": page.map(|page| json!({
            "month": page.month,
            "since": page.since,
            "at": page.at,
            "unwatchedSeconds": page.unwatched_seconds,
        })),
    });
    serde_json::to_writer_pretty(&mut *output, &report)?;
    writeln!(output)?;
    output.flush()
}

/// A table of NodePools, how far it can be trusted, and what could be saved.
pub(crate) fn write_text(bill: &Bill, style: Style, output: &mut dyn Write) -> io::Result<()> {
    if bill.pools.is_empty() {
        writeln!(output, "There are no NodeClaims of BizFly Cloud in this cluster.")?;
    } else {
        table(bill, style, output)?;
    }
    for note in bill.notes() {
        writeln!(output, "{note}")?;
    }
    let Some(page) = bill.page.as_ref().filter(|page| !page.recommendations.is_empty()) else {
        return output.flush();
    };
    let title = "Could be saved per month (720 h, estimated; of the same nodes only once; nothing is done by itself):";
    writeln!(output, "\n{}", style.bold(title))?;
    let amounts: Vec<String> = page
        .recommendations
        .iter()
        .map(|own| money(own.per_month, &own.currency))
        .collect();
    let wide = amounts.iter().map(String::len).max().unwrap_or_default();
    for (own, amount) in page.recommendations.iter().zip(&amounts) {
        let about = match (&own.node_pool, &own.resource) {
            (Some(pool), Some(resource)) => format!("NodePool {pool}, {resource}: "),
            (Some(pool), None) => format!("NodePool {pool}: "),
            (None, Some(resource)) => format!("{resource}: "),
            (None, None) => String::new(),
        };
        writeln!(output, "{amount:>wide$}  {:14}  {about}{}", own.kind, own.sentence)?;
    }
    output.flush()
}

fn table(bill: &Bill, style: Style, output: &mut dyn Write) -> io::Result<()> {
    let since = bill.counted().map_or_else(|| "-".to_owned(), |page| minute(page.since));
    let row = |name: &str, pool: &PoolCost, since: &str| {
        let month = pool.month_to_date.map(|amount| money(amount, &pool.currency));
        [
            name.to_owned(),
            pool.nodes.to_string(),
            money(pool.per_hour, &pool.currency),
            month.unwrap_or_else(|| "-".to_owned()),
            since.to_owned(),
        ]
    };
    let mut rows = vec![["NODEPOOL", "NODES", "PER HOUR", "MONTH TO DATE", "SINCE"].map(str::to_owned)];
    rows.extend(bill.pools.iter().map(|pool| row(&pool.node_pool, pool, &since)));
    rows.extend(totals(&bill.pools).iter().map(|total| row("total", total, "")));
    let wide = |column: usize| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or_default()
    };
    let [name, nodes, hour, month] = [0, 1, 2, 3].map(wide);
    for (index, row) in rows.iter().enumerate() {
        let line = format!(
            "{:name$}  {:>nodes$}  {:>hour$}  {:>month$}  {}",
            row[0], row[1], row[2], row[3], row[4]
        );
        let line = line.trim_end();
        match index {
            0 => writeln!(output, "{}", style.bold(line))?,
            _ => writeln!(output, "{line}")?,
        }
    }
    Ok(())
}

impl Bill {
    /// The page, if it is about this month.
    fn counted(&self) -> Option<&CostPage> {
        self.page.as_ref().filter(|page| page.is_of_month(self.now))
    }

    /// How far the month can be trusted.
    fn notes(&self) -> Vec<String> {
        let Some(page) = &self.page else {
            return vec![format!(
                "No snapshot yet: the controller stores one in ConfigMap {} a minute after it begins to lead; if it is elsewhere, say so \
                 with --namespace.",
                self.place
            )];
        };
        let mut notes = Vec::new();
        let longest = SignedDuration::try_from(LONGEST_GAP).unwrap_or(SignedDuration::MAX);
        let advice = match self.now.duration_since(page.at) > longest {
            true => ", and nobody counted since: check the controller with karpenter doctor.",
            false => ".",
        };
        let told = match page.is_of_month(self.now) {
            true => "Counted until",
            false => "This month was not counted yet: the last snapshot is of",
        };
        notes.push(format!("{told} {}{advice}", minute(page.at)));
        if page.unwatched_seconds > 0 && page.is_of_month(self.now) {
            let minutes = page.unwatched_seconds.div_ceil(60);
            notes.push(format!(
                "Nobody watched for {} h {} min of that time, which are not counted.",
                minutes / 60,
                minutes % 60
            ));
        }
        notes
    }
}

/// One sum for each currency.
fn totals(pools: &[PoolCost]) -> Vec<PoolCost> {
    let mut totals: BTreeMap<&str, PoolCost> = BTreeMap::new();
    for pool in pools {
        let total = totals.entry(&pool.currency).or_insert_with(|| PoolCost {
            node_pool: String::new(),
            currency: pool.currency.clone(),
            nodes: 0,
            per_hour: 0.0,
            month_to_date: None,
        });
        total.nodes += pool.nodes;
        total.per_hour += pool.per_hour;
        if let Some(amount) = pool.month_to_date {
            total.month_to_date = Some(total.month_to_date.unwrap_or_default() + amount);
        }
    }
    totals.into_values().collect()
}

fn minute(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M UTC").to_string()
}

/// `1,234.50 VND`.
fn money(amount: f64, currency: &str) -> String {
    let text = format!("{amount:.2}");
    let (whole, rest) = text.split_once('.').unwrap_or((&text, "00"));
    let mut grouped = String::new();
    for (index, digit) in whole.chars().enumerate() {
        let left = whole.len() - index;
        if index > 0 && left % 3 == 0 && !grouped.ends_with('-') {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    format!("{grouped}.{rest} {currency}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_grouped_by_thousands() {
        let told = [0.0, 999.999, 1_234.5, 1_234_567.0, -123.0].map(|amount| money(amount, "VND"));
        assert_eq!(
            told,
            [
                "0.00 VND",
                "1,000.00 VND",
                "1,234.50 VND",
                "1,234,567.00 VND",
                "-123.00 VND"
            ]
        );
    }

    #[test]
    fn the_controller_is_doubted_only_when_it_has_been_silent_for_long() {
        let told = |at: &str, now: &str| {
            let page = json!({
                "month": at[..7], "since": at, "at": at, "unwatchedSeconds": 0, "nodePools": [],
                "recommendedAt": null, "recommendations": [],
            });
            let bill = Bill {
                pools: Vec::new(),
                page: serde_json::from_value(page).unwrap(),
                place: String::new(),
                now: now.parse().unwrap(),
            };
            bill.notes().concat()
        };
        let month = told("2026-11-10T00:00:00Z", "2026-11-10T00:15:00Z");
        assert_eq!(month, "Counted until 2026-11-10 00:00 UTC.");
        let silent = told("2026-11-10T00:00:00Z", "2026-11-10T00:16:00Z");
        assert!(silent.contains("karpenter doctor"), "{silent}");
        let new = told("2026-10-31T23:59:00Z", "2026-11-01T00:01:00Z");
        assert_eq!(
            new,
            "This month was not counted yet: the last snapshot is of 2026-10-31 23:59 UTC."
        );
        let silent = told("2026-10-31T23:59:00Z", "2026-11-01T00:15:00Z");
        assert!(silent.contains("karpenter doctor"), "{silent}");
    }

    #[test]
    fn currencies_are_summed_up_apart() {
        let pool = |currency: &str, per_hour: f64, month_to_date: Option<f64>| PoolCost {
            node_pool: "web".to_owned(),
            currency: currency.to_owned(),
            nodes: 1,
            per_hour,
            month_to_date,
        };
        let pools = [
            pool("VND", 1.0, Some(5.0)),
            pool("USD", 2.0, None),
            pool("VND", 3.0, Some(6.0)),
        ];
        let told: Vec<(usize, f64, Option<f64>)> = totals(&pools)
            .iter()
            .map(|total| (total.nodes, total.per_hour, total.month_to_date))
            .collect();
        assert_eq!(told, [(1, 2.0, None), (2, 4.0, Some(11.0))]);
    }
}
