//! What a relay that streams watches beside its events. The program asks, and these judge the
//! answers, without I/O.

mod requeued;
mod retention;
mod rows_persist;

pub use requeued::RequeueDetector;
pub use retention::RetentionLimit;
pub use rows_persist::RowsPersist;
