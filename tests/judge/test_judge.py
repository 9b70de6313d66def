"""Logs with one fault each, and clean ones: the judge finds each fault, and no other."""

import base64
import collections
import contextlib
import io
import json
import os
import random
import socket
import struct
import sys
import tempfile
import threading
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import judge  # noqa: E402: its path comes first
import measures  # noqa: E402
import nats  # noqa: E402
import rabbitmq  # noqa: E402
from records import digest  # noqa: E402

Done = collections.namedtuple("Done", "returncode stdout stderr")


def run(arguments):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = judge.main(arguments)
    return Done(code, out.getvalue(), err.getvalue())


def event(number, aggregate="a", digest=None, topic="t"):
    return f"{topic}-{aggregate}-{number}", topic, aggregate, number, digest or f"d{aggregate}{number}"


class Logs:
    """A ledger, and the records of its topics."""

    def __init__(self):
        self.ledger = []
        self.records = []
        self.ends = {}

    def transaction(self, name, outcome, *events):
        written = "\t".join(",".join(map(str, fields)) for fields in events)
        self.ledger.append(f"INTENT\t{name}\t{written}")
        if outcome:
            self.ledger.append(f"{outcome}\t{name}")

    def record(self, fields, partition=0, **changed):
        identity, topic, aggregate, number, digest = fields
        topic = changed.get("topic", topic)
        offset = changed.get("offset", self.ends.get((topic, partition), 0))
        self.ends[topic, partition] = offset + 1
        self.records.append("\t".join(map(str, (
            topic, partition, offset, changed.get("key", aggregate), changed.get("identity", identity),
            changed.get("number", number), changed.get("digest", digest), changed.get("isolation", "uncommitted"),
        ))))

    def committed(self, *numbers, aggregate="a"):
        for number in numbers:
            self.transaction(f"{aggregate}{number}", "COMMIT", event(number, aggregate))

    def arrived(self, *numbers, aggregate="a", partition=0):
        for number in numbers:
            self.record(event(number, aggregate), partition)

    def judged(self, *options):
        with tempfile.TemporaryDirectory() as folder:
            paths = {}
            for name, of in (("ledger", self.ledger), ("records", self.records)):
                paths[name] = os.path.join(folder, name)
                with open(paths[name], "w", encoding="utf-8") as file:
                    file.writelines(line + "\n" for line in of)
            arguments = ["--ledger", paths["ledger"], "--records", paths["records"], *options]
            done, text = run(arguments + ["--json"]), run(arguments)
        assert text.returncode == done.returncode, text
        return done, text


class Clean(unittest.TestCase):
    def assert_sound(self, logs, *options, **counts):
        done, _ = logs.judged(*options)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        told = json.loads(done.stdout)
        for name, count in counts.items():
            self.assertEqual(told[name], count, name)

    def test_in_order(self):
        logs = Logs()
        logs.committed(1, 2, 3)
        logs.arrived(1, 2, 3)
        self.assert_sound(logs, committed=3, records=3, duplicates=0)

    def test_nothing_at_all(self):
        self.assert_sound(Logs(), committed=0)

    def test_rolled_back_events_that_stay_away_and_whose_numbers_are_used_again(self):
        logs = Logs()
        logs.transaction("x", "ABORT", ("other", "t", "a", 1, "d"))
        logs.committed(1)
        logs.arrived(1)
        self.assert_sound(logs, rolled_back=1)

    def test_an_unknown_outcome_that_turned_out_either_way(self):
        logs = Logs()
        logs.transaction("x", "UNKNOWN", event(1))
        logs.transaction("y", None, event(1, "b"))
        logs.transaction("z", "UNKNOWN", event(1, "c"))
        logs.ledger.append("COMMIT\tz")
        logs.arrived(1)
        logs.arrived(1, aggregate="c")
        self.assert_sound(logs, committed=2, unknown=1)

    def test_duplicates_that_the_later_events_follow(self):
        logs = Logs()
        logs.committed(1, 2, 3)
        logs.arrived(1, 2, 2, 1, 2, 3)
        self.assert_sound(logs, duplicates=3, gaps=0)

    def test_aggregates_of_one_name_in_two_topics(self):
        logs = Logs()
        for topic in "tu":
            logs.transaction(topic, "COMMIT", event(1, topic=topic))
            logs.record(event(1, topic=topic))
        self.assert_sound(logs, aggregates=2)

    def test_subjects_that_share_the_sequence_of_a_stream(self):
        logs = Logs()
        for number, topic in enumerate("tutu", 1):
            logs.transaction(f"x{number}", "COMMIT", event((number + 1) // 2, topic=topic))
            logs.record(event((number + 1) // 2, topic=topic), offset=number)
        logs.record(event(2, topic="u"), offset=9)
        self.assert_sound(logs, records=5, aggregates=2, duplicates=1)

    def test_records_that_were_read_again(self):
        logs = Logs()
        logs.committed(1, 2)
        logs.arrived(1, 2)
        logs.records += logs.records
        self.assert_sound(logs, records=2, duplicates=0)

    def test_a_move_and_an_old_last_record_where_they_are_allowed(self):
        logs = Logs()
        logs.committed(1, 2, 3)
        logs.arrived(1, 2, 1)
        logs.arrived(2, 3, partition=1)
        self.assert_sound(logs, "--may-move", "--may-go-stale", scattered=1, stale=1, duplicates=2)

    def test_a_line_that_a_killed_writer_did_not_end(self):
        logs = Logs()
        logs.committed(1)
        logs.arrived(1)
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as torn:
            torn.write("INTENT\tx\tid,t,")
            torn.flush()
            self.assert_sound(logs, "--ledger", torn.name)

    def test_a_long_random_run(self):
        chance, logs = random.Random(7), Logs()
        sent = {name: 0 for name in "abcdef"}
        for _ in range(2000):
            name = chance.choice("abcdef")
            number = sent[name] = sent[name] + 1
            logs.committed(number, aggregate=name)
            if chance.random() < 0.1:
                start = max(1, number - 5)
                logs.arrived(*range(start, number), aggregate=name, partition=ord(name) % 3)
            logs.arrived(number, aggregate=name, partition=ord(name) % 3)
        self.assert_sound(logs, committed=2000, gaps=0, stale=0)


class Broken(unittest.TestCase):
    def assert_broken(self, logs, *options, **broken):
        done, text = logs.judged(*options)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        told = json.loads(done.stdout)
        self.assertEqual(told["broken"], broken)
        self.assertFalse(told["sound"])
        for kind in broken:
            self.assertIn(f"\n{kind}: ", text.stdout)

    def test_lost(self):
        logs = Logs()
        logs.committed(1, 2, 3)
        logs.arrived(1, 3)
        self.assert_broken(logs, lost=1)

    def test_lost_of_a_transaction_of_unknown_outcome_that_is_half_there(self):
        logs = Logs()
        logs.transaction("x", "UNKNOWN", event(1), event(2))
        logs.arrived(1)
        self.assert_broken(logs, lost=1)

    def test_lost_of_a_transaction_that_a_later_event_proves(self):
        logs = Logs()
        logs.transaction("x", None, event(1), event(1, "b"))
        logs.committed(2)
        logs.arrived(2)
        self.assert_broken(logs, lost=2)

    def test_a_whole_aggregate_lost(self):
        logs = Logs()
        logs.committed(1, 2)
        logs.committed(1, aggregate="b")
        logs.arrived(1, aggregate="b")
        self.assert_broken(logs, lost=2)

    def test_phantom(self):
        logs = Logs()
        logs.committed(1)
        logs.arrived(1)
        logs.record(event(2))
        logs.record(event(1), identity="")
        self.assert_broken(logs, phantom=2)

    def test_aborted(self):
        logs = Logs()
        logs.committed(1)
        logs.transaction("x", "ABORT", event(2))
        logs.arrived(1, 2)
        self.assert_broken(logs, aborted=1)

    def test_altered(self):
        for changed in ({"digest": "other"}, {"number": 7}):
            logs = Logs()
            logs.committed(1)
            logs.record(event(1), **changed)
            self.assert_broken(logs, altered=1)

    def test_misplaced(self):
        for changed in ({"key": "b"}, {"topic": "u"}):
            logs = Logs()
            logs.committed(1, 2)
            logs.arrived(1, 2)
            logs.record(event(1), **changed)
            self.assert_broken(logs, misplaced=1)

    def test_reordered(self):
        logs = Logs()
        logs.committed(1, 2, 3)
        logs.arrived(1, 3, 2, 3)
        self.assert_broken(logs, reordered=1)

    def test_scattered(self):
        logs = Logs()
        logs.committed(1, 2)
        logs.arrived(1)
        logs.arrived(2, partition=1)
        self.assert_broken(logs, scattered=1)

    def test_stale(self):
        logs = Logs()
        logs.committed(1, 2, 3)
        logs.arrived(1, 2, 3, 1, 2)
        self.assert_broken(logs, stale=1)

    def test_a_gap_after_a_duplicate_is_counted(self):
        logs = Logs()
        logs.committed(1, 2, 3, 4)
        logs.arrived(1, 2, 3, 1, 4)
        done, _ = logs.judged()
        self.assertEqual((done.returncode, json.loads(done.stdout)["gaps"]), (0, 1))

    def test_duplicates_under_exactly_once(self):
        logs = Logs()
        logs.committed(1)
        for _ in range(2):
            logs.record(event(1), isolation="committed")
        self.assert_broken(logs, "--guarantee", "exactly-once", duplicates=1)


class Unfit(unittest.TestCase):
    def assert_unfit(self, logs, *options):
        done, _ = logs.judged(*options)
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertTrue(done.stderr.startswith("judge: "), done.stderr)

    def test_a_ledger_that_lacks_an_event(self):
        logs = Logs()
        logs.committed(1, 3)
        logs.arrived(1, 3)
        self.assert_unfit(logs)

    def test_a_ledger_that_contradicts_itself(self):
        for line in ("COMMIT\tx", "ABORT\ta1", "INTENT\ta1\tid,t,b,1,d", "INTENT\tz\tt-a-1,t,a,1,d", "NONSENSE"):
            logs = Logs()
            logs.committed(1)
            logs.arrived(1)
            logs.ledger.append(line)
            self.assert_unfit(logs)

    def test_records_that_are_none(self):
        for line in ("t\t0\t1", "t\tx\t1\ta\tid\t1\td\tuncommitted", "t\t0\t1\ta\tid\t1\td\tdirty"):
            logs = Logs()
            logs.records.append(line)
            self.assert_unfit(logs)

    def test_exactly_once_from_uncommitted_reads(self):
        logs = Logs()
        logs.committed(1)
        logs.arrived(1)
        self.assert_unfit(logs, "--guarantee", "exactly-once")


class Server:
    """Speaks NATS, and has a stream: pairs of subject and payload, from the sequence 1 on."""

    def __init__(self):
        self.stored, self.listener, self.clients = [], socket.create_server(("127.0.0.1", 0)), []
        self.has_jetstream = True
        threading.Thread(target=self.accept, daemon=True).start()

    def store(self, subject, payload, head=b""):
        self.stored.append({
            "subject": subject, "seq": len(self.stored) + 1, "data": base64.b64encode(payload).decode(),
            "hdrs": base64.b64encode(head).decode(), "time": "2026-01-01T00:00:00Z",
        })

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                self.clients.append(self.listener.accept()[0])
                threading.Thread(target=self.serve, args=self.clients[-1:], daemon=True).start()

    def serve(self, client):
        client.sendall(b"INFO {}\r\nPING\r\n")
        with client.makefile("rb") as lines, contextlib.suppress(OSError):
            for line in lines:
                if line.startswith(b"PUB "):
                    self.answer(client, line.decode().split()[2], json.loads(lines.readline()))

    def answer(self, client, inbox, request):
        if not self.has_jetstream:
            return client.sendall(f"HMSG {inbox} 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n".encode())
        found = self.stored[request["seq"] - 1 :][:1]
        answer = {"message": found[0]} if found else {"error": {"code": 404, "err_code": nats.NO_MESSAGE}}
        body = json.dumps(answer).encode()
        client.sendall(f"+OK\r\nMSG {inbox} 1 {len(body)}\r\n".encode() + body + b"\r\n")

    def cut(self):
        for client in self.clients:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
            client.close()

    def close(self):
        self.cut()
        self.listener.close()


class Streams(unittest.TestCase):
    def setUp(self):
        self.server, self.seen = Server(), []
        self.addCleanup(self.server.close)
        file = tempfile.NamedTemporaryFile()
        self.addCleanup(file.close)
        self.records = file.name
        address = self.server.listener.getsockname()
        self.reader = nats.StreamReader(address, "S", file.name, self.seen.append)
        self.addCleanup(self.reader.connection.close)
        self.addCleanup(self.reader.file.close)

    def lines(self):
        with open(self.records, encoding="utf-8") as file:
            return [line.split("\t")[:8] for line in file]

    def test_headers_are_bytes(self):
        found = nats.headers(b"NATS/1.0\r\nid: 7\r\nkey:\xe6\xbc\xa2:b\r\nnone:\r\n\r\n")
        self.assertEqual(found, {"id": b"7", "key": "\u6f22:b".encode(), "none": b""})

    def test_messages_are_records_in_the_order_of_the_stream(self):
        self.server.store("t", b'{"n": 1}', b"NATS/1.0\r\nid: x\ty\r\nkey: a\r\n\r\n")
        self.server.store("u", b"")
        self.assertEqual([self.reader.read() for _ in range(3)], [True, True, False])
        digests = [digest(payload) for payload in (b'{"n": 1}', b"")]
        self.assertEqual(self.lines(), [
            ["t", "0", "1", "a", "x%09y", "1", digests[0], "uncommitted"],
            ["u", "0", "2", "", "", "", digests[1], "uncommitted"],
        ])
        self.assertEqual((self.seen, self.reader.count), (["x%09y", ""], 2))

    def test_a_server_that_is_away_is_asked_again_where_it_was(self):
        self.server.store("t", b"1")
        self.assertTrue(self.reader.read())
        self.server.has_jetstream = False
        self.assertFalse(self.reader.read())
        self.server.has_jetstream = True
        self.server.store("t", b"2")
        self.assertTrue(self.reader.read())
        self.server.cut()
        self.assertEqual([self.reader.read() for _ in range(2)], [False, False])
        self.assertEqual([line[2] for line in self.lines()], ["1", "2"])

    def test_a_stream_that_lost_a_message(self):
        self.server.store("t", b"1")
        self.assertTrue(self.reader.read())
        self.server.cut()
        self.server.stored.clear()
        self.server.store("t", b"2")
        self.assertFalse(self.reader.read())
        with self.assertRaisesRegex(RuntimeError, "message 1 is not there"):
            self.reader.read()


def frame(kind, payload):
    return struct.pack(">BHI", kind, 1, len(payload)) + payload + rabbitmq.FRAME_END


def delivery(offset, *bodies):
    head = rabbitmq.short("judge") + struct.pack(">Q?", offset, False) + rabbitmq.short("e") + rabbitmq.short("t")
    table = rabbitmq.table(id=f"e{offset}", key="a", x_stream_offset=offset)
    properties = struct.pack(">HHQH", 60, 0, sum(map(len, bodies)), rabbitmq.CONTENT_TYPE | rabbitmq.HEADERS)
    return b"".join([
        frame(rabbitmq.METHOD, struct.pack(">HH", *rabbitmq.DELIVER) + head),
        frame(rabbitmq.HEADER, properties + rabbitmq.short("text") + table),
        *(frame(rabbitmq.BODY, body) for body in bodies),
    ])


class Deliveries(unittest.TestCase):
    def setUp(self):
        self.server, client = socket.socketpair()
        self.addCleanup(self.server.close)
        file = tempfile.NamedTemporaryFile()
        self.addCleanup(file.close)
        self.seen = []
        self.reader = rabbitmq.StreamReader(None, "S", file.name, self.seen.append)
        self.addCleanup(self.reader.file.close)
        self.reader.connection.socket = client
        self.addCleanup(self.reader.connection.close)
        client.settimeout(rabbitmq.WAIT_SECONDS)

    def test_a_message_in_pieces(self):
        sent = delivery(7, b'{"n"', b": 1}") + delivery(8)
        self.server.sendall(sent[:-3])
        topic, headers, body = self.reader.connection.message()
        self.assertEqual((topic, headers["id"], headers["x-stream-offset"], body), ("t", b"e7", 7, b'{"n": 1}'))
        acked = frame(rabbitmq.METHOD, struct.pack(">HHQ?", *rabbitmq.ACK, 7, False))
        self.assertEqual(self.server.recv(99), acked)
        self.assertIsNone(rabbitmq.Connection.message(self.idle()))
        self.server.sendall(sent[-3:])
        self.assertEqual(self.reader.connection.message()[2], b"")

    def idle(self):
        connection = rabbitmq.Connection(None)
        connection.socket, other = socket.socketpair()
        self.addCleanup(other.close)
        self.addCleanup(connection.close)
        connection.socket.settimeout(0.01)
        return connection

    def test_what_comes_again_is_left_out(self):
        self.server.sendall(b"".join(map(delivery, (0, 1, 0, 1, 2))))
        self.assertEqual([self.reader.read() for _ in range(5)], [True] * 5)
        self.assertEqual((self.seen, self.reader.next), (["e0", "e1", "e2"], 3))

    def test_a_lost_connection_is_made_again(self):
        self.server.sendall(frame(rabbitmq.METHOD, struct.pack(">HHH", *rabbitmq.CLOSE, 320) + rabbitmq.short("away")))
        self.assertFalse(self.reader.read())
        self.assertIsNone(self.reader.connection.socket)


class Measures(unittest.TestCase):
    def test_a_slope(self):
        chance = random.Random(7)
        for rise, grows in ((0, False), (-50, False), (0.5, False), (50, True)):
            samples = [(minute / 60, 100 + rise * minute / 60 + chance.gauss(0, 2)) for minute in range(60)]
            mean, found, error, told = measures.slope(samples)
            self.assertAlmostEqual(found, rise, delta=4)
            self.assertAlmostEqual(mean, 100 + rise / 2, delta=2)
            self.assertLess(error, 2)
            self.assertEqual(told, grows, rise)

    def test_a_slope_of_what_never_changes(self):
        self.assertEqual(measures.slope([(0, 9), (1, 9), (2, 9)]), (9, 0, 0, False))

    def test_the_failpoints_by_name(self):
        self.assertLessEqual({"received", "confirmed", "owned", "retried", "committing"}, set(measures.points()))


if __name__ == "__main__":
    unittest.main()
