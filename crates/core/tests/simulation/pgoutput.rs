//! Messages of a slot as pgoutput sends them, for tests without a server.
//! <https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html>

pub(crate) fn begin(commit_lsn: u64, xid: u32) -> Vec<u8> {
    [
        b"B".as_slice(),
        &commit_lsn.to_be_bytes(),
        &0_i64.to_be_bytes(),
        &xid.to_be_bytes(),
    ]
    .concat()
}

pub(crate) fn commit(commit_lsn: u64, end_lsn: u64) -> Vec<u8> {
    [
        b"C\0".as_slice(),
        &commit_lsn.to_be_bytes(),
        &end_lsn.to_be_bytes(),
        &0_i64.to_be_bytes(),
    ]
    .concat()
}

/// Describes `public.outbox`: names of columns with the OIDs of their types.
pub(crate) fn relation(table_oid: u32, columns: &[(&str, u32)]) -> Vec<u8> {
    let mut body = [
        b"R".as_slice(),
        &table_oid.to_be_bytes(),
        b"public\0outbox\0d",
    ]
    .concat();
    body.extend(
        u16::try_from(columns.len())
            .expect("a number of columns")
            .to_be_bytes(),
    );
    for (name, type_oid) in columns {
        body.push(0);
        body.extend(name.as_bytes());
        body.push(0);
        body.extend(type_oid.to_be_bytes());
        body.extend((-1_i32).to_be_bytes());
    }
    body
}

/// Inserts a row of text values; `None` is NULL.
pub(crate) fn insert<'v>(table_oid: u32, values: &[impl Copy + Into<Option<&'v str>>]) -> Vec<u8> {
    let mut body = [b"I".as_slice(), &table_oid.to_be_bytes(), b"N"].concat();
    body.extend(
        u16::try_from(values.len())
            .expect("a number of columns")
            .to_be_bytes(),
    );
    for value in values {
        let Some(value) = (*value).into() else {
            body.push(b'n');
            continue;
        };
        body.push(b't');
        body.extend(u32::try_from(value.len()).expect("a length").to_be_bytes());
        body.extend(value.as_bytes());
    }
    body
}
