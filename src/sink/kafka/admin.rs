//! Creates topics, and asks for their settings. Blocks; meant for a thread of its own in a Tokio runtime.

use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use tokio::runtime::Handle;

use super::client::close_aside;
use super::faults::{self, Subject, code};
use super::options::Options;
use super::topic_reader::Listening;
use crate::error::{Error, Kind, Result};

/// How long one answer may take.
const ASK_TIMEOUT: Duration = Duration::from_secs(10);

/// Creates topics. Close it with [`TopicAdmin::close`].
pub(crate) struct TopicAdmin(AdminClient<Listening>);

impl TopicAdmin {
    /// `options` are those of [`Options::reader`].
    ///
    /// # Errors
    /// [`Kind::Config`] where no client can be made.
    pub(crate) fn open(options: &Options) -> Result<TopicAdmin> {
        let context = Listening::new(options.redactor.clone());
        let client = options.client.create_with_context(context);
        client.map(TopicAdmin).map_err(|error| options.creation_error(&error))
    }

    /// Creates a topic with one partition. Whether it did: somebody else may have been faster.
    ///
    /// # Errors
    /// [`Kind::KafkaUnreachable`], [`Kind::KafkaRefused`] and [`Kind::TopicRefused`].
    pub(crate) fn create(&self, topic: &str, replicas: usize, settings: &[(&str, &str)]) -> Result<bool> {
        let replication = TopicReplication::Fixed(i32::try_from(replicas).unwrap_or(1));
        let new = settings.iter().fold(NewTopic::new(topic, 1, replication), |new, (name, value)| new.set(name, value));
        let options = AdminOptions::new().request_timeout(Some(ASK_TIMEOUT)).operation_timeout(Some(ASK_TIMEOUT));
        let created = Handle::current().block_on(self.0.create_topics([&new], &options));
        let explain = |code| faults::explain(code, Subject { topic: Some(topic), ..Subject::default() });
        match created.map_err(|error| explain(code(&error)))?.into_iter().next() {
            Some(Ok(_)) => Ok(true),
            Some(Err((_, RDKafkaErrorCode::TopicAlreadyExists))) => Ok(false),
            Some(Err((_, code))) => Err(explain(code)),
            None => Err(Error::new(Kind::KafkaUnreachable, format!("no answer to the creation of topic {topic}"))),
        }
    }

    /// A setting of a topic, or why it is not known. `broker` is the id of any broker: asked by default is the controller,
    /// which may be out of reach.
    pub(crate) fn setting(&self, topic: &str, name: &str, broker: Option<i32>) -> Result<String, String> {
        let options = AdminOptions::new().request_timeout(Some(ASK_TIMEOUT)).broker_id(broker);
        let resource = ResourceSpecifier::Topic(topic);
        let asked = Handle::current().block_on(self.0.describe_configs([&resource], &options));
        let results = asked.map_err(|error: KafkaError| code(&error).to_string())?;
        let described = results.into_iter().next().and_then(Result::ok);
        let value = described.and_then(|described| described.get(name)?.value.clone());
        // The client library keeps a refusal to itself and leaves the settings out.
        value.ok_or_else(|| "the Kafka user may not see its settings (DescribeConfigs)".to_owned())
    }

    pub(crate) fn close(self) {
        close_aside(self.0);
    }
}
