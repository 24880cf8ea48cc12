//! The usual `process_*` metrics, read from `/proc` when scraped.

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Counter, Gauge, Opts};

/// Reads this process's own numbers; where `/proc` does not exist it reports nothing.
#[derive(Debug)]
pub(super) struct ProcessCollector {
    cpu: Counter,
    resident: Gauge,
    virtual_memory: Gauge,
    threads: Gauge,
    open_files: Gauge,
}

/// Linux reports CPU time in hundredths of a second on every platform that Rust supports.
const TICKS_PER_SECOND: f64 = 100.0;

impl ProcessCollector {
    pub(super) fn new() -> Self {
        let gauge = |name: &str, help: &str| Gauge::with_opts(Opts::new(name, help)).expect("metric names are valid");
        Self {
            cpu: Counter::new(
                "process_cpu_seconds_total",
                "User and system CPU time spent, in seconds.",
            )
            .expect("metric names are valid"),
            resident: gauge("process_resident_memory_bytes", "Resident memory in bytes."),
            virtual_memory: gauge("process_virtual_memory_bytes", "Virtual memory in bytes."),
            threads: gauge("process_threads", "Threads of the process."),
            open_files: gauge("process_open_fds", "Open file descriptors."),
        }
    }

    fn gauges(&self) -> [&Gauge; 4] {
        [&self.resident, &self.virtual_memory, &self.threads, &self.open_files]
    }

    fn read(&self) -> Option<()> {
        let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
        // The command name is in parentheses and may hold spaces; the third field follows it.
        let mut fields = stat
            .rsplit_once(')')?
            .1
            .split_whitespace()
            .skip(14 - 3)
            .map(str::parse::<f64>);
        let (user, system) = (fields.next()?.ok()?, fields.next()?.ok()?);
        self.cpu
            .inc_by(((user + system) / TICKS_PER_SECOND - self.cpu.get()).max(0.0));
        let status = std::fs::read_to_string("/proc/self/status").ok()?;
        let value = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim_start_matches(':')
                .split_whitespace()
                .next()?
                .parse::<f64>()
                .ok()
        };
        self.resident.set(value("VmRSS")? * 1024.0);
        self.virtual_memory.set(value("VmSize")? * 1024.0);
        self.threads.set(value("Threads")?);
        self.open_files
            .set(std::fs::read_dir("/proc/self/fd").ok()?.count() as f64);
        Some(())
    }
}

impl Collector for ProcessCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.cpu
            .desc()
            .into_iter()
            .chain(self.gauges().into_iter().flat_map(Collector::desc))
            .collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        if self.read().is_none() {
            return Vec::new();
        }
        self.cpu
            .collect()
            .into_iter()
            .chain(self.gauges().into_iter().flat_map(Collector::collect))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::clock::Clock;
    use crate::metrics::Registry;

    #[test]
    fn the_process_reports_its_memory_and_cpu() {
        let registry = Registry::new(Clock::system());
        registry.register_process_metrics();
        let text = registry.encode();
        let value = |name: &str| {
            let line = text
                .lines()
                .find(|line| line.starts_with(name))
                .unwrap_or_else(|| panic!("{name}: {text}"));
            line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()
        };
        assert!(value("process_resident_memory_bytes") > 100_000.0);
        assert!(value("process_threads") >= 1.0);
        assert!(text.contains("# TYPE process_cpu_seconds_total counter"));
    }
}
