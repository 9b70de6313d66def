#!/usr/bin/env python3
"""Judges a run: what writers noted outside of the database against what consumers read.

It shares no code with walrelay. Exit code: 0 sound, 1 a promise is broken, 2 the logs cannot be judged.

    judge.py --ledger FILE... --records FILE... [--guarantee exactly-once] [--may-move] [--may-go-stale] [--json]

Fields are separated by tabs, and contain none. Further fields of a line are ignored.

A ledger has a line before each commit or rollback is sent, and one after each answer. A writer appends and syncs them:

    INTENT  TRANSACTION  EVENT...     an event is ID,TOPIC,AGGREGATE,NUMBER,DIGEST
    COMMIT  TRANSACTION
    ABORT   TRANSACTION
    UNKNOWN TRANSACTION               as without an answer; a COMMIT or ABORT after it decides

Numbers of an aggregate count its committed events in a topic, from 1, in the order of the commits.

Records have a line for each that a consumer read, those of a partition in the order of their offsets:

    TOPIC PARTITION OFFSET KEY ID NUMBER DIGEST ISOLATION     committed or uncommitted

What is checked, for each aggregate in each partition where it matters:

- lost: a committed event without a record. An event of unknown outcome counts as committed if another one of its
  transaction has a record, or if a later event of its aggregate is committed.
- phantom: a record whose id no ledger has. aborted: its transaction was rolled back.
- altered: number or digest differ from the ledger. misplaced: topic or key do.
- reordered: the first record of an event is behind one of a later event of the aggregate.
- scattered: an aggregate is in several partitions. With --may-move it is only counted, and each has its own order.
- stale: the last record of an aggregate is not its newest event. After an event that is published again, the later ones
  are, too. With --may-go-stale it is only counted: a relay that stood still, or was cut off, may do that.
- duplicates: further records of an event. Only exactly-once forbids them, and wants committed reads.
- gaps, only counted: after a duplicate, an event follows that is not the next one.

Events are kept in arrays: 10^7 of them need about 2 GB.
"""

import argparse
import array
import hashlib
import json
import sys

OPEN, COMMITTED, ABORTED = 0, 1, 2
EXAMPLES_MAX = 20


class Unfit(Exception):
    """The logs cannot be judged."""


class Ledger:
    """The events of all writers. An event is an index into the arrays."""

    def __init__(self):
        self.events = {}
        self.transactions = {}
        self.outcomes = bytearray()
        self.aggregates = {}
        self.transaction_of = array.array("I")
        self.aggregate_of = array.array("I")
        self.number_of = array.array("I")
        self.digest_of = array.array("Q")
        self.records_of = array.array("I")

    def read(self, path):
        # A line that was torn by the end of a writer has no end: its commit was not sent.
        for place, line in lines(path):
            if not line.endswith("\n"):
                continue
            fields = line[:-1].split("\t")
            if fields[0] == "INTENT" and len(fields) > 2:
                self.intent(place, fields[1], fields[2:])
            elif fields[0] in ("COMMIT", "ABORT", "UNKNOWN") and len(fields) > 1:
                self.outcome(place, fields[0], fields[1])
            else:
                raise Unfit(f"{place}: neither an intent nor an outcome")

    def intent(self, place, transaction, events):
        index = self.transactions.setdefault(transaction, len(self.outcomes))
        if index < len(self.outcomes):
            raise Unfit(f"{place}: transaction {transaction} has two intents")
        self.outcomes.append(OPEN)
        for event in events:
            fields = event.split(",")
            if len(fields) != 5 or not fields[3].isdigit():
                raise Unfit(f"{place}: an event is ID,TOPIC,AGGREGATE,NUMBER,DIGEST, and not {event}")
            identity = short(fields[0])
            if self.events.setdefault(identity, len(self.number_of)) < len(self.number_of):
                raise Unfit(f"{place}: event {fields[0]} is there twice")
            self.transaction_of.append(index)
            self.aggregate_of.append(self.aggregates.setdefault((fields[1], fields[2]), len(self.aggregates)))
            self.number_of.append(int(fields[3]))
            self.digest_of.append(word(fields[4]))
            self.records_of.append(0)

    def outcome(self, place, kind, transaction):
        index = self.transactions.get(transaction)
        if index is None:
            raise Unfit(f"{place}: transaction {transaction} has an outcome and no intent")
        before, now = self.outcomes[index], {"COMMIT": COMMITTED, "ABORT": ABORTED, "UNKNOWN": OPEN}[kind]
        if before not in (OPEN, now):
            raise Unfit(f"{place}: transaction {transaction} has two outcomes")
        self.outcomes[index] = now

    def decide(self):
        """Gives transactions without an answer the outcome that the records and later events prove."""
        for event, transaction in enumerate(self.transaction_of):
            if self.records_of[event] and self.outcomes[transaction] == OPEN:
                self.outcomes[transaction] = COMMITTED
        holes = self.holes()
        proven = set()
        for event, transaction in enumerate(self.transaction_of):
            numbers = holes.get(self.aggregate_of[event])
            if numbers and self.outcomes[transaction] == OPEN and self.number_of[event] in numbers:
                proven.add(transaction)
        for transaction in proven:
            self.outcomes[transaction] = COMMITTED
        if proven:
            holes = self.holes()
        if holes:
            names = {index: name for name, index in self.aggregates.items()}
            index, numbers = min(holes.items())
            raise Unfit(f"the ledger lacks event {min(numbers)} of aggregate {'/'.join(names[index])}, or has it twice")

    def holes(self):
        """By aggregate, the numbers without a committed event, or with two."""
        most = array.array("I", bytes(4 * len(self.aggregates)))
        count = array.array("I", bytes(4 * len(self.aggregates)))
        for event, aggregate in enumerate(self.aggregate_of):
            if self.outcomes[self.transaction_of[event]] == COMMITTED:
                count[aggregate] += 1
                most[aggregate] = max(most[aggregate], self.number_of[event])
        holes = {index: list(range(1, most[index] + 1)) for index in range(len(most)) if most[index] != count[index]}
        seen = {index: {} for index in holes}
        for event, aggregate in enumerate(self.aggregate_of):
            if aggregate in seen and self.outcomes[self.transaction_of[event]] == COMMITTED:
                numbers = seen[aggregate]
                numbers[self.number_of[event]] = numbers.get(self.number_of[event], 0) + 1
        return {index: {number for number in of if seen[index].get(number, 0) != 1} for index, of in holes.items()}


class Lane:
    """An aggregate in a partition."""

    __slots__ = ("newest", "last", "last_is_duplicate")

    def __init__(self):
        self.newest = self.last = 0
        self.last_is_duplicate = False


class Verdict:
    """Counts, and the first examples of each."""

    KINDS = (
        "lost", "phantom", "aborted", "altered", "misplaced", "reordered", "scattered", "stale", "duplicates", "gaps",
    )

    def __init__(self):
        self.counts = dict.fromkeys(self.KINDS, 0)
        self.examples = {kind: [] for kind in self.KINDS}

    def add(self, kind, example):
        self.counts[kind] += 1
        if len(self.examples[kind]) < EXAMPLES_MAX:
            self.examples[kind].append(example)


class Judge:
    def __init__(self, exactly_once=False, may_move=False, may_go_stale=False):
        self.ledger = Ledger()
        self.verdict = Verdict()
        self.exactly_once = exactly_once
        self.tolerated = {"gaps"}
        self.tolerated |= {"scattered"} if may_move else set()
        self.tolerated |= {"stale"} if may_go_stale else set()
        self.tolerated |= set() if exactly_once else {"duplicates"}
        self.offsets = {}
        self.lanes = {}
        self.partition_of = {}
        self.records = 0

    def read_records(self, path):
        for place, line in lines(path):
            fields = line.rstrip("\n").split("\t")
            if len(fields) < 8 or not fields[1].isdigit() or not fields[2].isdigit():
                raise Unfit(f"{place}: not a record")
            if fields[7] not in ("committed", "uncommitted"):
                raise Unfit(f"{place}: read committed or uncommitted, and not {fields[7]}")
            if self.exactly_once and fields[7] != "committed":
                raise Unfit(f"{place}: exactly-once is a promise to those who read committed records")
            partition, offset = (fields[0], int(fields[1])), int(fields[2])
            last = self.offsets.get(partition, -1)
            # A consumer may read again what it read.
            if offset > last:
                self.offsets[partition] = offset
                self.records += 1
                self.record(place, partition, fields)

    def record(self, place, partition, fields):
        topic, _, offset, key, identity, number, digest = fields[:7]
        where = f"{identity or 'no id'} at {topic}/{partition[1]}/{offset}"
        ledger = self.ledger
        event = ledger.events.get(short(identity))
        if event is None:
            return self.verdict.add("phantom", where)
        if ledger.outcomes[ledger.transaction_of[event]] == ABORTED:
            return self.verdict.add("aborted", where)
        if number != str(ledger.number_of[event]) or word(digest) != ledger.digest_of[event]:
            self.verdict.add("altered", where)
        aggregate = ledger.aggregate_of[event]
        if ledger.aggregates.get((topic, key)) != aggregate:
            return self.verdict.add("misplaced", where)
        self.place(where, event, partition[1], aggregate)

    def place(self, where, event, partition, aggregate):
        """Of each aggregate: first records in order, and what follows a duplicate."""
        number = self.ledger.number_of[event]
        is_duplicate = self.ledger.records_of[event] > 0
        self.ledger.records_of[event] += 1
        first_partition = self.partition_of.setdefault(aggregate, partition)
        if first_partition != partition and (aggregate, partition) not in self.lanes:
            self.verdict.add("scattered", where)
        lane = self.lanes.get((aggregate, partition))
        if lane is None:
            lane = self.lanes[(aggregate, partition)] = Lane()
        if is_duplicate:
            self.verdict.add("duplicates", where)
        elif number <= lane.newest:
            self.verdict.add("reordered", f"{where}: {number} behind {lane.newest}")
        if lane.last_is_duplicate and number > lane.last + 1:
            self.verdict.add("gaps", f"{where}: {number} behind {lane.last}")
        lane.newest = max(lane.newest, number)
        lane.last = number
        lane.last_is_duplicate = is_duplicate

    def close(self):
        """Once everything was read."""
        ledger = self.ledger
        ledger.decide()
        names = {index: name for name, index in ledger.aggregates.items()}
        lost = [
            event for event, transaction in enumerate(ledger.transaction_of)
            if ledger.outcomes[transaction] == COMMITTED and not ledger.records_of[event]
        ]
        for event in lost:
            of = "/".join(names[ledger.aggregate_of[event]])
            self.verdict.add("lost", f"event {ledger.number_of[event]} of {of}")
        for (aggregate, partition), lane in self.lanes.items():
            if lane.last != lane.newest:
                of = "/".join(names[aggregate])
                self.verdict.add("stale", f"{of} in partition {partition}: {lane.last} behind {lane.newest}")

    def broken(self):
        """What the run broke."""
        return {kind: count for kind, count in self.verdict.counts.items() if count and kind not in self.tolerated}

    def summary(self):
        outcomes = [self.ledger.outcomes[transaction] for transaction in self.ledger.transaction_of]
        return {
            "committed": outcomes.count(COMMITTED),
            "rolled_back": outcomes.count(ABORTED),
            "unknown": outcomes.count(OPEN),
            "aggregates": len(self.ledger.aggregates),
            "records": self.records,
            **self.verdict.counts,
            "sound": not self.broken(),
        }


def lines(path):
    with open(path, encoding="utf-8", newline="\n") as file:
        for number, line in enumerate(file, 1):
            yield f"{path}:{number}", line


def short(identity):
    return hashlib.blake2b(identity.encode(), digest_size=16).digest()


def word(digest):
    return int.from_bytes(hashlib.blake2b(digest.encode(), digest_size=8).digest(), "little")


def table(judge):
    for name, value in judge.summary().items():
        if name != "sound":
            print(f"{name:<12}{value:>14,}{'  broken' if name in judge.broken() else ''}")
    for kind in judge.broken():
        for example in judge.verdict.examples[kind]:
            print(f"{kind}: {example}")


def main(arguments=None):
    parser = argparse.ArgumentParser(description="Judges records against ledgers; see the head of this file.")
    parser.add_argument("--ledger", nargs="+", action="extend", required=True, metavar="FILE")
    parser.add_argument("--records", nargs="*", default=[], metavar="FILE")
    parser.add_argument("--guarantee", choices=["at-least-once", "exactly-once"], default="at-least-once")
    parser.add_argument("--may-move", action="store_true", help="topics got more partitions")
    parser.add_argument("--may-go-stale", action="store_true", help="a relay stood still or was cut off")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    judge = Judge(options.guarantee == "exactly-once", options.may_move, options.may_go_stale)
    try:
        for path in options.ledger:
            judge.ledger.read(path)
        for path in options.records:
            judge.read_records(path)
        judge.close()
    except (Unfit, OSError, UnicodeDecodeError) as error:
        print(f"judge: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps({**judge.summary(), "broken": judge.broken(), "examples": judge.verdict.examples}))
    else:
        table(judge)
    return 1 if judge.broken() else 0


if __name__ == "__main__":
    sys.exit(main())
