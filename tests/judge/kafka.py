"""Reads topics as a consumer does, in the few requests of Kafka's protocol that this needs: no client is among the test
servers, and one of Java would take the CPU of a relay.
"""

import collections
import hashlib
import json
import os
import socket
import struct
import threading
import time
import urllib.parse
import zlib

FETCH, LIST_TOPICS, CREATE_PARTITIONS = (1, 4), (3, 1), (37, 0)
ANSWER_SECONDS = 5
FETCH_WAIT_MS = 200
PARTITION_BYTES = 4 << 20
# Times without a record from here on are kept.
GAP_SECONDS = 0.5
OFFSET_OUT_OF_RANGE, GZIP = 1, 1


class Bytes:
    """Takes fields off the front of an answer."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, length):
        if length < 0 or self.at + length > len(self.data):
            raise EOFError
        self.at += length
        return self.data[self.at - length : self.at]

    def number(self, form):
        return struct.unpack(">" + form, self.take(struct.calcsize(form)))[0]

    def text(self):
        length = self.number("h")
        return None if length < 0 else self.take(length).decode()

    def list(self, read):
        return [read() for _ in range(max(0, self.number("i")))]

    def varint(self):
        shift = value = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
            shift += 7

    def field(self):
        length = self.varint()
        return None if length < 0 else self.take(length)


def text(value):
    return struct.pack(">h", len(value)) + value.encode()


def listed(items):
    return struct.pack(">i", len(items)) + b"".join(items)


class Connection:
    """Requests one after the other. Any error ends it; the next request connects again."""

    def __init__(self, address):
        self.address, self.socket = address, None

    def ask(self, kind, body):
        try:
            if self.socket is None:
                self.socket = socket.create_connection(self.address, ANSWER_SECONDS)
            head = struct.pack(">hhi", *kind, 1) + text("judge")
            self.socket.sendall(struct.pack(">i", len(head + body)) + head + body)
            answer = Bytes(self.exactly(Bytes(self.exactly(4)).number("i")))
            answer.number("i")
            return answer
        except OSError:
            self.close()
            raise

    def exactly(self, length):
        got = bytearray()
        while len(got) < length:
            more = self.socket.recv(length - len(got))
            if not more:
                raise ConnectionError("the broker closed the connection")
            got += more
        return bytes(got)

    def close(self):
        if self.socket is not None:
            self.socket.close()
            self.socket = None

    def partitions(self):
        """The number of partitions of each topic."""
        answer = self.ask(LIST_TOPICS, struct.pack(">i", -1))
        answer.list(lambda: (answer.number("i"), answer.text(), answer.number("i"), answer.text()))
        answer.number("i")
        topics = {}

        def topic():
            answer.number("h")
            name = answer.text()
            answer.number("b")
            topics[name] = len(answer.list(partition))

        def partition():
            answer.number("h"), answer.number("i"), answer.number("i")
            answer.list(lambda: answer.number("i")), answer.list(lambda: answer.number("i"))

        answer.list(topic)
        return topics

    def add_partitions(self, topic, count):
        """Whether the topic has `count` partitions now."""
        body = listed([text(topic) + struct.pack(">ii", count, -1)]) + struct.pack(">i?", ANSWER_SECONDS * 500, False)
        answer = self.ask(CREATE_PARTITIONS, body)
        answer.number("i")
        return answer.list(lambda: (answer.text(), answer.number("h"), answer.text()))[0][1] == 0

    def fetch(self, offsets, committed):
        """Of each partition of `offsets`: error, transactions that were aborted, and batches of records."""
        topics = {}
        for (topic, partition), offset in offsets.items():
            wanted = struct.pack(">iqi", partition, offset, PARTITION_BYTES)
            topics.setdefault(topic, []).append(wanted)
        head = struct.pack(">iiiib", -1, FETCH_WAIT_MS, 1, 8 * PARTITION_BYTES, committed)
        answer = self.ask(FETCH, head + listed([text(name) + listed(of) for name, of in topics.items()]))
        answer.number("i")
        fetched = {}

        def partition(topic):
            number, error = answer.number("i"), answer.number("h")
            answer.number("q"), answer.number("q")
            aborted = answer.list(lambda: (answer.number("q"), answer.number("q")))
            fetched[topic, number] = error, aborted, answer.take(max(0, answer.number("i")))

        def topic():
            name = answer.text()
            answer.list(lambda: partition(name))

        answer.list(topic)
        return fetched


def records(batches, aborted, committed):
    """The records of batches, as (offset, time, key, value, headers); last, (next offset,)."""
    source, waiting, discarded = Bytes(batches), sorted(aborted, key=lambda pair: pair[1]), set()
    after = None
    while source.at + 12 <= len(batches):
        base, length = source.number("q"), source.number("i")
        if source.at + length > len(batches):
            break
        batch = Bytes(source.take(length))
        batch.take(4 + 1 + 4)
        attributes, last_delta = batch.number("h"), batch.number("i")
        batch.number("q")
        appended, producer = batch.number("q"), batch.number("q")
        batch.take(2 + 4)
        count, after = batch.number("i"), base + last_delta + 1
        while waiting and waiting[0][1] < after:
            discarded.add(waiting.pop(0)[0])
        if attributes & 0x20:
            # A marker ends a transaction; that of a commit leaves nothing to forget.
            discarded.discard(producer)
        elif not (committed and attributes & 0x10 and producer in discarded):
            yield from batch_records(batch, attributes & 7, count, base, appended)
    if after is not None:
        yield (after,)


def batch_records(batch, compression, count, base, appended):
    if compression not in (0, GZIP):
        raise ValueError(f"compression {compression} of Kafka cannot be read here: set none or gzip")
    rest = batch.take(len(batch.data) - batch.at)
    source = Bytes(zlib.decompress(rest, 31) if compression else rest)
    for _ in range(count):
        record = Bytes(source.take(source.varint()))
        record.take(1), record.varint()
        offset, key, value = base + record.varint(), record.field(), record.field()
        headers = {}
        for _ in range(record.varint()):
            name = record.field().decode()
            headers[name] = record.field()
        yield offset, appended, key, value, headers


def plain(data):
    """Text without what separates fields."""
    return urllib.parse.quote((data or b"").decode("utf-8", "replace"), safe="/ :-_.")


def digest(data):
    return hashlib.sha256(data or b"").hexdigest()[:16]


class Reader(threading.Thread):
    """Reads all topics with a prefix, from their starts, into a file for the judge. `seen(id)` is told of each."""

    def __init__(self, address, prefix, committed, path, seen):
        super().__init__(name="reader", daemon=True)
        self.connection, self.prefix, self.committed = Connection(address), prefix, committed
        self.file = open(path, "a", encoding="utf-8")
        self.seen = seen
        self.offsets = {}
        self.count = 0
        self.arrived = time.monotonic()
        self.gaps = collections.deque()
        self.failure = None
        self.ending = threading.Event()

    def run(self):
        looked = 0
        while not self.ending.is_set():
            try:
                if time.monotonic() - looked > 1:
                    self.look()
                    looked = time.monotonic()
                if self.offsets:
                    self.read()
                else:
                    self.ending.wait(0.1)
            except (OSError, EOFError):
                self.connection.close()
                self.ending.wait(0.2)
            except Exception as error:
                self.failure = error
                raise

    def look(self):
        for topic, count in self.connection.partitions().items():
            if topic.startswith(self.prefix):
                for partition in range(count):
                    self.offsets.setdefault((topic, partition), 0)

    def read(self):
        for place, (error, aborted, batches) in self.connection.fetch(self.offsets, self.committed).items():
            if error == OFFSET_OUT_OF_RANGE:
                raise RuntimeError(f"{place}: the topic ends before offset {self.offsets[place]}, which it had")
            if error == 0 and batches:
                self.take(place, list(records(batches, aborted, self.committed)))

    def take(self, place, read):
        isolation = "committed" if self.committed else "uncommitted"
        for record in read[:-1]:
            offset, appended, key, value, headers = record
            if offset < self.offsets[place]:
                continue
            identity = plain(headers.get("id"))
            fields = *place, offset, plain(key), identity, number(value), digest(value), isolation, appended
            self.file.write("\t".join(map(str, fields)) + "\n")
            self.count += 1
            self.seen(identity)
        self.file.flush()
        if read:
            self.offsets[place] = max(self.offsets[place], read[-1][0])
        if len(read) > 1:
            now = time.monotonic()
            if now - self.arrived > GAP_SECONDS:
                self.gaps.append((self.arrived, now))
            self.arrived = now

    def stop(self):
        self.ending.set()
        self.join()
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        self.connection.close()


def number(value):
    try:
        return json.loads(value or b"").get("n", "")
    except (ValueError, AttributeError):
        return ""
