//! The configuration that the core reads, in types that hold only valid values. The program loads
//! it.
//!
//! | module | contents |
//! |---|---|
//! | [`outbox`] | every key of one outbox, and what follows from the keys |
//! | [`delivery`] | every key of `[delivery]` |
//! | [`slot`] | the rows to read where the slot is new or lost |
//! | [`draft`] | files that commands draft |
//! | [`text`], [`mod@unit`] | what a text and a number may be |
//! | [`name`] | names of slots and tables, and SQL |

/// Settings whose value is one of a few words. The words in the file and of the flag are the names
/// of the variants, and the help of the flag is their documentation.
#[macro_export]
macro_rules! choices {
    ($($(#[$doc:meta])* $visible:vis enum $name:ident { $($variants:tt)+ })+) => {
        $(
            $(#[$doc])*
            #[derive(
                Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize,
                strum::EnumMessage, strum::IntoStaticStr, strum::VariantArray,
            )]
            #[serde(rename_all = "kebab-case")]
            #[strum(serialize_all = "kebab-case")]
            $visible enum $name { $($variants)+ }
        )+
    };
}

pub mod delivery;
pub mod draft;
pub mod name;
pub mod outbox;
pub mod slot;
pub mod text;
pub mod unit;

pub use delivery::{
    DeliveryConfig, Guarantee, OnError, ReadTails, RetryConfig, TransactionConfig, max_attempts,
};
pub use name::{SlotName, TableName};
pub use outbox::{
    CopiedRows, EventSource, MESSAGE_LSN, NullHeaders, OutboxConfig, RowKey, Upkeep, ValueConfig,
    tables_of,
};
pub(crate) use outbox::{MESSAGE_CONTENT, MESSAGE_PREFIX};
pub use slot::{Backlog, OnLoss};
