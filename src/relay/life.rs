//! A producer's life, and the next one's.

use super::{Relay, drain};
use crate::position::Position;
use crate::relay::pipeline::Pipeline;
use crate::sink::{KafkaSink, Producer};

/// A producer and everything that hangs on it.
pub(super) enum Life {
    /// No session yet. It begins behind the position, or behind what is stored where there is none.
    New(Box<KafkaSink>, Option<Position>),
    /// Under way.
    Running(Box<Pipeline<KafkaSink>>),
}

impl Life {
    pub(super) fn producer(&self) -> Producer {
        match self {
            Life::New(sink, _) => sink.producer(),
            Life::Running(pipeline) => pipeline.publisher.sink.producer(),
        }
    }
}

impl Relay {
    /// A producer failed: nothing behind its failure counts, and the next one starts behind what was delivered.
    pub(super) async fn begin_new_life(&mut self) {
        let resume = match &mut self.life {
            Some(Life::Running(pipeline)) => {
                // What cannot be marked now is published again, and marked then.
                if let Err(error) = drain::write_back(pipeline, &self.config).await {
                    tracing::debug!(%error, "rows that were acked could not be marked");
                }
                self.poison = std::mem::take(&mut pipeline.publisher.poison);
                Some(pipeline.publisher.completed())
            }
            // It has not produced anything; it may as well try again.
            Some(Life::New(..)) | None => return,
        };
        self.end_life().await;
        match KafkaSink::connect(&self.config.kafka) {
            Ok(sink) => self.life = Some(Life::New(Box::new(sink), resume)),
            Err(error) => tracing::error!(%error, "a new producer could not be made"),
        }
    }

    pub(super) async fn end_life(&mut self) {
        self.pulse.release();
        match self.life.take() {
            Some(Life::New(sink, _)) => sink.close().await,
            Some(Life::Running(pipeline)) => pipeline.publisher.sink.close().await,
            None => {}
        }
    }
}
