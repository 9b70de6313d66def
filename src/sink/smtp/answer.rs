//! The class of each reply, by what it answers.

use std::io;
use std::time::Duration;

use tokio_rustls::rustls;

use super::wire::Reply;
use crate::sink::lanes::Away;
use walrelay_core::error::{Error, Kind};

/// What a reply answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// The sender of a mail. `is_constant`: each mail has this one.
    Mail { is_constant: bool },
    /// A recipient. The mail comes again after `wait` where the server does not take it now.
    Recipient { wait: Duration },
    /// That the mail follows.
    Data,
    /// The whole mail.
    End,
}

/// What a reply means for a mail.
#[derive(Debug)]
pub(super) enum Said {
    /// Go on; after the end, the server has the mail.
    Yes,
    /// The server does not take the mail, and says why.
    Refused {
        error: Error,
        after: Option<Duration>,
    },
    /// The server takes no mails of this client.
    Unusable(Error),
    /// The server ends the connection.
    Closing,
    /// The reply has no meaning here.
    Nonsense,
}

/// Judges a reply.
pub(super) fn said(phase: Phase, reply: &Reply) -> Said {
    let error = |kind: Kind| {
        let what = match phase {
            Phase::Mail { .. } => "the sender",
            Phase::Recipient { .. } => "a recipient",
            Phase::Data => "the mail",
            Phase::End => "the whole mail",
        };
        let shown = reply.shown();
        Error::new(
            kind,
            format!("the mail server does not take {what}: {shown}"),
        )
    };
    let refused = |kind: Kind, remedy: &str| Said::Refused {
        error: error(kind).remedy(remedy),
        after: None,
    };
    match (phase, reply.code) {
        (Phase::Data, 354) => Said::Yes,
        (Phase::Mail { .. } | Phase::Recipient { .. } | Phase::End, 200..=299) => Said::Yes,
        // Also said to a client that came back late. Later it is about this mail.
        (Phase::Mail { .. }, 421) => Said::Closing,
        (Phase::Recipient { wait }, 400..=499) => Said::Refused {
            // Of no topic: other recipients may be taken.
            error: error(Kind::TopicRefused).remedy(NOT_NOW),
            after: Some(wait),
        },
        (_, 400..=499) => refused(Kind::BusUnreachable, NOT_NOW),
        (_, 530 | 535 | 538) => Said::Unusable(unusable(reply)),
        (Phase::Mail { .. } | Phase::End, 552) => refused(
            Kind::RecordTooLarge,
            "raise the server's limit, such as message_size_limit of Postfix, or keep large \
             values out of the outbox with a CHECK",
        ),
        (Phase::Mail { is_constant: true }, 500..=599) => Said::Unusable(
            error(Kind::BusRefused)
                .remedy("correct smtp.from or smtp.envelope_from, or let the server take it"),
        ),
        (Phase::Mail { .. }, 500..=599) => refused(
            Kind::Record,
            "correct the column that the header From is from",
        ),
        (Phase::Recipient { .. }, 500..=599) => refused(
            Kind::Record,
            "correct the columns that To, Cc and Bcc are from; see the server's log",
        ),
        (Phase::Data | Phase::End, 500..=599) => refused(
            Kind::Record,
            "see the server's log: a filter may not like the content",
        ),
        _ => Said::Nonsense,
    }
}

/// Whether the mail comes again is said where that is known.
const NOT_NOW: &str = "the server's log says why it does not take the mail now";

/// The server refuses this client by `reply`.
pub(super) fn unusable(reply: &Reply) -> Error {
    let cause = format!("the mail server refuses this client: {}", reply.shown());
    Error::new(Kind::BusRefused, cause).remedy(
        "correct smtp.user and smtp.password_file, or let the server take mails of this machine; \
         see its log",
    )
}

/// The server has not what the settings ask for.
pub(super) fn not_offered(what: &str, remedy: &str) -> Away {
    let cause = format!("the mail server does not offer {what}");
    Away::Unusable(Error::new(Kind::BusRefused, cause).remedy(remedy))
}

/// Judges a handshake of TLS that failed.
pub(super) fn no_tls(error: &io::Error) -> Away {
    let cause = format!("no TLS with the mail server: {error}");
    if !error
        .get_ref()
        .is_some_and(|inner| inner.is::<rustls::Error>())
    {
        return Away::Unreachable(cause);
    }
    Away::Unusable(Error::new(Kind::BusRefused, cause).remedy(
        "name the server's authority in smtp.ca_file and its name in smtp.host, and see whether \
         smtp.port is that of smtp.tls: 587 for starttls, 465 for implicit",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECIPIENT: Phase = Phase::Recipient {
        wait: Duration::from_secs(300),
    };
    const MAIL: Phase = Phase::Mail { is_constant: false };
    const CONSTANT: Phase = Phase::Mail { is_constant: true };

    fn of(phase: Phase, code: u16) -> String {
        let lines = vec!["text".to_owned()];
        match said(phase, &Reply { code, lines }) {
            Said::Yes => "yes".to_owned(),
            Said::Refused { error, after } => {
                assert_eq!(after.is_some(), phase == RECIPIENT && code < 500, "{code}");
                assert!(error.cause().contains(&format!("{code} text")), "{error}");
                error.kind().name().to_owned()
            }
            Said::Unusable(_) => "unusable".to_owned(),
            Said::Closing => "closing".to_owned(),
            Said::Nonsense => "nonsense".to_owned(),
        }
    }

    /// The table of docs/reference/smtp.md.
    #[test]
    fn each_reply_has_its_class_in_each_phase() {
        for (phases, codes, class) in [
            (
                &[MAIL, CONSTANT, RECIPIENT, Phase::End][..],
                &[200, 250, 251, 252][..],
                "yes",
            ),
            (&[Phase::Data], &[354], "yes"),
            (&[Phase::Data], &[200, 250, 334, 650], "nonsense"),
            (
                &[Phase::End, MAIL, RECIPIENT],
                &[0, 100, 334, 354, 650, 999],
                "nonsense",
            ),
            (&[MAIL, CONSTANT], &[421], "closing"),
            (&[RECIPIENT], &[421], "topic_refused"),
            (&[Phase::Data], &[421], "bus_unreachable"),
            (&[Phase::End], &[421, 450, 451, 452], "bus_unreachable"),
            (
                &[MAIL, CONSTANT, Phase::Data],
                &[450, 451, 452],
                "bus_unreachable",
            ),
            (&[RECIPIENT], &[450, 451, 452], "topic_refused"),
            (
                &[MAIL, CONSTANT, RECIPIENT, Phase::Data, Phase::End],
                &[530, 535],
                "unusable",
            ),
            (&[MAIL, CONSTANT, Phase::End], &[552], "record_too_large"),
            (&[MAIL], &[500, 501, 550, 553, 554], "record"),
            (&[CONSTANT], &[500, 501, 550, 553, 554], "unusable"),
            (&[RECIPIENT], &[501, 550, 551, 552, 553, 554], "record"),
            (&[Phase::Data, Phase::End], &[500, 550, 554], "record"),
        ] {
            for phase in phases {
                for code in codes {
                    assert_eq!(of(*phase, *code), class, "{phase:?} {code}");
                }
            }
        }
    }

    /// It is also the remedy of a mail that was given up, and of one that ended the relay.
    #[test]
    fn the_remedy_of_a_mail_that_is_not_taken_now_does_not_say_that_it_comes_again() {
        for phase in [MAIL, RECIPIENT, Phase::Data, Phase::End] {
            let lines = vec!["try later".to_owned()];
            let Said::Refused { error, .. } = said(phase, &Reply { code: 451, lines }) else {
                panic!("{phase:?}")
            };
            assert_eq!(error.what_to_do().as_deref(), Some(NOT_NOW), "{phase:?}");
        }
    }

    #[test]
    fn only_an_error_of_tls_itself_is_the_operators() {
        let lost = io::Error::from(io::ErrorKind::UnexpectedEof);
        assert!(matches!(no_tls(&lost), Away::Unreachable(_)));
        let bad = rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
        let bad = io::Error::new(io::ErrorKind::InvalidData, bad);
        assert!(matches!(no_tls(&bad), Away::Unusable(_)));
    }
}
