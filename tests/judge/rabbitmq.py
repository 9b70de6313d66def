"""Reads a stream of RabbitMQ in the few methods of AMQP 0-9-1 that this needs: no client is among the test servers."""

import socket
import struct
import time

from records import Reader

ANSWER_SECONDS, WAIT_SECONDS = 5, 0.2
FRAME_BYTES = 128 << 10
PREFETCH = 1_000
METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
FRAME_END = b"\xce"
# Methods, as (class, method).
START, START_OK, TUNE, TUNE_OK = (10, 10), (10, 11), (10, 30), (10, 31)
OPEN, OPEN_OK, CLOSE = (10, 40), (10, 41), (10, 50)
CHANNEL_OPEN, CHANNEL_OPEN_OK, CHANNEL_CLOSE = (20, 10), (20, 11), (20, 40)
EXCHANGE_DECLARE, EXCHANGE_DECLARE_OK = (40, 10), (40, 11)
QUEUE_DECLARE, QUEUE_DECLARE_OK, QUEUE_BIND, QUEUE_BIND_OK = (50, 10), (50, 11), (50, 20), (50, 21)
QOS, QOS_OK, CONSUME, CONSUME_OK, DELIVER, ACK = (60, 10), (60, 11), (60, 20), (60, 21), (60, 60), (60, 80)
PASSIVE, DURABLE = 1, 2
CONTENT_TYPE, CONTENT_ENCODING, HEADERS = 0x8000, 0x4000, 0x2000
# The numbers among the values of a table, by type.
NUMBERS = {
    "t": "?", "b": "b", "B": "B", "s": "h", "u": "H", "I": "i", "i": "I", "l": "q", "L": "q", "f": "f", "d": "d",
    "T": "Q",
}


def short(text):
    return struct.pack(">B", len(text)) + text.encode()


def long(data):
    return struct.pack(">I", len(data)) + data


def table(**values):
    """Of texts and numbers. A name has hyphens for its underscores."""
    fields = (
        short(name.replace("_", "-")) + (b"l" + struct.pack(">q", value) if isinstance(value, int) else
        b"S" + long(value.encode())) for name, value in values.items()
    )
    return long(b"".join(fields))


class Fields:
    """Takes fields off the front of a frame."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, length):
        self.at += length
        if self.at > len(self.data):
            raise EOFError
        return self.data[self.at - length : self.at]

    def number(self, form):
        return struct.unpack(">" + form, self.take(struct.calcsize(">" + form)))[0]

    def short(self):
        return self.take(self.number("B")).decode()

    def long(self):
        return self.take(self.number("I"))

    def table(self):
        fields, values = Fields(self.long()), {}
        while fields.at < len(fields.data):
            name = fields.short()
            values[name] = fields.value()
        return values

    def value(self):
        kind = self.take(1).decode()
        if kind in NUMBERS:
            return self.number(NUMBERS[kind])
        if kind in "Sx":
            return self.long()
        if kind == "V":
            return None
        raise ValueError(f"a value of the type {kind} cannot be read here")


class Connection:
    """One connection with one channel. Any error ends it; the next question connects again."""

    def __init__(self, address):
        self.address, self.socket, self.got = address, None, bytearray()

    def open(self):
        self.socket = socket.create_connection(self.address, ANSWER_SECONDS)
        self.socket.settimeout(WAIT_SECONDS)
        self.got.clear()
        self.socket.sendall(b"AMQP\0\0\x09\x01")
        self.answer(START)
        self.send(0, START_OK, table() + short("PLAIN") + long(b"\0guest\0guest") + short("en_US"))
        self.answer(TUNE)
        # Without heartbeats.
        self.send(0, TUNE_OK, struct.pack(">HIH", 1, FRAME_BYTES, 0))
        self.ask(0, OPEN, short("/") + short("") + b"\0", OPEN_OK)
        self.ask(1, CHANNEL_OPEN, short(""), CHANNEL_OPEN_OK)

    def send(self, channel, method, arguments):
        payload = struct.pack(">HH", *method) + arguments
        self.socket.sendall(struct.pack(">BHI", METHOD, channel, len(payload)) + payload + FRAME_END)

    def ask(self, channel, method, arguments, answer):
        if self.socket is None:
            self.open()
        self.send(channel, method, arguments)
        return self.answer(answer)

    def answer(self, wanted):
        end = time.monotonic() + ANSWER_SECONDS
        while time.monotonic() < end:
            method, fields = self.method() or (None, None)
            if method == wanted:
                return fields
        raise ConnectionError("no answer")

    def method(self):
        """The next one and its arguments; None if none comes soon."""
        found = self.frame()
        if found is None or found[0] != METHOD:
            return None
        fields = Fields(found[1])
        method = fields.number("H"), fields.number("H")
        if method in (CLOSE, CHANNEL_CLOSE):
            raise ConnectionError(f"closed with {fields.number('H')} {fields.short()}")
        return method, fields

    def frame(self):
        """Type and payload of the next frame; None if it does not come soon."""
        while True:
            if len(self.got) >= 7:
                kind, _, length = struct.unpack(">BHI", self.got[:7])
                if len(self.got) > 7 + length:
                    payload = bytes(self.got[7 : 7 + length])
                    del self.got[: 8 + length]
                    return kind, payload
            try:
                more = self.socket.recv(1 << 18)
            except TimeoutError:
                return None
            if not more:
                raise ConnectionError("the server closed the connection")
            self.got += more

    def whole_frame(self, wanted):
        """The next frame of a message that has begun."""
        end = time.monotonic() + ANSWER_SECONDS
        while time.monotonic() < end:
            kind, payload = self.frame() or (None, None)
            if kind == wanted:
                return payload
        raise ConnectionError("the message does not go on")

    def close(self):
        if self.socket is not None:
            self.socket.close()
            self.socket = None

    def make(self, stream):
        """Whether there is a stream now, and an exchange of its name that sends everything there."""
        name = short(stream)
        declare = b"\0\0" + name + short("topic") + struct.pack(">B", DURABLE) + table()
        self.ask(1, EXCHANGE_DECLARE, declare, EXCHANGE_DECLARE_OK)
        declare = b"\0\0" + name + struct.pack(">B", DURABLE) + table(x_queue_type="stream")
        self.ask(1, QUEUE_DECLARE, declare, QUEUE_DECLARE_OK)
        self.ask(1, QUEUE_BIND, b"\0\0" + name + name + short("#") + b"\0" + table(), QUEUE_BIND_OK)
        return True

    def has(self, stream):
        declare = b"\0\0" + short(stream) + struct.pack(">B", PASSIVE) + table()
        return bool(self.ask(1, QUEUE_DECLARE, declare, QUEUE_DECLARE_OK))

    def consume(self, stream, offset):
        self.ask(1, QOS, struct.pack(">IHB", 0, PREFETCH, 0), QOS_OK)
        consume = b"\0\0" + short(stream) + short("judge") + b"\0" + table(x_stream_offset=offset)
        self.send(1, CONSUME, consume)

    def message(self):
        """Routing key, headers and body of the next message; None if none comes soon."""
        method, fields = self.method() or (None, None)
        if method != DELIVER:
            return None
        fields.short()
        tag = fields.number("Q")
        fields.number("B"), fields.short()
        topic = fields.short()
        head = Fields(self.whole_frame(HEADER))
        head.number("I")
        length, flags = head.number("Q"), head.number("H")
        for flag in (CONTENT_TYPE, CONTENT_ENCODING):
            if flags & flag:
                head.short()
        headers = head.table() if flags & HEADERS else {}
        body = bytearray()
        while len(body) < length:
            body += self.whole_frame(BODY)
        self.send(1, ACK, struct.pack(">Q?", tag, False))
        return topic, headers, bytes(body)


class StreamReader(Reader):
    """Reads a stream. A topic is a routing key, and its only partition has the offsets of the stream."""

    def __init__(self, address, stream, path, seen):
        super().__init__(path, seen)
        self.connection, self.stream = Connection(address), stream
        self.next = 0

    def read(self):
        """Whether there was a message."""
        try:
            if self.connection.socket is None:
                self.connection.open()
                self.connection.consume(self.stream, self.next)
            message = self.connection.message()
        except (OSError, EOFError):
            self.connection.close()
            return False
        if message is None:
            return False
        topic, headers, value = message
        offset = headers["x-stream-offset"]
        # It may begin at an earlier one.
        if offset >= self.next:
            self.take((topic, 0), offset, headers.get("key"), headers.get("id"), value, "uncommitted")
            self.next = offset + 1
            self.came()
        return True
