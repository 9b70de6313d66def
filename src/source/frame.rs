//! What travels inside a replication stream: changes and keepalives in, status updates out.
//!
//! <https://www.postgresql.org/docs/current/protocol-replication.html#PROTOCOL-REPLICATION-XLOGDATA>

use pgwire_replication::protocol::messages::ErrorFields;

use crate::clock::POSTGRES_EPOCH_US;
use crate::position::Lsn;
use crate::postgres::wire::Cursor;
use crate::source::{Notice, Status, WalMessage};

/// Message header (5) and the head of a change (type, two LSNs, a time): what comes before a change's body.
pub(super) const DATA_OVERHEAD_BYTES: usize = 5 + 1 + 8 + 8 + 8;
/// Message header (5) and a status update (34).
pub(super) const STATUS_FRAME_BYTES: usize = 5 + 34;

/// The body of a `CopyData` message, or `None` where it is neither a change nor a keepalive.
pub(crate) fn copy_data(body: &[u8]) -> Option<WalMessage<'_>> {
    let mut cursor = Cursor(body);
    match cursor.u8()? {
        b'w' => {
            let wal_start = Lsn::new(cursor.u64()?);
            let wal_end = Lsn::new(cursor.u64()?);
            let sent_at_us = cursor.i64()?.saturating_add(POSTGRES_EPOCH_US);
            Some(WalMessage::Data { wal_start, wal_end, sent_at_us, body: cursor.0 })
        }
        b'k' => {
            let wal_end = Lsn::new(cursor.u64()?);
            cursor.i64()?;
            let reply_requested = cursor.u8()? != 0;
            Some(WalMessage::Keepalive { wal_end, reply_requested })
        }
        _ => None,
    }
}

/// The LSN of a change of which only the beginning, message header included, is there.
pub(super) fn lsn_of(beginning: &[u8]) -> Option<Lsn> {
    let mut cursor = Cursor(beginning);
    cursor.take(5)?;
    (cursor.u8()? == b'w').then_some(())?;
    cursor.u64().map(Lsn::new)
}

/// The body of a `NoticeResponse`, without its details.
pub(super) fn notice(body: &[u8]) -> Notice {
    let fields = ErrorFields::parse(body);
    Notice {
        severity: fields.severity.unwrap_or_default(),
        sqlstate: fields.code.unwrap_or_default(),
        message: fields.message.unwrap_or_default(),
        routine: fields.routine.unwrap_or_default(),
    }
}

/// A status update as a whole message. Applied is what is confirmed: nothing is applied here in another sense.
/// The time is for the server's views only.
pub(crate) fn status_update(status: Status, now_us: i64) -> [u8; STATUS_FRAME_BYTES] {
    let mut frame = [0; STATUS_FRAME_BYTES];
    let confirmed = status.confirmed.as_u64().to_be_bytes();
    let length: u32 = 4 + 34;
    let fields: [&[u8]; 8] = [
        b"d",
        &length.to_be_bytes(),
        b"r",
        &status.received.as_u64().to_be_bytes(),
        &confirmed,
        &confirmed,
        &now_us.saturating_sub(POSTGRES_EPOCH_US).to_be_bytes(),
        &[u8::from(status.reply_requested)],
    ];
    for (place, byte) in frame.iter_mut().zip(fields.into_iter().flatten()) {
        *place = *byte;
    }
    frame
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_change_is_read_and_its_time_counted_from_1970() {
        let mut body = b"w".to_vec();
        body.extend(7_u64.to_be_bytes());
        body.extend(9_u64.to_be_bytes());
        body.extend(1_000_000_i64.to_be_bytes());
        body.extend(b"payload");
        let wanted = WalMessage::Data {
            wal_start: Lsn::new(7),
            wal_end: Lsn::new(9),
            sent_at_us: 946_684_801_000_000,
            body: b"payload",
        };
        assert_eq!(copy_data(&body), Some(wanted));
        assert_eq!(copy_data(&body[..24]), None);
        let head = [&[b'd', 0x7f, 0xff, 0xff, 0xff], &body[..9]].concat();
        assert_eq!(lsn_of(&head), Some(Lsn::new(7)));
    }

    #[test]
    fn a_status_update_is_laid_out_as_documented() {
        let status = Status { received: Lsn::new(0x0102), confirmed: Lsn::new(0x0304), reply_requested: true };
        let frame = status_update(status, 946_684_800_000_005);
        assert_eq!(frame[..6], [b'd', 0, 0, 0, 38, b'r']);
        assert_eq!(frame[6..14], 0x0102_u64.to_be_bytes());
        assert_eq!(frame[14..22], 0x0304_u64.to_be_bytes());
        assert_eq!(frame[22..30], 0x0304_u64.to_be_bytes());
        assert_eq!(frame[30..38], 5_i64.to_be_bytes());
        assert_eq!(frame[38], 1);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(body in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = copy_data(&body);
            let _ = lsn_of(&body);
            let _ = notice(&body);
        }
    }
}
