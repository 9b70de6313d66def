"""The processes of a campaign, and each kind of fault."""

import os
import random
import signal
import subprocess
import threading
import time

from kafka import Connection, Reader
from servers import PRIMARY_CONF, START_SECONDS, Broker, Network, Postgres, Proxy, Relay, eventually, free_port
from writers import KINDS as TOPICS
from writers import TABLES, Writer

PREFIX = "judged."
PARTITIONS_MAX = 12
STOP_SECONDS = 45
# The exit code of a relay that was stopped while its servers were away.
LEFT = 3
RELAY = """
[database]
url = "{database}"
[slot]
name = "judged"
wal_sender_timeout = "3s"
{slot}
[outbox]
table = "public.outbox"
order_by = "seq"
{outbox}
[route]
topic_prefix = "{prefix}"
[kafka]
brokers = "127.0.0.1:{broker}"
[delivery]
guarantee = "{guarantee}"
"""

# What each mode adds to [slot] and [outbox].
MODES = {
    "slot": {"slot": "", "outbox": ""},
    "poll": {"slot": 'mode = "poll"', "outbox": ""},
    "mark": {"slot": "", "outbox": """pending = "status = 'PENDING'"\nmark = "status = 'PUBLISHED'\""""},
}


class Outstanding:
    """The ids of events that are known to be committed, and were not seen yet."""

    def __init__(self):
        self.lock, self.missing, self.early = threading.Lock(), set(), set()

    def committed(self, ids):
        with self.lock:
            for identity in ids:
                if identity in self.early:
                    self.early.discard(identity)
                else:
                    self.missing.add(identity)

    def seen(self, identity):
        with self.lock:
            if identity in self.missing:
                self.missing.discard(identity)
            else:
                # Before its commit was answered, or once more.
                self.early.add(identity)

    def count(self):
        with self.lock:
            return len(self.missing)


class World:
    """All processes, and what is wrong with them at present."""

    def __init__(self, folder, options):
        self.folder, self.options = folder, options
        self.chance = random.Random(options.seed)
        self.network = Network()
        self.outstanding = Outstanding()
        doors = [free_port() for _ in range(options.relays)]
        self.broker = Broker(folder, doors, 60_000 if options.guarantee == "exactly-once" else 3_000)
        self.postgres = Postgres(folder, options.postgres)
        self.postgres.create()
        self.broker.wait()
        self.postgres.sql(TABLES)
        self.proxies, self.relays = {}, []
        for number, door in enumerate(doors):
            self.add_relay(number, door)
        self.relays[0].setup()
        self.standby = None
        if "failover" in options.kinds:
            self.standby = Postgres(folder, options.postgres, "standby")
            self.add_standby()
            self.postgres.write("postgresql.auto.conf", PRIMARY_CONF)
            self.postgres.sql("select pg_reload_conf()")
            eventually("the standby is in sync", START_SECONDS, self.is_in_sync)
        for relay in self.relays:
            relay.start()
        committed = options.guarantee == "exactly-once"
        records = os.path.join(folder, "records.txt")
        self.reader = Reader(("127.0.0.1", self.broker.port), PREFIX, committed, records, self.outstanding.seen)
        self.reader.start()
        each, front = options.rate / options.writers, Proxy(self.network, free_port(), self.postgres.port, options.seed)
        self.proxies["writers", 0] = front
        self.writers = [
            Writer(
                f"w{number}", self.postgres.url_at(front.port), folder, PREFIX, options.seed, each,
                self.outstanding.committed,
            )
            for number in range(options.writers)
        ]
        for writer in self.writers:
            writer.start()
        self.columns = 0

    def add_relay(self, number, door):
        database = Proxy(self.network, free_port(), self.postgres.port, f"{self.options.seed} {number}")
        bus = Proxy(self.network, door, self.broker.doors[number], f"{self.options.seed} {number}")
        self.proxies["postgres", number], self.proxies["kafka", number] = database, bus
        text = RELAY.format(
            database=self.postgres.url_at(database.port), prefix=PREFIX, broker=door, guarantee=self.options.guarantee,
            **MODES[self.options.mode],
        )
        self.relays.append(Relay(self.folder, number, self.options.binary, text))

    def add_standby(self):
        self.postgres.sql("select pg_create_physical_replication_slot('standby', true)")
        self.standby.clone(self.postgres)

    def is_in_sync(self):
        if self.standby.ended():
            self.standby.start()
        flushed = self.postgres.sql("select pg_current_wal_flush_lsn()")
        has = "select 1 from pg_stat_replication where application_name = 'standby' and flush_lsn >= '{}'"
        return flushed and self.postgres.sql(has.format(flushed[0])) == ["1"]

    # --- faults: each gives what it was done to, for how long, and what mends it -----------------------------------

    def relay_kill(self, relay):
        relay.kill()
        return self.chance.choice((0, 0, self.chance.random())), lambda: relay.start() or True

    def relay_stop(self, relay):
        relay.is_wanted = False
        # It takes a moment until a process handles signals.
        was_young = time.monotonic() - relay.started < 1
        relay.signal(signal.SIGTERM)
        end = time.monotonic() + STOP_SECONDS

        def restart():
            if not relay.ended():
                if time.monotonic() < end:
                    return False
                self.on_end(relay, "it did not stop")
                relay.kill()
            elif relay.process.returncode not in (0, LEFT, -signal.SIGTERM if was_young else 0):
                self.on_end(relay, f"code {relay.process.returncode} after SIGTERM")
            relay.start()
            return True

        return 0, restart

    def relay_freeze(self, relay):
        relay.freeze()

        def thaw():
            if self.chance.random() < 0.3:
                relay.kill()
                relay.start()
            else:
                relay.thaw()
            return True

        return self.long(8), thaw

    def walsender_end(self, postgres):
        ended = postgres.sql("select count(pg_terminate_backend(active_pid)) from pg_replication_slots where active")
        return (0, None) if ended and ended != ["0"] else None

    def walsender_freeze(self, postgres):
        pids = postgres.sql("select active_pid from pg_replication_slots where active")
        if not pids:
            return None
        os.kill(int(pids[0]), signal.SIGSTOP)
        return self.long(8), lambda: resume(int(pids[0]))

    def postgres_restart(self, postgres):
        postgres.signal(signal.SIGQUIT)
        postgres.process.wait(60)
        return self.chance.random(), postgres.answers

    def backend_kill(self, postgres):
        others = "pid <> pg_backend_pid() and backend_type ~ 'client|walsender'"
        pids = postgres.sql(f"select pid from pg_stat_activity where {others}")
        if not pids:
            return None
        os.kill(int(self.chance.choice(pids)), signal.SIGKILL)
        return 0.3, postgres.answers

    def failover(self, primary):
        """To a standby that has all that was answered. Its copy of the slot may lag, or lack."""
        if not self.is_in_sync():
            return None
        primary.signal(signal.SIGQUIT)
        primary.process.wait(60)
        self.postgres, self.standby = self.standby, primary
        if self.postgres.sql("select pg_promote(true, 60)") != ["t"]:
            raise RuntimeError(f"the standby was not promoted: {self.postgres.log}")
        for (side, _), proxy in self.proxies.items():
            if side != "kafka":
                self.network.do(proxy.lead_to(self.postgres.port))
        self.add_standby()
        return 0, self.is_in_sync

    def slot_drop(self, postgres):
        done = postgres.sql("""do $$ begin for attempt in 1..200 loop begin
            perform pg_terminate_backend(active_pid) from pg_replication_slots where active and slot_name = 'judged';
            perform pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = 'judged';
            return;
            exception when object_in_use then perform pg_sleep(0.005); end; end loop;
            raise 'the slot was in use'; end $$; select 1""")
        return (0, None) if done else None

    def add_column(self, postgres):
        self.columns += 1
        change = f"add extra_{self.columns} text default 'x'"
        if self.columns > 1 and self.chance.random() < 0.7:
            change += f", drop if exists extra_{self.columns - 1}"
        done = postgres.sql(f"set lock_timeout = '2s'; alter table outbox {change}; select 1")
        return (0, None) if done else None

    def open_transaction(self, postgres):
        """One that wrote, which delays the creation of a slot."""
        seconds = self.long(12)
        command = f"begin; select pg_current_xact_id(); select pg_sleep({seconds:.2f}); rollback"
        process = subprocess.Popen(
            ["psql", "-X", "-q", "-c", command, postgres.url], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )

        def gone():
            if process.poll() is None and not self.is_settling:
                return False
            process.kill()
            process.wait()
            return True

        return seconds, gone

    def broker_kill(self, broker):
        broker.kill()
        broker.start()
        return self.chance.random(), broker.answers

    def broker_freeze(self, broker):
        broker.freeze()
        return self.long(5), lambda: broker.thaw() or broker.answers()

    def partitions(self, broker):
        connection = Connection(("127.0.0.1", broker.port))
        try:
            topic = PREFIX + self.chance.choice(TOPICS)
            count = connection.partitions().get(topic, PARTITIONS_MAX)
            return (0, None) if count < PARTITIONS_MAX and connection.add_partitions(topic, count + 1) else None
        except (OSError, EOFError):
            return None
        finally:
            connection.close()

    def cut(self, proxy):
        if self.chance.random() < 0.6:
            self.network.do(proxy.cut())
            return 0, None
        return self.change(proxy, self.long(3), is_away=True)

    def silent(self, proxy):
        # What was held back arrives late, or never.
        return self.change(proxy, self.long(8), is_silent=True, ends_with_cut=self.chance.random() < 0.5)

    def slow(self, proxy):
        return self.change(proxy, self.long(6), is_slow=True)

    def change(self, proxy, seconds, ends_with_cut=False, **state):
        self.network.do(proxy.change(**state))

        def mend():
            if ends_with_cut:
                self.network.do(proxy.cut())
            self.network.do(proxy.change())
            return True

        return seconds, mend

    def long(self, most):
        """Seconds, mostly few."""
        return 0.1 + most * self.chance.random() ** 2

    is_settling = False

    def on_end(self, relay, how):
        raise NotImplementedError

    def close(self):
        for server in [*self.relays, self.postgres, self.broker]:
            if server.is_frozen:
                server.thaw()
        for relay in self.relays:
            relay.kill()
        for writer in self.writers:
            writer.ending = True
            writer.leave()
        self.reader.ending.set()
        self.broker.kill()
        for postgres in filter(None, (self.standby, self.postgres)):
            postgres.signal(signal.SIGQUIT)
            if not postgres.ended():
                postgres.process.wait(30)


def resume(pid):
    try:
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        pass
    return True
