"""What a campaign reached in the relays, and whether they grow."""

import collections
import math
import os
import re
import time

from kafka import Connection, records
from servers import ROOT

STATE_TOPIC = "walrelay-state"
# Slopes are judged without the start, where caches and pools fill.
WARM_SECONDS = 300
# A slope counts from so many of its standard errors on, if it is as large a part of the mean in an hour, too.
ERRORS_MIN, PART_MIN = 3, 0.05


def points():
    """The names of all failpoints."""
    with open(os.path.join(ROOT, "crates/core/src/failpoint.rs"), encoding="utf-8") as file:
        lists = re.findall(r"const \w+: \[&str; \d+\] = \[(.*?)\];", file.read(), re.DOTALL)
    return re.findall(r'"([a-z-]+)"', " ".join(lists))


def reached(world):
    """Tables of (title, counts): processes that reached each failpoint, and log lines of each event."""
    found = collections.Counter()
    if os.path.exists(world.relays[0].points):
        with open(world.relays[0].points, encoding="utf-8") as file:
            found.update(file.read().split())
        yield "processes that reached", [(name, found[name]) for name in points()]
    logged = collections.Counter()
    for relay in world.relays:
        with open(relay.log, encoding="utf-8", errors="replace") as file:
            logged.update(event for line in file for event in re.findall(r' event="([a-z_]+)"', line))
    yield "log lines", logged.most_common()


class Soak:
    """Samples of all relays together, once a minute."""

    MEASURES = "RSS, KiB", "descriptors", "threads", "connections", "log lines a minute", "state record, bytes"

    def __init__(self, world):
        self.world, self.began = world, time.monotonic()
        self.samples = []
        self.lines, self.at, self.due = 0, {}, self.began
        self.state = {}

    def watch(self):
        """None until a minute is over, or if a relay is not there."""
        if time.monotonic() < self.due or any(relay.ended() for relay in self.world.relays):
            return None
        self.due += 60
        relays = [process(relay.process.pid) for relay in self.world.relays]
        lines, self.lines = self.lines, sum(self.count(relay.log) for relay in self.world.relays)
        sums = [sum(of) for of in zip(*relays)]
        values = *sums, self.lines - lines, self.record()
        self.samples.append((time.monotonic() - self.began, values))
        return ", ".join(f"{value:,} {name}" for name, value in zip(self.MEASURES, values))

    def count(self, log):
        with open(log, "rb") as file:
            return sum(1 for _ in file)

    def record(self):
        """The size of the last record of the state's topic, or of what Postgres has of it."""
        if self.world.options.sink != "kafka":
            sizes = self.world.postgres.sql("select sum(length(value::text)) from walrelay.position")
            return int(sizes[0] or 0) if sizes else 0
        for broker in self.world.brokers:
            topics = broker.ask(Connection.metadata, (0, {}))[1]
            for place in [(STATE_TOPIC, number) for number in topics.get(STATE_TOPIC, ())]:
                self.read(broker, place)
        return sum(size for _, size in self.state.values())

    def read(self, broker, place):
        while True:
            offset, size = self.state.get(place, (0, 0))
            fetched = broker.ask(lambda connection: connection.fetch({place: offset}, False, 1), {})
            error, _, batches = fetched.get(place, (1, [], b""))
            found = list(records(batches, [], False)) if error == 0 else []
            if not found:
                return
            sizes = [len(key or b"") + len(value or b"") for _, _, key, value, _ in found[:-1]]
            self.state[place] = found[-1][0], (sizes or [size])[-1]

    def slopes(self):
        """Of each measure: its mean, slope an hour, standard error of that, and whether it grows."""
        kept = [(seconds / 3600, values) for seconds, values in self.samples if seconds >= WARM_SECONDS]
        for index, name in enumerate(self.MEASURES):
            yield name, *slope([(hours, values[index]) for hours, values in kept])

    def __str__(self):
        head = f"{'of all relays':<22}{'mean':>14}{'slope an hour':>16}{'error':>12}\n"
        return head + "\n".join(
            f"{name:<22}{mean:>14,.1f}{rise:>16,.2f}{error:>12,.2f}{'  grows' if grows else ''}"
            for name, mean, rise, error, grows in self.slopes()
        )


def slope(samples):
    """Least squares: mean, slope, its standard error, and whether it is a growth rather than noise."""
    count = len(samples)
    if count < 3:
        return 0, 0, 0, False
    middle, mean = (sum(of) / count for of in zip(*samples))
    spread = sum((at - middle) ** 2 for at, _ in samples)
    rise = sum((at - middle) * (value - mean) for at, value in samples) / spread
    rest = sum((value - mean - rise * (at - middle)) ** 2 for at, value in samples)
    error = math.sqrt(rest / (count - 2) / spread)
    return mean, rise, error, rise > ERRORS_MIN * error and rise > PART_MIN * mean


def process(pid):
    """Resident memory, descriptors, threads and connections."""
    with open(f"/proc/{pid}/status", encoding="utf-8") as file:
        status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    places = []
    for number in os.listdir(f"/proc/{pid}/fd"):
        try:
            places.append(os.readlink(f"/proc/{pid}/fd/{number}"))
        except FileNotFoundError:
            pass
    sockets = sum(place.startswith("socket:") for place in places)
    return int(status["VmRSS"].split()[0]), len(places), int(status["Threads"]), sockets
