//! Gauges that are read off what is known anyway whenever somebody scrapes.
//!
//! A series per pod or per node would take more memory than the object it describes, and keeping it up to date more time
//! than all decisions about it. Written from the caches at the moment of a scrape, it takes neither.

use std::fmt::{self, Write};

/// One gauge of that kind.
pub(super) struct View {
    pub(super) name: String,
    help: String,
    labels: Vec<String>,
    read: Read,
}

/// Says what the series are at this moment.
type Read = Box<dyn Fn(&mut SeriesWriter<'_>) + Send + Sync>;

/// Takes the series of one gauge.
#[derive(Debug)]
pub struct SeriesWriter<'a> {
    text: &'a mut String,
    name: &'a str,
    labels: &'a [String],
}

impl SeriesWriter<'_> {
    /// Adds a series; `values` are in the order of the gauge's labels.
    pub fn write<'v>(&mut self, values: impl IntoIterator<Item = &'v str>, value: f64) {
        self.text.push_str(self.name);
        let mut separator = '{';
        for (label, value) in self.labels.iter().zip(values) {
            self.text.push(separator);
            separator = ',';
            self.text.push_str(label);
            self.text.push_str("=\"");
            escape(self.text, value);
            self.text.push('"');
        }
        if separator == ',' {
            self.text.push('}');
        }
        writeln!(self.text, " {value}").expect("writing to a String cannot fail");
    }
}

fn escape(text: &mut String, value: &str) {
    for character in value.chars() {
        match character {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            other => text.push(other),
        }
    }
}

impl View {
    pub(super) fn new(
        name: &str,
        help: &str,
        labels: &[String],
        read: impl Fn(&mut SeriesWriter<'_>) + Send + Sync + 'static,
    ) -> Self {
        Self {
            name: name.to_owned(),
            help: help.to_owned(),
            labels: labels.to_vec(),
            read: Box::new(read),
        }
    }

    /// Appends the gauge in the Prometheus text format; nothing if it has no series now.
    pub(super) fn encode(&self, text: &mut String) {
        let start = text.len();
        writeln!(text, "# HELP {} {}\n# TYPE {} gauge", self.name, self.help, self.name)
            .expect("writing to a String cannot fail");
        let empty = text.len();
        (self.read)(&mut SeriesWriter {
            text,
            name: &self.name,
            labels: &self.labels,
        });
        if text.len() == empty {
            text.truncate(start);
        }
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View").field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use crate::clock::Clock;
    use crate::metrics::Registry;

    #[test]
    fn a_view_shows_what_is_there_at_the_moment_of_the_scrape() {
        let registry = Registry::new(Clock::system());
        let there = Arc::new(AtomicBool::new(false));
        let seen = there.clone();
        let labels = ["name".to_owned(), "zone".to_owned()];
        registry.view("karpenter_pods_state", "help", &labels, move |series| {
            if seen.load(Ordering::Relaxed) {
                series.write(["we\"b", "a"], 1.5);
            }
        });
        assert!(!registry.encode().contains("karpenter_pods_state"));
        there.store(true, Ordering::Relaxed);
        let text = registry.encode();
        assert!(text.contains("# TYPE karpenter_pods_state gauge\n"), "{text}");
        assert!(
            text.contains(r#"karpenter_pods_state{name="we\"b",zone="a"} 1.5"#),
            "{text}"
        );
    }

    #[test]
    #[should_panic(expected = "exactly one owner")]
    fn a_view_cannot_be_registered_twice() {
        let registry = Registry::new(Clock::system());
        registry.view("karpenter_x", "x", &[], |_| ());
        registry.view("karpenter_x", "x", &[], |_| ());
    }
}
