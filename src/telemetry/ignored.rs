//! Messages that carry no event, counted by operation.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

use crate::decode::Other;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct OpLabels {
    op: &'static str,
}

/// A counter for each message that carries no event, looked up once.
#[derive(Debug)]
pub(super) struct Ignored {
    pub(super) family: Family<OpLabels, Counter>,
    update: Counter,
    delete: Counter,
    truncate: Counter,
    type_: Counter,
    origin: Counter,
    logical_message: Counter,
}

impl Ignored {
    pub(super) fn new() -> Self {
        let family = Family::<OpLabels, Counter>::default();
        let child = |op| family.get_or_create_owned(&OpLabels { op });
        Ignored {
            update: child("update"),
            delete: child("delete"),
            truncate: child("truncate"),
            type_: child("type"),
            origin: child("origin"),
            logical_message: child("message"),
            family,
        }
    }

    pub(super) fn of(&self, other: Other) -> &Counter {
        match other {
            Other::Update => &self.update,
            Other::Delete => &self.delete,
            Other::Truncate => &self.truncate,
            Other::Type => &self.type_,
            Other::Origin => &self.origin,
            Other::LogicalMessage => &self.logical_message,
        }
    }
}
