//! Texts below the flags in `--help`.

/// Those of one store.
#[derive(Debug)]
pub struct Help {
    pub(super) group: &'static str,
    pub(super) list: &'static str,
    pub(super) show: &'static str,
    pub(super) retry: &'static str,
    pub(super) drop: &'static str,
    /// Of `list` and `show`.
    pub(super) read_exit_codes: &'static str,
    /// Of `retry` and `drop`, and of all commands together.
    pub(super) change_exit_codes: &'static str,
}

pub(super) const PARKED: Help = Help {
    group: "\
Examples:
  walrelay parked list --config walrelay.toml
  walrelay parked show --config walrelay.toml 1017
  walrelay parked retry --config walrelay.toml --class too-large
  walrelay parked drop --config walrelay.toml 1017

A parked event could not be delivered, with delivery.on_error = \"park\", or comes behind one of its aggregate. It waits in the table walrelay.parked of the outbox's database. `walrelay dead-letters` has the same commands for the dead-letter topic. docs/failures.md has all of it.
",
    list: "\
Examples:
  walrelay parked list --slot orders
  walrelay parked list --config walrelay.toml --class refused --older-than 1h
  walrelay parked list --config walrelay.toml --aggregate order-17 --all
  walrelay parked list --config walrelay.toml --json | \\
    jq -r '.events[].row_id'

Nothing is changed. Of an aggregate, only the event that holds it up is listed, with the number of events behind it; --all lists those, too. All conditions given have to hold. No payload is printed. The role needs SELECT on the table.
",
    show: "\
Examples:
  walrelay parked show --slot orders 1017
  walrelay parked show --config walrelay.toml 1017 --payload
  walrelay parked show --config walrelay.toml --aggregate order-17 --json

Shows why an event waits, its position, and the names, types and sizes of its columns; their values only with --payload. At most 20 events are shown. Nothing is changed. The role needs SELECT on the table.
",
    retry: "\
Examples:
  walrelay parked retry --config walrelay.toml --class too-large --dry-run
  walrelay parked retry --config walrelay.toml --aggregate order-17
  walrelay parked retry --config walrelay.toml --all --yes --json

The relay that has the slot tries the first event of each aggregate that is meant, within a second or so. Those behind it follow in their order once it is delivered. Attempts stay counted. Where no relay runs, the next one does it. The role needs SELECT and UPDATE on the table.
",
    drop: "\
Examples:
  walrelay parked drop --config walrelay.toml 1017
  walrelay parked drop --config walrelay.toml --class unroutable --dry-run
  walrelay parked drop --config walrelay.toml --aggregate order-17 --yes

The relay never delivers exactly the events that are meant; events behind them go on. The relay names each in its log, and outbox.mark_failed marks its row. Where no relay runs, the next one does it. walrelay replay --id publishes a row that is still in the outbox. The role needs SELECT and UPDATE on the table.
",
    read_exit_codes: "
Exit codes:
  0   events were listed or shown
  1   no event matches, or nothing is parked
  2   the configuration or a flag is not valid
  10  Postgres cannot be reached (11: refuses)",
    change_exit_codes: "
Exit codes:
  0   the relay was asked; or --dry-run showed what it would be asked
  1   no event matches, or nothing is parked
  2   the configuration or a flag is not valid, or the answer was not yes
  10  Postgres cannot be reached (11: refuses)",
};

pub(super) const DEAD_LETTERS: Help = Help {
    group: "\
Examples:
  walrelay dead-letters list --config walrelay.toml
  walrelay dead-letters show --config walrelay.toml 0:17
  walrelay dead-letters retry --config walrelay.toml --class too-large
  walrelay dead-letters drop --config walrelay.toml 0:17

A dead letter is an event that could not be delivered, with delivery.on_error = \"dead-letter\". It is in the topic delivery.dead_letter_topic. `walrelay parked` has the same commands for the table walrelay.parked. docs/failures.md has all of it.
",
    list: "\
Examples:
  walrelay dead-letters list --slot orders --brokers localhost:9092
  walrelay dead-letters list --config walrelay.toml --class too-large
  walrelay dead-letters list --config walrelay.toml --since 2h --all
  walrelay dead-letters list --config walrelay.toml --json | \\
    jq -r '.events[].row_id'

Nothing is changed, no consumer group is joined, and the database is not asked. Letters that are settled, which were sent again or dropped, are listed with --all. All conditions given have to hold. No payload is printed.
",
    show: "\
Examples:
  walrelay dead-letters show --config walrelay.toml 0:17
  walrelay dead-letters show --config walrelay.toml 0:17 --payload
  walrelay dead-letters show --config walrelay.toml --json \\
    --id 6a1f1d7e-3f0c-4f55-9d0a-0a5a7f0b6c11

Shows key, headers and the size of the value; the value itself only with --payload. Letters that are settled are shown, too. At most 20 letters are shown. Nothing is changed.
",
    retry: "\
Examples:
  walrelay dead-letters retry --config walrelay.toml 0:17 0:18
  walrelay dead-letters retry --config walrelay.toml \\
    --class too-large --dry-run
  walrelay dead-letters retry --config walrelay.toml --aggregate order-17
  walrelay dead-letters retry --config walrelay.toml --all --yes --json

Sends each letter to its topic, with its key, value and headers and walrelay-replay: 1. Once Kafka has it, a marker in the dead-letter topic settles the letter. Letters of a key keep their order; they come after newer events of that key. After a crash in between, the next retry sends a letter again. A letter without a topic or a value is named and left: walrelay replay --id reads its row again.
",
    drop: "\
Examples:
  walrelay dead-letters drop --config walrelay.toml 0:17
  walrelay dead-letters drop --config walrelay.toml --older-than 30d
  walrelay dead-letters drop --config walrelay.toml --class unroutable \\
    --dry-run

Sends nothing but a marker for each letter, into the dead-letter topic: the letter is settled, and list leaves it out. The letters stay for as long as the topic's retention says.
",
    read_exit_codes: "
Exit codes:
  0   letters were listed or shown
  1   no letter matches, or there is no such topic
  2   the configuration or a flag is not valid
  30  Kafka cannot be reached (31: refuses)",
    change_exit_codes: "
Exit codes:
  0   all that can be were settled, others were left; or --dry-run showed them
  1   no letter matches, or there is no such topic
  2   the configuration or a flag is not valid, or the answer was not yes
  3   told to stop before all letters were settled
  20  retry: no letter can be sent as it is
  21  retry: Kafka refuses a letter; those that had arrived are settled
  30  Kafka cannot be reached (31: refuses)",
};
