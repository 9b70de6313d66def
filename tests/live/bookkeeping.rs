//! P13, P12: three teams' tables run by their own status columns, with the configurations of
//! `examples/`: what is pending is published, what was published is marked as the team marks it,
//! and the queries of their documents stay true.

mod backlog;
mod crashes;
mod failed;
mod owners;
mod polling;
mod refused;
mod runbook;
mod slot;

use tokio_postgres::Row;
use walrelay_lab::verify::{Committed, Findings};

use crate::support::relay::{EXIT, RelayCommand};
use crate::support::servers::{Kafka, Postgres};
use crate::support::sql::Sql;
use crate::support::topic::{self, Record};
use crate::support::wait::grown;
use crate::support::world::{World, committed};

/// A team's table and what the team says of it.
struct Team {
    table: &'static str,
    schema: &'static str,
    config: &'static str,
    /// The topic of the configuration, to be replaced by one of the test's own; none where each
    /// type has its own.
    topic: Option<&'static str>,
    id_header: &'static str,
    /// The body of `emit(kind, aggregate_, filling)`, once `v` is the aggregate's next version.
    insert: &'static str,
    /// Id, key, version and body of all rows.
    rows: &'static str,
    /// The team's own words for what is not out, and for what is.
    pending: &'static str,
    sent: &'static str,
    /// What the team orders rows by where nothing else does.
    order: &'static str,
    /// The configured mark, and one that leaves rows pending.
    mark: &'static str,
    wrong_mark: &'static str,
}

const EMAIL: Team = Team {
    table: "email_outbox",
    schema: include_str!("../../examples/email-outbox/schema.sql"),
    config: include_str!("../../examples/email-outbox/walrelay.toml"),
    topic: Some("email-notifications"),
    id_header: "id",
    insert: "insert into memos (id, memo_number_prefix, department_code, title)
             values (md5(aggregate_)::uuid, 'HR', 'HR-01', aggregate_) on conflict do nothing;
             insert into email_outbox (memo_id, event_type, payload, recipient_email, \
             notification_type, idempotency_key)
             values (md5(aggregate_)::uuid, 'memo.changed',
                     jsonb_build_object('v', v, 'subject', aggregate_, 'body', repeat('x', \
                     filling)),
                     aggregate_ || '@example.com', 'MEMO_CHANGED', aggregate_ || '-' || v);",
    rows: "select id::text, memo_id::text, (payload->>'v')::bigint, payload::text from \
           email_outbox",
    pending: "status = 'PENDING'",
    sent: "status = 'SENT' and sent_at <= clock_timestamp() and error_message is null",
    order: "meta_created_at",
    mark: "status = 'SENT', sent_at",
    wrong_mark: "sent_at",
};

const PUBLISHED: Team = Team {
    table: "outbox",
    schema: include_str!("../../examples/outbox-published/schema.sql"),
    config: include_str!("../../examples/outbox-published/walrelay.toml"),
    topic: Some("domain-events"),
    id_header: "id",
    insert: "insert into outbox (id, aggregate_id, event_type, event_data, metadata, created_at, \
             published)
             values (gen_random_uuid(), aggregate_, 'Changed', jsonb_build_object('v', v, \
             'filling', repeat('x', filling)),
                     '{\"tenant_id\": \"clinic-7\"}', clock_timestamp() at time zone 'UTC', \
                     false);",
    rows: "select id::text, aggregate_id, (event_data->>'v')::bigint, event_data::text from outbox",
    pending: "published = FALSE",
    sent: "published = TRUE and published_at <= clock_timestamp() at time zone 'UTC'",
    order: "created_at",
    mark: "published = true, published_at",
    wrong_mark: "published_at",
};

const WALLET: Team = Team {
    table: "outbox",
    schema: include_str!("../../examples/wallet-outbox/schema.sql"),
    config: include_str!("../../examples/wallet-outbox/walrelay.toml"),
    topic: None,
    id_header: "event_id",
    insert: "insert into outbox (event_type, payload, correlation_id, created_at)
             values (kind, json_build_object('v', v, 'filling', repeat('x', filling)), aggregate_,
                     clock_timestamp() at time zone 'UTC');",
    rows: "select id::text, correlation_id, (payload::jsonb->>'v')::bigint, payload from outbox",
    pending: "sent = false",
    sent: "sent = true",
    order: "id",
    mark: "sent = true",
    wrong_mark: "payload = payload",
};

/// Each team by slot or by polling.
fn in_one_mode(shows: fn(&'static Team, &str)) {
    shows(&EMAIL, "slot");
    shows(&PUBLISHED, "poll");
    shows(&WALLET, "slot");
}

/// Each team the other way.
fn in_the_other_mode(shows: fn(&'static Team, &str)) {
    shows(&EMAIL, "poll");
    shows(&PUBLISHED, "slot");
    shows(&WALLET, "poll");
}

/// A team's table on servers, with a configuration that differs from the example's in nothing but
/// the topic.
struct Outbox {
    world: World,
    team: &'static Team,
    config: String,
}

impl Outbox {
    /// The table alone: no publication, no slot.
    #[track_caller]
    fn new(team: &'static Team) -> Outbox {
        Outbox::on(Postgres::shared(), team)
    }

    /// The same on this server.
    #[track_caller]
    fn on(postgres: &Postgres, team: &'static Team) -> Outbox {
        let world = World::bare(postgres, Kafka::shared().brokers());
        world.sql().run(&format!(
            "drop table outbox; {};
             create or replace function emit(kind text, aggregate_ text, filling int) returns \
             bigint language plpgsql as $$
             declare v bigint;
             begin
                 insert into counter values (aggregate_) on conflict do nothing;
                 update counter set version = version + 1 where aggregate = aggregate_ returning \
                 version into v;
                 {}
                 return v;
             end $$",
            team.schema, team.insert
        ));
        let own = |topic: &str| format!("{}.{topic}", world.name);
        let config = team.topic.map_or_else(
            || team.config.to_owned(),
            |topic| team.config.replace(topic, &own(topic)),
        );
        Outbox {
            world,
            team,
            config,
        }
    }

    /// With publication and slot, as `walrelay setup` makes them.
    #[track_caller]
    fn with_slot(team: &'static Team) -> Outbox {
        let outbox = Outbox::new(team);
        outbox
            .world
            .command("setup")
            .config_file(&outbox.config)
            .succeed();
        outbox
    }

    /// With the publication alone: the first start makes the slot.
    #[track_caller]
    fn with_publication(team: &'static Team) -> Outbox {
        let outbox = Outbox::new(team);
        let name = &outbox.world.name;
        let table = team.table;
        outbox.sql().run(&format!(
            "create publication walrelay_{name} for table {table} with (publish = 'insert')"
        ));
        outbox
    }

    fn in_mode(mode: &str, team: &'static Team) -> Outbox {
        if mode == "poll" {
            Outbox::new(team)
        } else {
            Outbox::with_slot(team)
        }
    }

    fn sql(&self) -> Sql {
        self.world.sql()
    }

    fn run(&self, mode: &str) -> RelayCommand {
        self.world
            .run()
            .config_file(&self.config)
            .option("--mode", mode)
    }

    /// Commits one event.
    #[track_caller]
    fn emit(&self, aggregate: &str) {
        self.world.emit(&self.sql(), aggregate);
    }

    /// How many rows there are of which this is true.
    #[track_caller]
    fn count(&self, condition: &str) -> i64 {
        self.sql().number(&format!(
            "select count(*) from {} where {condition}",
            self.team.table
        ))
    }

    fn topics(&self) -> Vec<String> {
        match self.team.topic {
            Some(topic) => vec![format!("{}.{topic}", self.world.name)],
            None => (0..3)
                .map(|kind| format!("{}-out-0", self.world.kind(kind)))
                .collect(),
        }
    }

    fn delivered(&self) -> i64 {
        self.topics()
            .iter()
            .map(|topic| topic::count(&self.world.brokers, topic))
            .sum()
    }

    /// Every record, with its topic.
    fn records(&self) -> Vec<(String, Record)> {
        let read = |topic: String| {
            let records = topic::read(&self.world.brokers, &topic);
            records
                .into_iter()
                .map(move |record| (topic.clone(), record))
        };
        self.topics().into_iter().flat_map(read).collect()
    }

    /// The records of one row.
    fn records_of(&self, id: &str) -> Vec<Record> {
        let records = self.records().into_iter().map(|(_, record)| record);
        records
            .filter(|record| record.header(self.team.id_header) == id)
            .collect()
    }

    /// What of the rows for which `condition` holds, and no others, was published. Stop the writers
    /// first.
    #[track_caller]
    fn check(&self, condition: &str) -> Findings {
        let rows = self
            .sql()
            .rows(&format!("{} where {condition}", self.team.rows), &[]);
        let topics = self.topics();
        // Where a team has a topic for each kind, a row's kind is in its aggregate.
        let of = |row: &Row| {
            let aggregate: &str = row.get(1);
            let kind = aggregate.rsplit_once('-').map_or("", |(kind, _)| kind);
            let topic = topics
                .iter()
                .find(|topic| topics.len() == 1 || topic.starts_with(kind));
            committed(topic.map_or("", String::as_str), row)
        };
        let rows: Vec<Committed> = rows.iter().map(of).collect();
        self.world
            .verify(&rows, &topics, |record| record.header(self.team.id_header))
    }

    /// Waits until nothing is pending; then every row was published and is marked as its team does.
    /// Gives the findings, which are sound.
    #[track_caller]
    fn settled(&self) -> Findings {
        let findings = self.all_marked();
        findings.assert_sound();
        findings
    }

    /// The same where rows are read from the table: their order is what the team orders by, as far
    /// as that tells.
    #[track_caller]
    fn settled_in_team_order(&self) -> Findings {
        let mut findings = self.all_marked();
        let table = self.team.table;
        let order = self.team.order;
        let sql = self.sql();
        findings.out_of_order.retain(|(first, second)| {
            let told = format!(
                "select (select {order} from {table} where id::text = '{first}')
                      > (select {order} from {table} where id::text = '{second}')"
            );
            sql.text(&told) == "true"
        });
        findings.assert_sound();
        findings
    }

    #[track_caller]
    fn all_marked(&self) -> Findings {
        grown("rows less that are pending", 0, || {
            -self.count(self.team.pending)
        });
        assert_eq!(
            self.count(&format!("not coalesce({}, false)", self.team.sent)),
            0,
            "rows marked in another way"
        );
        self.check("true")
    }
}
