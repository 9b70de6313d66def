//! What stands below the flags in `--help`.

pub(in crate::cli) const HELP: &str = "\
Examples:
  walrelay dead-letters list --config walrelay.toml
  walrelay dead-letters show --config walrelay.toml 0:17
  walrelay dead-letters replay --config walrelay.toml --class too-large
  walrelay dead-letters discard --config walrelay.toml 0:17

A dead letter is an event that could not be delivered, in the topic delivery.dead_letter_topic, with delivery.on_error = \"dead-letter\". docs/failures.md has all of it.

Exit codes:
  0   done
  1   no letter is what was asked for, or there is no such topic
  2   the configuration cannot be meant like this, or the answer was not yes
  3   told to stop before all letters were settled
  20  no letter can be sent as it is (21: Kafka refuses one)
  30  Kafka cannot be reached (31: refuses)
Each command's own --help has more.";

pub(super) const LIST: &str = "\
Examples:
  walrelay dead-letters list --slot orders --brokers localhost:9092
  walrelay dead-letters list --config walrelay.toml --class too-large
  walrelay dead-letters list --config walrelay.toml --since 2h --settled
  walrelay dead-letters list --config walrelay.toml --json | \\
    jq -r '.letters[].row_id'

Nothing is changed, no consumer group is joined, and the database is not asked. All conditions given have to hold. No payload is printed.

Exit codes:
  0   letters were listed
  1   no letter is what was asked for, or there is no such topic
  2   the configuration or a flag cannot be meant like this
  30  Kafka cannot be reached (31: refuses)";

pub(super) const SHOW: &str = "\
Examples:
  walrelay dead-letters show --config walrelay.toml 0:17
  walrelay dead-letters show --config walrelay.toml 0:17 --payload
  walrelay dead-letters show --config walrelay.toml --json \\
    --id 6a1f1d7e-3f0c-4f55-9d0a-0a5a7f0b6c11

Key, headers, and the size of the value; the value itself only with --payload. Letters that are settled are shown, too. At most 20 are shown.

Exit codes:
  0   it was shown
  1   there is no such letter, or no such topic
  2   the configuration or a flag cannot be meant like this
  30  Kafka cannot be reached (31: refuses)";

pub(super) const REPLAY: &str = "\
Examples:
  walrelay dead-letters replay --config walrelay.toml 0:17 0:18
  walrelay dead-letters replay --config walrelay.toml \\
    --class too-large --dry-run
  walrelay dead-letters replay --config walrelay.toml --aggregate order-17
  walrelay dead-letters replay --config walrelay.toml --all --yes --json

Each letter goes to the topic it was for, with its key, value and headers and walrelay-replay: 1, and is settled once it is there: a marker in the dead-letter topic says so. Letters of a key keep their order; they come after newer events of it. A crash in between sends a letter again at the next replay. What had no topic, or lost its value, is named and left: walrelay replay --id reads the row again.

Exit codes:
  0   sent, acked and settled; or what --dry-run would send was shown. What cannot be sent as it is was left
  1   no letter is what was asked for, or there is no such topic
  2   a flag cannot be meant like this, or the answer was not yes
  3   told to stop before all letters were settled
  20  none of them can be sent as it is
  21  Kafka refuses one; those that had arrived are settled
  30  Kafka cannot be reached (31: refuses)";

pub(super) const DISCARD: &str = "\
Examples:
  walrelay dead-letters discard --config walrelay.toml 0:17
  walrelay dead-letters discard --config walrelay.toml --older-than 30d
  walrelay dead-letters discard --config walrelay.toml --class unroutable \\
    --dry-run

Nothing is sent but a marker for each letter, in the dead-letter topic: list leaves those out. The letters stay for as long as the topic's retention says.

Exit codes:
  0   settled; or what --dry-run would settle was shown
  1   no letter is what was asked for, or there is no such topic
  2   a flag cannot be meant like this, or the answer was not yes
  3   told to stop before all letters were settled
  30  Kafka cannot be reached (31: refuses)";
