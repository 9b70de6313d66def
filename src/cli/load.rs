//! From flags to settings: reads the environment and the configuration file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::config::file::ConfigFile;
use crate::config::layers::{CONFIG_VARIABLE, Environment, Flags, Settings};
use crate::config::{Config, SinkKind};
use crate::error::Result;
use crate::sink::kafka::options::weakened;
use crate::sink::kafka::properties::check_properties;

/// The settings of this process.
#[derive(Debug)]
pub struct Loaded {
    /// `flags` over its environment over the configuration file over the defaults.
    pub settings: Settings,
}

impl Loaded {
    /// Reads the environment, and the configuration file that `config` or `WALRELAY_CONFIG` names, if any does.
    ///
    /// # Errors
    /// [`crate::error::Kind::Config`] where the file cannot be read or understood.
    pub fn new(flags: &Flags, config: Option<&Path>) -> Result<Loaded> {
        let environment = environment();
        let from_variable = environment.get(CONFIG_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
        let path = config.map(Path::to_path_buf).or(from_variable);
        let file = path.as_deref().map(ConfigFile::read).transpose()?;
        Ok(Loaded { settings: Settings::new(flags, &environment, file.as_ref())? })
    }

    /// All of it, checked, Kafka's properties included.
    ///
    /// # Errors
    /// [`crate::error::Kind::Config`] with the place where it was typed.
    pub fn config(&self, adopt_slot: bool) -> Result<Config> {
        let config = self.settings.config(adopt_slot)?;
        // One at a time first: an error then belongs to the line it is from.
        for (name, given) in &self.settings.properties {
            let one = BTreeMap::from([(name.clone(), given.text.clone())]);
            check_properties(&one).map_err(|error| error.about(&given.origin))?;
        }
        check_properties(&config.kafka.properties)?;
        Ok(config)
    }

    /// What is allowed and should be known, without secrets.
    pub fn warnings(&self, config: &Config) -> Vec<String> {
        let mut warnings = self.settings.warnings().to_vec();
        if config.sink != SinkKind::Kafka {
            warnings.push(format!(
                "sink.kind is not kafka: no event reaches Kafka, and slot {} is confirmed as if each had",
                config.source.slot
            ));
        }
        warnings.extend(config.source.database.weakness().map(|weakness| format!("Postgres: {weakness}")));
        warnings
            .extend(weakened(&config.kafka).into_iter().map(|weak| format!("Kafka's server is not verified: {weak}")));
        if let Some(address) = config.process.http.filter(|address| !address.ip().is_loopback()) {
            warnings.push(format!("metrics and health are served on {address}, to whoever can reach it"));
        }
        warnings
    }
}

/// What of the environment is text; the rest cannot be ours.
fn environment() -> Environment {
    std::env::vars_os().filter_map(|(name, text)| Some((name.into_string().ok()?, text.into_string().ok()?))).collect()
}
