//! Functions of librdkafka and OpenSSL without a safe call in a crate. All `unsafe` code of walrelay is here.
//!
//! The handle of a client is valid while the client is borrowed, and any thread may use it.
#![expect(unsafe_code, reason = "the rdkafka and openssl-sys crates have no safe calls for these functions")]

use std::ffi::{CStr, CString, c_char};
use std::ptr::null_mut;
use std::time::Duration;

use rdkafka::bindings;
use rdkafka::client::{Client, ClientContext};
use rdkafka::error::RDKafkaErrorCode;

/// Whether librdkafka knows of no broker of the cluster: none has answered yet, or all are forgotten.
///
/// An answer in which a broker names no brokers, as one does that has just started or was fenced, makes librdkafka drop
/// every broker, bootstrap servers included. Its own recovery then does not start, whatever `metadata.recovery.*` says,
/// and nobody is asked again (confluentinc/librdkafka#5301). Queued records keep their numbers, and are sent afterwards.
pub(super) fn knows_no_broker<C: ClientContext>(client: &Client<C>) -> bool {
    let (handle, mut count) = (client.native_ptr(), 0);
    // SAFETY: librdkafka allocates the ids for us, and frees them once.
    unsafe {
        let ids = bindings::rd_kafka_brokers_learned_ids(handle, &raw mut count);
        bindings::rd_kafka_mem_free(handle, ids.cast());
    }
    count == 0
}

/// Gives librdkafka its bootstrap servers once more. A server that is known already gets no second thread.
///
/// librdkafka keeps a copy of the list for each call: do not call this all the time.
pub(super) fn add_servers<C: ClientContext>(client: &Client<C>, servers: &CStr) {
    // SAFETY: librdkafka copies the list.
    unsafe {
        bindings::rd_kafka_brokers_add(client.native_ptr(), servers.as_ptr());
    }
}

/// The id of the cluster whose broker was the last to describe it; none before the first answer, or where brokers do not tell.
///
/// librdkafka asks each broker for it at the beginning of a connection, before it sends records over that connection.
pub(super) fn cluster_id<C: ClientContext>(client: &Client<C>) -> Option<String> {
    let handle = client.native_ptr();
    // SAFETY: librdkafka copies the id for us, and frees it once. Without a time-out the call does not wait.
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

/// The linked versions of librdkafka and of OpenSSL, each with the name of the library.
pub(crate) fn linked_versions() -> [String; 2] {
    let (_, librdkafka) = rdkafka::util::get_rdkafka_version();
    // SAFETY: the text is static and ends with a NUL.
    let openssl = unsafe { CStr::from_ptr(openssl_sys::OpenSSL_version(openssl_sys::OPENSSL_VERSION)) };
    [format!("librdkafka {librdkafka}"), openssl.to_string_lossy().into_owned()]
}

/// A topic as a broker describes it.
#[derive(Debug)]
pub(super) struct Described {
    pub(super) partitions: usize,
    /// Partitions without a leader.
    pub(super) leaderless: usize,
    /// Replicas of the first partition.
    pub(super) replicas: usize,
    /// The rights of this client. Brokers before 2.3 do not tell, and the client then counts as allowed.
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
    let names = topics.iter().map(|topic| CString::new(topic.as_str())).collect::<Result<Vec<_>, _>>();
    let names = names.map_err(|_| RDKafkaErrorCode::InvalidTopic)?;
    let mut pointers: Vec<*const c_char> = names.iter().map(|name| name.as_ptr()).collect();
    let timeout_ms = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: names, options, queue and event are this function's, and are valid until they are destroyed, once each, at the
    // end. librdkafka copies names and options, and `answers` copies what the event lends.
    unsafe {
        let handle = client.native_ptr();
        let queue = bindings::rd_kafka_queue_new(handle);
        let asked = bindings::rd_kafka_TopicCollection_of_topic_names(pointers.as_mut_ptr(), pointers.len());
        let kind = bindings::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS;
        let options = bindings::rd_kafka_AdminOptions_new(handle, kind);
        bindings::rd_kafka_AdminOptions_set_request_timeout(options, timeout_ms, null_mut(), 0);
        bindings::rd_kafka_AdminOptions_set_broker(options, broker, null_mut(), 0);
        bindings::rd_kafka_error_destroy(bindings::rd_kafka_AdminOptions_set_include_authorized_operations(options, 1));
        bindings::rd_kafka_DescribeTopics(handle, asked, options, queue);
        // librdkafka keeps to its own time-out.
        let event = bindings::rd_kafka_queue_poll(queue, timeout_ms.saturating_mul(2));
        let answers = if event.is_null() { Err(RDKafkaErrorCode::OperationTimedOut) } else { answers(event) };
        bindings::rd_kafka_event_destroy(event);
        bindings::rd_kafka_AdminOptions_destroy(options);
        bindings::rd_kafka_TopicCollection_destroy(asked);
        bindings::rd_kafka_queue_destroy(queue);
        answers
    }
}

unsafe fn answers(event: *mut bindings::rd_kafka_event_t) -> Result<Vec<Answer>, RDKafkaErrorCode> {
    use bindings::rd_kafka_AclOperation_t as Operation;
    // SAFETY: the caller lends a valid event, which owns all that is read here. Counts are those of the arrays.
    unsafe {
        let code = RDKafkaErrorCode::from(bindings::rd_kafka_event_error(event));
        let result = bindings::rd_kafka_event_DescribeTopics_result(event);
        if code != RDKafkaErrorCode::NoError || result.is_null() {
            return Err(code);
        }
        let (mut count, mut partitions, mut replicas, mut operations) = (0, 0, 0, 0);
        let topics = bindings::rd_kafka_DescribeTopics_result_topics(result, &raw mut count);
        let answer = |number| {
            let topic = *topics.add(number);
            let error = bindings::rd_kafka_TopicDescription_error(topic);
            if !error.is_null() {
                return Err(bindings::rd_kafka_error_code(error).into());
            }
            let first = bindings::rd_kafka_TopicDescription_partitions(topic, &raw mut partitions);
            if partitions > 0 {
                bindings::rd_kafka_TopicPartitionInfo_replicas(*first, &raw mut replicas);
            }
            let leader = |number| bindings::rd_kafka_TopicPartitionInfo_leader(*first.add(number));
            let leaderless = (0..partitions).filter(|number| leader(*number).is_null()).count();
            let allowed = bindings::rd_kafka_TopicDescription_authorized_operations(topic, &raw mut operations);
            // As numbers: a newer librdkafka may know operations that the bindings do not.
            let allowed = allowed.cast::<u32>();
            let may = |operation: Operation| {
                allowed.is_null() || (0..operations).any(|number| *allowed.add(number) == operation as u32)
            };
            let may_read = may(Operation::RD_KAFKA_ACL_OPERATION_READ);
            let may_write = may(Operation::RD_KAFKA_ACL_OPERATION_WRITE);
            Ok(Described { partitions, leaderless, replicas, may_read, may_write })
        };
        Ok((0..count).map(answer).collect())
    }
}
