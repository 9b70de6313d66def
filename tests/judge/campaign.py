#!/usr/bin/env python3
"""Faults at random against real servers, under load, until the time is up; then the judge decides.

    scripts/campaign --hours H --seed N [--kinds relay-kill,slot-drop] [--guarantee exactly-once] [--relays 1..3]

Starts a Postgres, a Kafka and relays with a proxy on each of their ways, all on loopback, in a temporary directory that
stays if something was found. Each round ends with all faults mended, all events delivered and a verdict. Exit code: 0
sound, 1 a promise is broken or a relay ended by itself, 2 the campaign failed.
"""

import argparse
import collections
import heapq
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import servers  # noqa: E402: their path comes first
from kafka import Connection, Reader  # noqa: E402
from servers import ROOT, Broker, Network, Postgres, Proxy, Relay, free_port  # noqa: E402
from writers import KINDS as TOPICS  # noqa: E402
from writers import TABLES, Writer  # noqa: E402

PREFIX = "judged."
# How many faults of 1,000 are of a kind, where all kinds are there.
WEIGHTS = {
    "relay-kill": 300, "relay-stop": 90, "relay-freeze": 60,
    "walsender-end": 110, "walsender-freeze": 40, "postgres-restart": 25, "backend-kill": 15,
    "postgres-cut": 90, "postgres-silent": 30, "postgres-slow": 30,
    "kafka-cut": 90, "kafka-silent": 30, "kafka-slow": 30, "broker-kill": 8, "broker-freeze": 15,
    "failover": 15, "slot-drop": 15, "open-transaction": 10, "add-column": 10, "partitions": 2,
}
# A relay that stood still, or was cut off, may send records once more behind newer ones.
STALE = {"relay-freeze", "postgres-silent", "kafka-silent", "kafka-slow", "broker-freeze", "walsender-freeze", "kafka-cut"}
# A lone broker that is killed during a commit may lose it (KAFKA-20734).
NOT_EXACTLY_ONCE = {"broker-kill"}
PARTITIONS_MAX = 12
BEHIND_MAX = 20_000
STALLED_SECONDS = 120
STOP_SECONDS = 45
ENDS_MAX = 20
# The exit code of a relay that was stopped while its servers were away.
LEFT = 3
SETTLE_SECONDS = 180
QUIET_SECONDS = 2
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


class Found(Exception):
    """The relays do not go on."""


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


class Fault:
    def __init__(self, kind, target, began):
        self.kind, self.target, self.began = kind, target, began


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
            self.postgres.write("postgresql.auto.conf", servers.PRIMARY_CONF)
            self.postgres.sql("select pg_reload_conf()")
            servers.eventually("the standby is in sync", servers.START_SECONDS, self.is_in_sync)
        for relay in self.relays:
            relay.start()
        committed = options.guarantee == "exactly-once"
        records = os.path.join(folder, "records.txt")
        self.reader = Reader(("127.0.0.1", self.broker.port), PREFIX, committed, records, self.outstanding.seen)
        self.reader.start()
        each, front = options.rate / options.writers, Proxy(self.network, free_port(), self.postgres.port, options.seed)
        self.proxies["writers", 0] = front
        self.writers = [
            Writer(f"w{number}", self.postgres.url_at(front.port), folder, PREFIX, options.seed, each, self.outstanding.committed)
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
        has = "sync_state = 'sync' and flush_lsn >= '{}'"
        return flushed and self.postgres.sql(f"select 1 from pg_stat_replication where {has.format(flushed[0])}") == ["1"]

    # --- faults: each gives what it was done to, for how long, and what mends it -----------------------------------

    def relay_kill(self, relay):
        relay.kill()
        return self.chance.choice((0, 0, self.chance.random())), lambda: relay.start() or True

    def relay_stop(self, relay):
        relay.is_wanted = False
        relay.signal(signal.SIGTERM)
        end = time.monotonic() + STOP_SECONDS

        def restart():
            if not relay.ended():
                if time.monotonic() < end:
                    return False
                self.on_end(relay, "it did not stop")
                relay.kill()
            elif relay.process.returncode not in (0, LEFT):
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
        pids = postgres.sql("select pid from pg_stat_activity where pid <> pg_backend_pid() and backend_type ~ 'client|walsender'")
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


class Campaign:
    """When which fault happens, what it did, and the verdicts."""

    def __init__(self, world, options):
        self.world, self.options, self.chance = world, options, random.Random(f"{options.seed} faults")
        self.began = time.monotonic()
        self.busy, self.mends, self.order = set(), [], itertools.count()
        self.faults = collections.Counter()
        self.recent = collections.deque(maxlen=400)
        self.stalls = {}
        self.ends = []
        self.broken = {}
        self.last_verdict = {}
        self.log = open(os.path.join(world.folder, "faults.txt"), "a", encoding="utf-8")
        world.on_end = self.on_end

    def note(self, *fields):
        self.log.write("\t".join([f"{time.time():.3f}", *map(str, fields)]) + "\n")
        self.log.flush()

    def say(self, text):
        minutes = (time.monotonic() - self.began) / 60
        print(f"{minutes:6.1f} min  {text}", flush=True)

    def on_end(self, relay, how):
        self.note("relay-ended", relay.number, how)
        self.say(f"relay {relay.number} ended: {how}: {relay.log}")
        self.ends.append((relay.number, how))
        if len(self.ends) > ENDS_MAX:
            raise Found("relays end again and again")

    def candidates(self):
        """What can happen now, by kind: how, to what, and the names that are busy meanwhile."""
        world = self.world
        for relay in world.relays:
            name = {f"relay-{relay.number}"}
            if relay.is_wanted:
                yield "relay-kill", world.relay_kill, relay, name
                yield "relay-stop", world.relay_stop, relay, name
                yield "relay-freeze", world.relay_freeze, relay, name
        for (side, number), proxy in world.proxies.items():
            for kind in ("cut", "silent", "slow") if side != "writers" else ():
                yield f"{side}-{kind}", getattr(world, kind), proxy, {f"{side}-door-{number}"}
        for kind in ("walsender-end", "walsender-freeze", "postgres-restart", "backend-kill", "slot-drop", "add-column"):
            yield kind, getattr(world, kind.replace("-", "_")), world.postgres, {"postgres"}
        if world.standby is not None:
            yield "failover", world.failover, world.postgres, {"postgres"}
        yield "open-transaction", world.open_transaction, world.postgres, {"transaction"}
        for kind in ("broker-kill", "broker-freeze", "partitions"):
            yield kind, getattr(world, kind.replace("-", "_")), world.broker, {"broker"}

    def fault(self):
        by_kind = collections.defaultdict(list)
        for candidate in self.candidates():
            if candidate[0] in self.options.kinds and not candidate[3] & self.busy:
                by_kind[candidate[0]].append(candidate)
        if not by_kind:
            return
        kinds = sorted(by_kind)
        kind = self.chance.choices(kinds, [WEIGHTS[kind] for kind in kinds])[0]
        _, begin, target, names = self.chance.choice(by_kind[kind])
        began = time.monotonic()
        done = begin(target)
        if done is None:
            return
        seconds, mend = done
        self.faults[kind] += 1
        fault = Fault(kind, " ".join(sorted(names)), began)
        self.recent.append(fault)
        self.note(kind, fault.target, f"{seconds:.2f}")
        if mend is not None:
            self.busy |= names
            entry = began + seconds, next(self.order), mend, names, began + seconds + servers.START_SECONDS, kind
            heapq.heappush(self.mends, entry)

    def mend(self, at_once=False):
        """Ends the faults whose time is over."""
        now, later = time.monotonic(), []
        while self.mends and (at_once or self.mends[0][0] <= now):
            due, order, mend, names, deadline, kind = heapq.heappop(self.mends)
            if mend():
                self.busy -= names
                self.note("mended", kind, " ".join(sorted(names)))
            elif now > deadline:
                raise RuntimeError(f"{kind} could not be mended")
            else:
                later.append((max(due, now) + 0.1, order, mend, names, deadline, kind))
        for entry in later:
            heapq.heappush(self.mends, entry)

    def watch(self):
        """Relays that ended by themselves, helpers that failed, and how long nothing arrived."""
        for relay in self.world.relays:
            if relay.is_wanted and relay.ended():
                self.on_end(relay, f"code {relay.process.returncode}")
                relay.start()
        for helper in [self.world.reader, *self.world.writers]:
            if helper.failure is not None:
                raise RuntimeError(f"{helper.name}: {helper.failure}")
        while self.world.reader.gaps:
            self.stall(*self.world.reader.gaps.popleft())

    def stall(self, start, end):
        """Its reason is the last fault before it, or else the first one in it."""
        before = [fault.kind for fault in self.recent if start - 1 <= fault.began <= start + 0.3]
        during = [fault.kind for fault in self.recent if start < fault.began <= end]
        since = (before[-1:] or during[:1] or ["none"])[0]
        if end - start > self.stalls.get(since, 0):
            self.stalls[since] = end - start
            self.note("stall", since, f"{end - start:.1f}")

    def may_fault(self, last):
        """Most faults wait until the one before them is over; some come in the midst of a recovery."""
        behind = self.world.outstanding.count()
        if behind > BEHIND_MAX:
            return False
        silent = time.monotonic() - self.world.reader.arrived
        if silent > STALLED_SECONDS and not self.busy:
            raise Found(f"nothing arrived for {silent:.0f} s, and {behind} events wait")
        return self.world.reader.arrived > last or (silent < 5 and self.chance.random() < 0.02)

    def round(self, end):
        for writer in self.world.writers:
            writer.going.set()
        self.world.reader.arrived = last = time.monotonic()
        due = last + self.pause()
        report = last + 60 * self.options.report_minutes
        while time.monotonic() < end:
            self.mend()
            self.watch()
            now = time.monotonic()
            if now >= due and self.may_fault(last):
                self.fault()
                last = time.monotonic()
                due = last + self.pause()
            if now >= report:
                report += 60 * self.options.report_minutes
                self.say(self.figures())
            time.sleep(0.02)
        self.settle()

    def pause(self):
        return self.chance.expovariate(1 / self.options.pause)

    def figures(self):
        events = sum(writer.events for writer in self.world.writers)
        return (
            f"{sum(self.faults.values())} faults, {events} events written, {self.world.reader.count} records,"
            f" {self.world.outstanding.count()} on their way"
        )

    def settle(self):
        """All is mended, and all is delivered; then the judge decides."""
        self.world.is_settling = True
        end = time.monotonic() + SETTLE_SECONDS
        while self.mends:
            self.mend(at_once=True)
            time.sleep(0.05)
        for writer in self.world.writers:
            writer.pause()
        while time.monotonic() < end:
            self.watch()
            if not self.world.outstanding.count() and time.monotonic() - self.world.reader.arrived > QUIET_SECONDS:
                break
            time.sleep(0.05)
        else:
            self.say(f"not all was delivered {SETTLE_SECONDS} s after the last fault")
        self.world.is_settling = False
        self.world.reader.gaps.clear()
        self.judge()

    def judge(self):
        world, kinds = self.world, set(self.faults)
        command = [sys.executable, os.path.join(ROOT, "tests/judge/judge.py"), "--json"]
        command += ["--guarantee", self.options.guarantee, "--ledger"]
        command += [os.path.join(world.folder, f"ledger-{writer.label}.txt") for writer in world.writers]
        command += ["--records", os.path.join(world.folder, "records.txt")]
        command += ["--may-move"] if "partitions" in kinds else []
        command += ["--may-go-stale"] if STALE & kinds else []
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode not in (0, 1):
            raise RuntimeError(done.stderr.strip())
        self.last_verdict = json.loads(done.stdout)
        self.broken = self.last_verdict["broken"]
        self.say("judged: " + self.figures() + "; " + (
            "broken: " + ", ".join(f"{count} {kind}" for kind, count in self.broken.items()) if self.broken else "sound"
        ))
        for kind in [*self.broken, *(["gaps"] if self.last_verdict["gaps"] else [])]:
            for example in self.last_verdict["examples"][kind][:5]:
                self.say(f"{kind}: {example}")

    def summary(self):
        print(f"\n{'kind':<18}{'faults':>8}{'longest stall':>15}")
        for kind, count in self.faults.most_common():
            print(f"{kind:<18}{count:>8,}{self.stalls.get(kind, 0):>13.1f} s")
        print(f"{'all':<18}{sum(self.faults.values()):>8,}\n")
        for name, value in self.last_verdict.items():
            if isinstance(value, int) and name != "sound":
                print(f"{name:<18}{value:>12,}")
        print(f"{'relays ended':<18}{len(self.ends):>12,}", flush=True)


def arguments():
    parser = argparse.ArgumentParser(description="Faults against real servers; see the head of this file.")
    parser.add_argument("--hours", type=float, required=True)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--kinds", type=lambda text: set(text.split(",")), default=set(WEIGHTS), help=", ".join(WEIGHTS))
    parser.add_argument("--guarantee", choices=["at-least-once", "exactly-once"], default="at-least-once")
    parser.add_argument("--mode", choices=list(MODES), default="slot", help="what the relays read, and whether they mark")
    parser.add_argument("--relays", type=int, choices=[1, 2, 3], default=2)
    parser.add_argument("--writers", type=int, default=4)
    parser.add_argument("--rate", type=float, default=200, help="events a second")
    parser.add_argument("--pause", type=float, default=0.7, help="mean seconds between faults")
    parser.add_argument("--postgres", type=int, default=15, help="major version")
    parser.add_argument("--round-minutes", type=float, default=10, help="from verdict to verdict")
    parser.add_argument("--report-minutes", type=float, default=2)
    parser.add_argument("--binary", default=os.environ.get("WALRELAY_BINARY"), help="default: that of target")
    options = parser.parse_args()
    if options.kinds - set(WEIGHTS):
        parser.error(f"unknown kinds: {', '.join(sorted(options.kinds - set(WEIGHTS)))}")
    if options.guarantee == "exactly-once" and options.mode == "mark":
        parser.error("exactly-once does not mark rows")
    if options.postgres < 17:
        options.kinds -= {"failover"}
    if options.guarantee == "exactly-once":
        options.kinds -= NOT_EXACTLY_ONCE
    built = [os.path.join(ROOT, "target", profile, "walrelay") for profile in ("release", "debug")]
    options.binary = options.binary or next((path for path in built if os.path.exists(path)), None)
    if options.binary is None:
        parser.error("there is no walrelay in target: build it, or name it with --binary")
    return options


def run(folder, options):
    world = campaign = None
    try:
        world = World(folder, options)
        campaign = Campaign(world, options)
        end = time.monotonic() + options.hours * 3600
        while time.monotonic() < end and not campaign.broken:
            campaign.round(min(end, time.monotonic() + options.round_minutes * 60))
        return 1 if campaign.broken or campaign.ends else 0
    except Found as found:
        campaign.say(str(found))
        return 1
    finally:
        if campaign is not None:
            campaign.summary()
        if world is not None:
            world.close()


def main():
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = tempfile.mkdtemp(prefix="walrelay-campaign-")
    os.chmod(folder, 0o711)
    print(f"seed {options.seed}, {options.binary}, logs in {folder}", flush=True)
    code = 2
    try:
        code = run(folder, options)
    except KeyboardInterrupt:
        code = 130
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        print(f"campaign: {error}", file=sys.stderr)
    finally:
        if code == 0:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            print(f"kept: {folder}", flush=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
