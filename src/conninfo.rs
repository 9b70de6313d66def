//! Connection strings as libpq reads them: URI or keywords, then variables, then defaults.
//!
//! <https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-CONNSTRING>

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use crate::error::{Error, Kind, Result};
use crate::secret::Secret;

mod keys;
mod passfile;
mod text;

/// Where and how to connect. `Debug` shows no password.
#[derive(Debug, Clone)]
pub struct ConnInfo {
    /// The servers, in the order to try them; never empty.
    pub(crate) targets: Vec<Target>,
    /// Whether anybody said where the server is; else `targets` is a guess.
    pub(crate) names_server: bool,
    pub(crate) user: String,
    password: Option<Secret>,
    passfile: Option<PathBuf>,
    pub(crate) database: String,
    /// `options` of the start-up packet, as given.
    pub(crate) options: Option<String>,
    /// Bound on connecting to one server: socket, TLS and authentication together.
    pub(crate) connect_timeout: Duration,
    pub(crate) tls: TlsSettings,
    pub(crate) keepalive: Keepalive,
    /// Whether a server in recovery is passed over (`target_session_attrs`).
    pub(crate) primary_only: bool,
}

/// One server to try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    pub(crate) host: Host,
    /// Part of the file's name for a Unix socket.
    pub(crate) port: u16,
}

/// How one server is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Host {
    /// Over TCP.
    Tcp {
        /// Name or address; what a certificate has to name.
        name: String,
        /// Address to use instead of looking up `name`.
        address: Option<IpAddr>,
    },
    /// Through a Unix socket in this directory. Never encrypted.
    Unix(PathBuf),
}

impl Target {
    /// Path of the Unix socket, where it is one.
    pub fn socket_path(&self) -> Option<PathBuf> {
        match &self.host {
            Host::Unix(directory) => Some(directory.join(format!(".s.PGSQL.{}", self.port))),
            Host::Tcp { .. } => None,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Tcp { name, .. } if name.contains(':') => write!(f, "[{name}]:{}", self.port),
            Host::Tcp { name, .. } => write!(f, "{name}:{}", self.port),
            Host::Unix(directory) => write!(f, "{}:{}", directory.display(), self.port),
        }
    }
}

/// How much the connection is protected, in libpq's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SslMode {
    /// No TLS.
    Disable,
    /// TLS where the server has it, unverified; plain otherwise. `allow` means the same here.
    Prefer,
    /// TLS; the chain is verified only where a root certificate is given.
    Require,
    /// TLS, and the certificate is signed by a known authority.
    VerifyCa,
    /// TLS, and the certificate also names the host.
    VerifyFull,
}

/// Whether SCRAM is bound to the TLS channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChannelBinding {
    /// Never.
    Disable,
    /// Where both sides can.
    Prefer,
    /// Or no connection.
    Require,
}

/// Which authorities are trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RootCert {
    /// Those of a PEM file.
    File(PathBuf),
    /// Those of the operating system.
    System,
}

/// TLS as configured; files are read when a connection is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsSettings {
    /// How much protection.
    pub mode: SslMode,
    /// Trusted authorities.
    pub root: Option<RootCert>,
    /// Client certificate (PEM chain) and key (PEM).
    pub client: Option<(PathBuf, PathBuf)>,
    /// Channel binding.
    pub channel_binding: ChannelBinding,
    /// Refuse TLS 1.2.
    pub tls13_only: bool,
}

/// How a silent TCP peer is noticed by the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keepalive {
    /// Whether probes are sent.
    pub enabled: bool,
    /// Silence before the first probe.
    pub idle: Duration,
    /// Time between probes.
    pub interval: Duration,
    /// Probes without answer after which the connection is dead.
    pub retries: u32,
    /// How long sent data may stay unacknowledged (`TCP_USER_TIMEOUT`).
    pub user_timeout: Duration,
}

impl ConnInfo {
    /// Reads `text` (URI or `keyword=value`), fills what is missing from the variables `env` knows, then from defaults.
    ///
    /// # Errors
    /// [`Kind::Config`], naming the key and never a value.
    pub fn parse(text: Option<&str>, env: &dyn Fn(&str) -> Option<String>) -> Result<ConnInfo> {
        let mut settings = text::settings(text.unwrap_or_default())?;
        keys::fill_from_environment(&mut settings, env);
        assemble(&Settings(settings), env)
    }

    /// The password for `target`: the one given, or the matching line of the password file, read now.
    ///
    /// # Errors
    /// [`Kind::Config`] where others may read the password file.
    pub fn password_for(&self, target: &Target) -> Result<Option<Secret>> {
        match (&self.password, &self.passfile) {
            (Some(password), _) => Ok(Some(password.clone())),
            (None, Some(file)) => passfile::look_up(file, target, &self.database, &self.user),
            (None, None) => Ok(None),
        }
    }

    /// `host:port/database as user`; several hosts with commas between them. Holds no secret.
    pub fn describe(&self) -> String {
        let hosts: Vec<String> = self.targets.iter().map(Target::to_string).collect();
        format!("{}/{} as {}", hosts.join(","), self.database, self.user)
    }

    /// What a network attacker could do with the way this connects; `None` where it is verified, or never leaves the
    /// machine. For a warning at start.
    pub fn weakness(&self) -> Option<&'static str> {
        let remote = self.targets.iter().any(|target| match &target.host {
            Host::Unix(_) => false,
            Host::Tcp { address: Some(address), .. } => !address.is_loopback(),
            Host::Tcp { name, .. } => {
                name != "localhost" && !IpAddr::from_str(name).is_ok_and(|address| address.is_loopback())
            }
        });
        match self.tls.mode {
            _ if !remote => None,
            SslMode::Disable => Some("the connection is not encrypted (sslmode=disable)"),
            SslMode::Prefer => {
                Some("the connection may be unencrypted, and the server is not verified (sslmode=prefer)")
            }
            SslMode::Require if self.tls.root.is_none() => {
                Some("the connection is encrypted, but the server is not verified (sslmode=require)")
            }
            SslMode::Require | SslMode::VerifyCa => {
                Some("the server's certificate is verified, but not its name (sslmode=verify-ca)")
            }
            SslMode::VerifyFull => None,
        }
    }
}

/// Values by key; empty ones count as not given, as with libpq.
struct Settings(BTreeMap<&'static str, String>);

impl Settings {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str).filter(|value| !value.is_empty())
    }

    fn parsed<T: FromStr>(&self, key: &str, what: &str) -> Result<Option<T>> {
        match self.get(key).map(|value| value.trim().parse()) {
            None => Ok(None),
            Some(Ok(value)) => Ok(Some(value)),
            Some(Err(_)) => Err(bad(format_args!("{key} of the Postgres connection is not {what}"))),
        }
    }
}

fn bad(cause: impl fmt::Display) -> Error {
    Error::new(Kind::Config, cause)
}

fn assemble(settings: &Settings, env: &dyn Fn(&str) -> Option<String>) -> Result<ConnInfo> {
    if settings.0.values().any(|value| value.contains('\0')) {
        return Err(bad("a value of the Postgres connection holds a NUL character"));
    }
    let home = env("HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
    let user = match settings.get("user") {
        Some(user) => user.to_owned(),
        None => os_user(env).ok_or_else(|| {
            bad("no user is given for the Postgres connection, and the operating system's user has no name")
                .remedy("add user=… to the connection, or set PGUSER")
        })?,
    };
    let passfile = settings.get("passfile").map(PathBuf::from);
    Ok(ConnInfo {
        targets: targets(settings)?,
        names_server: settings.get("host").or(settings.get("hostaddr")).is_some(),
        password: settings.get("password").map(Secret::new),
        passfile: passfile.or_else(|| home.as_deref().map(|home| home.join(".pgpass"))),
        database: settings.get("dbname").unwrap_or(&user).to_owned(),
        user,
        options: settings.get("options").map(str::to_owned),
        connect_timeout: connect_timeout(settings)?,
        tls: tls(settings, home.as_deref())?,
        keepalive: keepalive(settings)?,
        primary_only: keys::primary_only(settings.get("target_session_attrs"))?,
    })
}

/// Hosts, addresses and ports are lists of one length, or one port for all.
fn targets(settings: &Settings) -> Result<Vec<Target>> {
    let list = |key| settings.get(key).map(|value| value.split(',').map(str::trim).collect::<Vec<_>>());
    let names = list("host");
    let addresses = list("hostaddr");
    let count = names.as_ref().or(addresses.as_ref()).map_or(1, Vec::len);
    if addresses.as_ref().is_some_and(|addresses| addresses.len() != count) {
        return Err(bad("host and hostaddr of the Postgres connection list different numbers of servers"));
    }
    let ports = list("port").unwrap_or_default();
    if ports.len() > 1 && ports.len() != count {
        return Err(bad(format_args!("the Postgres connection names {count} hosts and {} ports", ports.len())));
    }
    let nth = |list: &Option<Vec<&str>>, index: usize| {
        let item = list.as_ref().and_then(|list| list.get(index).copied());
        item.filter(|item| !item.is_empty()).map(str::to_owned)
    };
    let mut targets = Vec::with_capacity(count);
    for index in 0..count {
        let port = match ports.get(index).or(ports.first()).filter(|port| !port.is_empty()) {
            None => 5432,
            Some(port) => port
                .parse()
                .ok()
                .filter(|port| *port > 0)
                .ok_or_else(|| bad("a port of the Postgres connection is not a number between 1 and 65535"))?,
        };
        let address = nth(&addresses, index).map(|text| text.parse::<IpAddr>()).transpose();
        let address = address.map_err(|_| bad("hostaddr of the Postgres connection is not an IP address"))?;
        let host = match (nth(&names, index), address) {
            (Some(directory), None) if directory.starts_with('/') => Host::Unix(PathBuf::from(directory)),
            (Some(name), _) if name.starts_with('@') => {
                return Err(bad(format_args!("{name}: abstract Unix sockets are not supported")));
            }
            (Some(name), address) => Host::Tcp { name, address },
            (None, Some(address)) => Host::Tcp { name: address.to_string(), address: Some(address) },
            (None, None) => default_host(port),
        };
        targets.push(Target { host, port });
    }
    Ok(targets)
}

/// Ten seconds unless given. Zero, libpq's "for ever", is taken as not given: a relay has to notice.
fn connect_timeout(settings: &Settings) -> Result<Duration> {
    const DEFAULT: Duration = Duration::from_secs(10);
    let seconds = settings.parsed::<i64>("connect_timeout", "a number of seconds")?;
    Ok(seconds.and_then(|seconds| u64::try_from(seconds).ok()).filter(|s| *s > 0).map_or(DEFAULT, Duration::from_secs))
}

fn keepalive(settings: &Settings) -> Result<Keepalive> {
    let positive = |key, unit: &str, default| -> Result<u32> {
        let value = settings.parsed(key, &format!("a number{unit}"))?;
        Ok(value.filter(|value| *value > 0).unwrap_or(default))
    };
    let seconds =
        |key, default| -> Result<Duration> { Ok(Duration::from_secs(positive(key, " of seconds", default)?.into())) };
    Ok(Keepalive {
        enabled: settings.parsed::<u32>("keepalives", "0 or 1")?.unwrap_or(1) != 0,
        idle: seconds("keepalives_idle", 10)?,
        interval: seconds("keepalives_interval", 5)?,
        retries: positive("keepalives_count", "", 3)?,
        user_timeout: Duration::from_millis(positive("tcp_user_timeout", " of milliseconds", 30_000)?.into()),
    })
}

fn tls(settings: &Settings, home: Option<&Path>) -> Result<TlsSettings> {
    let in_home = |name: &str| home.map(|home| home.join(".postgresql").join(name)).filter(|path| path.exists());
    let root = match settings.get("sslrootcert") {
        Some("system") => Some(RootCert::System),
        Some(file) => Some(RootCert::File(PathBuf::from(file))),
        None => in_home("root.crt").map(RootCert::File),
    };
    let system = root == Some(RootCert::System);
    let mode = match settings.get("sslmode") {
        None if system => SslMode::VerifyFull,
        None => SslMode::Prefer,
        Some(mode) => keys::ssl_mode(mode)?,
    };
    if system && mode < SslMode::VerifyFull {
        return Err(bad("sslrootcert=system trusts every public authority, so only sslmode=verify-full protects")
            .remedy("use sslmode=verify-full"));
    }
    if root.is_none() && mode >= SslMode::VerifyCa {
        return Err(bad("sslmode verify-ca and verify-full need to know which authorities to trust")
            .remedy("add sslrootcert=FILE, or sslrootcert=system for those of the operating system"));
    }
    let certificate = settings.get("sslcert").map(PathBuf::from);
    let key = settings.get("sslkey").map(PathBuf::from);
    let client = match (certificate.or_else(|| in_home("postgresql.crt")), key.or_else(|| in_home("postgresql.key"))) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        (Some(_), None) => return Err(bad("a client certificate is given, but not its key").remedy("add sslkey=FILE")),
        (None, Some(_)) => return Err(bad("a client key is given, but no certificate").remedy("add sslcert=FILE")),
    };
    let channel_binding = keys::channel_binding(settings.get("channel_binding"))?;
    let tls13_only = keys::tls13_only(settings.get("ssl_min_protocol_version"))?;
    Ok(TlsSettings { mode, root, client, channel_binding, tls13_only })
}

/// The first of the usual socket directories with a server on `port` in it; else TCP.
fn default_host(port: u16) -> Host {
    ["/var/run/postgresql", "/tmp"]
        .into_iter()
        .map(PathBuf::from)
        .find(|directory| directory.join(format!(".s.PGSQL.{port}")).exists())
        .map_or_else(|| Host::Tcp { name: "localhost".to_owned(), address: None }, Host::Unix)
}

/// Name of the user this process runs as: from the password database, else from the variables of a login.
fn os_user(env: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    let uid = fs::metadata("/proc/self").ok().map(|of_process| of_process.uid().to_string());
    let accounts = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let by_uid = accounts.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1) == uid.as_deref()).then(|| name.to_owned())
    });
    by_uid.or_else(|| env("LOGNAME")).or_else(|| env("USER")).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests;
