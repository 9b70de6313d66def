//! `walrelay check-config`.

use crate::cli::CheckConfigArgs;
use crate::cli::load::Loaded;
use crate::cli::output::{Outcome, note, print};
use crate::config::effective::effective;

/// Checks what `run` would check before it connects anywhere, and prints what it comes to.
///
/// # Errors
/// [`crate::error::Kind::Config`] with the place where it was typed.
pub fn check_config(args: &CheckConfigArgs) -> Outcome {
    offline(&Loaded::new(&args.settings.flags(), args.settings.relay.common.config.as_deref())?)
}

/// The same of what was loaded.
///
/// # Errors
/// As [`check_config`].
pub fn offline(loaded: &Loaded) -> Outcome {
    let config = loaded.config(false)?;
    for warning in loaded.warnings(&config) {
        note(format_args!("warning: {warning}"));
    }
    print(&effective(&loaded.settings, &config))
}
