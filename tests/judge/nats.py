"""Reads a stream of JetStream, message by message, in NATS' own text: no client is among the test servers."""

import base64
import json
import secrets
import socket

from records import Reader

ANSWER_SECONDS = 5
NO_MESSAGE = 10037
HELLO = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True, "lang": "judge", "version": "0"}


class Connection:
    """Requests one after the other. Any error ends it; the next request connects again."""

    def __init__(self, address):
        self.address, self.socket, self.lines = address, None, None
        self.inbox = f"_INBOX.{secrets.token_hex(8)}"

    def ask(self, what, request):
        """What JetStream answers."""
        try:
            if self.socket is None:
                self.connect()
            body = json.dumps(request)
            self.send(f"PUB $JS.API.{what} {self.inbox} {len(body)}\r\n{body}\r\n")
            return json.loads(self.message())
        except OSError:
            self.close()
            raise

    def connect(self):
        self.socket = socket.create_connection(self.address, ANSWER_SECONDS)
        self.lines = self.socket.makefile("rb")
        self.send(f"CONNECT {json.dumps(HELLO)}\r\nSUB {self.inbox} 1\r\n")

    def send(self, text):
        self.socket.sendall(text.encode())

    def message(self):
        """The payload of the next message. What else a server says is passed over, but errors."""
        while True:
            words = self.lines.readline().split()
            if not words or words[0] == b"-ERR":
                raise ConnectionError(b" ".join(words).decode() or "the server closed the connection")
            if words[0] == b"PING":
                self.send("PONG\r\n")
            elif words[0] in (b"MSG", b"HMSG"):
                length = int(words[-1])
                read = self.lines.read(length + 2)
                payload = read[int(words[-2]) if words[0] == b"HMSG" else 0 : length]
                if len(read) < length or not payload:
                    raise ConnectionError("there is no JetStream, or no whole answer")
                return payload

    def close(self):
        if self.socket is not None:
            self.lines.close()
            self.socket.close()
            self.socket = None

    def answers(self):
        return "error" not in self.ask("INFO", {})

    def has(self, stream):
        return "error" not in self.ask(f"STREAM.INFO.{stream}", {})

    def keep(self, stream, subjects, most_bytes=-1, duplicate_seconds=120):
        """Whether the stream is there now, with this limit of a message; -1 is none."""
        config = {
            "name": stream, "subjects": subjects, "storage": "file", "max_msg_size": most_bytes,
            "duplicate_window": int(duplicate_seconds * 1e9),
        }
        how = "UPDATE" if self.has(stream) else "CREATE"
        return "error" not in self.ask(f"STREAM.{how}.{stream}", config)

    def at(self, stream, sequence):
        """The first message from there on; None where there is none yet."""
        answer = self.ask(f"STREAM.MSG.GET.{stream}", {"seq": sequence, "next_by_subj": ">"})
        error = answer.get("error")
        if error and error.get("err_code") != NO_MESSAGE:
            raise ConnectionError(f"JetStream: {error}")
        return answer.get("message")


def headers(data):
    """By name, values as bytes."""
    pairs = (line.partition(b":") for line in data.split(b"\r\n")[1:] if line)
    return {name.decode(): value.strip() for name, _, value in pairs}


class StreamReader(Reader):
    """Reads a stream. A topic is a subject, and its only partition has the sequence of the stream."""

    def __init__(self, address, stream, path, seen):
        super().__init__(path, seen)
        self.connection, self.stream = Connection(address), stream
        self.last = None
        # The server may be another process than the one that had the last message.
        self.is_certain = True

    def read(self):
        """Whether there was a message."""
        after = self.last["seq"] if self.last else 0
        try:
            if not self.is_certain and self.last and self.connection.at(self.stream, after) != self.last:
                raise RuntimeError(f"{self.stream}: message {after} is not there any more")
            self.is_certain = True
            message = self.connection.at(self.stream, after + 1)
        except OSError:
            self.is_certain = False
            return False
        if message is None:
            return False
        head, value = (base64.b64decode(message.get(part, "")) for part in ("hdrs", "data"))
        found = headers(head)
        place = message["subject"], 0
        self.take(
            place, message["seq"], found.get("key"), found.get("id"), value, "uncommitted", message["time"],
            found.get("Nats-Msg-Id", b"").decode(),
        )
        self.came()
        self.last = message
        return True
