#!/usr/bin/env python3
"""Faults at random against real servers, under load, until the time is up; then the judge decides.

    scripts/campaign --hours H --seed N [--kinds relay-kill,slot-drop] [--guarantee exactly-once] [--relays 1..3]
    scripts/campaign --hours H --seed N --sink nats [--duplicate-window SECONDS]
    scripts/campaign --hours H --seed N --sink rabbitmq

Starts a Postgres, brokers of Kafka or a server of another bus, and relays with a proxy on each of their ways, all on
loopback, in a temporary directory that stays if something was found. Each round ends with all faults mended, all events
delivered and a verdict.
Exit code: 0 sound, 1 a promise is broken, a relay ended by itself or grows, 2 the campaign failed.
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

import measures  # noqa: E402: their path comes first
from servers import ROOT, START_SECONDS, Clock  # noqa: E402
from world import MODES, SINKS, World  # noqa: E402

# How many faults of 1,000 are of a kind, where all kinds are there.
WEIGHTS = {
    "relay-kill": 300, "relay-stop": 90, "relay-freeze": 60, "relay-clock": 30, "postgres-clock": 30,
    "walsender-end": 110, "walsender-freeze": 40, "postgres-restart": 25, "backend-kill": 15,
    "postgres-cut": 90, "postgres-silent": 30, "postgres-slow": 30,
    "kafka-cut": 90, "kafka-silent": 30, "kafka-slow": 30, "nats-cut": 90, "nats-silent": 30, "nats-slow": 30,
    "rabbitmq-cut": 90, "rabbitmq-silent": 30, "rabbitmq-slow": 30,
    "broker-kill": 8, "broker-freeze": 15,
    "failover": 15, "slot-drop": 15, "open-transaction": 10, "add-column": 10, "partitions": 2,
    "broker-stop": 10, "postgres-full": 15, "read-only": 20, "certificate": 15, "topic-limit": 40,
}
OF_POSTGRES = (
    "walsender-end", "walsender-freeze", "postgres-restart", "backend-kill", "slot-drop", "add-column",
    "postgres-full", "read-only", "certificate",
)
OF_BROKERS = "broker-kill", "broker-stop", "broker-freeze", "partitions", "topic-limit"
OF_CLOCKS = {"relay-clock", "postgres-clock"}
# A relay that stood still, or was cut off, may send records once more behind newer ones. One that was sent before a
# crash, and is refused now, may be parked behind newer ones.
STALE = {
    "relay-freeze", "walsender-freeze", "postgres-silent", "kafka-cut", "kafka-silent", "kafka-slow", "broker-freeze",
    "nats-cut", "nats-silent", "nats-slow", "rabbitmq-cut", "rabbitmq-silent", "rabbitmq-slow", "topic-limit",
}
# A lone broker that ends during a commit may lose it (KAFKA-20734).
NOT_EXACTLY_ONCE_ALONE = {"broker-kill", "broker-stop"}
# Those from which a relay continues in moments.
OF_SOAK = {
    "walsender-end", "postgres-cut", "postgres-slow", "kafka-cut", "kafka-slow", "nats-cut", "nats-slow",
    "rabbitmq-cut", "rabbitmq-slow", "add-column", "certificate",
}
BEHIND_MAX = 20_000
STALLED_SECONDS = 120
ENDS_MAX = 20
SETTLE_SECONDS = 180
QUIET_SECONDS = 2
LOST_SECONDS = 60


Fault = collections.namedtuple("Fault", "kind target began")


class Found(Exception):
    """The relays do not go on."""


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
        self.soak = measures.Soak(world) if options.soak else None
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
                yield "relay-clock", world.clock, relay, {f"relay-clock-{relay.number}"}
        for (side, number), proxy in world.proxies.items():
            for kind in ("cut", "silent", "slow") if side != "writers" else ():
                yield f"{side}-{kind}", getattr(world, kind), proxy, {f"{side}-door-{number}"}
        for kind in OF_POSTGRES:
            yield kind, getattr(world, kind.replace("-", "_")), world.postgres, {"postgres"}
        yield "postgres-clock", world.clock, world.postgres, {"postgres-clock"}
        if world.standby is not None:
            yield "failover", world.failover, world.postgres, {"postgres"}
        yield "open-transaction", world.open_transaction, world.postgres, {"transaction"}
        for broker, kind in itertools.product(world.brokers, OF_BROKERS):
            yield kind, getattr(world, kind.replace("-", "_")), broker, {"broker"}

    def fault(self):
        by_kind = collections.defaultdict(list)
        for candidate in self.candidates():
            if candidate[0] in self.options.kinds and not candidate[3] & self.busy:
                by_kind[candidate[0]].append(candidate)
        if not by_kind:
            return
        kinds = sorted(by_kind)
        each = {kind: self.options.brokers if kind.startswith("broker-") else 1 for kind in kinds}
        kind = self.chance.choices(kinds, [WEIGHTS[kind] * each[kind] for kind in kinds])[0]
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
            entry = began + seconds, next(self.order), mend, names, began + seconds + START_SECONDS, kind
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
        told = self.soak and self.soak.watch()
        if told:
            self.say(told)

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
        if not self.world.reader.count:
            return False
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
        end, retry = time.monotonic() + SETTLE_SECONDS, 0
        while self.mends:
            self.mend(at_once=True)
            time.sleep(0.05)
        for writer in self.world.writers:
            writer.pause()
        while time.monotonic() < end:
            self.watch()
            quiet = time.monotonic() - self.world.reader.arrived
            if quiet > (LOST_SECONDS if self.world.outstanding.count() else QUIET_SECONDS):
                break
            if self.options.mode == "park" and time.monotonic() > retry:
                retry = time.monotonic() + 1
                self.world.retry_parked()
            time.sleep(0.05)
        if self.world.outstanding.count():
            self.say(f"not all was delivered; the last record came {quiet:.0f} s ago")
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
        print(f"{'relays ended':<18}{len(self.ends):>12,}\n")
        for title, counts in measures.reached(self.world):
            print(title)
            for name, count in counts:
                print(f"  {name:<40}{count:>12,}")
        if self.soak is not None:
            print(self.soak)
        sys.stdout.flush()


def arguments():
    parser = argparse.ArgumentParser(description="Faults against real servers; see the head of this file.")
    parser.add_argument("--hours", type=float, required=True)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    kinds = {"type": lambda text: set(text.split(",")), "default": set(WEIGHTS), "help": ", ".join(WEIGHTS)}
    parser.add_argument("--kinds", **kinds)
    parser.add_argument("--guarantee", choices=["at-least-once", "exactly-once"], default="at-least-once")
    parser.add_argument("--mode", choices=list(MODES), default="slot", help="of the relays")
    parser.add_argument("--sink", choices=list(SINKS), default="kafka")
    parser.add_argument("--duplicate-window", type=float, default=120, help="of the stream of NATS, in seconds")
    parser.add_argument("--relays", type=int, choices=[1, 2, 3], default=2)
    parser.add_argument("--brokers", type=int, choices=[1, 3], default=1)
    parser.add_argument("--writers", type=int, default=4)
    parser.add_argument("--rate", type=float, help="events a second; default: 200, of a soak 500")
    parser.add_argument("--pause", type=float, help="mean seconds between faults; default: 0.7, of a soak 20")
    parser.add_argument("--soak", action="store_true", help="small faults; tells how the relays grow")
    parser.add_argument("--postgres", type=int, default=15, help="major version")
    parser.add_argument("--round-minutes", type=float, default=10, help="from verdict to verdict")
    parser.add_argument("--report-minutes", type=float, default=2)
    parser.add_argument("--binary", default=os.environ.get("WALRELAY_BINARY"), help="default: that of target")
    options = parser.parse_args()
    if options.kinds - set(WEIGHTS):
        parser.error(f"unknown kinds: {', '.join(sorted(options.kinds - set(WEIGHTS)))}")
    if options.guarantee == "exactly-once" and options.mode in ("mark", "park"):
        parser.error("exactly-once does not write to rows")
    if options.sink != "kafka":
        if options.guarantee == "exactly-once" or options.brokers > 1:
            parser.error("exactly-once and several brokers are for Kafka")
        options.kinds -= {"partitions"}
    options.kinds -= {kind for kind in WEIGHTS if kind.split("-")[0] in set(SINKS) - {options.sink}}
    if options.postgres < 17:
        options.kinds -= {"failover"}
    if options.guarantee == "exactly-once" and options.brokers == 1:
        options.kinds -= NOT_EXACTLY_ONCE_ALONE
    # A message has no limit there that can be changed.
    if options.mode != "park" or options.sink == "rabbitmq":
        options.kinds -= {"topic-limit"}
    if options.soak:
        options.kinds &= OF_SOAK
    options.rate = options.rate or (500 if options.soak else 200)
    options.pause = options.pause or (20 if options.soak else 0.7)
    built = [os.path.join(ROOT, "target", profile, "walrelay") for profile in ("release", "debug")]
    options.binary = options.binary or next((path for path in built if os.path.exists(path)), None)
    if options.binary is None:
        parser.error("there is no walrelay in target: build it, or name it with --binary")
    if options.kinds & OF_CLOCKS and not Clock.works_with(options.binary):
        print("no clock faults: they need libfaketime, and a walrelay that was built without the feature jemalloc")
        options.kinds -= OF_CLOCKS
    if not options.kinds & OF_CLOCKS:
        Clock.LIBRARY = None
    return options


def run(folder, options):
    world = campaign = None
    try:
        world = World(folder, options)
        campaign = Campaign(world, options)
        end = time.monotonic() + options.hours * 3600
        while time.monotonic() < end and not campaign.broken:
            campaign.round(min(end, time.monotonic() + options.round_minutes * 60))
        grows = campaign.soak is not None and any(grown for *_, grown in campaign.soak.slopes())
        return 1 if campaign.broken or campaign.ends or grows else 0
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
    signal.signal(signal.SIGTERM, signal.default_int_handler)
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
        if code in (0, 130):
            subprocess.run(["umount", "-l", os.path.join(folder, "disk")], capture_output=True, check=False)
            shutil.rmtree(folder, ignore_errors=True)
        else:
            print(f"kept: {folder}", flush=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
