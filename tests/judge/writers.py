"""Writers of an outbox, each a psql of its own, that note outside of the database what they commit."""

import os
import random
import subprocess
import threading
import time

from records import digest

TABLES = """
create table aggregates (topic text, aggregate text, n int, primary key (topic, aggregate));
create table outbox (
    id text primary key, aggregatetype text not null, aggregateid text not null, type text not null,
    payload text, number int, status text default 'PENDING', seq bigint generated always as identity,
    created_at timestamptz default now(), xid xid8 default pg_current_xact_id()
);
create index on outbox (xid);
create index on outbox (seq) where status = 'PENDING';
create table resolved (transaction text);
"""
INSERT = """with bump as (
    insert into aggregates values ('{kind}', '{aggregate}', 1)
    on conflict (topic, aggregate) do update set n = aggregates.n + 1 returning n
)
insert into outbox (id, aggregatetype, aggregateid, type, payload, number)
select '{id}', '{kind}', '{aggregate}', 'Changed', '{{"n": ' || n || ', "fill": "{fill}"}}', n from bump
returning '=' || number;
"""
LETTERS = "abcdefghij klmnop\u00e9\u6f22\U0001f600\t'"
KINDS = ("orders", "bills", "mails")
AGGREGATES = 40


class Gone(Exception):
    """The session ended."""


class Psql:
    """A session that is told statements and answers in lines."""

    def __init__(self, url, log):
        command = ["psql", "-X", "-A", "-t", "-v", "VERBOSITY=terse", url]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, encoding="utf-8",
            env={**os.environ, "PGCONNECT_TIMEOUT": "5"},
        )
        self.asked = 0

    def send(self, statements):
        self.asked += 1
        try:
            self.process.stdin.write(f"{statements}\n\\echo ~{self.asked}\n")
            self.process.stdin.flush()
        except OSError:
            raise Gone from None

    def answer(self):
        found = []
        for line in self.process.stdout:
            line = line.rstrip("\n")
            if line == f"~{self.asked}":
                return found
            found.append(line)
        raise Gone

    def ask(self, statements):
        self.send(statements)
        return self.answer()

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        try:
            self.process.stdin.close()
        except OSError:
            pass


class Ledger:
    """Lines that are on the disk once `note` returns."""

    def __init__(self, path):
        self.file = open(path, "x", encoding="utf-8")

    def note(self, *lines):
        self.file.write("".join(line + "\n" for line in lines))
        self.file.flush()
        os.fdatasync(self.file.fileno())


class Writer(threading.Thread):
    """Writes transactions until told to stop. `committed(ids)` is told of each commit that is known."""

    def __init__(self, name, url, folder, prefix, seed, rate, committed):
        super().__init__(name=f"writer {name}", daemon=True)
        self.label, self.url, self.prefix, self.rate, self.committed = name, url, prefix, rate, committed
        self.ledger = Ledger(os.path.join(folder, f"ledger-{name}.txt"))
        self.log = open(os.path.join(folder, f"psql-{name}.log"), "ab")
        self.chance = random.Random(f"{seed} {name}")
        self.session = None
        self.transactions = self.events = 0
        self.unknown = {}
        self.going = threading.Event()
        self.paused = threading.Event()
        self.ending = False
        self.failure = None

    def run(self):
        try:
            while not self.ending:
                if not self.going.is_set():
                    self.paused.set()
                    self.going.wait(0.1)
                    continue
                self.paused.clear()
                started, before = time.monotonic(), self.events
                try:
                    self.resolve()
                    self.transaction()
                except Gone:
                    self.leave()
                    time.sleep(0.1)
                pause = (self.events - before) / self.rate - (time.monotonic() - started)
                time.sleep(max(0, pause))
        except BaseException as error:
            self.failure = error
            raise
        finally:
            self.paused.set()

    def pause(self):
        """Stops writing; decides what is unknown, for which the database has to be there."""
        self.going.clear()
        self.paused.wait()
        while self.unknown and self.failure is None:
            try:
                self.resolve()
            except Gone:
                self.leave()
            time.sleep(0.1 if self.unknown else 0)

    def leave(self):
        if self.session is not None:
            self.session.end()
            self.session = None

    def ask(self, statements):
        if self.session is None:
            self.session = Psql(self.url, self.log)
        return self.session.ask(statements)

    def transaction(self):
        self.transactions += 1
        name, chance = f"{self.label}.{self.transactions}", self.chance
        size = chance.choices((1, chance.randint(2, 20), chance.randint(100, 600)), (40, 58, 2))[0]
        plan = sorted((chance.choice(KINDS), f"a{chance.randrange(AGGREGATES)}") for _ in range(size))
        fate = chance.choices(("commit", "roll back", "die before", "die at", "die after"), (85, 8, 2, 3, 2))[0]
        undone = chance.random() < 0.1
        xid, events = self.write(name, "begin", plan)
        if undone:
            _, rolled_back = self.write(f"{name}.s", "savepoint s", plan[:2])
            self.ask("rollback to s;")
            self.ledger.note(intent(f"{name}.s", rolled_back), f"ABORT\t{name}.s")
        if chance.random() < 0.05:
            self.ask(f"select pg_sleep({chance.random() / 2:.2f});")
        if fate in ("commit", "die at", "die after"):
            return self.commit(name, xid, events, fate)
        self.ledger.note(intent(name, events), f"ABORT\t{name}")
        if fate == "roll back":
            self.ask("rollback;")
        else:
            self.leave()

    def write(self, name, begin, plan):
        """Inserts an event for each aggregate of the plan; its ids, topics, aggregates, numbers and digests."""
        chance, events, statements = self.chance, [], [begin + ";", "select '^' || pg_current_xact_id();"]
        for index, (kind, aggregate) in enumerate(plan):
            length = chance.choices((chance.randrange(300), 20_000, 200_000), (100, 1, 0.1))[0]
            fill = "".join(chance.choices(LETTERS, k=min(length, 300))) * max(1, length // 300)
            # A tab is no character of JSON, and belongs there escaped.
            fill = fill.replace("\t", "\\t")
            identity = f"{name}.{index}"
            quoted = fill.replace("'", "''")
            statements.append(INSERT.format(kind=kind, aggregate=aggregate, id=identity, fill=quoted))
            events.append((identity, self.prefix + kind, aggregate, fill))
        answer = self.ask("\n".join(statements))
        numbers = [int(line[1:]) for line in answer if line.startswith("=")]
        xids = [line[1:] for line in answer if line.startswith("^")]
        if len(numbers) != len(events) or not xids:
            # A deadlock, or the server is going down: nothing of it can be committed any more.
            raise Gone
        self.events += len(events)
        return xids[0], [
            f"{identity},{topic},{aggregate},{n}," + digest(f'{{"n": {n}, "fill": "{fill}"}}'.encode())
            for (identity, topic, aggregate, fill), n in zip(events, numbers)
        ]

    def commit(self, name, xid, events, fate):
        self.ledger.note(intent(name, events))
        ids = [event.split(",")[0] for event in events]
        answer = None
        try:
            self.session.send("commit;")
            if fate == "die after":
                time.sleep(self.chance.random() / 100)
            if fate == "commit":
                answer = self.session.answer()
        except Gone:
            pass
        if answer and answer[-1] == "COMMIT":
            self.ledger.note(f"COMMIT\t{name}")
            self.committed(ids)
        elif answer and answer[-1] == "ROLLBACK":
            self.ledger.note(f"ABORT\t{name}")
        else:
            self.ledger.note(f"UNKNOWN\t{name}")
            self.unknown[name] = xid, ids
            self.leave()

    def resolve(self):
        """Asks the database for outcomes. The rows decide: after a crash another transaction may get the id."""
        for name, (xid, ids) in list(self.unknown.items()):
            state = self.ask(
                f"select case when '{xid}'::xid8 < pg_current_xact_id() then pg_xact_status('{xid}') else 'never' end;"
            )
            if not state or state[0] == "in progress":
                continue
            quoted = ", ".join(f"'{identity}'" for identity in ids)
            rows = self.ask(f"select count(*) from outbox where id in ({quoted});")
            if not rows:
                continue
            if int(rows[0]) not in (0, len(ids)):
                raise RuntimeError(f"transaction {name} has {rows[0]} of {len(ids)} rows")
            # A commit that was not answered may lack on the standby; once this one is answered it does not.
            if self.ask(f"insert into resolved values ('{name}');") != ["INSERT 0 1"]:
                continue
            outcome = "COMMIT" if int(rows[0]) else "ABORT"
            self.ledger.note(f"{outcome}\t{name}")
            if outcome == "COMMIT":
                self.committed(ids)
            del self.unknown[name]

    def stop(self):
        self.ending = True
        self.going.set()
        self.join()
        self.leave()


def intent(name, events):
    return "\t".join(["INTENT", name, *events])
