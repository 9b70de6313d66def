"""The processes of a campaign, and each kind of fault."""

import os
import random
import shutil
import signal
import subprocess
import threading
import time

import kafka
import nats
import rabbitmq
from servers import (
    PRIMARY_CONF, START_SECONDS, STREAM, Authority, Clock, Kafka, Nats, Network, Postgres, Proxy, Rabbitmq, Relay,
    eventually, free_port,
)
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
retention = "5m"
{outbox}
[route]
topic_prefix = "{prefix}"
{sink}
[delivery]
guarantee = "{guarantee}"
{delivery}
"""
# Such a bus has no key of a record, and keeps no position.
KEYLESS = """
[route.headers]
key = "{{aggregateid}}"
[state]
store = "postgres"
"""
SINKS = {
    "kafka": """
[kafka]
brokers = "{brokers}"
""",
    "nats": KEYLESS + """
[sink]
kind = "nats"
[nats]
servers = "{brokers}"
stream = "{stream}"
""",
    "rabbitmq": KEYLESS + """
[sink]
kind = "rabbitmq"
[rabbitmq]
servers = "{brokers}"
exchange = "{stream}"
""",
}
MARK = """pending = "status = 'PENDING'"\nmark = "status = 'PUBLISHED'\""""
# What each mode adds to [slot], [outbox] and [delivery].
MODES = {
    "slot": {},
    "poll": {"slot": 'mode = "poll"'},
    "mark": {"outbox": MARK},
    "park": {"outbox": MARK, "delivery": 'on_error = "park"'},
}
DISK_SIZE = "3g"
# Events above it are refused.
LIMITS = 300, 700


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
        doors = [[free_port() for _ in range(options.brokers)] for _ in range(options.relays)]
        self.brokers = self.start_brokers(doors)
        self.disk = os.path.join(folder, "disk")
        os.mkdir(self.disk)
        if "postgres-full" in options.kinds:
            try:
                self.mount("size=" + DISK_SIZE)
            except (OSError, subprocess.CalledProcessError) as error:
                print(f"no postgres-full, since a file system cannot be mounted: {error}")
                options.kinds.discard("postgres-full")
        self.authority = Authority(folder) if "certificate" in options.kinds else None
        self.postgres = Postgres(folder, options.postgres, authority=self.authority)
        self.postgres.create()
        if options.sink != "kafka":
            eventually("the stream is there", START_SECONDS, self.brokers[0].make)
        eventually("the brokers answer", START_SECONDS, self.brokers_are_whole)
        self.postgres.sql(TABLES)
        self.proxies, self.relays = {}, []
        front = Proxy(self.network, free_port(), self.postgres.port, options.seed)
        self.proxies["writers", 0] = front
        for number, of in enumerate(doors):
            self.add_relay(number, of)
        # For commands of an operator: nothing is wrong with its way.
        bootstrap = ",".join(f"127.0.0.1:{broker.port}" for broker in self.brokers)
        self.operator = Relay(folder, "operator", options.binary, self.settings(front.port, bootstrap))
        if self.operator.command("setup") != 0:
            raise RuntimeError(f"setup failed: {self.operator.log}")
        self.standby = None
        if "failover" in options.kinds:
            self.standby = Postgres(folder, options.postgres, "standby", self.authority)
            self.add_standby()
            self.postgres.write("postgresql.auto.conf", PRIMARY_CONF)
            self.postgres.sql("select pg_reload_conf()")
            eventually("the standby is in sync", START_SECONDS, self.is_in_sync)
        for relay in self.relays:
            relay.start()
        self.reader = self.make_reader()
        self.reader.start()
        each = options.rate / options.writers
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

    def start_brokers(self, doors):
        options = self.options
        if options.sink == "nats":
            return [Nats(self.folder, PREFIX, options.relays, options.duplicate_window)]
        if options.sink == "rabbitmq":
            return [Rabbitmq(self.folder, options.relays)]
        alone = options.guarantee == "exactly-once" and options.brokers == 1
        controllers = [free_port() for _ in range(options.brokers)]
        return [
            Kafka(self.folder, number, controllers, of, 60_000 if alone else 3_000)
            for number, of in enumerate(zip(*doors), 1)
        ]

    def make_reader(self):
        addresses = [("127.0.0.1", broker.port) for broker in self.brokers]
        records, seen = os.path.join(self.folder, "records.txt"), self.outstanding.seen
        if self.options.sink != "kafka":
            module = {"nats": nats, "rabbitmq": rabbitmq}[self.options.sink]
            return module.StreamReader(addresses[0], STREAM, records, seen)
        return kafka.TopicReader(addresses, PREFIX, self.options.guarantee == "exactly-once", records, seen)

    def add_relay(self, number, doors):
        database = Proxy(self.network, free_port(), self.postgres.port, f"{self.options.seed} {number}")
        self.proxies["postgres", number] = database
        for index, (broker, door) in enumerate(zip(self.brokers, doors), 1):
            seed = f"{self.options.seed} {number} {index}"
            self.proxies[self.options.sink, f"{number}.{index}"] = Proxy(self.network, door, broker.doors[number], seed)
        bootstrap = ",".join(f"127.0.0.1:{door}" for door in doors)
        text = self.settings(database.port, bootstrap)
        self.relays.append(Relay(self.folder, number, self.options.binary, text))

    def settings(self, port, brokers):
        tls = f"sslmode=verify-full&sslrootcert={self.authority.crt}" if self.authority else "sslmode=disable"
        more = {"slot": "", "outbox": "", "delivery": "", **MODES[self.options.mode]}
        sink = SINKS[self.options.sink].format(brokers=brokers, stream=STREAM)
        return RELAY.format(
            database=self.postgres.url_at(port, tls), prefix=PREFIX, sink=sink,
            guarantee=self.options.guarantee, **more,
        )

    def mount(self, how):
        command = ["mount", "-t", "tmpfs", "-o", how, "none", self.disk]
        subprocess.run(command, check=True, capture_output=True)

    def brokers_are_whole(self):
        return all([broker.is_whole(len(self.brokers)) for broker in self.brokers])

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

    def clock(self, server):
        """Its time of day jumps, by up to a day, and later back. Before its certificate no server is trusted."""
        ways = (1,) if self.authority else (-1, 1)
        server.clock.jump(self.chance.choice(ways) * 86_400 ** self.chance.random())
        return 1 + self.long(8), lambda: server.clock.jump(0) or True

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
            if side in ("postgres", "writers"):
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

    def postgres_full(self, postgres):
        """No room on the disk of the data; a standby has it, too."""
        try:
            self.mount(f"remount,size={shutil.disk_usage(self.disk).used + self.chance.randrange(1 << 20)}")
        except subprocess.CalledProcessError:
            # It grew meanwhile.
            return None

        def room():
            self.mount("remount,size=" + DISK_SIZE)
            return postgres.answers() and (self.standby is None or self.is_in_sync())

        return self.long(8), room

    def read_only(self, postgres):
        def change(how):
            return postgres.sql(f"alter system {how}", "select pg_reload_conf()") == ["t"]

        done = change("set default_transaction_read_only = on")
        return (self.long(8), lambda: change("reset default_transaction_read_only")) if done else None

    def certificate(self, postgres):
        postgres.certify()
        return (0, None) if postgres.sql("select pg_reload_conf()") == ["t"] else None

    def broker_kill(self, broker):
        broker.kill()
        return self.long(1 if len(self.brokers) == 1 else 8), self.brokers_are_whole

    def broker_stop(self, broker):
        broker.signal(signal.SIGTERM)

        stopping = broker.process

        def back():
            if broker.process is stopping:
                if not broker.ended():
                    return False
                broker.process = None
            return self.brokers_are_whole()

        return 0, back

    def broker_freeze(self, broker):
        broker.freeze()
        return self.long(5 if len(self.brokers) == 1 else 8), lambda: broker.thaw() or self.brokers_are_whole()

    def partitions(self, broker):
        topic = PREFIX + self.chance.choice(TOPICS)
        count = len(broker.ask(kafka.Connection.metadata, (0, {}))[1].get(topic, ()))
        more = 0 < count < PARTITIONS_MAX and broker.ask(lambda connection: connection.add_partitions(topic, count + 1))
        return (0, None) if more else None

    def topic_limit(self, broker):
        """A topic that refuses some events. They are parked, until an operator tries them again."""
        topic = PREFIX + self.chance.choice(TOPICS)
        if not broker.limit(topic, self.chance.randint(*LIMITS)):
            return None

        def lift():
            return broker.limit(topic, None) and self.retry_parked()

        return self.long(8), lift

    def retry_parked(self):
        """Whether an operator asked for all of them; 1 is that there is none to ask for."""
        return self.operator.command("parked", "retry", "--all", "--yes") in (0, 1)

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
        for server in [*self.relays, self.postgres, *self.brokers]:
            if server.is_frozen:
                server.thaw()
        for relay in self.relays:
            relay.kill()
        for writer in self.writers:
            writer.ending = True
            writer.leave()
        self.reader.ending.set()
        for broker in self.brokers:
            broker.kill()
        for postgres in filter(None, (self.standby, self.postgres)):
            postgres.signal(signal.SIGQUIT)
            if not postgres.ended():
                postgres.process.wait(30)
        Clock.sweep()


def resume(pid):
    try:
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        pass
    return True
