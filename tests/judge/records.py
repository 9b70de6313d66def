"""What readers of all buses share: a file for the judge, and when records came."""

import collections
import hashlib
import json
import os
import threading
import time
import urllib.parse

# Times without a record from here on are kept.
GAP_SECONDS = 0.5


class Reader(threading.Thread):
    """Reads what consumers of a bus see, from its start, into a file for the judge. `seen(id)` is told of each."""

    def __init__(self, path, seen):
        super().__init__(name="reader", daemon=True)
        self.file = open(path, "a", encoding="utf-8")
        self.seen = seen
        self.count = 0
        self.arrived = time.monotonic()
        self.gaps = collections.deque()
        self.failure = None
        self.ending = threading.Event()

    def run(self):
        while not self.ending.is_set():
            try:
                if not self.read():
                    self.ending.wait(0.1)
            except Exception as error:
                self.failure = error
                raise

    def read(self):
        """Takes what is there, and tells whether to go on at once."""
        raise NotImplementedError

    def take(self, place, offset, key, identity, value, *more):
        """Notes a record of a topic and partition."""
        identity = plain(identity)
        fields = *place, offset, plain(key), identity, number(value), digest(value), *more
        self.file.write("\t".join(map(str, fields)) + "\n")
        self.count += 1
        self.seen(identity)

    def came(self):
        """Records arrived, and are in the file."""
        self.file.flush()
        now = time.monotonic()
        if now - self.arrived > GAP_SECONDS:
            self.gaps.append((self.arrived, now))
        self.arrived = now


def plain(data):
    """Text without what separates fields."""
    return urllib.parse.quote((data or b"").decode("utf-8", "replace"), safe="/ :-_.")


def digest(data):
    return hashlib.sha256(data or b"").hexdigest()[:16]


def number(value):
    try:
        return json.loads(value or b"").get("n", "")
    except (ValueError, AttributeError):
        return ""
