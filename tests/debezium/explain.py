"""Says of each difference between Debezium and walrelay which row of the documentation has it: explain.py FOLDER.

Reads what scripts/debezium-differential has put into the folder. A difference is documented where the table in
docs/how-to/move-from-debezium.md has the row and the import lists an option or a column for it. Prints the shares, and what
is not documented; ends with 1 if there is any.
"""

import collections
import json
import pathlib
import re
import struct
import sys

PAGE = "docs/how-to/move-from-debezium.md"
ROUTER = "transforms.outbox."
SHOWN_MAX = 40

GEOMETRIC = {"point", "box", "lseg", "path", "polygon", "circle", "line"}
STRUCTURES = GEOMETRIC | {"hstore", "money", "bit", "varbit"}
KNOWN = set(
    "bool int2 int4 int8 oid float4 float8 numeric text varchar bpchar char citext date timestamp timestamptz time timetz interval "
    "uuid json jsonb xml bytea inet cidr macaddr macaddr8 int4range int8range numrange tsrange tstzrange daterange tsvector "
    "ltree".split()
)
KNOWN_ALONE = {"char", "interval", "xml", "tsvector"}
TIMES = {"date", "timestamp", "timestamptz", "time", "timetz"}


class Number(str):
    """A number of JSON, digit for digit."""


def parsed(text):
    """JSON with numbers as they are written; `None` where it is none."""
    try:
        return json.loads(text, parse_int=Number, parse_float=Number, parse_constant=Number)
    except (TypeError, ValueError, RecursionError):
        return None


class Case:
    """A connector, its table, and what its import lists."""

    def __init__(self, folder, name, left):
        self.name, self.notes = name, left
        lines = (folder / "connectors" / f"{name}.properties").read_text().splitlines()
        lines = (line.replace("\\\\", "\\") for line in lines if "=" in line and not line.startswith("#"))
        self.options = dict(line.split("=", 1) for line in lines)
        self.placed = []
        for one in filter(None, self.router("table.fields.additional.placement", "").split(",")):
            column, place, *alias = one.split(":")
            self.placed.append((column, place, alias[0] if alias else column))
        self.expands = self.router("table.expand.json.payload") == "true"
        self.has_envelope = any(place == "envelope" for _, place, _ in self.placed)

    def router(self, option, default=None):
        return self.options.get(ROUTER + option, default)

    def converter(self, of):
        name = self.options.get(f"{of}.converter", "")
        # A converter for bytes gives its delegate what is none.
        return (self.options.get(f"{of}.converter.delegate.converter.type") or name).rsplit(".", 1)[-1]

    def has_schemas(self, of):
        enabled = [value for name, value in self.options.items() if name.startswith(f"{of}.converter.") and name.endswith("schemas.enable")]
        return self.converter(of) == "JsonConverter" and "false" not in enabled

    def column_of(self, part):
        """The name of the column that a part of a record is made of."""
        if part == "key":
            return self.router("table.field.event.key", "aggregateid")
        if part == "header id":
            return self.router("table.field.event.id", "id")
        if part in ("value", "member payload"):
            return self.router("table.field.event.payload", "payload")
        kind, _, name = part.partition(" ")
        place = {"header": "header", "member": "envelope"}.get(kind)
        return next((column for column, at, alias in self.placed if (at, alias) == (place, name)), None)

    def uses(self):
        """The columns of which a record is made."""
        return [self.column_of(part) for part in ("key", "value")] + [column for column, _, _ in self.placed]

    def is_told(self, option, column=None):
        """Whether the import lists an option, or a column under it."""
        return any(
            re.fullmatch(option, note["option"].removesuffix(" (not set)").replace(ROUTER, "router."))
            and note["effect"] != "no-effect"
            and (column is None or re.search(rf"(?<!\w){re.escape(column)}(?!\w)", note["why"]))
            for note in self.notes
        )


class Difference:
    """One part of one record."""

    def __init__(self, case, part, debezium, walrelay, table, row, more):
        self.case, self.part, self.debezium, self.walrelay, self.more = case, part, debezium, walrelay, more
        self.table, self.row = table, row
        self.name = case.column_of(part)
        self.column = table.get(self.name, {})
        self.value = row.get(self.name)
        self.of = "header" if part.startswith("header") else "key" if part == "key" else "value"

    @property
    def base(self):
        return self.column.get("base", "")

    @property
    def element(self):
        return self.base[1:] if self.is_array else self.base

    @property
    def is_array(self):
        return self.column.get("category") == "A"

    def is_text(self):
        return self.case.converter(self.of) in ("StringConverter", "")

    def without_schema(self):
        """Both values without their schemas; the same pair where they have none."""
        both = [parsed(form) for form in (self.debezium, self.walrelay)]
        if all(isinstance(form, dict) and set(form) == {"schema", "payload"} for form in both):
            return [form["payload"] for form in both]
        return both


def is_known(column):
    base, category = column.get("base", ""), column.get("category")
    if category == "A":
        return column.get("base_oid") == 1009 or (base[1:] in KNOWN - KNOWN_ALONE)
    return category == "E" or base in KNOWN


def is_structure(column):
    return column.get("base", "") in STRUCTURES | {"_hstore", "_bit"}


def has_seconds_in_offset(value):
    return re.search(r"[+-]\d\d:\d\d:\d\d$", value or "") is not None


def numbers_as_numbers(value):
    if isinstance(value, Number):
        return float(value)
    if isinstance(value, list):
        return [numbers_as_numbers(one) for one in value]
    if isinstance(value, dict):
        return {name: numbers_as_numbers(one) for name, one in value.items()}
    return value


def kinds(value):
    """What has to be the same of the elements of an array."""
    if isinstance(value, Number):
        if re.fullmatch(r"-?\d+", value):
            return "INT32" if -(2**31) <= int(value) < 2**31 else "INT64" if -(2**63) <= int(value) < 2**63 else "BIG"
        return "FLOAT64"
    return type(value).__name__


def fails_to_expand(value, is_top=True):
    """Whether Debezium has no record of this JSON, or may have none."""
    if isinstance(value, Number):
        return kinds(value) == "BIG"
    if isinstance(value, list):
        if is_top or (None in value and any(isinstance(one, dict) for one in value)):
            return True
        members = collections.defaultdict(set)
        for one in value:
            for name, member in one.items() if isinstance(one, dict) else [("", one)]:
                if member is not None:
                    members[name].add(kinds(member))
        if any(len(found) > 1 for found in members.values()):
            return True
        # What is in the arrays of an array.
        inner = {kinds(one) for array in value if isinstance(array, list) for one in array if one is not None}
        return len(inner) > 1 or any(fails_to_expand(one, False) for one in value)
    if isinstance(value, dict):
        return any(fails_to_expand(one, False) for one in value.values())
    return False


def has_unlike_objects(value):
    """Whether objects in one place of an array have members of their own: those without a value are none."""
    places = collections.defaultdict(set)

    def visit(value, place):
        if isinstance(value, list):
            for one in value:
                visit(one, (*place, "[]"))
        elif isinstance(value, dict):
            places[place].add(tuple(value))
            places[place].add(tuple(name for name, one in value.items() if one is not None and one != []))
            for name, one in value.items():
                visit(one, (*place, name))

    visit(value, ())
    return any("[]" in place and len(members) > 1 for place, members in places.items())


def is_blank(value):
    return value is not None and not value.strip()


# --- rules: the start of the documentation's row, the option that the import lists, and whether it is that -----------


def no_record_of_debezium(d):
    """Only walrelay has a record."""
    case = d.case
    occurred = case.router("table.field.event.timestamp")
    if occurred:
        value = d.row.get(occurred) or ""
        if "time.precision.mode" in case.options:
            return "record timestamp", "time.precision.mode"
        if d.table[occurred]["base"] != "timestamp" or value.startswith("19") and value < "1970" or "inf" in value or "BC" in value:
            return "record timestamp", "router.table.field.event.timestamp"
    for column in case.uses():
        if not is_known(d.table[column]) and not is_structure(d.table[column]):
            return "a column of a type that Debezium does not know", ("table.include.list", column)
    routed_by = case.router("route.by.field", "aggregatetype")
    if d.row[routed_by] is None:
        return "an event that cannot be delivered", "errors.tolerance"
    if d.table[routed_by]["category"] in "ABDNTVGR" or d.table[routed_by]["base"] == "bytea":
        return "`route.by.field` of a column that is no text", "router.route.by.field"
    if "binary.handling.mode" in case.options:
        for of in ("key", "value"):
            if case.converter(of) in ("BinaryDataConverter", "ByteArrayConverter") and d.table[case.column_of(of)]["base"] == "bytea":
                return "`decimal.handling.mode`, `time.precision.mode`", re.escape("binary.handling.mode")
    # What Debezium cannot convert is NULL, and ends the task where the column is NOT NULL.
    for column in case.uses():
        if d.table[column]["base"] == "timetz" and has_seconds_in_offset(d.row[column]):
            return "a `timetz` with seconds", ("table.include.list", column)
    payload = d.row.get(case.column_of("value"))
    if case.expands and case.has_envelope and case.router("table.field.event.schema.version"):
        return "JSON that Debezium fails to expand", "router.table.field.event.schema.version"
    if case.expands and (payload or "").startswith(("{", "[")):
        document = parsed(payload)
        if document is None or fails_to_expand(document):
            return "JSON that Debezium fails to expand", r"router.table.expand.json.payload|value.converter"
    return None


def no_record_of_walrelay(d):
    """Only Debezium has a record."""
    if not d.table:
        return None
    for column in dict.fromkeys(filter(None, d.case.uses())):
        value, kind = d.row.get(column) or "", d.table[column]
        if kind["category"] == "A" and value.startswith("{{"):
            return "an array of several dimensions", ("table.include.list", column)
        if kind["base"].removeprefix("_") in ("numeric", "interval") and ("NaN" in value or "nfinity" in value):
            return "`NaN` or `Infinity` in a `numeric`", ("table.include.list", column)
    occurred = d.case.router("table.field.event.timestamp")
    if occurred and "infinity" in (d.row.get(occurred) or ""):
        return "record timestamp", "router.table.field.event.timestamp"
    if d.row.get(d.case.router("route.by.field", "aggregatetype")) is None:
        return "an event that cannot be delivered", "errors.tolerance"
    return None


def of_records(d):
    """What is not of one column."""
    if d.part == "record":
        return no_record_of_debezium(d) if d.debezium is None else no_record_of_walrelay(d)
    if d.part == "timestamp":
        return "record timestamp", "router.table.field.event.timestamp"
    if d.part == "headers" and len({name for name, _ in d.more["debezium"]["headers"]}) < len(d.more["debezium"]["headers"]):
        return "two headers of one name", "router.table.fields.additional.placement"
    return None


def of_values(d):
    """What is of the whole value: an envelope, a payload expanded."""
    case, converter = d.case, d.case.converter("value")
    if d.part != "value":
        return None
    if (case.has_envelope or case.expands) and case.has_schemas("value"):
        return "schema of an envelope or an expanded payload", "value.converter"
    if (case.has_envelope or case.expands) and converter == "StringConverter":
        return "a structure with StringConverter", r"value.converter|router.table.expand.json.payload"
    if case.router("route.tombstone.on.empty.payload") and d.debezium is None and is_blank(d.value):
        return "tombstone for a blank text in an envelope", "router.route.tombstone.on.empty.payload"
    return None


def of_expanded(d):
    if not d.case.expands or d.part not in ("value", "member payload"):
        return None
    if "avro" in d.case.router("field.name.adjustment.mode", ""):
        return "`field.name.adjustment.mode`", "router.field.name.adjustment.mode"
    debezium, walrelay = d.without_schema()
    document = parsed(d.value)
    if debezium == walrelay or has_unlike_objects(document):
        return "objects in arrays, expanded", "router.table.expand.json.payload"
    if numbers_as_numbers(debezium) == numbers_as_numbers(walrelay):
        return "`real`, `double precision` and numbers", "router.table.expand.json.payload"
    return None


def of_modes(d):
    modes = {
        "decimal.handling.mode": {"numeric", "money"},
        "time.precision.mode": TIMES,
        "interval.handling.mode": {"interval"},
        "binary.handling.mode": {"bytea"},
        "hstore.handling.mode": {"hstore"},
        "money.fraction.digits": {"money"},
    }
    for option, bases in modes.items():
        if option in d.case.options and d.element in bases:
            return "`decimal.handling.mode`, `time.precision.mode`", re.escape(option)
    if "include.unknown.datatypes" in d.case.options and not is_known(d.column):
        return "a column of a type that Debezium does not know", "include.unknown.datatypes"
    return None


def of_converters(d):
    case, converter = d.case, d.case.converter(d.of)
    encoding = f"{d.of}.converter.converter.encoding"
    if encoding in case.options and not (d.value or "").isascii():
        return "`converter.encoding`", re.escape(encoding)
    if "BinaryDataConverter" in case.options.get(f"{d.of}.converter", "") and d.base == "numeric" and d.value is None:
        return "NULL in a `numeric(p,s)` with `BinaryDataConverter`", f"{d.of}.converter"
    if d.base == "bytea" and d.of == "key" and (converter == "ByteArrayConverter" or "BinaryDataConverter" in case.options["key.converter"]):
        return "a `bytea` key with", "key.converter"
    has_java_text = d.is_array or is_structure(d.column) or d.base in ("numeric", "bytea")
    if d.of != "header" and converter == "StringConverter" and has_java_text:
        return "a key or payload of an array", f"{d.of}.converter"
    if d.of == "header" and converter == "StringConverter" and has_java_text:
        return "`header.converter` `StringConverter`", "header.converter"
    if f"{d.of}.converter.decimal.format" in case.options and d.element == "numeric" and (case.has_schemas(d.of)):
        return "`decimal.format=NUMERIC` with schemas", f"{d.of}.converter.decimal.format"
    return None


def of_types(d):
    table = ("table.include.list", d.name)
    if d.value is None and d.column.get("default"):
        return "NULL in a column that has a default", table
    if is_structure(d.column):
        return "`hstore`, `money`, `bit`, geometric types", table
    if not is_known(d.column):
        return "a column of a type that Debezium does not know", table
    debezium, walrelay = d.without_schema()
    if d.element in ("float4", "float8") and same_numbers(d, debezium, walrelay):
        return "`real`, `double precision` and numbers", table
    if d.is_array and d.element in TIMES:
        return "an array of dates or times", table
    if d.base == "timetz" and has_seconds_in_offset(d.value):
        return "a `timetz` with seconds", table
    if d.is_array and (d.element not in KNOWN or d.element == "ltree") and "NULL" in (d.value or ""):
        return "a `timetz` with seconds", table
    if d.is_array and (d.value or "").startswith("{{"):
        return "an array of several dimensions", table
    return None


def same_numbers(d, debezium, walrelay):
    """Whether two forms are of one number, or of arrays of the same numbers."""
    size = "f" if d.element == "float4" else "d"

    def rounded(value):
        if isinstance(value, list):
            return [rounded(one) for one in value]
        return None if value is None else struct.pack(size, float(value))

    try:
        both = [debezium, walrelay] if isinstance(walrelay, list) else [debezium or d.debezium, walrelay or d.walrelay]
        return rounded(both[0]) == rounded(both[1])
    except (TypeError, ValueError, OverflowError):
        return False


def of_schemas(d):
    """The value is the same, and its schema is not."""
    if d.case.has_schemas(d.of) and isinstance(parsed(d.walrelay), dict):
        debezium, walrelay = d.without_schema()
        if debezium == walrelay:
            return "schema of a column with `connect('schema')`", (f"{d.of}.converter", d.name)
    return None


RULES = [of_values, of_modes, of_converters, of_schemas, of_expanded, of_types]


def split(case, part, debezium, walrelay):
    """An envelope's members that differ, as parts of their own."""
    if part != "value" or not case.has_envelope or case.has_schemas("value"):
        return [(part, debezium, walrelay)]
    both = parsed(debezium), parsed(walrelay)
    if not all(isinstance(one, dict) for one in both) or list(both[0]) != list(both[1]):
        return [(part, debezium, walrelay)]
    members = [(f"member {name}", *(json.dumps(one[name], ensure_ascii=False) for one in both)) for name in both[0]]
    return [one for one in members if one[1] != one[2]] or [(part, debezium, walrelay)]


def form(record, part):
    if record is None or part in ("record",):
        return None if record is None else "sent"
    if part.startswith("header "):
        return next((value for name, value in record["headers"] if name == part.removeprefix("header ")), None)
    return [name for name, _ in record["headers"]] if part == "headers" else record[part]


def differences(case, line, table, row):
    """The differences of a record, without those that follow from another."""
    parts = [part for part in line["parts"] if part != "partition" or "key" not in line["parts"]]
    for part in parts:
        for name, debezium, walrelay in split(case, part, form(line["debezium"], part), form(line["walrelay"], part)):
            yield Difference(case, name, debezium, walrelay, table, row, line)


class Table:
    """What was found."""

    def __init__(self):
        self.page = pathlib.Path(PAGE).read_text()
        self.counts = collections.Counter()
        self.because = collections.Counter()
        self.undocumented = []

    def judge(self, line, found):
        """Counts the differences of one row."""
        reasons = set()
        for d in found:
            rule = of_records(d) or (next(filter(None, (rule(d) for rule in RULES)), None) if d.column else None)
            told = rule and d.case.is_told(*(rule[1] if isinstance(rule[1], tuple) else (rule[1],)))
            is_in_page = rule and f"\n| {rule[0]}" in self.page
            if told and is_in_page:
                reasons.add(rule[0])
                continue
            reasons.add("undocumented")
            why = "no rule" if not rule else f"{rule[0]}: not told by import" if not told else f"{rule[0]}: not in {PAGE}"
            self.undocumented.append({
                "case": d.case.name, "id": line["id"], "part": d.part, "column": d.name, "type": d.column.get("type"), "value": d.value,
                "debezium": d.debezium, "walrelay": d.walrelay, "stopped by": line["stopped by"], "why": why,
            })  # fmt: skip
        self.because.update(reasons)

    def print(self):
        counts = self.counts
        print(f"{counts['rows']:,} rows, {counts['configurations']} configurations, {counts['records']:,} records of Debezium")
        lines = [("identical", counts["identical"]), ("no record of either", counts["neither"]), ("after the end of Debezium's task", counts["after"])]
        lines += self.because.most_common()
        for name, count in lines:
            print(f"{count:>7,} {count / max(counts['rows'], 1):>7.1%}  {name}")


def main(folder):
    folder, table = pathlib.Path(folder), Table()
    ended = folder.joinpath("ended").read_text().split() if folder.joinpath("ended").exists() else []
    tables, case, rest = {}, None, {}
    for path in (folder / "rows").glob("*.json"):
        tables[path.stem] = json.loads(path.read_text())
    lines = [json.loads(line) for line in (folder / "compared.jsonl").open()]
    with_record = {line["case"]: number for number, line in enumerate(lines) if line.get("debezium")}
    for number, line in enumerate(lines):
        if "left" in line:
            case = Case(folder, line["case"], line["left"])
            table.counts["configurations"] += 1
            continue
        table.counts["rows"] += line["row"] is not None
        table.counts["records"] += line["debezium"] is not None
        if line["row"] is None:
            table.judge(line, [Difference(case, "record", "sent", None, {}, {}, line)])
            continue
        written = tables[line["row"][0]]
        columns = {column["name"]: column for column in written["table"]["columns"]}
        row = dict(zip(columns, written["rows"][line["row"][1]]))
        if case.name in ended and number > with_record.get(case.name, -1):
            # One of these ended the task, and what was in flight before it is lost as well.
            table.counts["after"] += 1
            d = Difference(case, "record", None, None, columns, row, line)
            rest.setdefault(case.name, []).append((line, d, no_record_of_debezium(d) or no_record_of_walrelay(d)))
            continue
        if line["debezium"] is None and line["walrelay"] is None:
            table.counts["neither"] += 1
        elif not line["parts"]:
            table.counts["identical"] += 1
        else:
            table.judge(line, differences(case, line, columns, row))
    for rows in rest.values():
        line, d, _ = next((one for one in rows if one[2]), rows[0])
        d.debezium = "sent" if no_record_of_walrelay(d) else None
        table.judge(line, [d])
    table.print()
    (folder / "undocumented.jsonl").write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in table.undocumented))
    for one in table.undocumented[:SHOWN_MAX]:
        print(json.dumps(one, ensure_ascii=False))
    if len(table.undocumented) > SHOWN_MAX:
        print(f"… and {len(table.undocumented) - SHOWN_MAX} more, in {folder}/undocumented.jsonl")
    return 1 if table.undocumented else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
