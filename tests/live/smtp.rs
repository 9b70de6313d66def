//! P1, P2, P3: mails arrive, each once where nothing fails, whatever a server answers.

mod answers;
mod campaign;
mod hostile;
mod real;
mod server;

use serde_json::Value;

use crate::support::relay::{Relay, RelayCommand};
use crate::support::servers::Postgres;
use crate::support::sql::Sql;
use crate::support::wait::eventually;
use crate::support::world::{ARRIVAL, World};

const BUS_REFUSED: Option<i32> = Some(31);

/// A table of mails, and the relay's settings for it.
const TABLE: &str = "
    create table mails (id uuid primary key default gen_random_uuid(), aggregatetype text,
        aggregateid text, sender text default 'shop@example.org', recipient text,
        subject text default 'Hello', payload text default 'text', metadata jsonb default '{}',
        created_at timestamptz default now())";
const ROUTES: &str = "
[outbox]
table = \"mails\"
[route]
topic = \"mail\"
key = \"\"
timestamp = \"created_at\"
headers_from = \"{metadata}\"
[route.headers]
From = \"{sender}\"
To = \"{recipient}\"
Subject = \"{subject}\"
";

struct Mails {
    world: World,
    config: String,
}

impl Mails {
    /// For a server on this port, with these lines in `[smtp]`.
    #[track_caller]
    fn to(port: u16, smtp: &str) -> Mails {
        let world = World::bare(Postgres::shared(), "");
        world.sql().run(TABLE);
        let mut mails = Mails {
            world,
            config: String::new(),
        };
        mails.configure(port, smtp);
        let setup = mails.world.command("setup").config_file(&mails.config);
        setup.succeed();
        mails
    }

    fn configure(&mut self, port: u16, smtp: &str) {
        let tls = match smtp.contains("tls =") {
            true => "",
            false => "tls = \"off\"",
        };
        self.config =
            format!("{ROUTES}[smtp]\nhost = \"127.0.0.1\"\nport = {port}\n{tls}\n{smtp}\n");
    }

    fn sql(&self) -> Sql {
        self.world.sql()
    }

    fn run(&self) -> RelayCommand {
        self.world
            .command("run")
            .option("--sink", "smtp")
            .option("--log-format", "json")
            .config_file(&self.config)
    }

    #[track_caller]
    fn relay(&self, on_error: &str) -> Relay {
        let mut relay = self.run().option("--on-error", on_error).start();
        relay.wait_ready();
        relay
    }

    /// Writes a mail from this user of `example.org`.
    #[track_caller]
    fn insert(&self, sender: &str) {
        self.sql().run(&format!(
            "insert into mails (sender, recipient) values ('{sender}@example.org',
             'ann@example.org')"
        ));
    }

    /// The classes of what is parked, by senders.
    fn parked(&self) -> String {
        let parked = "select coalesce(string_agg(split_part(m.sender, '@', 1) || ' ' || p.class,
                      ', ' order by m.sender), '')
                      from walrelay.parked p join mails m on m.id::text = convert_from(p.row_id, \
                      'UTF8')";
        self.sql().text(parked)
    }
}

/// The first line of the log with this code.
#[track_caller]
fn logged(relay: &Relay, event: &str) -> Value {
    let line = || {
        let log = relay.log();
        let mut lines = log
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.find(|line| line["event"] == event)
    };
    eventually(event, ARRIVAL, line, Option::is_some).expect("a line")
}
