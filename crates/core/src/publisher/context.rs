//! The context of an event in log lines and spans: its trace, and configured columns of its row.

use crate::config::OutboxConfig;
use crate::event::{Event, Shown};
use crate::trace::TraceContext;

/// The columns of an outbox that say it.
#[derive(Debug)]
pub struct ContextColumns {
    traceparent: Option<usize>,
    logged: Vec<(String, usize)>,
}

#[derive(Debug, Clone, Default)]
pub struct Context {
    /// From its column. A header of the record may say it as well.
    pub trace: Option<TraceContext>,
    /// Such as `tenant="a" region="eu"`.
    columns: String,
}

impl ContextColumns {
    pub fn of(outbox: &OutboxConfig) -> ContextColumns {
        let place = |column: &String| Some((column.clone(), outbox.index_of(column)?));
        ContextColumns {
            traceparent: outbox
                .names
                .traceparent
                .as_deref()
                .and_then(|column| outbox.index_of(column)),
            logged: outbox.log_columns.iter().filter_map(place).collect(),
        }
    }

    /// Reads them; none where no column is configured.
    #[inline]
    pub fn read(&self, event: &Event<'_>) -> Option<Box<Context>> {
        if self.traceparent.is_none() && self.logged.is_empty() {
            return None;
        }
        let trace = self
            .traceparent
            .and_then(|place| TraceContext::parse(event.row.get(place)?));
        let shown = self
            .logged
            .iter()
            .filter_map(|(name, place)| Some((name, Shown::of(event.row.get(*place)?))));
        let columns: Vec<_> = shown
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        Some(Box::new(Context {
            trace,
            columns: columns.join(" "),
        }))
    }
}

impl Context {
    /// The configured columns for a log line; none where there are none.
    pub fn columns(&self) -> Option<tracing::field::DisplayValue<&str>> {
        Some(self.columns.as_str())
            .filter(|columns| !columns.is_empty())
            .map(tracing::field::display)
    }
}
