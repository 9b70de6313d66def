//! What clients that only read a topic share: how they are made, why nothing answers, and headers of any bytes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Headers as _, Message as _};

use super::context::{code, log};
use super::faults::{self, Subject};
use super::options::Options;
use super::redact::Redactor;
use crate::error::{Error, Kind, Result};

/// Records that are fetched ahead.
const AHEAD_KIB: &str = "16384";

/// A header's name and value.
type Header<'m> = (&'m str, Option<&'m [u8]>);

/// Keeps what librdkafka says of connections, which explains why nothing answers.
pub(crate) struct Listening {
    redactor: Redactor,
    refusal: Mutex<Option<Error>>,
}

impl ClientContext for Listening {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        log(&self.redactor, level, facility, text);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        let reason = self.redactor.clean(reason);
        tracing::debug!(target: "librdkafka", "{reason}");
        let code = code(&error);
        let refused = (faults::kind(code) == Kind::KafkaRefused).then(|| faults::explain(code, Subject::default()));
        let refused = refused.or_else(|| faults::certificate_refusal(&reason));
        if let (Some(refused), Ok(mut refusal)) = (refused, self.refusal.lock()) {
            *refusal = Some(refused);
        }
    }
}

impl ConsumerContext for Listening {}

/// Makes a consumer that reads what is committed, is in no group, commits nothing and makes no topic. librdkafka wants a
/// `group` even so. It holds up to 16 MiB of records that were fetched ahead. Let go of it with
/// [`close_aside`](super::close_aside).
///
/// # Errors
/// [`Kind::Config`] where no client can be made.
pub(crate) fn reader(mut options: Options, group: &str) -> Result<BaseConsumer<Listening>> {
    options
        .client
        .set("group.id", group)
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .set("isolation.level", "read_committed")
        .set("enable.partition.eof", "true")
        // What was deleted while it was read is not there to be read.
        .set("auto.offset.reset", "earliest")
        .set("allow.auto.create.topics", "false")
        .set("queued.max.messages.kbytes", AHEAD_KIB);
    let context = Listening { redactor: options.redactor.clone(), refusal: Mutex::new(None) };
    options.client.create_with_context(context).map_err(|error| options.creation_error(&error))
}

/// Why a broker refuses us, if one has said so.
pub(crate) fn refusal(client: &BaseConsumer<Listening>) -> Option<Error> {
    client.context().refusal.lock().ok().and_then(|refusal| refusal.clone())
}

/// An error of `client` in the operator's words. Where nothing answers, a broker may have said why.
pub(crate) fn explain(client: &BaseConsumer<Listening>, error: &KafkaError, topic: &str) -> Error {
    let code = faults::of_known(code(error));
    let subject = Subject { topic: Some(topic), ..Subject::default() };
    if code == RDKafkaErrorCode::TopicAuthorizationFailed {
        return faults::explain(code, subject).remedy(format!(
            "grant what reading needs: kafka-acls --add --allow-principal User:… --operation Read --operation Describe \
             --topic {topic}"
        ));
    }
    refusal(client)
        .filter(|_| faults::kind(code) == Kind::KafkaUnreachable)
        .unwrap_or_else(|| faults::explain(code, subject))
}

/// The headers of a record, in order; `None` where a name is no text, which Kafka allows and the library panics on.
pub(crate) fn headers<'m>(message: &'m BorrowedMessage<'_>) -> Option<Vec<Header<'m>>> {
    let Some(headers) = message.headers() else { return Some(Vec::new()) };
    let read = || headers.iter().map(|header| (header.key, header.value)).collect();
    catch_unwind(AssertUnwindSafe(read)).ok()
}
