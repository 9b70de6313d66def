"""Reads topics as a consumer does, in the few requests of Kafka's protocol that this needs: no client is among the test
servers, and one of Java would take the CPU of a relay.
"""

import collections
import socket
import struct
import time
import zlib

from records import Reader

FETCH, METADATA, CREATE_PARTITIONS, ALTER_CONFIGS = (1, 4), (3, 1), (37, 0), (44, 0)
TOPIC, SET, DELETE = 2, 0, 1
ANSWER_SECONDS = 5
FETCH_WAIT_MS = 200
PARTITION_BYTES = 4 << 20
OFFSET_OUT_OF_RANGE, NOT_LEADER, GZIP = 1, 6, 1

# Leader is -1 for none; in_sync is a number of replicas.
Partition = collections.namedtuple("Partition", "leader in_sync")


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

    def metadata(self):
        """The number of brokers, and the partitions of each topic."""
        answer = self.ask(METADATA, struct.pack(">i", -1))
        brokers = answer.list(lambda: (answer.number("i"), answer.text(), answer.number("i"), answer.text()))
        answer.number("i")
        topics = {}

        def topic():
            answer.number("h")
            name = answer.text()
            answer.number("b")
            topics[name] = dict(answer.list(partition))

        def partition():
            answer.number("h")
            number, leader = answer.number("i"), answer.number("i")
            answer.list(lambda: answer.number("i"))
            return number, Partition(leader, len(answer.list(lambda: answer.number("i"))))

        answer.list(topic)
        return len(brokers), topics

    def add_partitions(self, topic, count):
        """Whether the topic has `count` partitions now."""
        body = listed([text(topic) + struct.pack(">ii", count, -1)]) + struct.pack(">i?", ANSWER_SECONDS * 500, False)
        answer = self.ask(CREATE_PARTITIONS, body)
        answer.number("i")
        return answer.list(lambda: (answer.text(), answer.number("h"), answer.text()))[0][1] == 0

    def limit(self, topic, most_bytes):
        """Whether the topic has this limit of a batch now; None is the broker's own."""
        value = struct.pack(">h", -1) if most_bytes is None else text(str(most_bytes))
        change = text("max.message.bytes") + struct.pack(">b", DELETE if most_bytes is None else SET) + value
        body = listed([struct.pack(">b", TOPIC) + text(topic) + listed([change])]) + struct.pack(">?", False)
        answer = self.ask(ALTER_CONFIGS, body)
        answer.number("i")
        return answer.list(lambda: answer.number("h")) == [0]

    def fetch(self, offsets, committed, wait_ms=FETCH_WAIT_MS):
        """Of each partition of `offsets`: error, transactions that were aborted, and batches of records."""
        topics = {}
        for (topic, partition), offset in offsets.items():
            wanted = struct.pack(">iqi", partition, offset, PARTITION_BYTES)
            topics.setdefault(topic, []).append(wanted)
        head = struct.pack(">iiiib", -1, wait_ms, 1, 8 * PARTITION_BYTES, committed)
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


class TopicReader(Reader):
    """Reads all topics with a prefix. `addresses` has those of the brokers 1, 2, and so on."""

    def __init__(self, addresses, prefix, committed, path, seen):
        super().__init__(path, seen)
        self.connections = {number: Connection(address) for number, address in enumerate(addresses, 1)}
        self.prefix, self.committed = prefix, committed
        self.offsets, self.leaders = {}, {}
        self.is_new, self.looked = False, 0

    def read(self):
        """Whether all leaders answered."""
        if time.monotonic() - self.looked > 1 or not self.is_new:
            self.is_new = self.look()
            self.looked = time.monotonic()
        return self.is_new and self.read_leaders()

    def look(self):
        """Whether a broker told the leaders. One that fails is asked last from now on."""
        for number, connection in list(self.connections.items()):
            try:
                for topic, partitions in connection.metadata()[1].items():
                    for partition in partitions if topic.startswith(self.prefix) else ():
                        self.offsets.setdefault((topic, partition), 0)
                        self.leaders[topic, partition] = partitions[partition].leader
                return True
            except (OSError, EOFError):
                connection.close()
                self.connections[number] = self.connections.pop(number)
        return False

    def read_leaders(self):
        leaders = set(self.leaders.values()) & set(self.connections)
        for leader in leaders:
            offsets = {place: offset for place, offset in self.offsets.items() if self.leaders[place] == leader}
            try:
                fetched = self.connections[leader].fetch(offsets, self.committed, FETCH_WAIT_MS // len(leaders))
            except (OSError, EOFError):
                self.connections[leader].close()
                self.is_new = False
                continue
            for place, (error, aborted, batches) in fetched.items():
                if error == OFFSET_OUT_OF_RANGE:
                    raise RuntimeError(f"{place}: the topic ends before offset {self.offsets[place]}, which it had")
                if error == NOT_LEADER:
                    self.is_new = False
                if error == 0 and batches:
                    self.take_all(place, list(records(batches, aborted, self.committed)))
        return self.is_new and bool(leaders)

    def take_all(self, place, read):
        isolation = "committed" if self.committed else "uncommitted"
        for record in read[:-1]:
            offset, appended, key, value, headers = record
            if offset >= self.offsets[place]:
                self.take(place, offset, key, headers.get("id"), value, isolation, appended)
        if read:
            self.offsets[place] = max(self.offsets[place], read[-1][0])
        if len(read) > 1:
            self.came()
