//! Functions of librdkafka and OpenSSL without a safe call in a crate. All `unsafe` code of
//! walrelay is here.
//!
//! The handle of a client is valid while the client is borrowed, and any thread may use it.
//!
//! Error codes that may be a broker's are read as numbers. In the bindings they are an enum, and a
//! value that it does not have must never be one.
#![expect(
    unsafe_code,
    reason = "the rdkafka and openssl-sys crates have no safe calls for these functions"
)]

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::transmute;
use std::ptr::{NonNull, null, null_mut};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rdkafka::bindings;
use rdkafka::client::{Client, ClientContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseProducer, Producer as _};
use rdkafka::types::RDKafkaRespErr;

use super::context::Context;
use super::partitions::KeyPartitioner;
use walrelay_core::route::Record;

/// Whether librdkafka knows of no broker of the cluster: none has answered yet, or all are
/// forgotten.
///
/// An answer in which a broker names no brokers, as one does that has just started or was fenced,
/// makes librdkafka drop every broker, bootstrap servers included. Its own recovery then does not
/// start, whatever `metadata.recovery.*` says, and nobody is asked again
/// (confluentinc/librdkafka#5301). Queued records keep their numbers, and are sent afterwards.
pub(super) fn knows_no_broker<C: ClientContext>(client: &Client<C>) -> bool {
    let handle = client.native_ptr();
    let mut count = 0;
    // SAFETY: librdkafka allocates the ids for us, and frees them once.
    unsafe {
        let ids = bindings::rd_kafka_brokers_learned_ids(handle, &raw mut count);
        bindings::rd_kafka_mem_free(handle, ids.cast());
    }
    count == 0
}

/// Gives librdkafka its bootstrap servers once more. A server that is known already gets no second
/// thread.
///
/// librdkafka keeps a copy of the list for each call: do not call this all the time.
pub(super) fn add_servers<C: ClientContext>(client: &Client<C>, servers: &CStr) {
    // SAFETY: librdkafka copies the list.
    unsafe {
        bindings::rd_kafka_brokers_add(client.native_ptr(), servers.as_ptr());
    }
}

/// The id of the cluster whose broker was the last to describe it; none before the first answer, or
/// where brokers do not tell.
///
/// librdkafka asks each broker for it at the beginning of a connection, before it sends records
/// over that connection.
pub(super) fn cluster_id<C: ClientContext>(client: &Client<C>) -> Option<String> {
    let handle = client.native_ptr();
    // SAFETY: librdkafka copies the id for us, and frees it once. Without a time-out the call does
    // not wait.
    unsafe {
        let id = bindings::rd_kafka_clusterid(handle, 0);
        if id.is_null() {
            return None;
        }
        let text = CStr::from_ptr(id).to_string_lossy().into_owned();
        bindings::rd_kafka_mem_free(handle, id.cast());
        Some(text)
    }
}

/// The names of the linked libraries, and their versions.
pub(crate) fn linked_libraries() -> [(&'static str, String); 2] {
    let (_, librdkafka) = rdkafka::util::get_rdkafka_version();
    // SAFETY: the text is static and ends with a NUL.
    let openssl =
        unsafe { CStr::from_ptr(openssl_sys::OpenSSL_version(openssl_sys::OPENSSL_VERSION)) };
    [
        ("librdkafka", librdkafka),
        ("OpenSSL", openssl.to_string_lossy().into_owned()),
    ]
}

/// A function of librdkafka that returns an error code, as one that returns a number. Both have the
/// same ABI.
macro_rules! numbered {
    ($function:path, $($argument:ty),*) => {
        transmute::<
            unsafe extern "C" fn($($argument),*) -> RDKafkaRespErr,
            unsafe extern "C" fn($($argument),*) -> c_int,
        >($function)
    };
}

/// The error of this number; the same one for all that the bindings do not know.
fn code_of(number: c_int) -> RDKafkaErrorCode {
    RDKafkaRespErr::try_from(number).map_or(RDKafkaErrorCode::Unknown, RDKafkaErrorCode::from)
}

fn failed(number: c_int) -> Option<RDKafkaErrorCode> {
    (number != 0).then(|| code_of(number))
}

fn in_ms(timeout: Duration) -> c_int {
    c_int::try_from(timeout.as_millis()).unwrap_or(c_int::MAX)
}

/// The elements that a pointer and a count of librdkafka give.
///
/// Safety: where the count is positive and the pointer is not null, there are so many, and they
/// outlive the result.
unsafe fn elements<'a, T>(first: *const T, count: c_int) -> &'a [T] {
    match usize::try_from(count) {
        // SAFETY: the caller's.
        Ok(count) if !first.is_null() => unsafe { std::slice::from_raw_parts(first, count) },
        Ok(_) | Err(_) => &[],
    }
}

/// The cluster, as a broker describes it.
#[derive(Debug)]
pub(super) struct Metadata {
    pub(super) brokers: Vec<i32>,
    pub(super) topics: Vec<TopicMetadata>,
}

#[derive(Debug)]
pub(super) struct TopicMetadata {
    pub(super) name: String,
    pub(super) error: Option<RDKafkaErrorCode>,
    pub(super) partitions: Vec<PartitionMetadata>,
}

#[derive(Debug)]
pub(super) struct PartitionMetadata {
    pub(super) id: i32,
    pub(super) replicas: usize,
}

/// Asks any broker for the metadata of one topic, or of all there are. Blocks.
pub(super) fn metadata<C: ClientContext>(
    client: &Client<C>,
    topic: Option<&str>,
    timeout: Duration,
) -> Result<Metadata, RDKafkaErrorCode> {
    use bindings::{rd_kafka_metadata as Found, rd_kafka_t as Handle, rd_kafka_topic_t as Only};
    let name = topic
        .map(CString::new)
        .transpose()
        .map_err(|_| RDKafkaErrorCode::InvalidTopic)?;
    let handle = client.native_ptr();
    // SAFETY: topic and metadata are this function's, and are freed once. `described` copies what
    // the metadata lend.
    unsafe {
        let ask = numbered!(
            bindings::rd_kafka_metadata,
            *mut Handle,
            c_int,
            *mut Only,
            *mut *const Found,
            c_int
        );
        let only = match &name {
            Some(name) => bindings::rd_kafka_topic_new(handle, name.as_ptr(), null_mut()),
            None => null_mut(),
        };
        if name.is_some() && only.is_null() {
            return Err(RDKafkaErrorCode::InvalidTopic);
        }
        let mut found: *const Found = null();
        let number = ask(
            handle,
            c_int::from(only.is_null()),
            only,
            &raw mut found,
            in_ms(timeout),
        );
        if !only.is_null() {
            bindings::rd_kafka_topic_destroy(only);
        }
        if let Some(code) = failed(number) {
            return Err(code);
        }
        let metadata = described(found);
        bindings::rd_kafka_metadata_destroy(found);
        metadata.ok_or(RDKafkaErrorCode::BadMessage)
    }
}

unsafe fn described(found: *const bindings::rd_kafka_metadata) -> Option<Metadata> {
    // SAFETY: the caller lends valid metadata or none. Codes are read through pointers to numbers.
    unsafe {
        let found = found.as_ref()?;
        let topic = |number: usize| {
            let topic = found.topics.add(number);
            let name = CStr::from_ptr((&raw const (*topic).topic).read())
                .to_string_lossy()
                .into_owned();
            let error = failed((&raw const (*topic).err).cast::<c_int>().read());
            let partitions = match error {
                None => partitions(topic),
                // Of a topic with an error there is nothing else to know.
                Some(_) => Vec::new(),
            };
            TopicMetadata {
                name,
                error,
                partitions,
            }
        };
        let topics = if found.topics.is_null() {
            0
        } else {
            usize::try_from(found.topic_cnt).unwrap_or_default()
        };
        let brokers = elements(found.brokers, found.broker_cnt)
            .iter()
            .map(|broker| broker.id)
            .collect();
        Some(Metadata {
            brokers,
            topics: (0..topics).map(topic).collect(),
        })
    }
}

unsafe fn partitions(topic: *const bindings::rd_kafka_metadata_topic) -> Vec<PartitionMetadata> {
    // SAFETY: the caller lends a valid topic. No reference is made to what holds a code.
    unsafe {
        let first = (&raw const (*topic).partitions).read();
        let count = (&raw const (*topic).partition_cnt).read();
        let count = if first.is_null() {
            0
        } else {
            usize::try_from(count).unwrap_or_default()
        };
        let partition = |number: usize| {
            let of = first.add(number);
            let replicas = (&raw const (*of).replica_cnt).read();
            PartitionMetadata {
                id: (&raw const (*of).id).read(),
                replicas: usize::try_from(replicas).unwrap_or_default(),
            }
        };
        (0..count).map(partition).collect()
    }
}

/// librdkafka's producer.
pub(super) type ProducerClient = BaseProducer<Context, KeyPartitioner>;

/// A topic of librdkafka's.
struct Topic(NonNull<bindings::rd_kafka_topic_t>);

// SAFETY: any thread may use and free it.
unsafe impl Send for Topic {}

/// A producer with a handle of each topic that a record was sent to. By name, librdkafka looks
/// through all topics for each record, and its own threads wait for that.
pub(super) struct Sender {
    topics: Mutex<HashMap<String, Topic>>,
    client: Arc<ProducerClient>,
}

impl Sender {
    pub(super) fn new(client: Arc<ProducerClient>) -> Sender {
        Sender {
            topics: Mutex::default(),
            client,
        }
    }

    /// Hands one record to librdkafka, which copies it. Its report has this `opaque`.
    pub(super) fn send(&self, record: &Record<'_>, opaque: usize) -> Result<(), KafkaError> {
        type Handle = bindings::rd_kafka_t;
        use bindings::rd_kafka_vtype_t as Of;
        let topic = self.topic(record.topic)?;
        let payload = Lent::of(record.value);
        let key = Lent::of(record.key);
        // SAFETY: librdkafka copies the bytes. It takes the headers over, unless it returns an
        // error. The topic is valid until the sender ends.
        unsafe {
            let produce = transmute::<
                unsafe extern "C" fn(*mut Handle, ...) -> RDKafkaRespErr,
                unsafe extern "C" fn(*mut Handle, ...) -> c_int,
            >(bindings::rd_kafka_producev);
            let headers = headers(record.headers);
            let number = produce(
                self.client.client().native_ptr(),
                Of::RD_KAFKA_VTYPE_RKT,
                topic,
                Of::RD_KAFKA_VTYPE_PARTITION,
                record.partition.unwrap_or(-1),
                Of::RD_KAFKA_VTYPE_MSGFLAGS,
                bindings::RD_KAFKA_MSG_F_COPY,
                Of::RD_KAFKA_VTYPE_VALUE,
                payload.first,
                payload.count,
                Of::RD_KAFKA_VTYPE_KEY,
                key.first,
                key.count,
                Of::RD_KAFKA_VTYPE_OPAQUE,
                opaque as *mut c_void,
                Of::RD_KAFKA_VTYPE_TIMESTAMP,
                record.timestamp_ms.unwrap_or(0),
                Of::RD_KAFKA_VTYPE_HEADERS,
                headers,
                Of::RD_KAFKA_VTYPE_END,
            );
            let Some(code) = failed(number) else {
                return Ok(());
            };
            if !headers.is_null() {
                bindings::rd_kafka_headers_destroy(headers);
            }
            Err(KafkaError::MessageProduction(code))
        }
    }

    /// The handle of a topic. It is valid until the sender ends.
    fn topic(&self, name: &str) -> Result<*mut bindings::rd_kafka_topic_t, KafkaError> {
        let mut topics = self.topics.lock();
        if let Some(topic) = topics.get(name) {
            return Ok(topic.0.as_ptr());
        }
        let text = CString::new(name)?;
        let handle = self.client.client().native_ptr();
        // SAFETY: librdkafka copies the name, and gives a topic or none.
        let made = unsafe { bindings::rd_kafka_topic_new(handle, text.as_ptr(), null_mut()) };
        let made = NonNull::new(made).ok_or(KafkaError::MessageProduction(
            RDKafkaErrorCode::InvalidArgument,
        ))?;
        topics.insert(name.to_owned(), Topic(made));
        Ok(made.as_ptr())
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        for topic in self.topics.get_mut().values() {
            // SAFETY: it is freed once, and before its client.
            unsafe { bindings::rd_kafka_topic_destroy(topic.0.as_ptr()) };
        }
    }
}

/// Bytes for a function of C; without any, a null pointer.
struct Lent {
    first: *const c_void,
    count: usize,
}

impl Lent {
    fn of(bytes: Option<&[u8]>) -> Lent {
        Lent {
            first: bytes.map_or(null(), |bytes| bytes.as_ptr().cast()),
            count: bytes.map_or(0, <[u8]>::len),
        }
    }
}

/// A list for librdkafka, which takes it over or leaves it to the caller; null without headers.
unsafe fn headers(headers: &[(&str, Option<&[u8]>)]) -> *mut bindings::rd_kafka_headers_t {
    if headers.is_empty() {
        return null_mut();
    }
    // SAFETY: librdkafka copies names and values of these lengths.
    unsafe {
        let list = bindings::rd_kafka_headers_new(headers.len());
        for (name, value) in headers {
            let value = Lent::of(*value);
            // It never fails.
            bindings::rd_kafka_header_add(
                list,
                name.as_ptr().cast(),
                name.len().cast_signed(),
                value.first,
                value.count.cast_signed(),
            );
        }
        list
    }
}

/// The visible settings of a topic or broker, by name.
pub(super) type Settings = HashMap<String, String>;

#[derive(Debug, Clone, Copy)]
pub(crate) enum Resource<'a> {
    Topic(&'a str),
    Broker(i32),
}

/// The settings of these topics and of one broker at most, in their order. Of what the client may
/// not see there are none. Without the id of a `broker` the controller is asked, if it can be
/// reached. Blocks.
pub(super) fn settings<C: ClientContext>(
    client: &Client<C>,
    resources: &[Resource<'_>],
    broker: Option<i32>,
    timeout: Duration,
) -> Result<Vec<Settings>, RDKafkaErrorCode> {
    use bindings::rd_kafka_ResourceType_t as Type;
    let named = |resource: &Resource<'_>| match resource {
        Resource::Topic(name) => {
            CString::new(*name).map(|name| (Type::RD_KAFKA_RESOURCE_TOPIC, name))
        }
        Resource::Broker(id) => {
            CString::new(id.to_string()).map(|id| (Type::RD_KAFKA_RESOURCE_BROKER, id))
        }
    };
    let named = resources.iter().map(named).collect::<Result<Vec<_>, _>>();
    let named = named.map_err(|_| RDKafkaErrorCode::InvalidTopic)?;
    let timeout_ms = in_ms(timeout);
    // SAFETY: resources, options, queue and event are this function's, and are valid until they are
    // destroyed, once each, at the end. librdkafka copies resources and options, and `listed`
    // copies what the event lends.
    unsafe {
        let handle = client.native_ptr();
        let queue = bindings::rd_kafka_queue_new(handle);
        let resource = |(kind, name): &(Type, CString)| {
            bindings::rd_kafka_ConfigResource_new(*kind, name.as_ptr())
        };
        let mut asked: Vec<_> = named.iter().map(resource).collect();
        let options = bindings::rd_kafka_AdminOptions_new(
            handle,
            bindings::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBECONFIGS,
        );
        bindings::rd_kafka_AdminOptions_set_request_timeout(options, timeout_ms, null_mut(), 0);
        if let Some(broker) = broker {
            bindings::rd_kafka_AdminOptions_set_broker(options, broker, null_mut(), 0);
        }
        bindings::rd_kafka_DescribeConfigs(handle, asked.as_mut_ptr(), asked.len(), options, queue);
        // librdkafka keeps to its own time-out.
        let event = bindings::rd_kafka_queue_poll(queue, timeout_ms.saturating_mul(2));
        let answers = if event.is_null() {
            Err(RDKafkaErrorCode::OperationTimedOut)
        } else {
            listed(event)
        };
        bindings::rd_kafka_event_destroy(event);
        bindings::rd_kafka_AdminOptions_destroy(options);
        bindings::rd_kafka_ConfigResource_destroy_array(asked.as_mut_ptr(), asked.len());
        bindings::rd_kafka_queue_destroy(queue);
        answers
    }
}

unsafe fn listed(
    event: *mut bindings::rd_kafka_event_t,
) -> Result<Vec<Settings>, RDKafkaErrorCode> {
    // SAFETY: the caller lends a valid event, which owns all that is read here. Counts are those of
    // the arrays.
    unsafe {
        let error_of = numbered!(
            bindings::rd_kafka_event_error,
            *mut bindings::rd_kafka_event_t
        );
        let code = code_of(error_of(event));
        let result = bindings::rd_kafka_event_DescribeConfigs_result(event);
        if code != RDKafkaErrorCode::NoError || result.is_null() {
            return Err(code);
        }
        let text = |text: *const c_char| CStr::from_ptr(text).to_string_lossy().into_owned();
        let mut count = 0;
        let resources = bindings::rd_kafka_DescribeConfigs_result_resources(result, &raw mut count);
        let of = |number: usize| {
            let mut count = 0;
            let entries =
                bindings::rd_kafka_ConfigResource_configs(*resources.add(number), &raw mut count);
            let entry = |number: usize| {
                let entry = *entries.add(number);
                let value = bindings::rd_kafka_ConfigEntry_value(entry);
                (!value.is_null()).then(|| {
                    (
                        text(bindings::rd_kafka_ConfigEntry_name(entry)),
                        text(value),
                    )
                })
            };
            (0..count).filter_map(entry).collect()
        };
        Ok((0..count).map(of).collect())
    }
}

/// A topic as a broker describes it.
#[derive(Debug)]
pub(super) struct Described {
    pub(super) partitions: usize,
    /// Partitions without a leader.
    pub(super) leaderless: usize,
    /// Replicas of the first partition.
    pub(super) replicas: usize,
    /// The rights of this client. Brokers before 2.3 do not tell, and the client then counts as
    /// allowed.
    pub(super) may_read: bool,
    pub(super) may_write: bool,
}

/// A topic, or why a broker does not describe it.
pub(super) type Answer = Result<Described, RDKafkaErrorCode>;

/// Describes topics, with the operations that this client may do on them, in the order of `topics`.
pub(super) fn describe<C: ClientContext>(
    client: &Client<C>,
    topics: &[String],
    broker: i32,
    timeout: Duration,
) -> Result<Vec<Answer>, RDKafkaErrorCode> {
    let names = topics
        .iter()
        .map(|topic| CString::new(topic.as_str()))
        .collect::<Result<Vec<_>, _>>();
    let names = names.map_err(|_| RDKafkaErrorCode::InvalidTopic)?;
    let mut pointers: Vec<*const c_char> = names.iter().map(|name| name.as_ptr()).collect();
    let timeout_ms = in_ms(timeout);
    // SAFETY: names, options, queue and event are this function's, and are valid until they are
    // destroyed, once each, at the end. librdkafka copies names and options, and `answers` copies
    // what the event lends.
    unsafe {
        let handle = client.native_ptr();
        let queue = bindings::rd_kafka_queue_new(handle);
        let asked = bindings::rd_kafka_TopicCollection_of_topic_names(
            pointers.as_mut_ptr(),
            pointers.len(),
        );
        let kind = bindings::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS;
        let options = bindings::rd_kafka_AdminOptions_new(handle, kind);
        bindings::rd_kafka_AdminOptions_set_request_timeout(options, timeout_ms, null_mut(), 0);
        bindings::rd_kafka_AdminOptions_set_broker(options, broker, null_mut(), 0);
        bindings::rd_kafka_error_destroy(
            bindings::rd_kafka_AdminOptions_set_include_authorized_operations(options, 1),
        );
        bindings::rd_kafka_DescribeTopics(handle, asked, options, queue);
        // librdkafka keeps to its own time-out.
        let event = bindings::rd_kafka_queue_poll(queue, timeout_ms.saturating_mul(2));
        let answers = if event.is_null() {
            Err(RDKafkaErrorCode::OperationTimedOut)
        } else {
            answers(event)
        };
        bindings::rd_kafka_event_destroy(event);
        bindings::rd_kafka_AdminOptions_destroy(options);
        bindings::rd_kafka_TopicCollection_destroy(asked);
        bindings::rd_kafka_queue_destroy(queue);
        answers
    }
}

unsafe fn answers(event: *mut bindings::rd_kafka_event_t) -> Result<Vec<Answer>, RDKafkaErrorCode> {
    use bindings::rd_kafka_AclOperation_t as Operation;
    // SAFETY: the caller lends a valid event, which owns all that is read here. Counts are those of
    // the arrays.
    unsafe {
        let error_of = numbered!(
            bindings::rd_kafka_event_error,
            *mut bindings::rd_kafka_event_t
        );
        let of_topic = numbered!(
            bindings::rd_kafka_error_code,
            *const bindings::rd_kafka_error_t
        );
        let code = code_of(error_of(event));
        let result = bindings::rd_kafka_event_DescribeTopics_result(event);
        if code != RDKafkaErrorCode::NoError || result.is_null() {
            return Err(code);
        }
        let mut count = 0;
        let mut partitions = 0;
        let mut replicas = 0;
        let mut operations = 0;
        let topics = bindings::rd_kafka_DescribeTopics_result_topics(result, &raw mut count);
        let answer = |number| {
            let topic = *topics.add(number);
            let error = bindings::rd_kafka_TopicDescription_error(topic);
            if !error.is_null() {
                return Err(code_of(of_topic(error)));
            }
            let first = bindings::rd_kafka_TopicDescription_partitions(topic, &raw mut partitions);
            if partitions > 0 {
                bindings::rd_kafka_TopicPartitionInfo_replicas(*first, &raw mut replicas);
            }
            let leader = |number| bindings::rd_kafka_TopicPartitionInfo_leader(*first.add(number));
            let leaderless = (0..partitions)
                .filter(|number| leader(*number).is_null())
                .count();
            let allowed = bindings::rd_kafka_TopicDescription_authorized_operations(
                topic,
                &raw mut operations,
            );
            // As numbers: a newer librdkafka may know operations that the bindings do not.
            let allowed = allowed.cast::<u32>();
            let may = |operation: Operation| {
                allowed.is_null()
                    || (0..operations).any(|number| *allowed.add(number) == operation as u32)
            };
            let may_read = may(Operation::RD_KAFKA_ACL_OPERATION_READ);
            let may_write = may(Operation::RD_KAFKA_ACL_OPERATION_WRITE);
            Ok(Described {
                partitions,
                leaderless,
                replicas,
                may_read,
                may_write,
            })
        };
        Ok((0..count).map(answer).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_that_no_binding_knows_is_an_unknown_error() {
        for (number, code) in [
            (0, RDKafkaErrorCode::NoError),
            (3, RDKafkaErrorCode::UnknownTopicOrPartition),
            (-300, RDKafkaErrorCode::Unknown),
            (c_int::MAX, RDKafkaErrorCode::Unknown),
        ] {
            assert_eq!(code_of(number), code);
        }
        assert_eq!(
            (failed(0), failed(-300)),
            (None, Some(RDKafkaErrorCode::Unknown))
        );
    }
}
