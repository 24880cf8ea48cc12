//! The answer of a simulation for people: what to launch, how full it is, what it costs, and what is left over.

use std::{
    collections::BTreeMap,
    io::{self, Write},
    sync::Arc,
};

use karpenter_api::{
    Quantity, ResourceList,
    resources::{CPU, HUGEPAGES_PREFIX, MEMORY, PODS},
};
use karpenter_engine::{
    Plan,
    model::{InstanceType, Pod},
    plan::PlannedClaim,
};

use super::report::{Report, price_of};
use crate::{
    cluster_files::{Cluster, workload_of},
    terminal::Style,
};

const HOURS_PER_MONTH: f64 = 730.0;
const BAR: usize = 20;
const LISTED: usize = 6;

pub(super) fn write(
    output: &mut dyn Write,
    style: Style,
    cluster: &Cluster,
    plan: &Plan,
    report: &Report,
) -> io::Result<()> {
    let view = View {
        style,
        cluster,
        plan,
        report,
    };
    view.headline(output)?;
    view.new_nodes(output)?;
    view.existing_nodes(output)?;
    view.unschedulable(output)?;
    view.disruption(output)?;
    view.total(output)
}

struct View<'a> {
    style: Style,
    cluster: &'a Cluster,
    plan: &'a Plan,
    report: &'a Report,
}

impl View<'_> {
    fn headline(&self, output: &mut dyn Write) -> io::Result<()> {
        let snapshot = &self.cluster.snapshot;
        let running: usize = snapshot.nodes.iter().map(|node| node.pods().len()).sum();
        let pending = snapshot.pods.len() + self.cluster.invalid.len();
        let placed: usize = self.plan.existing.iter().map(|placement| placement.pods.len()).sum();
        writeln!(
            output,
            "{} {}, {}, {}",
            self.style.bold("Cluster"),
            count(snapshot.nodes.len(), "node"),
            count(running, "running pod"),
            count(pending, "pending pod"),
        )?;
        writeln!(
            output,
            "{} {} to launch, {} on existing nodes, {} unschedulable",
            self.style.bold("Plan   "),
            count(self.plan.claims.len(), "node"),
            count(placed, "pod"),
            count(self.report.unschedulable.len(), "pod"),
        )
    }

    fn disruption(&self, output: &mut dyn Write) -> io::Result<()> {
        let (Some(commands), Some(blocked)) = (&self.report.disruption, &self.report.blocked) else {
            return Ok(());
        };
        writeln!(output, "\n{}", self.style.bold("Disruption"))?;
        if commands.is_empty() {
            writeln!(output, "  nothing to do")?;
        }
        for (nth, command) in commands.iter().enumerate() {
            let instead = command.replacements.iter().filter_map(|claim| claim.cheapest.as_ref());
            let instead: Vec<String> = instead.map(|cheapest| cheapest.instance_type.clone()).collect();
            let by = if instead.is_empty() {
                String::new()
            } else {
                format!(" by {}", instead.join(", "))
            };
            writeln!(
                output,
                "  {}. {} {}{by}, saves ${:.3}/h {}",
                nth + 1,
                command.decision,
                listed(command.nodes.clone()),
                command.savings_per_hour,
                self.style.dim(&format!("({}: {})", command.method, command.reason)),
            )?;
        }
        for node in blocked {
            writeln!(output, "  {} stays: {}", node.node, node.reasons.join("; "))?;
        }
        Ok(())
    }

    fn new_nodes(&self, output: &mut dyn Write) -> io::Result<()> {
        if self.plan.claims.is_empty() {
            return Ok(());
        }
        writeln!(output, "\n{}", self.style.bold("New nodes"))?;
        for group in alike(&self.plan.claims) {
            self.node_group(output, &group)?;
        }
        Ok(())
    }

    /// Nodes of one pool that would be bought the same way, with their average fill.
    fn node_group(&self, output: &mut dyn Write, claims: &[&PlannedClaim]) -> io::Result<()> {
        let first = claims[0];
        let times = if claims.len() > 1 {
            format!("{} × ", claims.len())
        } else {
            String::new()
        };
        let bought = match &first.cheapest {
            Some(cheapest) => {
                let total = cheapest.price * claims.len() as f64;
                let zone = &cheapest.zone;
                format!(
                    "{}  {zone}  {}  {}",
                    self.style.cyan(&cheapest.instance_type),
                    cheapest.capacity_type,
                    price(total)
                )
            }
            None => "no offering can be launched now".to_owned(),
        };
        writeln!(
            output,
            "  {times}{bought}  {}",
            self.style.dim(&format!("NodePool {}", first.node_pool.name))
        )?;
        if let Some(instance_type) = cheapest_type(first) {
            let allocatable = allocatable(instance_type);
            for resource in shown_resources(claims) {
                let available = allocatable.amount(&resource).to_f64() * claims.len() as f64;
                let used: Quantity = claims.iter().map(|claim| claim.requests.amount(&resource)).sum();
                let share = if available > 0.0 {
                    used.to_f64() / available
                } else {
                    1.0
                };
                let of = allocatable.amount(&resource).times(claims.len() as i64);
                writeln!(
                    output,
                    "    {resource:<8} {} {:>3.0}%  {} of {}",
                    self.bar(share),
                    share * 100.0,
                    readable(used, &resource),
                    readable(of, &resource)
                )?;
            }
        }
        let pods = claims.iter().flat_map(|claim| &claim.pods);
        writeln!(output, "    {}", workloads(pods))?;
        let choices = claims.iter().map(|claim| claim.instance_types.len()).min().unwrap_or(0);
        writeln!(
            output,
            "    {}",
            self.style
                .dim(&format!("cheapest of {}", count(choices, "possible instance type")))
        )
    }

    fn bar(&self, share: f64) -> String {
        let filled = ((share * BAR as f64).round() as usize).min(BAR);
        let text = format!("{}{}", "█".repeat(filled), "░".repeat(BAR - filled));
        match share {
            s if s > 0.9 => self.style.yellow(&text),
            _ => self.style.green(&text),
        }
    }

    fn existing_nodes(&self, output: &mut dyn Write) -> io::Result<()> {
        if self.plan.existing.is_empty() {
            return Ok(());
        }
        writeln!(output, "\n{}", self.style.bold("Existing nodes that take pods"))?;
        let widest = self
            .plan
            .existing
            .iter()
            .map(|placement| placement.node.len())
            .max()
            .unwrap_or(0);
        for placement in &self.plan.existing {
            writeln!(output, "  {:<widest$}  {}", placement.node, workloads(&placement.pods))?;
        }
        Ok(())
    }

    /// Pods with one and the same reason are listed together.
    fn unschedulable(&self, output: &mut dyn Write) -> io::Result<()> {
        if self.report.unschedulable.is_empty() {
            return Ok(());
        }
        writeln!(output, "\n{}", self.style.bold("Unschedulable"))?;
        let mut by_reason: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for refused in &self.report.unschedulable {
            by_reason.entry(&refused.reason).or_default().push(&refused.pod);
        }
        let mut reasons: Vec<_> = by_reason.into_iter().collect();
        reasons.sort_by(|a, b| a.1.cmp(&b.1));
        for (reason, pods) in reasons {
            writeln!(
                output,
                "  {}",
                self.style.red(&listed(pods.into_iter().map(str::to_owned).collect()))
            )?;
            for part in reason.split("; ") {
                writeln!(output, "    {part}")?;
            }
        }
        Ok(())
    }

    fn total(&self, output: &mut dyn Write) -> io::Result<()> {
        let cost = &self.report.cost;
        let added = cost.after_per_hour - cost.current_per_hour;
        writeln!(output)?;
        let snapshot = &self.cluster.snapshot;
        let unpriced = snapshot
            .nodes
            .iter()
            .filter(|node| price_of(&snapshot.catalog, node).is_none())
            .count();
        let month = |hourly: f64| format!("{:.2} a month", hourly * HOURS_PER_MONTH);
        let before = match snapshot.nodes.is_empty() {
            true => String::new(),
            false => format!(
                "  {}",
                self.style
                    .dim(&format!("{} before, {added:+.4}/h", price(cost.current_per_hour)))
            ),
        };
        let label = self.style.bold("Cost   ");
        writeln!(
            output,
            "{label} {}, {}{before}",
            price(cost.after_per_hour),
            month(cost.after_per_hour)
        )?;
        if unpriced > 0 {
            let note = format!(
                "        {} with no price in the catalogue not counted",
                count(unpriced, "existing node")
            );
            writeln!(output, "{}", self.style.dim(&note))?;
        }
        let timing = &self.report.timing;
        let decided = format!(
            "decided in {} ms, read in {} ms",
            timing.solve_millis, timing.load_millis
        );
        writeln!(output, "{}", self.style.dim(&decided))
    }
}

/// Claims that would be bought alike, in the order of the report.
fn alike(claims: &[PlannedClaim]) -> Vec<Vec<&PlannedClaim>> {
    let mut groups: BTreeMap<(String, String, String, String), Vec<&PlannedClaim>> = BTreeMap::new();
    for claim in claims {
        let (instance_type, zone, capacity_type) = match &claim.cheapest {
            Some(c) => (c.instance_type.clone(), c.zone.clone(), c.capacity_type.clone()),
            None => Default::default(),
        };
        groups
            .entry((claim.node_pool.name.clone(), instance_type, zone, capacity_type))
            .or_default()
            .push(claim);
    }
    groups.into_values().collect()
}

fn cheapest_type(claim: &PlannedClaim) -> Option<&Arc<InstanceType>> {
    let name = &claim.cheapest.as_ref()?.instance_type;
    claim
        .instance_types
        .iter()
        .find(|instance_type| instance_type.name == *name)
}

/// What pods can use of an instance type (scheduling.md §2.5).
fn allocatable(instance_type: &InstanceType) -> ResourceList {
    let overhead = &instance_type.overhead;
    let reserved = overhead
        .kube_reserved
        .clone()
        .merged(&overhead.system_reserved)
        .merged(&overhead.eviction_threshold);
    let mut left = instance_type.capacity.subtract(&reserved);
    let pages: Quantity = left
        .iter()
        .filter(|(resource, _)| resource.starts_with(HUGEPAGES_PREFIX))
        .map(|(_, amount)| *amount)
        .sum();
    if !pages.is_zero() {
        let memory = (left.memory() - pages).max(Quantity::ZERO);
        left.insert(MEMORY.to_owned(), memory);
    }
    left
}

/// cpu and memory first, then what else is requested, then pods.
fn shown_resources(claims: &[&PlannedClaim]) -> Vec<String> {
    let mut others: Vec<String> = claims.iter().flat_map(|claim| claim.requests.keys().cloned()).collect();
    others.sort();
    others.dedup();
    others.retain(|resource| ![CPU, MEMORY, PODS].contains(&resource.as_str()));
    [CPU, MEMORY]
        .map(str::to_owned)
        .into_iter()
        .chain(others)
        .chain([PODS.to_owned()])
        .collect()
}

/// `3 × Deployment web, Pod db`, most pods first.
fn workloads<'a>(pods: impl IntoIterator<Item = &'a Arc<Pod>>) -> String {
    let mut groups: BTreeMap<String, usize> = BTreeMap::new();
    for pod in pods {
        *groups.entry(workload_of(pod)).or_default() += 1;
    }
    let mut groups: Vec<(String, usize)> = groups.into_iter().collect();
    groups.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    listed(
        groups
            .into_iter()
            .map(|(name, count)| if count > 1 { format!("{count} × {name}") } else { name })
            .collect(),
    )
}

fn listed(names: Vec<String>) -> String {
    let hidden = names.len().saturating_sub(LISTED);
    let shown = names.into_iter().take(LISTED).collect::<Vec<_>>().join(", ");
    match hidden {
        0 => shown,
        hidden => format!("{shown} and {hidden} more"),
    }
}

fn count(number: usize, what: &str) -> String {
    match number {
        1 => format!("1 {what}"),
        number => format!("{number} {what}s"),
    }
}

fn price(hourly: f64) -> String {
    format!("{hourly:.4}/h")
}

/// Amounts as people write them: `3.5` cores, `6.2Gi`.
fn readable(amount: Quantity, resource: &str) -> String {
    let number = amount.to_f64();
    let short = |number: f64| {
        let text = format!("{number:.2}");
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    let bytes = resource == MEMORY || resource == "ephemeral-storage" || resource.starts_with(HUGEPAGES_PREFIX);
    if !bytes {
        return short(number);
    }
    let units = [("Ti", 40), ("Gi", 30), ("Mi", 20), ("Ki", 10)];
    let unit = units.iter().find(|(_, power)| number >= f64::from(2_u32).powi(*power));
    match unit {
        Some((suffix, power)) => format!("{}{suffix}", short(number / f64::from(2_u32).powi(*power))),
        None => short(number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_written_short() {
        assert_eq!(readable("3500m".parse().unwrap(), CPU), "3.5");
        assert_eq!(readable("6400Mi".parse().unwrap(), MEMORY), "6.25Gi");
        assert_eq!(readable("110".parse().unwrap(), PODS), "110");
        assert_eq!(readable("0".parse().unwrap(), MEMORY), "0");
    }

    #[test]
    fn long_lists_are_cut() {
        let names = (0..8).map(|i| i.to_string()).collect();
        assert_eq!(listed(names), "0, 1, 2, 3, 4, 5 and 2 more");
    }
}
