//! Log lines: JSON with upstream's keys for machines, or plain lines for people (api.md §4.6).

mod fields;
mod output;
mod sampling;

use std::fmt::Write as _;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Map, Value};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{Layer, Registry};

use self::fields::Fields;
pub use self::output::Output;
use self::sampling::Sampler;
use crate::options::LogLevel;

/// How a line looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One JSON object per line.
    Json,
    /// Time, level, message and fields, for a terminal.
    Console,
}

/// Writes events with the fields of the spans around them.
#[derive(Debug)]
pub struct LogLayer {
    format: Format,
    level: LogLevel,
    commit: Option<String>,
    output: Arc<Output>,
    sampler: Sampler,
}

impl LogLayer {
    /// A layer that writes to `output`. `commit` is the revision that was built, when known.
    pub fn new(format: Format, level: LogLevel, commit: Option<String>, output: Arc<Output>) -> Self {
        Self {
            format,
            level,
            commit,
            output,
            sampler: Sampler::default(),
        }
    }

    /// A complete subscriber of this layer alone.
    pub fn into_subscriber(self) -> impl Subscriber + Send + Sync {
        Registry::default().with(self)
    }
}

/// Our own crates log at the chosen level; libraries no lower than `info`, or a debug run would drown in them.
fn is_wanted(level: LogLevel, metadata: &Metadata<'_>) -> bool {
    let ours = metadata.target().starts_with("karpenter");
    let least = match (level, ours) {
        (LogLevel::Debug, true) => Level::DEBUG,
        (LogLevel::Debug, false) => Level::INFO,
        (LogLevel::Info, true) => Level::INFO,
        (LogLevel::Info, false) => Level::WARN,
        (LogLevel::Error, _) => Level::ERROR,
    };
    // Upstream drops debug lines of its event recorder too: the events themselves are there to be read.
    *metadata.level() <= least
        && !(*metadata.level() == Level::DEBUG && logger(metadata.target()) == "controller.events")
}

/// `controller`, and the part of the program that speaks.
fn logger(target: &str) -> String {
    match target.split("::").nth(1) {
        Some(module) if target.starts_with("karpenter") => format!("controller.{module}"),
        _ => "controller".to_owned(),
    }
}

impl<S> Layer<S> for LogLayer
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        metadata.is_span() || is_wanted(self.level, metadata)
    }

    fn on_new_span(&self, attributes: &tracing::span::Attributes<'_>, id: &tracing::span::Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        span.extensions_mut().insert(fields);
    }

    fn on_record(&self, id: &tracing::span::Id, values: &tracing::span::Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if let Some(fields) = span.extensions_mut().get_mut::<Fields>() {
            values.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let metadata = event.metadata();
        if !is_wanted(self.level, metadata) {
            return;
        }
        let mut own = Fields::default();
        event.record(&mut own);
        let message = own.take_message();
        let now = Timestamp::now();
        if !self.sampler.admits(now, metadata.level(), &message) {
            return;
        }
        let mut all = Map::new();
        for span in context
            .event_scope(event)
            .into_iter()
            .flatten()
            .collect::<Vec<_>>()
            .into_iter()
            .rev()
        {
            if let Some(fields) = span.extensions().get::<Fields>() {
                all.extend(fields.non_empty());
            }
        }
        all.extend(own.non_empty());
        let line = match self.format {
            Format::Json => self.json(metadata, now, message, all),
            Format::Console => console(metadata, now, &message, &all),
        };
        self.output.write_line(&line);
    }
}

impl LogLayer {
    fn json(&self, metadata: &Metadata<'_>, now: Timestamp, message: String, fields: Map<String, Value>) -> String {
        let mut line = String::with_capacity(256);
        let mut push = |key: &str, value: &Value| {
            line.push(if line.is_empty() { '{' } else { ',' });
            // Keys and values are strings, numbers and booleans; writing those to a String cannot fail.
            let _ = write!(line, "{}:{value}", Value::from(key));
        };
        push("level", &Value::from(metadata.level().as_str()));
        push("time", &Value::from(now.strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string()));
        push("logger", &Value::from(logger(metadata.target())));
        if self.level == LogLevel::Debug
            && let (Some(file), Some(number)) = (metadata.file(), metadata.line())
        {
            push("caller", &Value::from(format!("{file}:{number}")));
        }
        push("message", &Value::from(message));
        if let Some(commit) = &self.commit {
            push("commit", &Value::from(commit.as_str()));
        }
        for (key, value) in &fields {
            push(key, value);
        }
        line.push('}');
        line
    }
}

fn console(metadata: &Metadata<'_>, now: Timestamp, message: &str, fields: &Map<String, Value>) -> String {
    let mut line = format!(
        "{} {:<5} {message}",
        now.strftime("%H:%M:%S%.3f"),
        metadata.level().as_str()
    );
    for (key, value) in fields {
        // People do not read reconcile IDs.
        if key == "reconcileID" {
            continue;
        }
        let _ = match value {
            Value::String(text) if !text.contains(' ') => write!(line, " {key}={text}"),
            other => write!(line, " {key}={other}"),
        };
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logged(format: Format, level: LogLevel, commit: Option<&str>, speak: impl FnOnce()) -> Vec<String> {
        let output = Arc::new(Output::memory());
        let layer = LogLayer::new(format, level, commit.map(str::to_owned), output.clone());
        tracing::subscriber::with_default(layer.into_subscriber(), speak);
        output.lines()
    }

    #[test]
    fn json_lines_carry_the_fields_of_the_reconcile_around_them() {
        let lines = logged(Format::Json, LogLevel::Info, Some("abcdef0"), || {
            let span = tracing::error_span!("reconcile", controller = "provisioner", namespace = "");
            span.in_scope(|| tracing::info!(pods = 3, took = ?std::time::Duration::from_millis(1500), "found pods"));
        });
        let line: Value = serde_json::from_str(&lines[0]).unwrap();
        assert_eq!(line["level"], "INFO");
        assert_eq!(line["message"], "found pods");
        assert_eq!(line["logger"], "controller.logging");
        assert_eq!(line["commit"], "abcdef0");
        assert_eq!(line["controller"], "provisioner");
        assert_eq!(line["pods"], 3);
        assert_eq!(line["took"], "1.5s");
        assert_eq!(line.get("namespace"), None, "empty fields are left out");
        assert_eq!(line.get("caller"), None);
        assert!(line["time"].as_str().unwrap().ends_with('Z'));
    }

    #[test]
    fn debug_shows_the_caller_and_info_hides_debug_lines() {
        let speak = || tracing::debug!("detail");
        assert!(logged(Format::Json, LogLevel::Info, None, speak).is_empty());
        let lines = logged(Format::Json, LogLevel::Debug, None, speak);
        assert!(
            lines[0].contains(r#""caller":"#) && lines[0].contains("logging.rs:"),
            "{lines:?}"
        );
    }

    #[test]
    fn errors_only_means_errors_only() {
        let lines = logged(Format::Console, LogLevel::Error, None, || {
            tracing::warn!("careful");
            tracing::error!(error = "it broke", "Reconciler error");
        });
        assert_eq!(lines.len(), 1);
        assert!(
            lines[0].ends_with(r#"ERROR Reconciler error error="it broke""#),
            "{lines:?}"
        );
    }

    #[test]
    fn the_same_message_is_thinned_out_after_a_hundred_in_a_second() {
        let lines = logged(Format::Json, LogLevel::Info, None, || {
            for _ in 0..1000 {
                tracing::info!("again");
            }
        });
        // The loop may straddle seconds, each of which starts anew.
        assert!((109..400).contains(&lines.len()), "{}", lines.len());
    }
}
