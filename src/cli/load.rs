//! From flags to settings: reads the environment and the configuration file.

use std::path::{Path, PathBuf};

use crate::config::file::ConfigFile;
use crate::config::layers::{Environment, Flags, Settings};
use crate::config::setting::CONFIG_VARIABLE;
use crate::error::Result;

/// The settings of this process: `flags` over its environment over the configuration file over the defaults.
///
/// # Errors
/// [`crate::error::Kind::Config`] where the file cannot be read or understood.
pub fn settings(flags: &Flags, config: Option<&Path>) -> Result<Settings> {
    let environment = environment();
    let from_variable = environment.get(CONFIG_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
    let path = config.map(Path::to_path_buf).or(from_variable);
    let file = path.as_deref().map(ConfigFile::read).transpose()?;
    Ok(Settings::new(flags, &environment, file.as_ref()))
}

/// What of the environment is text; the rest cannot be ours.
fn environment() -> Environment {
    std::env::vars_os().filter_map(|(name, text)| Some((name.into_string().ok()?, text.into_string().ok()?))).collect()
}
