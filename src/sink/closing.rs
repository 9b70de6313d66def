//! Letting go of a client without waiting for its threads.

/// Ends a Kafka client on a thread of its own. Closing a consumer waits for librdkafka's threads, and those were seen to
/// wait for ever now and then (confluentinc/librdkafka#3470, #4884); nobody who has read what they wanted is to wait with
/// them. Where no thread can be had the client is closed here.
pub(crate) fn close_aside<C: Send + 'static>(client: C) {
    let started = std::thread::Builder::new().name("kafka-close".to_owned()).spawn(move || drop(client));
    if let Err(error) = started {
        tracing::debug!(%error, "a Kafka client was closed without a thread of its own");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::close_aside;

    /// Cannot be dropped before it is told.
    struct Stuck(mpsc::Receiver<()>, mpsc::Sender<()>);

    impl Drop for Stuck {
        fn drop(&mut self) {
            self.0.recv().unwrap();
            self.1.send(()).unwrap();
        }
    }

    #[test]
    fn nobody_waits_for_a_client_that_does_not_end() {
        let (tell, told) = mpsc::channel();
        let (done, ended) = mpsc::channel();
        close_aside(Stuck(told, done));
        assert!(ended.try_recv().is_err());
        tell.send(()).unwrap();
        ended.recv().unwrap();
    }
}
