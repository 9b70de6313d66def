//! The names the field uses, without blanks and capitals, the best first.
//!
//! Of Debezium's Outbox Event Router, Axon, Eventuate, MassTransit, NServiceBus, Spring Modulith, Rails' outboxes, and
//! of tables that teams have made themselves.

/// The event itself.
pub(super) const PAYLOAD: &[&str] = &[
    "payload",
    "eventpayload",
    "eventdata",
    "eventbody",
    "serializedevent",
    "data",
    "body",
    "messagebody",
    "content",
    "operations",
    "message",
    "document",
    "json",
    "value",
    "args",
    "params",
    "attributes",
];
/// It as well, where nothing else is.
pub(super) const PAYLOAD_PERHAPS: &[&str] = &["event"];

/// An id that consumers know, beside a number that only the table knows.
pub(super) const EVENT_ID: &[&str] =
    &["eventid", "eventuuid", "eventguid", "eventidentifier", "messageid", "messageuuid"];
/// An id, where no key says so.
pub(super) const ID: &[&str] = &[
    "id",
    "eventid",
    "messageid",
    "uuid",
    "guid",
    "eventidentifier",
    "identifier",
    "outboxid",
    "sequencenumber",
    "sequenceid",
    "seq",
    "globalindex",
    "globalposition",
    "offset",
];

/// Names a topic already.
pub(super) const TOPIC: &[&str] =
    &["topic", "topicname", "kafkatopic", "destinationtopic", "targettopic", "destination", "channel"];
/// What kind of thing the event is about.
pub(super) const AGGREGATE_TYPE: &[&str] = &[
    "aggregatetype",
    "aggregatetypename",
    "aggregatename",
    "aggregateroottype",
    "aggregaterootname",
    "aggregate",
    "entitytype",
    "entityname",
    "streamtype",
    "streamcategory",
    "sourcetype",
    "objecttype",
    "resourcetype",
    "recordtype",
    "entity",
    "category",
];
/// Chooses a way in another system, and so may serve as a topic.
pub(super) const SUBJECT: &[&str] = &["subject", "routingkey", "queue", "queuename"];

/// What has happened.
pub(super) const EVENT_TYPE: &[&str] = &[
    "eventtype",
    "type",
    "eventname",
    "messagetype",
    "messagename",
    "payloadtype",
    "eventclass",
    "eventkind",
    "kind",
    "event",
    "name",
    "action",
];

/// Made to be a record's key.
pub(super) const RECORD_KEY: &[&str] = &["kafkakey", "messagekey", "recordkey", "partitionkey", "orderingkey"];
/// Which thing the event is about.
pub(super) const AGGREGATE_ID: &[&str] = &[
    "aggregateid",
    "aggregateidentifier",
    "aggregaterootid",
    "aggregateuuid",
    "aggregatekey",
    "entityid",
    "entitykey",
    "streamid",
    "streamname",
    "rootid",
    "resourceid",
    "sourceid",
    "objectid",
    "subjectid",
    "recordid",
    "documentid",
    "groupid",
    "messagegroupid",
    "key",
    "eventkey",
];

/// When it happened, or was written.
pub(super) const WRITTEN_AT: &[&str] = &[
    "occurredat",
    "occurredon",
    "eventtime",
    "eventtimestamp",
    "eventdate",
    "createdat",
    "createdon",
    "created",
    "creationtime",
    "creationtimestamp",
    "creationdate",
    "createddate",
    "createdtime",
    "insertedat",
    "insertedon",
    "recordedat",
    "raisedat",
    "emittedat",
    "enqueuetime",
    "enqueuedat",
    "storedat",
    "publicationdate",
    "timestamp",
    "ts",
    "time",
    "date",
    "datetime",
];

/// A number of a partition.
pub(super) const PARTITION: &[&str] =
    &["partition", "kafkapartition", "topicpartition", "targetpartition", "partitionnumber", "partitionno"];

/// Whose it is. Coarser than an aggregate, and so a key that keeps every aggregate's order.
pub(super) const TENANT: &[&str] =
    &["tenantid", "tenant", "tenantkey", "organizationid", "organisationid", "orgid", "workspaceid"];
/// What it belongs to.
pub(super) const CORRELATION: &[&str] = &["correlationid", "conversationid", "correlationkey", "sagaid", "processid"];
/// What else goes along as a header.
pub(super) const HEADER: &[&str] = &[
    "traceparent",
    "tracestate",
    "baggage",
    "traceid",
    "spanid",
    "tracingspancontext",
    "causationid",
    "requestid",
    "initiatorid",
    "contenttype",
    "schemaversion",
    "eventversion",
    "messageversion",
    "payloadversion",
    "payloadrevision",
    "aggregateversion",
    "idempotencykey",
    "deduplicationid",
    "deduplicationkey",
];
/// A bag of headers.
pub(super) const METADATA: &[&str] =
    &["metadata", "headers", "header", "meta", "properties", "context", "messageproperties", "tracecontext"];

/// Words in the names of what a dispatcher notes down about its work.
pub(super) const STATE: &[&str] = &[
    "status",
    "state",
    "retry",
    "retries",
    "retried",
    "attempt",
    "attempts",
    "published",
    "processed",
    "sent",
    "dispatched",
    "delivered",
    "delivery",
    "failed",
    "failure",
    "error",
    "errors",
    "lock",
    "locked",
    "completed",
    "completion",
    "resubmission",
    "expires",
    "expiration",
    "expiry",
    "scheduled",
    "next",
    "handled",
    "consumed",
    "acknowledged",
    "acked",
    "updated",
    "deleted",
    "listener",
    "worker",
    "consumer",
    "persistence",
    "inbox",
];
/// Words of ids that are not what an event is about.
pub(super) const OTHER_IDS: &[&str] = &[
    "event",
    "message",
    "outbox",
    "parent",
    "previous",
    "transaction",
    "tx",
    "session",
    "client",
    "user",
    "actor",
    "created",
    "causation",
    "trace",
    "span",
    "request",
    "idempotency",
    "deduplication",
    "dedup",
    "initiator",
];
/// The last word of a name of something that has one.
pub(super) const ID_ENDS: &[&str] = &["id", "uuid", "guid", "identifier"];
/// Words before `type` that are not what an event is about.
pub(super) const OTHER_TYPES: &[&str] =
    &["event", "message", "payload", "content", "data", "body", "mime", "media", "notification", "error"];
