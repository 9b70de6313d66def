"""Makes tables, rows and connectors at random: generate.py FOLDER SEED ROWS CONFIGURATIONS.

Writes `tables.sql`, `rows.sql` and `connectors/` into the folder. Each connector has a table of its own. The same seed
gives the same files.
"""

import json
import pathlib
import random
import string
import sys
import uuid

CONNECT = "org.apache.kafka.connect."
STRING = CONNECT + "storage.StringConverter"
JSON = CONNECT + "json.JsonConverter"
ROUTER = "transforms.outbox."

EXTENSIONS = ["citext", "hstore", "ltree"]
TYPES = """create type mood as enum ('ok', 'sad', 'so so');
create domain label as text;
create domain price as numeric(10,2);
create domain sale_price as price;
create domain moment as timestamptz(3);
create type pair as (a int, b text);"""


def quoted(text):
    return "null" if text is None else "'" + text.replace("'", "''") + "'"


def name_of(column):
    return column if column.replace("_", "").isalnum() and column == column.lower() else f'"{column}"'


# --- values, each a function of the generator to the text of a value -------------------------------------------------

WORDS = "order customer acme Zoë 12 true null a.b c-d größer 東京 😀 tab\there line\nbreak quo\"te back\\slash it's {x} [y] </b> \x07".split(" ")


def text(rng):
    kind = rng.random()
    if kind < 0.03:
        return rng.choice(["", " ", "  \t\n"])
    return rng.choice([" ", "", "-"]).join(rng.choices(WORDS, k=rng.randint(1, 4)))


def plain(rng, most=12):
    return "".join(rng.choices(string.ascii_letters + string.digits + " ", k=rng.randint(1, most))).strip() or "x"


def word(rng):
    return "".join(rng.choices(string.ascii_lowercase, k=rng.randint(1, 9)))


def integer(bits):
    def one(rng):
        small = rng.random() < 0.6
        limit = 1 << (7 if small else bits - 1)
        return str(rng.choice([0, 1, -1, limit - 1, -limit, rng.randrange(-limit, limit)]))

    return one


def decimal(precision, scale):
    """A `numeric(precision,scale)`; without a precision any number."""

    def one(rng):
        if precision is None:
            if rng.random() < 0.01:
                return "NaN"
            digits = str(rng.randrange(10 ** rng.randint(1, 25)))
            places = rng.choice([0, 0, 1, 2, 5, 9, 20])
        else:
            digits = str(rng.randrange(10 ** rng.randint(1, max(precision, 1))))
            places = scale
            if rng.random() < 0.004:
                return "NaN"
        sign = rng.choice(["", "", "-"])
        if places <= 0:
            return sign + digits + "0" * -places
        digits = digits.rjust(places + 1, "0")
        return f"{sign}{digits[:-places]}.{digits[-places:]}"

    return one


def floating(single):
    def one(rng):
        special = rng.random()
        if special < 0.04:
            return rng.choice(["NaN", "Infinity", "-Infinity", "-0", "0"])
        if special < 0.4:
            return rng.choice(["1", "10", "0.1", "1e7", "9999999", "0.001", "1e-4", "1e23" if not single else "1e20", "2.5", "100"])
        number = rng.gauss(0, 1) * 10.0 ** rng.randint(-12, 12)
        return repr(number) if not single else f"{number:.6g}"

    return one


def clock(rng, digits=6):
    fraction = rng.choice(["", f".{rng.randrange(1000):03}", f".{rng.randrange(10**6):06}"]) if digits else ""
    return f"{rng.randrange(24):02}:{rng.randrange(60):02}:{rng.randrange(60):02}{fraction}"


def time_of_day(rng):
    return "24:00:00" if rng.random() < 0.01 else clock(rng)


def zone(rng):
    return rng.choice(["+00", "+02", "-08", "+05:30", "-03:30", "+14", "+00:00:01" if rng.random() < 0.05 else "+01"])


def date(rng):
    kind = rng.random()
    if kind < 0.01:
        return rng.choice(["infinity", "-infinity"])
    if kind < 0.04:
        return rng.choice(["0001-01-01", "1582-10-14", "1582-10-15", "1500-02-28", "0044-03-15 BC", "9999-12-31", "12345-01-02"])
    if kind < 0.1:
        return f"{rng.randrange(1600, 1970)}-{rng.randrange(1, 13):02}-{rng.randrange(1, 29):02}"
    return f"{rng.randrange(1970, 2040)}-{rng.randrange(1, 13):02}-{rng.randrange(1, 29):02}"


def timestamp(zoned):
    def one(rng):
        day = date(rng)
        if "infinity" in day:
            return day
        day, *era = day.split(" ")
        return " ".join([day, clock(rng) + ("+00" if zoned and era else zone(rng) if zoned else ""), *era])

    return one


def interval(rng):
    parts = [
        f"{rng.randrange(-3, 9)} years",
        f"{rng.randrange(-11, 12)} mons",
        f"{rng.randrange(-40, 41)} days",
        rng.choice(["", "-"]) + clock(rng),
    ]
    return " ".join(rng.sample(parts, rng.randint(1, 4)))


def data(rng):
    return "\\x" + rng.randbytes(rng.choice([0, 1, 3, 8, 20])).hex()


def one_uuid(rng):
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


def address(rng):
    four = ".".join(str(rng.randrange(256)) for _ in range(4))
    return rng.choice([four, four, "2001:db8::" + f"{rng.randrange(65536):x}", four + "/32"])


def network(rng):
    return rng.choice([f"10.{rng.randrange(256)}.0.0/16", f"192.168.{rng.randrange(256)}.0/24", "2001:db8::/32"])


def mac(count):
    return lambda rng: ":".join(f"{rng.randrange(256):02x}" for _ in range(count))


def span(of):
    def one(rng):
        if rng.random() < 0.05:
            return "empty"
        low, high = sorted(of(rng) for _ in range(2))
        return f"{rng.choice('[(')}{rng.choice([low, low, ''])},{rng.choice([high, high, ''])}{rng.choice(')]')}"

    return one


def number_span(rng):
    low = rng.randrange(-1000, 1000)
    return f"[{low},{low + rng.randrange(1, 1000)})"


def day_span(time):
    def one(rng):
        low = rng.randrange(1990, 2020)
        return f"[{low}-05-06{time},{low + rng.randrange(1, 9)}-07-08{time})"

    return one


def bits(fewest, most):
    return lambda rng: "".join(rng.choices("01", k=rng.randint(fewest, most)))


def point(rng):
    return f"({rng.randrange(-9, 10)},{rng.randrange(-90, 90) / 4})"


def points(shape):
    def one(rng):
        x, y = rng.randrange(-9, 9), rng.randrange(-9, 9)
        return shape.format(f"({x},{y})", f"({x + rng.randrange(1, 9)},{y + 2.5})", f"({x + 1},{y + 9})")

    return one


def hstore(rng):
    keys = rng.sample(["a", "b", "c d", "é"], rng.randint(0, 3))
    return ", ".join(f'"{key}"=>' + rng.choice(["NULL", f'"{plain(rng)}"', '"1"']) for key in keys)


def path_of_labels(rng):
    return ".".join(word(rng) for _ in range(rng.randint(1, 4)))


def lexemes(rng):
    return " ".join(word(rng) for _ in range(rng.randint(0, 4)))


def xml(rng):
    return f"<{word(rng)}a='1'/>".replace("a='", " a='") if rng.random() < 0.5 else f"<r>{word(rng)}</r>"


# --- JSON -------------------------------------------------------------------------------------------------------------


def number(rng):
    kind = rng.random()
    if kind < 0.55:
        return str(rng.randrange(-1000, 100000))
    if kind < 0.65:
        return str(rng.randrange(-(2**62), 2**62))
    if kind < 0.9:
        return f"{rng.randrange(-10000, 10000)}.{rng.randrange(1000):03}".replace("-0.000", "0.5")
    if kind < 0.96:
        return rng.choice(["1e3", "1E-7", "1.50", "0.0", "-0.0", "123456789.123456789", "1e22"])
    return rng.choice(["12345678901234567890", "1e400", "-0", "0.1e1", "4.9e-324"]) if kind < 0.967 else "7"


def scalar(rng):
    kind = rng.random()
    if kind < 0.4:
        return json.dumps(text(rng), ensure_ascii=rng.random() < 0.5)
    if kind < 0.8:
        return number(rng)
    return rng.choice(["true", "false", "null"])


def alike(rng):
    """Makes values of one type."""
    kind = rng.random()
    if kind < 0.45:
        return lambda: json.dumps(text(rng), ensure_ascii=rng.random() < 0.5)
    if kind < 0.8:
        return lambda: str(rng.randrange(-1000, 1000))
    return (lambda: rng.choice(["true", "false"])) if kind < 0.9 else (lambda: f"{rng.randrange(100)}.{rng.randrange(1, 99)}")


def document(rng, depth=0):
    """An object, its arrays mostly of values alike, as the code of an application writes it."""
    gap = rng.choice(["", " "])
    members = []
    for member in rng.sample(["id", "name", "total", "lines", "note", "at", "sub", "flag", "tags", "ü"], rng.randint(0, 5)):
        kind = rng.random()
        if kind < 0.12 and depth < 3:
            value = document(rng, depth + 1)
        elif kind < 0.22:
            one = alike(rng)
            value = "[" + ",".join(one() for _ in range(rng.randint(0, 4))) + "]"
        elif kind < 0.3 and depth < 2:
            fields = {field: alike(rng) for field in rng.sample(["sku", "qty", "price", "gift"], rng.randint(1, 3))}
            loose = rng.random() < 0.12

            def line():
                kept = {field: one() for field, one in fields.items() if not loose or rng.random() < 0.6}
                return "{" + ",".join(f'"{field}":{gap}{value}' for field, value in kept.items()) + "}"

            value = "[" + ",".join(line() for _ in range(rng.randint(0, 3))) + "]"
        elif kind < 0.315:
            value = "[" + ",".join(scalar(rng) for _ in range(rng.randint(1, 3))) + "]"
        else:
            value = scalar(rng)
        members.append(f'"{member}":{gap}{value}')
    return "{" + f",{gap}".join(members) + "}"


def for_jsonb(value):
    """What only `json` takes."""
    return value.replace("\\u0000", "").replace("1e400", "1e40")


def any_json(rng):
    kind = rng.random()
    if kind < 0.9:
        return document(rng)
    if kind < 0.94:
        one = alike(rng)
        return "[" + ",".join(one() for _ in range(rng.randint(0, 3))) + "]"
    if kind < 0.95:
        return "[" + document(rng) + "]"
    return scalar(rng)


def text_payload(rng):
    kind = rng.random()
    if kind < 0.45:
        return any_json(rng)
    if kind < 0.5:
        return rng.choice(["", " ", "\t\n", "{broken", "[1,2", '{"a":NaN}', '{"a":1,}', '{"a":1} trailing', "[]", " {}", "null"])
    return text(rng)


# --- types: SQL, values, weight ----------------------------------------------------------------------------------------


class Type:
    def __init__(self, sql, value, weight=1.0):
        self.sql, self.value, self.weight = sql, value, weight

    def array(self, weight=0.5):
        def value(rng):
            if rng.random() < 0.008 and self.sql in ("int", "text"):
                one = self.value
                return "{{%s,%s},{%s,%s}}" % tuple(element(one(rng)) for _ in range(4))
            count = rng.choice([0, 1, 1, 2, 3])
            return "{" + ",".join("NULL" if rng.random() < 0.06 else element(self.value(rng)) for _ in range(count)) + "}"

        return Type(self.sql + "[]", value, weight)


def element(value):
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def enum(rng):
    return rng.choice(["ok", "sad", "so so"])


def boolean(rng):
    return rng.choice(["t", "f"])


SCALARS = [
    Type("text", text, 6),
    Type("varchar(40)", lambda rng: text(rng)[:40], 3),
    Type("char(8)", lambda rng: plain(rng, 8)),
    Type("citext", plain),
    Type("label", text),
    Type("smallint", integer(16)),
    Type("int", integer(32), 4),
    Type("bigint", integer(64), 4),
    Type("oid", lambda rng: str(rng.randrange(2**32))),
    Type("boolean", boolean, 3),
    Type("numeric(10,2)", decimal(8, 2), 3),
    Type("numeric(20,10)", decimal(10, 10)),
    Type("numeric(12,0)", decimal(12, 0)),
    Type("numeric(3,-2)", decimal(3, -2), 0.2),
    Type("numeric", decimal(None, None), 1.2),
    Type("price", decimal(8, 2)),
    Type("sale_price", decimal(8, 2), 0.5),
    Type("real", floating(True), 1.2),
    Type("double precision", floating(False), 1.5),
    Type("date", date, 2),
    Type("timestamp", timestamp(False), 2),
    Type("timestamp(3)", timestamp(False)),
    Type("timestamp(0)", timestamp(False), 0.5),
    Type("timestamptz", timestamp(True), 4),
    Type("timestamptz(3)", timestamp(True)),
    Type("moment", timestamp(True), 0.5),
    Type("time", time_of_day, 1.2),
    Type("time(3)", time_of_day, 0.7),
    Type("timetz", lambda rng: clock(rng) + zone(rng)),
    Type("interval", interval, 1.2),
    Type("uuid", one_uuid, 4),
    Type("json", any_json),
    Type("jsonb", lambda rng: for_jsonb(any_json(rng)), 3),
    Type("xml", xml),
    Type("bytea", data, 2),
    Type("mood", enum, 2),
    Type("inet", address),
    Type("cidr", network, 0.5),
    Type("macaddr", mac(6), 0.5),
    Type("macaddr8", mac(8), 0.3),
    Type("int4range", number_span, 0.5),
    Type("int8range", number_span, 0.3),
    Type("numrange", number_span, 0.3),
    Type("daterange", day_span(""), 0.3),
    Type("tsrange", day_span(" 01:02:03"), 0.3),
    Type("tstzrange", day_span(" 01:02:03+00"), 0.3),
    Type("tsvector", lexemes, 0.5),
    Type("ltree", path_of_labels),
]
BY_SQL = {kind.sql: kind for kind in SCALARS}
ARRAYS = [
    BY_SQL[sql].array(weight)
    for sql, weight in [
        ("text", 2), ("varchar(40)", 0.5), ("char(8)", 0.3), ("citext", 0.7), ("smallint", 0.3), ("int", 1), ("bigint", 0.7), ("oid", 0.2),
        ("boolean", 0.5), ("numeric(10,2)", 0.6), ("numeric", 0.4), ("real", 0.3), ("double precision", 0.4), ("date", 0.6), ("timestamp", 0.5),
        ("timestamp(3)", 0.3), ("timestamptz", 0.6), ("time", 0.4), ("timetz", 0.3), ("uuid", 0.7), ("json", 0.3), ("jsonb", 0.5), ("bytea", 0.4),
        ("mood", 0.6), ("inet", 0.3), ("cidr", 0.2), ("macaddr", 0.2), ("int4range", 0.2), ("daterange", 0.2), ("ltree", 0.3),
    ]
]  # fmt: skip
STRUCTURES = [
    Type("hstore", hstore, 1.2),
    Type("money", lambda rng: f"{rng.randrange(-1000, 100000)}.{rng.randrange(100):02}"),
    Type("bit(1)", bits(1, 1), 0.3),
    Type("bit(12)", bits(12, 12), 0.5),
    Type("varbit(9)", bits(1, 9), 0.5),
    Type("point", point),
    Type("box", points("{0},{1}"), 0.3),
    Type("lseg", points("[{0},{1}]"), 0.3),
    Type("path", points("[{0},{1},{2}]"), 0.3),
    Type("polygon", points("({0},{1},{2})"), 0.3),
    Type("circle", lambda rng: f"<{point(rng)},{rng.randrange(1, 9)}>", 0.3),
    Type("line", lambda rng: f"{{{rng.randrange(1, 9)},{rng.randrange(1, 9)},{rng.randrange(9)}}}", 0.3),
]
UNKNOWN = [
    Type("name", word, 1.5),
    Type('"char"', lambda rng: rng.choice("abc"), 0.4),
    Type("pg_lsn", lambda rng: f"{rng.randrange(99):X}/{rng.randrange(2**31):X}", 0.6),
    Type("xid8", lambda rng: str(rng.randrange(10**6)), 0.6),
    Type("tsquery", lambda rng: f"'{word(rng)}' & '{word(rng)}'", 0.6),
    Type("jsonpath", lambda rng: f"$.{word(rng)}", 0.4),
    Type("int4multirange", lambda rng: "{[1,3),[7,9)}", 0.4),
    Type("pair", lambda rng: f"({rng.randrange(99)},{word(rng)})", 0.5),
    BY_SQL["price"].array(0.8),
    BY_SQL["label"].array(0.5),
    BY_SQL["interval"].array(0.4),
    BY_SQL["xml"].array(0.3),
    Type("name[]", lambda rng: "{a,b}", 0.3),
    Type("money[]", lambda rng: "{1.50,2}", 0.3),
    Type("varbit[]", lambda rng: "{101,1}", 0.2),
    Type("hstore[]", lambda rng: '{"a=>1"}', 0.2),
]
POOLS = [(SCALARS, 70), (ARRAYS, 17), (STRUCTURES, 6), (UNKNOWN, 2.5)]

KEYS = {
    "text": 25, "varchar(40)": 15, "uuid": 15, "bigint": 12, "int": 6, "numeric(10,2)": 3, "numeric(20,10)": 1, "numeric": 1.5, "double precision": 1.5,
    "real": 0.7, "date": 1.5, "timestamptz": 1.5, "timestamp": 1, "bytea": 2, "mood": 2, "citext": 2, "boolean": 1, "interval": 0.7, "time": 0.7,
    "inet": 1, "label": 1.5, "price": 1, "char(8)": 1, "jsonb": 0.5, "oid": 0.5, "ltree": 0.7, "timetz": 0.4, "smallint": 0.5,
}  # fmt: skip
KEY_TYPES = [(BY_SQL[sql], weight) for sql, weight in KEYS.items()] + [
    (BY_SQL["text"].array(), 1.2), (STRUCTURES[0], 0.6), (STRUCTURES[1], 0.5), (BY_SQL["int"].array(), 0.6), (UNKNOWN[0], 0.5),
]  # fmt: skip
TEXT_PAYLOAD = Type("text", text_payload)
PAYLOADS = {
    "jsonb": 42, "json": 13, "bytea": 7, "numeric(10,2)": 1.5, "bigint": 1.5, "boolean": 1.5, "double precision": 1, "timestamptz": 1.5, "uuid": 1,
    "xml": 2, "citext": 1, "numeric": 1, "mood": 1, "date": 0.7, "ltree": 0.6, "varchar(40)": 2, "interval": 0.5,
}  # fmt: skip
PAYLOAD_TYPES = [(BY_SQL[sql], weight) for sql, weight in PAYLOADS.items()] + [
    (TEXT_PAYLOAD, 18), (BY_SQL["text"].array(), 1.5), (STRUCTURES[0], 0.8), (STRUCTURES[1], 0.4), (BY_SQL["jsonb"].array(), 0.6),
    (STRUCTURES[5], 0.3), (UNKNOWN[0], 0.4), (BY_SQL["citext"].array(), 0.4),
]  # fmt: skip


def weighted(rng, pairs):
    choices, weights = zip(*pairs)
    return rng.choices(choices, weights)[0]


def any_type(rng):
    pool = weighted(rng, POOLS)
    return rng.choices(pool, [kind.weight for kind in pool])[0]


# --- tables and connectors ---------------------------------------------------------------------------------------------


class Column:
    def __init__(self, name, kind, not_null=False, default=None, nulls=0.05):
        self.name, self.kind, self.not_null, self.default = name, kind, not_null, default
        self.nulls = 0 if not_null else nulls

    def sql(self, more=""):
        default = f" default {self.default}" if self.default else ""
        return f"{name_of(self.name)} {self.kind.sql}{more}{' not null' if self.not_null else ''}{default}"


class Case:
    """A table and the connector on it."""

    def __init__(self, number, rng):
        self.rng, self.name, self.table = rng, f"c{number:03}", f"outbox_{number:03}"
        self.options, self.placed = {}, []
        has_renamed = rng.random() < 0.1
        self.id = Column("event_id" if has_renamed else "id", self.id_type(), not_null=True)
        self.route_by = self.routed(has_renamed)
        self.key = Column("account id" if has_renamed else "aggregateid", weighted(rng, KEY_TYPES), rng.random() < 0.25, nulls=0.03)
        self.type = Column("type", BY_SQL["mood"] if rng.random() < 0.05 else Type("varchar(255)", self.word), rng.random() < 0.2, nulls=0.03)
        self.payload = Column("body" if has_renamed else "payload", weighted(rng, PAYLOAD_TYPES), rng.random() < 0.15, nulls=0.04)
        self.columns = [self.id, self.route_by, self.key, self.type, self.payload]
        if has_renamed:
            for option, column in [("id", self.id), ("key", self.key), ("payload", self.payload)]:
                self.options[f"{ROUTER}table.field.event.{option}"] = column.name
        self.defaults_of(self.payload, 0.03)
        self.placements()
        self.record_options()
        self.converters()
        self.modes()

    def id_type(self):
        kind = self.rng.random()
        if kind < 0.88:
            return BY_SQL["uuid"]
        counter = iter(range(1, 10**9))
        sql = "bigint" if kind < 0.95 else "text" if kind < 0.98 else "int"
        return Type(sql, lambda rng: str(next(counter)) if sql != "text" else f"e-{next(counter)}")

    def word(self, rng):
        return rng.choice(["OrderCreated", "OrderPaid", "Größe", "T", "a b"])

    def routed(self, has_renamed):
        rng, case = self.rng, self.name
        replacement, values = f"{case}.${{routedByValue}}", rng.sample(["order", "customer", "Invoice_2", "a-b"], rng.randint(1, 2))
        kind = rng.random()
        if kind < 0.12:
            regex, replacement = rng.choice([
                (rf"{case}\.(.*)Created", f"{case}.$1"), (rf"{case}\.(\w+?)(\d*)", f"{case}.$1-$2"), (r"(?<a>.*)\.(?<b>.*)", "${a}.x-${b}"),
                (rf"({case}\.)[A-Z](.*)", "$1up.$2"), (rf"{case}\.(Order|Orders).*", f"{case}.$1"),
            ])  # fmt: skip
            self.options[f"{ROUTER}route.topic.regex"] = regex
            values = [f"{case}.{value}" for value in rng.sample(["OrderCreated", "OrdersPaid", "order2", "other"], 2)]
        elif kind < 0.2:
            replacement = f"{case}.all"
        self.options[f"{ROUTER}route.topic.replacement"] = replacement
        # What cannot be delivered.
        odd = weighted(rng, [("", 92), (None, 4), (f"{case}.odd/topic name", 4)])
        name = "kind" if has_renamed else "aggregatetype"
        if has_renamed:
            self.options[f"{ROUTER}route.by.field"] = name
        value = lambda rng: odd if odd != "" and rng.random() < 0.15 else rng.choice(values)
        column = Column(name, Type("text" if rng.random() < 0.5 else "varchar(255)", value), nulls=0)
        column.not_null = odd is not None and rng.random() < 0.5
        return column

    def defaults_of(self, column, share):
        """A default, which only a column that is not NOT NULL shows."""
        if self.rng.random() < share:
            column.default = quoted(column.kind.value(self.rng))
            column.nulls = max(column.nulls, 0.1 if not column.not_null else 0)

    def place(self, column, where):
        alias = self.rng.choice(["", "", f":x-{len(self.placed)}", f":Alias {len(self.placed)}", ":twice" if self.rng.random() < 0.05 else ""])
        self.placed.append(f"{column}:{where}{alias}")

    def placements(self):
        rng = self.rng
        takes_envelope = rng.random() < 0.25
        where = lambda: rng.choice(["header", "envelope"]) if takes_envelope else "header"
        if rng.random() < 0.5:
            self.place("type", where())
        if rng.random() < 0.1:
            self.place(self.key.name, where())
        for number in range(rng.choice([0, 1, 1, 2, 2, 3, 4])):
            name = rng.choice(["tenant", "v", "some_column", "Odd Col", "extra"]) + str(number)
            column = Column(name, any_type(rng), rng.random() < 0.15, nulls=rng.choice([0.02, 0.3]))
            self.defaults_of(column, 0.08)
            if column.kind.sql == "timestamptz" and rng.random() < 0.1:
                column.default = "now()"
            self.columns.append(column)
            if rng.random() < 0.92:
                self.place(name, where())
        if rng.random() < 0.05:
            self.columns.append(Column("part", Type("int", lambda rng: str(rng.randrange(8)))))
            self.placed.append("part:partition")
        self.has_envelope = any(":envelope" in place for place in self.placed)
        if self.placed:
            self.options[f"{ROUTER}table.fields.additional.placement"] = ",".join(dict.fromkeys(self.placed))

    def record_options(self):
        rng, options = self.rng, self.options
        if rng.random() < 0.08:
            kind = weighted(rng, [("timestamp", 60), ("timestamp(3)", 20), ("timestamptz", 8), ("bigint", 7), ("date", 3)])
            recent = lambda rng: "1969-12-31 23:59:59" if rng.random() < 0.001 else f"{rng.randrange(1971, 2024)}-05-06 {clock(rng)}"
            value = {"bigint": lambda rng: str(rng.randrange(10**12, 17 * 10**11))}.get(kind, recent)
            self.columns.append(Column("occurred", Type(kind, value), nulls=0.1))
            options[f"{ROUTER}table.field.event.timestamp"] = "occurred"
        if rng.random() < 0.03:
            self.columns.append(Column("version", Type("int", lambda rng: rng.choice("12")), not_null=True))
            options[f"{ROUTER}table.field.event.schema.version"] = "version"
        if self.payload.kind.sql in ("json", "jsonb", "text") and rng.random() < 0.3:
            options[f"{ROUTER}table.expand.json.payload"] = "true"
            if rng.random() < 0.3:
                options[f"{ROUTER}table.json.payload.null.behavior"] = "optional_bytes"
        if rng.random() < 0.2:
            options[f"{ROUTER}route.tombstone.on.empty.payload"] = "true"
        if rng.random() < 0.9:
            options["extended.headers.enabled"] = "false"
        if rng.random() < 0.03:
            options[f"{ROUTER}table.fields.additional.error.on.missing"] = rng.choice(["true", "false"])

    def converters(self):
        rng, binary = self.rng, "io.debezium.converters.BinaryDataConverter"
        delegated = [("delegate.converter.type", JSON), ("delegate.converter.type.schemas.enable", "false")]
        plain = ("schemas.enable", "false")
        forms = {
            "text": (STRING, []),
            "latin": (STRING, [("converter.encoding", "ISO-8859-1")]),
            "json": (JSON, [plain]),
            "schema": (JSON, []),
            "digits": (JSON, [plain, ("decimal.format", "NUMERIC")]),
            "digits in a schema": (JSON, [("decimal.format", "NUMERIC")]),
            "binary": (binary, delegated),
            "bytes": (binary if rng.random() < 0.5 else CONNECT + "converters.ByteArrayConverter", []),
            "simple": (CONNECT + "storage.SimpleHeaderConverter", []),
        }
        of = {
            "key": [("text", 60), ("json", 15), ("schema", 8), ("binary", 4), ("latin", 2), ("digits", 5), ("digits in a schema", 1)],
            "value": [("text", 40), ("json", 30), ("schema", 9), ("binary", 6), ("latin", 2), ("digits", 5), ("digits in a schema", 1)],
            "header": [(None, 55), ("json", 12), ("schema", 9), ("text", 9), ("latin", 1), ("digits", 4), ("digits in a schema", 1), ("simple", 5)],
        }
        is_data = lambda column: column.kind.sql == "bytea"
        for converter, choices in of.items():
            if converter == "value" and (self.has_envelope or f"{ROUTER}table.expand.json.payload" in self.options):
                choices = [("text", 12), ("json", 50), ("schema", 10), ("digits", 12), ("binary", 6)]
            chosen = weighted(rng, choices)
            # What takes bytes alone.
            column = {"key": self.key, "value": self.payload}.get(converter)
            if column and is_data(column) and rng.random() < 0.5 and not (converter == "value" and self.has_envelope):
                chosen = "bytes"
            if chosen:
                name, options = forms[chosen]
                self.options[f"{converter}.converter"] = name
                self.options.update({f"{converter}.converter.{option}": value for option, value in options})

    def modes(self):
        modes = [
            ("decimal.handling.mode", "string"), ("decimal.handling.mode", "double"), ("time.precision.mode", "connect"),
            ("time.precision.mode", "isostring"), ("time.precision.mode", "adaptive_time_microseconds"), ("interval.handling.mode", "string"),
            ("binary.handling.mode", "base64"), ("binary.handling.mode", "hex"), ("hstore.handling.mode", "map"), ("money.fraction.digits", "4"),
            ("include.unknown.datatypes", "true"), (f"{ROUTER}field.name.adjustment.mode", "avro"),
        ]  # fmt: skip
        if self.rng.random() < 0.14:
            option, value = self.rng.choice(modes)
            self.options[option] = value

    def properties(self):
        lines = {
            "name": self.name,
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "tasks.max": "1",
            "plugin.name": "pgoutput",
            "database.hostname": "127.0.0.1",
            "database.port": "5432",
            "database.user": "postgres",
            "database.password": "postgres",
            "database.dbname": "postgres",
            "topic.prefix": f"p{self.name}",
            "slot.name": self.name,
            "publication.name": self.name,
            "publication.autocreate.mode": "disabled",
            "table.include.list": f"public.{self.table}",
            "snapshot.mode": "no_data",
            "tombstones.on.delete": "false",
            "errors.tolerance": "all",
            "errors.log.enable": "true",
            "transforms": "outbox",
            f"{ROUTER}type": "io.debezium.transforms.outbox.EventRouter",
            **self.options,
        }
        return "".join(f"{name}={value}\n".replace("\\", "\\\\") for name, value in lines.items())

    def create(self):
        columns = ",\n    ".join(column.sql(" primary key" if column is self.id else "") for column in self.columns)
        return f"create table {self.table} ({columns});\ncreate publication {self.name} for table {self.table};\n"

    def insert(self):
        values = [None if self.rng.random() < column.nulls else column.kind.value(self.rng) for column in self.columns]
        return f"insert into {self.table} values ({', '.join(map(quoted, values))});\n"


def main(folder, seed, rows, configurations):
    folder, rows, configurations = pathlib.Path(folder), int(rows), int(configurations)
    (folder / "connectors").mkdir(parents=True, exist_ok=True)
    cases = [Case(number, random.Random(f"{seed} {number}")) for number in range(1, configurations + 1)]
    tables = [f"create extension {name};" for name in EXTENSIONS] + [TYPES] + [case.create() for case in cases]
    (folder / "tables.sql").write_text("\n".join(tables))
    for case in cases:
        (folder / "connectors" / f"{case.name}.properties").write_text(case.properties())
    with open(folder / "rows.sql", "w", encoding="utf-8") as file:
        for number in range(rows):
            file.write(cases[number % configurations].insert())


if __name__ == "__main__":
    main(*sys.argv[1:])
