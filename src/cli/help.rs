//! What stands below the flags in `--help`: examples that can be pasted, and exit codes.

pub(super) const AFTER_HELP: &str = "\
Start here:
  walrelay demo                                        # see it work
  walrelay setup --slot orders --create-table          # table and slot of yours
  walrelay run --slot orders --brokers localhost:9092  # relay until Ctrl-C
  walrelay config init --table billing.events          # for a table of yours

A setting may be a flag, a WALRELAY_* variable or a key of the configuration file;
the first of these counts.";

pub(super) const RUN_HELP: &str = "\
Examples:
  walrelay run --slot orders --brokers localhost:9092
  walrelay run --config walrelay.toml --http 9464
  PGHOST=db PGUSER=relay walrelay run --slot orders --brokers kafka:9092
  walrelay run --slot trial --sink stdout

Exit codes:
  0   told to stop, and everything acked was confirmed
  2   the configuration is not valid
  3   told to stop, and events were not acked in time; they are sent at the next start
  11  Postgres refuses (31: Kafka refuses)
  12  the server is not fit for logical replication
  14  the slot is missing, lost, or not ours
  15  publication or table are not as events need them
  16  server, slot and stored position do not belong together
  20  an event cannot be decoded or routed (21: Kafka refuses it)
  70  a bug
What heals by itself, such as a server that cannot be reached, is tried again for as long as it takes.";

pub(super) const SETUP_HELP: &str = "\
Examples:
  walrelay setup --slot orders --create-table
  walrelay setup --slot orders --table sales.outbox --add-xid-column
  walrelay setup --slot orders --mode poll --add-xid-column
  walrelay setup --slot orders --dry-run | psql \"$WALRELAY_DATABASE_URL\"

What is there already and fits is left alone. Table and column come first, then the publication, then the slot, which cannot decode what was written before its publication existed. With --mode poll there is neither.

Exit codes:
  0   all there
  2   the configuration is not valid
  10  Postgres cannot be reached (11: refuses)
  12  the server is not fit, or transactions kept the slot waiting for longer than --timeout
  14  a slot of this name does not fit
  15  publication or table do not fit";

pub(super) const TEARDOWN_HELP: &str = "\
Examples:
  walrelay teardown --slot orders
  walrelay teardown --slot orders --yes

What is stored stays where it is: a relay of a later slot of the same name publishes first what was not published.

Exit codes:
  0   gone
  2   the configuration is not valid, or the answer was not yes
  10  Postgres cannot be reached (11: refuses, or the publication is another role's)
  13  a relay streams from the slot
  14  events were not relayed yet, or the slot is not walrelay's
  15  the publication is neither for one table only nor for those of the configuration";

pub(super) const STATUS_HELP: &str = "\
Examples:
  walrelay status --slot orders
  walrelay status --slot orders --json --max-lag-bytes 64MiB
  walrelay status --slot orders --watch 5

Exit codes:
  0   healthy
  1   no relay streams from it, it is lost or about to be, or it is over a limit
  2   the configuration is not valid
  10  Postgres cannot be reached (11: refuses)
  14  no such slot";

pub(super) const DEMO_HELP: &str = "\
Examples:
  walrelay demo
  walrelay demo --seconds 30 --writers 8 --brokers localhost:9092

What is called \"commit to reader\" is the p50/p99 commit-to-ack latency and a little more: from the time of the commit to the event's arrival at a reader of the topic.

Exit codes:
  0   every event was verified
  1   not verified
  2   the flags are not valid
  4   Postgres' programs are missing";
