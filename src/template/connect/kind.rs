//! What Debezium takes a type of Postgres for.
//!
//! <https://debezium.io/documentation/reference/stable/connectors/postgresql.html#postgresql-data-types>; OIDs:
//! <https://github.com/postgres/postgres/blob/master/src/include/catalog/pg_type.dat>.

use super::ColumnType;

/// What a text of Postgres stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reads {
    Text,
    Boolean,
    Integer,
    Single,
    Double,
    /// With this many digits, of which so many are behind the point.
    Decimal {
        precision: u32,
        scale: u32,
    },
    /// Each value with a scale of its own.
    AnyDecimal,
    Bytes,
    /// A time of a zone, as text, with so many digits behind the second.
    Instant {
        digits: usize,
    },
    /// A time of day of a zone, as text.
    InstantOfDay,
    /// A count since 1970.
    Timestamp {
        millis: bool,
    },
    /// Days since 1970.
    Date,
    /// A count since midnight.
    Time {
        millis: bool,
    },
    /// A length of time in microseconds.
    Interval,
}

/// A type as Kafka Connect knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kind {
    pub(super) reads: Reads,
    /// `type` of the schema.
    pub(super) basic: &'static str,
    /// `name` of the schema.
    pub(super) name: Option<&'static str>,
    pub(super) is_array: bool,
}

const fn plain(reads: Reads, basic: &'static str) -> Kind {
    Kind { reads, basic, name: None, is_array: false }
}

const fn named(reads: Reads, basic: &'static str, name: &'static str) -> Kind {
    Kind { reads, basic, name: Some(name), is_array: false }
}

impl Kind {
    pub(super) fn of(column: ColumnType) -> Kind {
        match element_of(column.oid) {
            Some(oid) => Kind { is_array: true, ..Kind::single(ColumnType { oid, ..column }) },
            None => Kind::single(column),
        }
    }

    fn single(column: ColumnType) -> Kind {
        // Three digits of a second and fewer are milliseconds.
        let millis = (0..=3).contains(&column.modifier);
        match column.oid {
            16 => plain(Reads::Boolean, "boolean"),
            21 => plain(Reads::Integer, "int16"),
            23 => plain(Reads::Integer, "int32"),
            20 | 26 => plain(Reads::Integer, "int64"),
            700 => plain(Reads::Single, "float"),
            701 => plain(Reads::Double, "double"),
            1700 => match decimal(column.modifier) {
                Some((precision, scale)) => {
                    named(Reads::Decimal { precision, scale }, "bytes", "org.apache.kafka.connect.data.Decimal")
                }
                None => named(Reads::AnyDecimal, "struct", "io.debezium.data.VariableScaleDecimal"),
            },
            17 => plain(Reads::Bytes, "bytes"),
            1184 => {
                let digits = usize::try_from(column.modifier).unwrap_or(6).min(6);
                named(Reads::Instant { digits }, "string", "io.debezium.time.ZonedTimestamp")
            }
            1266 => named(Reads::InstantOfDay, "string", "io.debezium.time.ZonedTime"),
            1114 if millis => named(Reads::Timestamp { millis }, "int64", "io.debezium.time.Timestamp"),
            1114 => named(Reads::Timestamp { millis }, "int64", "io.debezium.time.MicroTimestamp"),
            1082 => named(Reads::Date, "int32", "io.debezium.time.Date"),
            1083 if millis => named(Reads::Time { millis }, "int32", "io.debezium.time.Time"),
            1083 => named(Reads::Time { millis }, "int64", "io.debezium.time.MicroTime"),
            1186 => named(Reads::Interval, "int64", "io.debezium.time.MicroDuration"),
            2950 => named(Reads::Text, "string", "io.debezium.data.Uuid"),
            114 | 3802 => named(Reads::Text, "string", "io.debezium.data.Json"),
            142 => named(Reads::Text, "string", "io.debezium.data.Xml"),
            _ => plain(Reads::Text, "string"),
        }
    }

    /// Whether a value is the text that Postgres prints.
    pub(super) fn is_text(self) -> bool {
        self.reads == Reads::Text && !self.is_array
    }

    /// The schema as JSON.
    pub(super) fn schema(self, optional: bool) -> String {
        if self.is_array {
            let items = Kind { is_array: false, ..self }.schema(true);
            return format!("{{\"type\":\"array\",\"items\":{items},\"optional\":{optional}}}");
        }
        let basic = self.basic;
        if self.reads == Reads::AnyDecimal {
            let name = self.name.unwrap_or_default();
            return format!(
                "{{\"type\":\"struct\",\"fields\":[{{\"type\":\"int32\",\"optional\":false,\"field\":\"scale\"}},\
                 {{\"type\":\"bytes\",\"optional\":false,\"field\":\"value\"}}],\"optional\":{optional},\
                 \"name\":\"{name}\",\"version\":1,\"doc\":\"Variable scaled decimal\"}}"
            );
        }
        let mut schema = format!("{{\"type\":\"{basic}\",\"optional\":{optional}");
        if let Some(name) = self.name {
            schema.push_str(&format!(",\"name\":\"{name}\",\"version\":1"));
        }
        if let Reads::Decimal { precision, scale } = self.reads {
            schema.push_str(&format!(
                ",\"parameters\":{{\"scale\":\"{scale}\",\"connect.decimal.precision\":\"{precision}\"}}"
            ));
        }
        schema.push('}');
        schema
    }
}

/// Precision and scale of a `numeric` with this modifier: <https://github.com/postgres/postgres/blob/master/src/backend/utils/adt/numeric.c>.
fn decimal(modifier: i32) -> Option<(u32, u32)> {
    let packed = u32::try_from(modifier.checked_sub(4)?).ok()?;
    // A scale below zero is in eleven bits, too; nobody has one.
    Some((packed >> 16, packed & 0x7ff))
}

/// The type of an array's elements.
fn element_of(oid: u32) -> Option<u32> {
    const ARRAYS: [(u32, u32); 24] = [
        (1000, 16),
        (1001, 17),
        (1002, 18),
        (1003, 19),
        (1005, 21),
        (1007, 23),
        (1009, 25),
        (1014, 1042),
        (1015, 1043),
        (1016, 20),
        (1021, 700),
        (1022, 701),
        (1028, 26),
        (1041, 869),
        (1115, 1114),
        (1182, 1082),
        (1183, 1083),
        (1185, 1184),
        (1187, 1186),
        (1231, 1700),
        (1270, 1266),
        (199, 114),
        (2951, 2950),
        (3807, 3802),
    ];
    ARRAYS.iter().find(|(array, _)| *array == oid).map(|(_, element)| *element)
}
