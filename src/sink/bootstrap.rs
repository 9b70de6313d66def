//! Gives librdkafka its bootstrap servers back after it has forgotten all brokers.
//!
//! An answer in which a broker names no brokers, as one does that has just started or was fenced, makes librdkafka drop
//! every broker, bootstrap servers included. Its own recovery then does not start, whatever `metadata.recovery.*` says, and
//! nobody is asked ever again (confluentinc/librdkafka#5301). Records stay in the queue meanwhile with their sequence
//! numbers, and are sent once a broker is known.

#![expect(unsafe_code, reason = "the rdkafka crate has no safe call for these functions of librdkafka")]

use std::ffi::CStr;

use rdkafka::bindings;
use rdkafka::client::Client;

use super::context::Context;

/// Whether the client knows of no broker of the cluster. True as well before the first answer of a broker.
pub(super) fn knows_no_broker(client: &Client<Context>) -> bool {
    let handle = client.native_ptr();
    let mut count = 0;
    // SAFETY: the handle is valid while the client is borrowed. The ids are an allocation of librdkafka that nobody else has,
    // and are freed once, by librdkafka.
    unsafe {
        let ids = bindings::rd_kafka_brokers_learned_ids(handle, &raw mut count);
        bindings::rd_kafka_mem_free(handle, ids.cast());
    }
    count == 0
}

/// Adds these servers to those that are asked for the cluster. A server that is known already gets no second thread.
///
/// librdkafka keeps a copy of the list for each call: do not call this all the time.
pub(super) fn add(client: &Client<Context>, servers: &CStr) {
    // SAFETY: the handle is valid while the client is borrowed, and may be used by any thread. librdkafka copies the list.
    unsafe {
        bindings::rd_kafka_brokers_add(client.native_ptr(), servers.as_ptr());
    }
}
