//! What stands below the flags in `--help`.

pub(in crate::cli) const HELP: &str = "\
Examples:
  walrelay parked list --config walrelay.toml
  walrelay parked show --config walrelay.toml 1017
  walrelay parked retry --config walrelay.toml --class too-large
  walrelay parked drop --config walrelay.toml --id 1017

A parked event could not be delivered, with delivery.on_error = \"park\", or comes behind one of its aggregate. It waits in the table walrelay.parked of the outbox's database. docs/failures.md has all of it.

Exit codes:
  0   done
  1   no event is what was asked for, or nothing is parked
  2   the configuration cannot be meant like this, or the answer was not yes
  10  Postgres cannot be reached (11: refuses)
Each command's own --help has more.";

pub(super) const LIST: &str = "\
Examples:
  walrelay parked list --slot orders
  walrelay parked list --config walrelay.toml --class refused --older-than 1h
  walrelay parked list --config walrelay.toml --aggregate order-17 --all
  walrelay parked list --config walrelay.toml --json | \\
    jq -r '.events[].row_id'

Nothing is changed. Of an aggregate only what holds it up is listed, with how many events wait behind it; --all lists them, too. All conditions given have to hold. No payload is printed. The role needs select on the table.

Exit codes:
  0   events were listed
  1   no event is what was asked for, or nothing is parked
  2   the configuration or a flag cannot be meant like this
  10  Postgres cannot be reached (11: refuses)";

pub(super) const SHOW: &str = "\
Examples:
  walrelay parked show --slot orders 1017
  walrelay parked show --config walrelay.toml 1017 --payload
  walrelay parked show --config walrelay.toml 1017 --json

Why it waits, where it was, and the names, types and sizes of its columns; the values only with --payload. The role needs select on the table.

Exit codes:
  0   it was shown
  1   no event of that row is parked
  2   the configuration or a flag cannot be meant like this
  10  Postgres cannot be reached (11: refuses)";

pub(super) const RETRY: &str = "\
Examples:
  walrelay parked retry --config walrelay.toml --class too-large --dry-run
  walrelay parked retry --config walrelay.toml --aggregate order-17
  walrelay parked retry --config walrelay.toml --all --yes --json

The relay that has the slot tries the first event of each aggregate that is meant, within a second or so, and those behind it once it is delivered, in their order. Attempts stay counted. Where no relay runs, it is done once one is started. The role needs select and update on the table.

Exit codes:
  0   it was asked; or what --dry-run would ask was shown
  1   no event is what was asked for, or nothing is parked
  2   a flag cannot be meant like this, or the answer was not yes
  10  Postgres cannot be reached (11: refuses)";

pub(super) const DROP: &str = "\
Examples:
  walrelay parked drop --config walrelay.toml --id 1017
  walrelay parked drop --config walrelay.toml --class unroutable --dry-run
  walrelay parked drop --config walrelay.toml --aggregate order-17 --yes

Exactly the events that are meant are never delivered by the relay; what waits behind them goes on. The log names each, and outbox.mark_failed says so in its row. Where no relay runs, it is done once one is started. A row that is still in the outbox can be published with walrelay replay --id. The role needs select and update on the table.

Exit codes:
  0   it was asked; or what --dry-run would ask was shown
  1   no event is what was asked for, or nothing is parked
  2   a flag cannot be meant like this, or the answer was not yes
  10  Postgres cannot be reached (11: refuses)";
