//! [`LaneBus`] on a mail server: a record is a mail, and the answer to its end decides.
//!
//! | file | contents |
//! |---|---|
//! | `mail` | sender, recipients, fields and body |
//! | `pool` | the connections that wait |
//! | `session` | one connection: TLS, login, and a mail by commands |
//! | `answer` | the class of each reply |
//! | `wire` | commands, replies, time limits |

mod answer;
mod mail;
mod pool;
mod session;
mod wire;

use std::sync::Arc;

use tokio_rustls::rustls::ClientConfig;

use mail::Mails;
use pool::Pool;
use session::Sent;

use crate::config::servers::is_here;
use crate::config::{Config, SinkKind, SmtpConfig, SmtpTls};
use crate::sink::lanes::{Answer, Away, LaneBus, LaneSink};
use crate::sink::{login, not_encrypted};
use walrelay_core::error::Result;
use walrelay_core::route::{OwnedRecord, Record};

/// The sink of mails.
pub(super) type SmtpSink = LaneSink<Smtp>;

/// See the module's documentation.
#[derive(Debug)]
pub struct Smtp {
    config: SmtpConfig,
    tls: Arc<ClientConfig>,
    mails: Mails,
    pool: Pool,
}

impl LaneBus for Smtp {
    const KIND: SinkKind = SinkKind::Smtp;

    fn new(config: &Config) -> Result<Smtp> {
        let smtp = &config.smtp;
        let tls = login::tls("smtp", &smtp.ca_file, smtp.tls != SmtpTls::Off)?;
        Ok(Smtp {
            config: smtp.clone(),
            tls: Arc::new(tls),
            mails: Mails::new(config)?,
            pool: Pool::default(),
        })
    }

    fn weakness(config: &Config) -> Option<String> {
        let SmtpConfig { host, tls, .. } = &config.smtp;
        let is_in_clear = *tls == SmtpTls::Off && !is_here(host);
        is_in_clear.then(|| not_encrypted(Self::KIND, host, "smtp.tls"))
    }

    fn sent_max(&self) -> usize {
        self.config.max_in_flight
    }

    fn check(&self, record: &Record<'_>) -> Result<()> {
        self.mails.mail(record).map(drop)
    }

    fn check_header(&self, name: &str, value: Option<&[u8]>) -> Result<()> {
        self.mails.check_header(name, value)
    }

    async fn probe(&self) -> Result<(), Away> {
        if let Some(mut taken) = self.pool.take_idle().await
            && let Some(session) = taken.session()
            && session.answers().await
        {
            taken.keep().await;
            return Ok(());
        }
        let taken = self.pool.take(&self.config, &self.tls).await?;
        taken.keep().await;
        Ok(())
    }

    async fn size(&self, record: &OwnedRecord) -> Result<Option<String>> {
        let mail = record.with_record(|record| self.mails.mail(record))?;
        let Some(mut taken) = self.pool.take_idle().await else {
            return Ok(None);
        };
        let size = taken.session().map(|session| session.size(&mail));
        taken.keep().await;
        size.unwrap_or(Ok(None))
    }

    async fn send(&self, record: &OwnedRecord) -> Answer {
        let mail = match record.with_record(|record| self.mails.mail(record)) {
            Ok(mail) => mail,
            Err(error) => return Answer::Unfit(error),
        };
        loop {
            let mut taken = match self.pool.take(&self.config, &self.tls).await {
                Ok(taken) => taken,
                Err(away) => return Answer::Away(away),
            };
            let Some(session) = taken.session() else {
                continue;
            };
            let sent = session.send(&mail, &self.config).await;
            let has_waited = taken.has_waited;
            taken.keep().await;
            match sent {
                Sent::Answer(answer) => return answer,
                // The server closes connections that wait. The next one waits less, or is new.
                Sent::Not(_) if has_waited => {}
                Sent::Not(cause) => return Answer::Away(Away::Unreachable(cause)),
            }
        }
    }
}
