//! Files with a secret that a sink needs.

use std::fs;
use std::io;
use std::path::Path;

use crate::conninfo::check_private;
use walrelay_core::error::{Error, Kind, Result};
use walrelay_core::secret::Secret;

/// The text of the file that `key` names. Blocks. Errors: it cannot be read, or others can read it.
pub(super) fn read(key: &str, file: &str) -> Result<Secret> {
    let failed = |error: io::Error| {
        let cause = format!("{key}: {file} cannot be read: {error}");
        Error::new(Kind::Config, cause).remedy("name a file that walrelay's user can read")
    };
    let metadata = fs::metadata(file).map_err(failed)?;
    check_private(&metadata, key, Path::new(file))?;
    fs::read_to_string(file).map(Secret::new).map_err(failed)
}
