"""Reads the records of one case out of a Kafka's log directory, as bytes: records.py LOG_DIRECTORY CASE STARTED_MS.

One JSON object per record, by the place of its row in the outbox: what is another in every run is left out. That is the
time of the processing, the partition of a record without a key, the id of the run in a header, and Java's hash code of
bytes that it writes as text.

Record batches: https://kafka.apache.org/documentation/#recordbatch
"""

import json
import pathlib
import re
import struct
import sys
import time


class Bytes:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, count):
        self.at += count
        return self.data[self.at - count : self.at]

    def varint(self):
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)

    def sized(self):
        size = self.varint()
        return None if size < 0 else self.take(size)


def records(path):
    """Offset, time, key, value and headers of each record in a segment."""
    log = Bytes(path.read_bytes())
    while log.at + 61 <= len(log.data):
        base, size, _, magic, _, attributes, _, first_ms, _, _, _, _, count = struct.unpack(">qiibIhiqqqhii", log.take(61))
        if log.at - 49 + size > len(log.data):
            return  # It is being written.
        assert magic == 2 and attributes & 0x7 == 0, "a batch of another form, or compressed"
        for _ in range(count):
            log.varint()
            log.take(1)
            time_ms, offset = first_ms + log.varint(), base + log.varint()
            key, value = log.sized(), log.sized()
            headers = [(log.sized().decode(), log.sized()) for _ in range(log.varint())]
            if attributes & 0x20 == 0:
                yield offset, time_ms, key, value, headers


def shown(data):
    if data is None:
        return None
    try:
        return re.sub(r"\[B@[0-9a-f]+", "[B@HASH", data.decode())
    except UnicodeDecodeError:
        return {"hex": data.hex()}


def main(directory, case, started_ms):
    # Types that the expression of c16 does not match are topics as they are.
    mine = re.compile(rf"{case}\..*|Order[A-Za-z]*|InsertThenDelete" if case == "c16" else rf"{case}\..*")
    connector = ("__debezium.context.connectorLogicalName", f"p{case}".encode())
    ended_ms = time.time() * 1000
    found = []
    for path in pathlib.Path(directory).glob("*/*.log"):
        topic, partition = path.parent.name.rsplit("-", 1)
        if not mine.fullmatch(topic) and re.match(r"[cs]\d+\.", topic):
            continue
        for offset, time_ms, key, value, headers in records(path):
            if not mine.fullmatch(topic) and connector not in headers:
                continue
            run = [
                (name, re.sub(rb"[0-9a-f-]{36}", b"RUN", content) if name == "__debezium.context.runId" else content)
                for name, content in headers
            ]
            record = {
                "topic": topic,
                "partition": None if key is None or b"[B@" in key else int(partition),
                "timestamp": None if int(started_ms) <= time_ms <= ended_ms else time_ms,
                "key": shown(key),
                "value": shown(value),
                "headers": [[name, shown(content)] for name, content in run],
            }
            ids = [re.sub('.*"payload":', "", shown(content) or "").strip('"{}') for name, content in headers if name == "id"]
            found.append((ids, partition, offset, record))
    for *_, record in sorted(found, key=lambda one: one[:3]):
        print(json.dumps(record, ensure_ascii=False))


if __name__ == "__main__":
    main(*sys.argv[1:])
