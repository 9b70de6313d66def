//! The class of each answer of a server, and of each failure to get one.

use lapin::protocol::{AMQPErrorKind, AMQPSoftError};
use lapin::{Confirmation, ErrorKind};

use crate::config::{Bus, SinkKind};
use crate::sink::lanes::Away;
use walrelay_core::error::{Error, Kind};

const BUS: Bus = SinkKind::Rabbitmq.bus();
/// In the texts of servers, which give one code for several reasons.
const TOO_LARGE: &str = "larger than";
const INTERNAL: &str = "internal exchange";
const CONNECTION_LIMIT: &str = "limit";

/// What became of one record.
#[derive(Debug)]
pub(super) enum Said {
    /// All queues of the routing key have it.
    Acked,
    /// It was not taken now, for this reason. It is to come again.
    Later(Error),
    /// A queue did not take it, and AMQP does not say why: mostly it has no room now.
    Full(Error),
    /// It is not taken.
    Refused(Error),
    /// The connection is of no use any more.
    Lost(String),
}

/// Judges the confirmation of the only record on its channel.
pub(super) fn confirmed(confirmation: &Confirmation, topic: &str) -> Said {
    match confirmation {
        Confirmation::Ack(None) => Said::Acked,
        // The ack that follows says only that the record was handled.
        Confirmation::Ack(Some(returned)) => {
            let text = returned.reply_text.as_str();
            let code = returned.reply_code;
            let cause = format!("no queue takes it: the server returned it, {code} {text}");
            let create = BUS.create_topic.replace("{topic}", topic);
            Said::Refused(refused(topic, &cause, &create))
        }
        Confirmation::Nack(_) => Said::Full(later(topic, "a queue is full, or failed")),
        Confirmation::NotRequested => Said::Lost("the server confirms nothing".to_owned()),
    }
}

/// Judges a failure to send a record, or to get its confirmation.
pub(super) fn failed(error: &lapin::Error, topic: &str) -> Said {
    if let ErrorKind::ProtocolError(said) = error.kind()
        && let AMQPErrorKind::Soft(code) = said.kind()
    {
        return closed(code, said.get_message().as_str(), topic);
    }
    let is_unsent = matches!(
        error.kind(),
        ErrorKind::InvalidChannelState(..)
            | ErrorKind::InvalidChannel(_)
            | ErrorKind::ChannelsLimitReached
    );
    if is_unsent {
        Said::Later(later(topic, &error.to_string()))
    } else {
        Said::Lost(error.to_string())
    }
}

/// The server closed the channel, on which nothing else was.
fn closed(code: &AMQPSoftError, text: &str, topic: &str) -> Said {
    let record = |kind: Kind| Error::new(kind, format!("a record for {topic}: {text}"));
    Said::Refused(match code {
        AMQPSoftError::NOTFOUND => refused(
            topic,
            text,
            "declare the exchange, or correct rabbitmq.exchange; walrelay declares nothing",
        ),
        AMQPSoftError::ACCESSREFUSED if text.contains(INTERNAL) => record(Kind::Record)
            .remedy("name an exchange in rabbitmq.exchange that clients may publish to"),
        AMQPSoftError::ACCESSREFUSED => refused(
            topic,
            text,
            "give the user the right to write to the exchange: rabbitmqctl set_permissions",
        ),
        AMQPSoftError::CONTENTTOOLARGE => too_large(&record(Kind::RecordTooLarge)),
        AMQPSoftError::PRECONDITIONFAILED if text.contains(TOO_LARGE) => {
            too_large(&record(Kind::RecordTooLarge))
        }
        AMQPSoftError::PRECONDITIONFAILED => record(Kind::Record),
        AMQPSoftError::NOROUTE | AMQPSoftError::NOCONSUMERS | AMQPSoftError::RESOURCELOCKED => {
            refused(topic, text, "see the log of the server")
        }
    })
}

fn too_large(error: &Error) -> Error {
    error.clone().remedy(
        "raise max_message_size of the servers, or keep large payloads out of the outbox with a \
         CHECK",
    )
}

/// The record has no answer in time, though the server answers.
pub(super) fn silent(topic: &str) -> Error {
    later(topic, "the server answers, and confirms it not in time")
}

fn later(topic: &str, cause: &str) -> Error {
    Error::new(
        Kind::BusUnreachable,
        format!("routing key {topic}: {cause}"),
    )
    .remedy(
        "see whether its queues have room and a leader: rabbitmqctl list_queues name state \
         messages arguments. A record larger than max-length-bytes never fits",
    )
    .of_topic(topic)
}

fn refused(topic: &str, cause: &str, remedy: &str) -> Error {
    Error::new(Kind::TopicRefused, format!("routing key {topic}: {cause}"))
        .remedy(remedy)
        .of_topic(topic)
}

/// An exchange or a queue was asked for, and is not there.
pub(super) fn no_place(error: Error) -> Error {
    error.or_remedy(
        "declare it, or correct rabbitmq.exchange or route.topic: walrelay declares nothing",
    )
}

/// Judges a login that failed.
pub(super) fn no_login(error: &lapin::Error, server: &str) -> Away {
    let ErrorKind::ProtocolError(said) = error.kind() else {
        return Away::Unreachable(format!("{server}: {error}"));
    };
    let text = said.get_message().as_str();
    let cause = format!("{server}: RabbitMQ refuses the login: {text}");
    // ACCESS_REFUSED, NOT_ALLOWED
    match said.get_id() {
        403 => Away::Unusable(Error::new(Kind::BusRefused, cause).remedy(
            "correct rabbitmq.user and rabbitmq.password_file. The user guest may log in from the \
             machine of the server alone",
        )),
        530 if !text.contains(CONNECTION_LIMIT) => {
            let remedy = "correct rabbitmq.vhost, or give the user rights there: rabbitmqctl \
                          set_permissions -p VHOST";
            Away::Unusable(Error::new(Kind::BusRefused, cause).remedy(remedy))
        }
        _ => Away::Unreachable(cause),
    }
}

/// The certificate of a server, or its TLS, is no good.
pub(super) fn no_tls(error: &std::io::Error, server: &str) -> Error {
    let cause = format!("{server}: RabbitMQ cannot be reached with TLS: {error}");
    Error::new(Kind::BusRefused, cause).remedy(
        "name the authority of the servers in rabbitmq.ca_file, and their hosts and TLS ports, \
         5671 by default, in rabbitmq.servers",
    )
}

#[cfg(test)]
mod tests {
    use lapin::protocol::{AMQPError, AMQPHardError};
    use lapin::{ChannelState, ConnectionState, Error as LapinError};

    use super::*;

    fn soft(code: AMQPSoftError, text: &str) -> LapinError {
        ErrorKind::ProtocolError(AMQPError::new(code.into(), text.into())).into()
    }

    fn hard(code: AMQPHardError, text: &str) -> LapinError {
        ErrorKind::ProtocolError(AMQPError::new(code.into(), text.into())).into()
    }

    #[test]
    fn only_an_ack_without_a_return_counts() {
        assert!(matches!(
            confirmed(&Confirmation::Ack(None), "t"),
            Said::Acked
        ));
        assert!(matches!(
            confirmed(&Confirmation::Nack(None), "t"),
            Said::Full(error) if error.kind() == Kind::BusUnreachable
        ));
        assert!(matches!(
            confirmed(&Confirmation::NotRequested, "t"),
            Said::Lost(_)
        ));
    }

    #[test]
    fn each_reason_to_close_a_channel_has_its_class() {
        for (code, text, kind) in [
            (
                AMQPSoftError::NOTFOUND,
                "NOT_FOUND - no exchange 'x' in vhost '/'",
                Kind::TopicRefused,
            ),
            (
                AMQPSoftError::ACCESSREFUSED,
                "ACCESS_REFUSED - access to exchange 'x' in vhost '/' refused for user 'u'",
                Kind::TopicRefused,
            ),
            (
                AMQPSoftError::ACCESSREFUSED,
                "ACCESS_REFUSED - cannot publish to internal exchange 'x' in vhost '/'",
                Kind::Record,
            ),
            (
                AMQPSoftError::PRECONDITIONFAILED,
                "PRECONDITION_FAILED - message size 9 is larger than configured max size 8",
                Kind::RecordTooLarge,
            ),
            (AMQPSoftError::CONTENTTOOLARGE, "", Kind::RecordTooLarge),
            (
                AMQPSoftError::PRECONDITIONFAILED,
                "PRECONDITION_FAILED - invalid expiration 'x'",
                Kind::Record,
            ),
            (AMQPSoftError::RESOURCELOCKED, "", Kind::TopicRefused),
        ] {
            let Said::Refused(error) = failed(&soft(code, text), "t") else {
                panic!("{text}")
            };
            assert_eq!(error.kind(), kind, "{text}");
            assert!(error.what_to_do().is_some_and(|remedy| !remedy.is_empty()));
        }
    }

    #[test]
    fn what_was_not_sent_comes_again_and_what_ends_the_connection_is_unknown() {
        for error in [
            ErrorKind::InvalidChannelState(ChannelState::Closing, "basic.publish").into(),
            LapinError::from(ErrorKind::ChannelsLimitReached),
            ErrorKind::InvalidChannel(7).into(),
        ] {
            let Said::Later(later) = failed(&error, "t") else {
                panic!("{error}")
            };
            // It is also the remedy of an event that was given up, and of one that ended the relay.
            assert!(!later.what_to_do().unwrap().contains("again"), "{later:?}");
        }
        for error in [
            hard(AMQPHardError::CONNECTIONFORCED, "CONNECTION_FORCED - bye"),
            hard(AMQPHardError::FRAMEERROR, "FRAME_ERROR"),
            hard(AMQPHardError::INTERNALERROR, "INTERNAL_ERROR"),
            hard(AMQPHardError::UNEXPECTEDFRAME, "UNEXPECTED_FRAME"),
            hard(AMQPHardError::RESOURCEERROR, "RESOURCE_ERROR"),
            ErrorKind::MissingHeartbeatError.into(),
            ErrorKind::InvalidConnectionState(ConnectionState::Closed).into(),
            std::io::Error::from(std::io::ErrorKind::ConnectionReset).into(),
        ] {
            assert!(matches!(failed(&error, "t"), Said::Lost(_)), "{error}");
        }
    }

    #[test]
    fn a_refused_login_is_told_from_a_server_that_is_away() {
        let unusable = |error: &LapinError| matches!(no_login(error, "h:1"), Away::Unusable(_));
        assert!(unusable(&soft(
            AMQPSoftError::ACCESSREFUSED,
            "ACCESS_REFUSED - Login was refused"
        )));
        assert!(unusable(&hard(
            AMQPHardError::NOTALLOWED,
            "NOT_ALLOWED - vhost nowhere not found"
        )));
        for error in [
            hard(
                AMQPHardError::NOTALLOWED,
                "NOT_ALLOWED - access to vhost '/' refused for user 'u': connection limit (1) is \
                 reached",
            ),
            hard(AMQPHardError::CONNECTIONFORCED, "bye"),
            std::io::Error::from(std::io::ErrorKind::ConnectionAborted).into(),
        ] {
            assert!(!unusable(&error), "{error}");
        }
    }
}
