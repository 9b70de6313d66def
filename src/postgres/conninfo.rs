//! Connection strings as libpq reads them.

/// Where and how to connect.
#[derive(Debug, Clone)]
pub struct ConnInfo {}
