//! The flags of several commands, and the configuration that flags, environment and file give.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use serde::Serialize;
use strum::{EnumMessage, VariantArray};

use crate::cli::output::warn;
use crate::config::file::ConfigFile;
use crate::config::layers::{CONFIG_VARIABLE, Environment, Flags, Settings};
use crate::config::model::KEYS;
use crate::config::{Config, LogFormat, Mode, OverBudget, SinkKind, StoreKind};
use crate::sink::{check_properties, checks};
use walrelay_core::config::unit::{exact_duration, parse_duration, parse_seconds};
use walrelay_core::config::{Guarantee, OnError, OnLoss};
use walrelay_core::error::{Errors, Given, Result};

#[derive(Debug, Args, Serialize)]
pub(crate) struct Common {
    /// The replication slot
    #[arg(long, value_name = "SLOT")]
    pub slot: Option<String>,
    /// Connection string of the outbox's database. Leave the password out: every user of the
    /// machine can read a command line. The default comes from PGHOST, PGUSER, PGPASSFILE and so on
    #[arg(long, value_name = "URL")]
    pub database_url: Option<String>,
    #[command(flatten)]
    #[serde(skip)]
    pub file: FileArgs,
}

/// The configuration file, and keys over those of the file.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct FileArgs {
    /// The configuration file; by default ./walrelay.toml, else /etc/walrelay/walrelay.toml, if one
    /// exists
    #[arg(long, short, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Set a key of the file, such as delivery.retry_attempts=5, over file and variables; can be
    /// repeated
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
}

impl FileArgs {
    /// The configuration file that the flag or the variable names.
    pub(super) fn named(&self) -> Option<PathBuf> {
        let variable = || {
            std::env::var_os(CONFIG_VARIABLE)
                .filter(|path| !path.is_empty())
                .map(PathBuf::from)
        };
        self.config.clone().or_else(variable)
    }
}

#[derive(Debug, Args, Serialize)]
pub(crate) struct RelaySettings {
    #[command(flatten)]
    #[serde(flatten)]
    pub common: Common,
    /// Kafka's bootstrap servers, separated by commas
    #[arg(long, value_name = "HOST:PORT")]
    pub brokers: Option<String>,
    /// The outbox table
    #[arg(long, value_name = "SCHEMA.TABLE")]
    pub table: Option<String>,
}

/// What says where a relay reads, and what becomes of the events.
#[derive(Debug, Args, Serialize)]
pub(crate) struct SourceSettings {
    #[command(flatten)]
    #[serde(flatten)]
    pub relay: RelaySettings,
    /// The publication; walrelay_SLOT by default
    #[arg(long, value_name = "PUBLICATION")]
    pub publication: Option<String>,
    /// The source of the rows
    #[arg(long, value_name = "MODE", value_parser = one_of::<Mode>())]
    pub mode: Option<Mode>,
    /// The store of the position
    #[arg(long, value_name = "STORE", value_parser = one_of::<StoreKind>())]
    pub state_store: Option<StoreKind>,
}

#[derive(Debug, Args, Serialize)]
pub(crate) struct RunSettings {
    #[command(flatten)]
    #[serde(flatten)]
    pub source: SourceSettings,
    /// The reaction to a lost slot
    #[arg(long, value_name = "REACTION", value_parser = one_of::<OnLoss>())]
    pub on_slot_loss: Option<OnLoss>,
    /// The existing rows to publish at the first start: all, none, pending, or since=TIME, also an
    /// age at the start of the process, as in since=2h. By default those of outbox.pending; without
    /// that key all rows, or none if setup created the slot
    #[arg(long, value_name = "ROWS")]
    pub backlog: Option<String>,
    /// The most WAL that the slot may retain, such as 10GiB; no limit by default
    #[arg(long, value_name = "BYTES")]
    pub max_retained_bytes: Option<String>,
    /// The reaction to a slot that retains more
    #[arg(long, value_name = "REACTION", value_parser = one_of::<OverBudget>())]
    pub over_budget: Option<OverBudget>,
    /// The destination of the records
    #[arg(long, value_name = "SINK", value_parser = one_of::<SinkKind>())]
    pub sink: Option<SinkKind>,
    /// The reaction to an event that cannot be delivered
    #[arg(long, value_name = "REACTION", value_parser = one_of::<OnError>())]
    pub on_error: Option<OnError>,
    /// The delivery guarantee
    #[arg(long, value_name = "GUARANTEE", value_parser = one_of::<Guarantee>())]
    pub guarantee: Option<Guarantee>,
    /// The address of metrics and health; a port alone means 127.0.0.1; off by default
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub http: Option<String>,
    /// The longest wait for acks at a stop
    #[arg(long, value_name = "DURATION")]
    pub shutdown_timeout: Option<String>,
    /// The format of log lines
    #[arg(long, value_name = "FORMAT", value_parser = one_of::<LogFormat>())]
    pub log_format: Option<LogFormat>,
    /// The log filter, such as info or walrelay=debug
    #[arg(long, value_name = "FILTER")]
    pub log: Option<String>,
}

pub(super) const DAY: Duration = Duration::from_secs(24 * 3600);
pub(super) const AGE_MAX: Duration = Duration::from_secs(10 * 366 * 24 * 3600);

/// The values of a setting as those of a flag, with their documentation as help.
pub(super) fn one_of<T>() -> impl TypedValueParser<Value = T>
where
    T: VariantArray + EnumMessage + Into<&'static str> + Copy + Send + Sync + 'static,
{
    one_that(|_| true)
}

/// The same for those that `fits`.
pub(super) fn one_that<T>(fits: fn(&T) -> bool) -> impl TypedValueParser<Value = T>
where
    T: VariantArray + EnumMessage + Into<&'static str> + Copy + Send + Sync + 'static,
{
    let named = |value: &T| {
        PossibleValue::new((*value).into()).help(value.get_documentation().unwrap_or_default())
    };
    let values = T::VARIANTS.iter().filter(|value| fits(value)).map(named);
    PossibleValuesParser::new(values).try_map(|name| {
        let found = T::VARIANTS
            .iter()
            .find(|value| Into::<&str>::into(**value) == name);
        found.copied().ok_or("not one of the values")
    })
}

/// A value parser for durations in `range`.
pub(super) fn duration(
    range: RangeInclusive<Duration>,
    example: &'static str,
) -> impl Fn(&str) -> Result<Duration, String> + Clone + Send + Sync + 'static {
    move |text| in_range(parse_duration(text), &range, example)
}

/// The same for flags that also take a number of seconds without a unit.
pub(super) fn seconds(
    range: RangeInclusive<Duration>,
    example: &'static str,
) -> impl Fn(&str) -> Result<Duration, String> + Clone + Send + Sync + 'static {
    move |text| in_range(parse_seconds(text), &range, example)
}

fn in_range(
    parsed: Option<Duration>,
    range: &RangeInclusive<Duration>,
    example: &'static str,
) -> Result<Duration, String> {
    parsed
        .filter(|duration| range.contains(duration))
        .ok_or_else(|| {
            format!(
                "write a duration up to {}, such as {example}",
                exact_duration(*range.end())
            )
        })
}

/// The settings among `args` that were typed: a field is named after its flag.
pub(crate) fn flags(args: &impl Serialize) -> Flags {
    let typed = serde_json::to_value(args).unwrap_or_default();
    let keys = KEYS
        .iter()
        .filter_map(|key| Some((key, key.flag?.replace('-', "_"))));
    keys.filter_map(|(key, field)| {
        Some((key.path.as_str(), typed.get(field)?.as_str()?.to_owned()))
    })
    .collect()
}

/// The configuration files that are looked for if none is named. The first one that exists is read;
/// one that this user may not look for is an error.
const DEFAULT_FILES: [&str; 2] = ["./walrelay.toml", "/etc/walrelay/walrelay.toml"];

/// The settings of a command with these `args`. Prints warnings of them.
pub(crate) fn read(args: &impl Serialize, file: &FileArgs) -> Result<Settings> {
    let settings = settings(&flags(args), file)?;
    warn(settings.warnings());
    Ok(settings)
}

/// As [`read`], with the whole configuration, checked.
pub(crate) fn read_all(args: &impl Serialize, file: &FileArgs) -> Result<(Settings, Config)> {
    let settings = settings(&flags(args), file)?;
    let config = checked(&settings)?;
    Ok((settings, config))
}

/// The whole configuration, checked. Prints warnings of it.
pub(crate) fn checked(settings: &Settings) -> Result<Config> {
    let config = config(settings, false)?;
    warn(warnings(settings, &config));
    Given::name_servers(checks(config.sink.kind).placeholders(&config));
    Ok(config)
}

/// `flags` over `--set` over the environment over the configuration file over the defaults. `file`,
/// `WALRELAY_CONFIG` or [`DEFAULT_FILES`] name the file.
pub(crate) fn settings(flags: &Flags, file: &FileArgs) -> Result<Settings> {
    let texts = std::env::vars_os()
        .filter_map(|(name, text)| Some((name.into_string().ok()?, text.into_string().ok()?)));
    let environment: Environment = texts.collect();
    let by_default = || {
        DEFAULT_FILES
            .iter()
            .map(PathBuf::from)
            .find(|path| path.try_exists().unwrap_or(true))
    };
    let path = file.named().or_else(by_default);
    let read = path.as_deref().map(ConfigFile::read).transpose()?;
    let mut read = read.unwrap_or_default();
    read.set.clone_from(&file.set);
    Settings::new(flags, &environment, Some(&read))
}

pub(crate) fn config(settings: &Settings, adopt_slot: bool) -> Result<Config> {
    let mut errors = Errors::default();
    let config = errors.keep(settings.config(adopt_slot));
    // One at a time first: an error then belongs to the line it is from.
    for (name, given) in &settings.properties {
        let one = BTreeMap::from([(name.clone(), given.text.clone())]);
        errors.keep(check_properties(&one).map_err(|error| error.about(&given.origin)));
    }
    let config = errors.result(config)?;
    check_properties(&config.kafka.properties)?;
    Ok(config)
}

/// Risks that the configuration allows, without secrets.
pub(crate) fn warnings(settings: &Settings, config: &Config) -> Vec<String> {
    let mut warnings = settings.warnings().to_vec();
    if !config.sink.kind.capabilities().delivers {
        let kind: &str = config.sink.kind.into();
        warnings.push(format!(
            "sink.kind is {kind}: no event reaches a bus, and slot {} is confirmed as if each had",
            config.source.slot
        ));
    }
    let databases = [Some(&config.source.database), config.source.upkeep.as_ref()];
    let weaknesses = databases
        .into_iter()
        .flatten()
        .filter_map(|database| database.weakness());
    warnings.extend(weaknesses.map(|weakness| format!("Postgres: {weakness}")));
    warnings.dedup();
    warnings.extend(checks(config.sink.kind).weaknesses(config));
    if let Some(address) = settings
        .model()
        .http
        .listen
        .filter(|address| !address.ip().is_loopback())
    {
        warnings.push(format!(
            "metrics and health are served on {address}, to whoever can reach it"
        ));
    }
    warnings
}
