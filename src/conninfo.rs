//! Connection strings as libpq reads them: URI or keywords, then variables, then defaults.
//!
//! <https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-CONNSTRING>

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, Metadata};
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use tokio_postgres::config::ChannelBinding;

use walrelay_core::error::{Error, Kind, Result};
use walrelay_core::secret::Secret;

/// The use of a keyword of a connection, and of its variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    Reads,
    /// Nothing that matters here depends on it. Sessions are named after their purpose.
    Ignores,
    /// Likewise, but for the value `require`: walrelay cannot give what that demands.
    IgnoresUnlessRequired,
    /// It cannot be left out without a loss of protection; what to do instead.
    Refuses(&'static str),
}

const NO_SERVICES: Use = Use::Refuses("service files are not read; write the connection out");
const NO_CRLS: Use = Use::Refuses("revocation lists are not supported");
const NO_OAUTH: Use = Use::Refuses("OAuth is not supported");
const NO_KEYS: Use = Use::Refuses("give the password itself");

/// Every keyword of libpq, and the variable that stands in for it, if there is one.
const KEYWORDS: [(&str, &str, Use); 52] = [
    ("host", "PGHOST", Use::Reads),
    ("hostaddr", "PGHOSTADDR", Use::Reads),
    ("port", "PGPORT", Use::Reads),
    ("user", "PGUSER", Use::Reads),
    ("password", "PGPASSWORD", Use::Reads),
    ("dbname", "PGDATABASE", Use::Reads),
    ("passfile", "PGPASSFILE", Use::Reads),
    ("options", "PGOPTIONS", Use::Reads),
    ("connect_timeout", "PGCONNECT_TIMEOUT", Use::Reads),
    ("sslmode", "PGSSLMODE", Use::Reads),
    ("sslrootcert", "PGSSLROOTCERT", Use::Reads),
    ("sslcert", "PGSSLCERT", Use::Reads),
    ("sslkey", "PGSSLKEY", Use::Reads),
    (
        "ssl_min_protocol_version",
        "PGSSLMINPROTOCOLVERSION",
        Use::Reads,
    ),
    ("channel_binding", "PGCHANNELBINDING", Use::Reads),
    ("target_session_attrs", "PGTARGETSESSIONATTRS", Use::Reads),
    ("keepalives", "", Use::Reads),
    ("keepalives_idle", "", Use::Reads),
    ("keepalives_interval", "", Use::Reads),
    ("keepalives_count", "", Use::Reads),
    ("tcp_user_timeout", "", Use::Reads),
    ("application_name", "PGAPPNAME", Use::Ignores),
    ("fallback_application_name", "", Use::Ignores),
    ("client_encoding", "PGCLIENTENCODING", Use::Ignores),
    ("gssencmode", "PGGSSENCMODE", Use::IgnoresUnlessRequired),
    ("gssdelegation", "PGGSSDELEGATION", Use::Ignores),
    ("gsslib", "PGGSSLIB", Use::Ignores),
    ("krbsrvname", "PGKRBSRVNAME", Use::Ignores),
    ("load_balance_hosts", "PGLOADBALANCEHOSTS", Use::Ignores),
    ("max_protocol_version", "PGMAXPROTOCOLVERSION", Use::Ignores),
    ("min_protocol_version", "PGMINPROTOCOLVERSION", Use::Ignores),
    (
        "ssl_max_protocol_version",
        "PGSSLMAXPROTOCOLVERSION",
        Use::Ignores,
    ),
    ("sslcertmode", "PGSSLCERTMODE", Use::IgnoresUnlessRequired),
    ("sslcompression", "PGSSLCOMPRESSION", Use::Ignores),
    ("sslkeylogfile", "", Use::Ignores),
    ("sslsni", "PGSSLSNI", Use::Ignores),
    ("service", "PGSERVICE", NO_SERVICES),
    ("servicefile", "", NO_SERVICES),
    (
        "replication",
        "",
        Use::Refuses("walrelay opens its replication session itself; leave it out"),
    ),
    (
        "require_auth",
        "PGREQUIREAUTH",
        Use::Refuses("it is not supported; channel_binding=require comes nearest"),
    ),
    (
        "requirepeer",
        "PGREQUIREPEER",
        Use::Refuses("it is not supported; protect the socket's directory instead"),
    ),
    ("sslcrl", "PGSSLCRL", NO_CRLS),
    ("sslcrldir", "PGSSLCRLDIR", NO_CRLS),
    (
        "sslpassword",
        "",
        Use::Refuses("encrypted keys are not supported; protect the key's file instead"),
    ),
    (
        "sslnegotiation",
        "PGSSLNEGOTIATION",
        Use::Refuses("TLS is always negotiated the traditional way; leave it out"),
    ),
    (
        "requiressl",
        "PGREQUIRESSL",
        Use::Refuses("it is obsolete; use sslmode"),
    ),
    ("oauth_issuer", "", NO_OAUTH),
    ("oauth_client_id", "", NO_OAUTH),
    ("oauth_client_secret", "", NO_OAUTH),
    ("oauth_scope", "", NO_OAUTH),
    ("scram_client_key", "", NO_KEYS),
    ("scram_server_key", "", NO_KEYS),
];

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

#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub host: Host,
    /// Part of the file's name for a Unix socket.
    pub port: u16,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Host {
    Tcp {
        /// Name or address; what a certificate has to name.
        name: String,
        /// Address to use instead of looking up `name`.
        address: Option<IpAddr>,
    },
    /// A Unix socket in this directory. Never encrypted.
    Unix(PathBuf),
}

impl Target {
    pub(crate) fn socket_path(&self) -> Option<PathBuf> {
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
pub(crate) enum SslMode {
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

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RootCert {
    File(PathBuf),
    System,
}

/// TLS as configured; files are read when a connection is made.
#[derive(Debug, Clone)]
pub(crate) struct TlsSettings {
    pub mode: SslMode,
    pub root: Option<RootCert>,
    /// Client certificate (PEM chain) and key (PEM).
    pub client: Option<(PathBuf, PathBuf)>,
    pub channel_binding: ChannelBinding,
    pub tls13_only: bool,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Keepalive {
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
    /// Reads `text` (URI or `keyword=value`), fills what is missing from the variables `env` knows,
    /// then from defaults.
    ///
    /// # Errors
    /// [`Kind::Config`], naming the key and never a value.
    pub fn parse(text: Option<&str>, env: &dyn Fn(&str) -> Option<String>) -> Result<ConnInfo> {
        let mut settings = Settings(BTreeMap::new());
        settings.read(text.unwrap_or_default().trim())?;
        settings.fill_from(env)?;
        from_settings(&settings, env)
    }

    /// The password for `target`: the one given, or the matching line of the password file, read
    /// now.
    pub(crate) fn password_for(&self, target: &Target) -> Result<Option<Secret>> {
        match (&self.password, &self.passfile) {
            (Some(password), _) => Ok(Some(password.clone())),
            (None, Some(file)) => password_in(file, target, &self.database, &self.user),
            (None, None) => Ok(None),
        }
    }

    /// The same for one of the servers, in whatever state it is.
    pub(crate) fn only(&self, target: &Target) -> ConnInfo {
        ConnInfo {
            targets: vec![target.clone()],
            primary_only: false,
            ..self.clone()
        }
    }

    /// `host:port/database as user`; several hosts with commas between them. Holds no secret.
    pub(crate) fn describe(&self) -> String {
        let hosts: Vec<String> = self.targets.iter().map(Target::to_string).collect();
        format!("{}/{} as {}", hosts.join(","), self.database, self.user)
    }

    /// Why the connection is not protected against a network attacker; `None` where the server is
    /// verified or local.
    pub(crate) fn weakness(&self) -> Option<&'static str> {
        let remote = self.targets.iter().any(|target| match &target.host {
            Host::Unix(_) => false,
            Host::Tcp {
                address: Some(address),
                ..
            } => !address.is_loopback(),
            Host::Tcp { name, .. } => {
                name != "localhost"
                    && !IpAddr::from_str(name).is_ok_and(|address| address.is_loopback())
            }
        });
        match self.tls.mode {
            _ if !remote => None,
            SslMode::Disable => Some("the connection is not encrypted (sslmode=disable)"),
            SslMode::Prefer => Some(
                "the connection may be unencrypted, and the server is not verified \
                 (sslmode=prefer)",
            ),
            SslMode::Require if self.tls.root.is_none() => Some(
                "the connection is encrypted, but the server is not verified (sslmode=require)",
            ),
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
    /// Keys and values of `text`. Errors show no part of it but the name of a key.
    fn read(&mut self, text: &str) -> Result<()> {
        match ["postgresql://", "postgres://"]
            .iter()
            .find_map(|scheme| text.strip_prefix(scheme))
        {
            Some(rest) => self.uri(rest),
            None if text.contains('=') => self.keywords(text),
            // As `psql orders` does.
            None => self.put("dbname", text.to_owned()),
        }
    }

    /// `[user[:password]@][host[:port],…][/database][?key=value&…]`
    fn uri(&mut self, rest: &str) -> Result<()> {
        let user_info = rest
            .find(['@', '/'])
            .filter(|at| rest.get(*at..).is_some_and(|tail| tail.starts_with('@')));
        let rest = match user_info.and_then(|at| rest.split_at_checked(at)) {
            None => rest,
            Some((credentials, tail)) => {
                let (user, password) = credentials.split_once(':').unwrap_or((credentials, ""));
                self.put("user", decode(user)?)?;
                self.put("password", decode(password)?)?;
                tail.strip_prefix('@').unwrap_or(tail)
            }
        };
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, database) = place.split_once('/').unwrap_or((place, ""));
        let mut hosts = Vec::new();
        let mut ports = Vec::new();
        for server in authority.split(',') {
            let (host, port) = host_and_port(server)?;
            hosts.push(decode(host)?);
            ports.push(decode(port)?);
        }
        // A comma within a decoded host would add a server the ports know nothing of.
        if hosts.iter().any(|host| host.contains(',')) {
            return Err(bad("a host of the Postgres connection contains a comma"));
        }
        for (key, list) in [("host", hosts), ("port", ports)] {
            self.put(
                key,
                if list.iter().all(String::is_empty) {
                    String::new()
                } else {
                    list.join(",")
                },
            )?;
        }
        self.put("dbname", decode(database)?)?;
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair
                .split_once('=')
                .ok_or_else(|| bad("a parameter of the Postgres connection has no value"))?;
            match (decode(key)?.as_str(), decode(value)?) {
                // JDBC's form, which libpq takes as well.
                ("ssl", value) if value == "true" => self.put("sslmode", "require".to_owned())?,
                (key, value) => self.put(key, value)?,
            }
        }
        Ok(())
    }

    /// `key = value key='quoted value'`, with backslash escapes in both.
    fn keywords(&mut self, text: &str) -> Result<()> {
        let mut rest = text;
        while !rest.is_empty() {
            let (key, after) = rest
                .split_once('=')
                .ok_or_else(|| bad("a key of the Postgres connection has no value"))?;
            let (value, after) = value(after.trim_start())?;
            self.put(key.trim_end(), value)?;
            rest = after.trim_start();
        }
        Ok(())
    }

    /// Adds one key of a connection string; the last one of a kind counts.
    fn put(&mut self, key: &str, value: String) -> Result<()> {
        if let Some((name, _, usage)) = KEYWORDS.iter().find(|(name, ..)| *name == key) {
            return self.take(name, *usage, value).map_err(|why| {
                bad(format_args!(
                    "{key} of the Postgres connection cannot be used"
                ))
                .remedy(why)
            });
        }
        // An unknown key may be a piece of a password that was not escaped.
        let plain = key.len() <= 32
            && key
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte == b'_');
        let shown = if plain { key } else { "(not shown)" };
        Err(bad(format_args!(
            "the Postgres connection has an unknown key: {shown}"
        ))
        .remedy(
            "see https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-PARAMKEYWORDS",
        ))
    }

    /// Does with the value of a keyword as its use says. Gives the remedy if it is refused.
    fn take(&mut self, name: &'static str, usage: Use, value: String) -> Result<(), &'static str> {
        match usage {
            Use::Reads => self.0.extend([(name, value)]),
            Use::IgnoresUnlessRequired if value == "require" => {
                return Err("what it requires is not supported; leave it out");
            }
            Use::Ignores | Use::IgnoresUnlessRequired => {}
            Use::Refuses(why) => return Err(why),
        }
        Ok(())
    }

    fn fill_from(&mut self, env: &dyn Fn(&str) -> Option<String>) -> Result<()> {
        let host_is_given = self.get("host").or(self.get("hostaddr")).is_some();
        for (name, variable, usage) in KEYWORDS {
            // An address from elsewhere must not be paired with a name given here.
            let foreign = matches!(name, "host" | "hostaddr") && host_is_given;
            if foreign || variable.is_empty() || self.get(name).is_some() {
                continue;
            }
            if let Some(value) = env(variable).filter(|value| !value.is_empty()) {
                self.take(name, usage, value).map_err(|why| {
                    bad(format_args!("the variable {variable} cannot be used"))
                        .remedy(format!("unset it: {why}"))
                })?;
            }
        }
        Ok(())
    }

    fn get(&self, key: &str) -> Option<&str> {
        self.0
            .get(key)
            .map(String::as_str)
            .filter(|value| !value.is_empty())
    }

    fn parsed<T: FromStr>(&self, key: &str, what: &str) -> Result<Option<T>> {
        match self.get(key).map(|value| value.trim().parse()) {
            None => Ok(None),
            Some(Ok(value)) => Ok(Some(value)),
            Some(Err(_)) => Err(bad(format_args!(
                "{key} of the Postgres connection is not {what}"
            ))),
        }
    }

    /// The meaning of a value that is one of `words`, in whatever case.
    fn word<T: Copy>(&self, key: &str, words: &[(&str, T)]) -> Result<Option<T>> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let known = words
            .iter()
            .find(|(word, _)| word.eq_ignore_ascii_case(value))
            .map(|(_, meaning)| *meaning);
        known.map(Some).ok_or_else(|| {
            let words: Vec<_> = words.iter().map(|(word, _)| *word).collect();
            bad(format_args!(
                "{key} of the Postgres connection is none of {}",
                words.join(", ")
            ))
        })
    }
}

fn bad(cause: impl fmt::Display) -> Error {
    Error::new(Kind::Config, cause)
}

fn from_settings(settings: &Settings, env: &dyn Fn(&str) -> Option<String>) -> Result<ConnInfo> {
    if settings.0.values().any(|value| value.contains('\0')) {
        return Err(bad(
            "a value of the Postgres connection holds a NUL character",
        ));
    }
    let home = env("HOME")
        .filter(|home| !home.is_empty())
        .map(PathBuf::from);
    let user = match settings.get("user") {
        Some(user) => user.to_owned(),
        None => os_user(env).ok_or_else(|| {
            bad(
                "no user is given for the Postgres connection, and the operating system's user has \
                 no name",
            )
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
        // A relay needs a server that a slot advances on; standbys are left to `any`.
        primary_only: settings
            .word(
                "target_session_attrs",
                &[("any", false), ("read-write", true), ("primary", true)],
            )?
            .unwrap_or(false),
    })
}

/// Hosts, addresses and ports are lists of one length, or one port for all.
fn targets(settings: &Settings) -> Result<Vec<Target>> {
    let list = |key| {
        settings
            .get(key)
            .map(|value| value.split(',').map(str::trim).collect::<Vec<_>>())
    };
    let names = list("host");
    let addresses = list("hostaddr");
    let count = names.as_ref().or(addresses.as_ref()).map_or(1, Vec::len);
    if addresses
        .as_ref()
        .is_some_and(|addresses| addresses.len() != count)
    {
        return Err(bad(
            "host and hostaddr of the Postgres connection list different numbers of servers",
        ));
    }
    let ports = list("port").unwrap_or_default();
    if ports.len() > 1 && ports.len() != count {
        return Err(bad(format_args!(
            "the Postgres connection names {count} hosts and {} ports",
            ports.len()
        )));
    }
    let nth = |list: &Option<Vec<&str>>, index: usize| {
        let item = list.as_ref().and_then(|list| list.get(index).copied());
        item.filter(|item| !item.is_empty()).map(str::to_owned)
    };
    let mut targets = Vec::with_capacity(count);
    for index in 0..count {
        let port = match ports
            .get(index)
            .or(ports.first())
            .filter(|port| !port.is_empty())
        {
            None => 5432,
            Some(port) => port.parse().ok().filter(|port| *port > 0).ok_or_else(|| {
                bad("a port of the Postgres connection is not a number between 1 and 65535")
            })?,
        };
        let address = nth(&addresses, index)
            .map(|text| text.parse::<IpAddr>())
            .transpose();
        let address =
            address.map_err(|_| bad("hostaddr of the Postgres connection is not an IP address"))?;
        let host = match (nth(&names, index), address) {
            (Some(directory), None) if directory.starts_with('/') => {
                Host::Unix(PathBuf::from(directory))
            }
            (Some(name), _) if name.starts_with('@') => {
                return Err(bad(format_args!(
                    "{name}: abstract Unix sockets are not supported"
                )));
            }
            (Some(name), address) => Host::Tcp { name, address },
            (None, Some(address)) => Host::Tcp {
                name: address.to_string(),
                address: Some(address),
            },
            (None, None) => default_host(port),
        };
        targets.push(Target { host, port });
    }
    Ok(targets)
}

/// Ten seconds unless given. Zero, libpq's "for ever", is taken as not given: a relay has to
/// notice.
fn connect_timeout(settings: &Settings) -> Result<Duration> {
    const DEFAULT: Duration = Duration::from_secs(10);
    let seconds = settings.parsed::<i64>("connect_timeout", "a number of seconds")?;
    Ok(seconds
        .and_then(|seconds| u64::try_from(seconds).ok())
        .filter(|s| *s > 0)
        .map_or(DEFAULT, Duration::from_secs))
}

fn keepalive(settings: &Settings) -> Result<Keepalive> {
    let positive = |key, unit: &str, default| -> Result<u32> {
        let value = settings.parsed(key, &format!("a number{unit}"))?;
        Ok(value.filter(|value| *value > 0).unwrap_or(default))
    };
    let seconds = |key, default| -> Result<Duration> {
        Ok(Duration::from_secs(
            positive(key, " of seconds", default)?.into(),
        ))
    };
    Ok(Keepalive {
        enabled: settings.parsed::<u32>("keepalives", "0 or 1")?.unwrap_or(1) != 0,
        idle: seconds("keepalives_idle", 10)?,
        interval: seconds("keepalives_interval", 5)?,
        retries: positive("keepalives_count", "", 3)?,
        user_timeout: Duration::from_millis(
            positive("tcp_user_timeout", " of milliseconds", 30_000)?.into(),
        ),
    })
}

fn tls(settings: &Settings, home: Option<&Path>) -> Result<TlsSettings> {
    let root = match settings.get("sslrootcert") {
        Some("system") => Some(RootCert::System),
        Some(file) => Some(RootCert::File(PathBuf::from(file))),
        None => in_home(home, "root.crt").map(RootCert::File),
    };
    let system = root == Some(RootCert::System);
    let modes = [
        ("disable", SslMode::Disable),
        ("allow", SslMode::Prefer),
        ("prefer", SslMode::Prefer),
        ("require", SslMode::Require),
        ("verify-ca", SslMode::VerifyCa),
        ("verify-full", SslMode::VerifyFull),
    ];
    let default = if system {
        SslMode::VerifyFull
    } else {
        SslMode::Prefer
    };
    let mode = settings.word("sslmode", &modes)?.unwrap_or(default);
    if system && mode < SslMode::VerifyFull {
        return Err(
            bad("sslrootcert=system trusts every public authority, so only \
                        sslmode=verify-full protects")
            .remedy("use sslmode=verify-full"),
        );
    }
    if root.is_none() && mode >= SslMode::VerifyCa {
        return Err(bad(
            "sslmode verify-ca and verify-full need to know which authorities to trust",
        )
        .remedy("add sslrootcert=FILE, or sslrootcert=system for those of the operating system"));
    }
    use ChannelBinding::{Disable, Prefer, Require};
    let bindings = [
        ("disable", Disable),
        ("prefer", Prefer),
        ("require", Require),
    ];
    let channel_binding = settings
        .word("channel_binding", &bindings)?
        .unwrap_or(Prefer);
    let versions = [
        ("TLSv1", false),
        ("TLSv1.1", false),
        ("TLSv1.2", false),
        ("TLSv1.3", true),
    ];
    let tls13_only = settings
        .word("ssl_min_protocol_version", &versions)?
        .unwrap_or(false);
    Ok(TlsSettings {
        mode,
        root,
        client: client_certificate(settings, home)?,
        channel_binding,
        tls13_only,
    })
}

/// The file `name` of libpq's directory, if it is there.
fn in_home(home: Option<&Path>, name: &str) -> Option<PathBuf> {
    home.map(|home| home.join(".postgresql").join(name))
        .filter(|path| path.exists())
}

/// The files of the client's certificate and its key, if there are any.
fn client_certificate(
    settings: &Settings,
    home: Option<&Path>,
) -> Result<Option<(PathBuf, PathBuf)>> {
    let certificate = settings.get("sslcert").map(PathBuf::from);
    let key = settings.get("sslkey").map(PathBuf::from);
    match (
        certificate.or_else(|| in_home(home, "postgresql.crt")),
        key.or_else(|| in_home(home, "postgresql.key")),
    ) {
        (Some(certificate), Some(key)) => Ok(Some((certificate, key))),
        (None, None) => Ok(None),
        (Some(_), None) => {
            Err(bad("a client certificate is given, but not its key").remedy("add sslkey=FILE"))
        }
        (None, Some(_)) => {
            Err(bad("a client key is given, but no certificate").remedy("add sslcert=FILE"))
        }
    }
}

/// The first of the usual socket directories with a server on `port` in it; else TCP.
fn default_host(port: u16) -> Host {
    ["/var/run/postgresql", "/tmp"]
        .into_iter()
        .map(PathBuf::from)
        .find(|directory| directory.join(format!(".s.PGSQL.{port}")).exists())
        .map_or_else(
            || Host::Tcp {
                name: "localhost".to_owned(),
                address: None,
            },
            Host::Unix,
        )
}

/// Name of the user this process runs as: from the password database, else from the variables of a
/// login.
fn os_user(env: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    let uid = fs::metadata("/proc/self")
        .ok()
        .map(|of_process| of_process.uid().to_string());
    let accounts = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let by_uid = accounts.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1) == uid.as_deref()).then(|| name.to_owned())
    });
    by_uid
        .or_else(|| env("LOGNAME"))
        .or_else(|| env("USER"))
        .filter(|name| !name.is_empty())
}

fn host_and_port(server: &str) -> Result<(&str, &str)> {
    let Some(bracketed) = server.strip_prefix('[') else {
        return Ok(server.split_once(':').unwrap_or((server, "")));
    };
    let (address, rest) = bracketed.split_once(']').ok_or_else(|| {
        bad("a bracket of an IPv6 address in the Postgres connection is not closed")
    })?;
    match rest.strip_prefix(':') {
        Some(port) => Ok((address, port)),
        None if rest.is_empty() => Ok((address, "")),
        None => Err(bad(
            "there is something between the IPv6 address and the port of the Postgres connection",
        )),
    }
}

fn decode(text: &str) -> Result<String> {
    let is_escape = |behind: &str| {
        behind
            .get(..2)
            .is_some_and(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
    };
    let decoded = percent_decode_str(text)
        .decode_utf8()
        .ok()
        .filter(|_| text.split('%').skip(1).all(is_escape));
    decoded.map(Cow::into_owned).ok_or_else(|| {
        bad(
            "a percent sign in the Postgres connection is not followed by two hexadecimal digits \
             of UTF-8",
        )
    })
}

/// One value off the front of `text`.
fn value(text: &str) -> Result<(String, &str)> {
    let (quoted, body) = text
        .strip_prefix('\'')
        .map_or((false, text), |body| (true, body));
    let mut value = String::new();
    let mut chars = body.chars();
    loop {
        let before = chars.as_str();
        match chars.next() {
            Some('\'') if quoted => return Ok((value, chars.as_str())),
            None if quoted => return Err(bad("a quote in the Postgres connection is not closed")),
            None => return Ok((value, "")),
            Some(space) if !quoted && space.is_whitespace() => return Ok((value, before)),
            Some('\\') => value.extend(chars.next()),
            Some(char) => value.push(char),
        }
    }
}

/// Refuses a file that others may read, as libpq does with a private key: only its owner may, or
/// root and a group. libpq refuses the latter for a password file, but Kubernetes and systemd
/// provide secrets in this way.
pub(crate) fn check_private(metadata: &Metadata, what: &str, file: &Path) -> Result<()> {
    let allowed = if metadata.uid() == 0 { 0o640 } else { 0o600 };
    if metadata.mode() & 0o777 & !allowed == 0 {
        return Ok(());
    }
    let file = file.display();
    Err(bad(format_args!("the {what} {file} can be read by others"))
        .remedy(format_args!("chmod 600 {file}")))
}

/// The password for this connection, if the password file exists and has one:
/// `host:port:database:user:password`, the first line that matches.
/// <https://www.postgresql.org/docs/current/libpq-pgpass.html>
fn password_in(file: &Path, target: &Target, database: &str, user: &str) -> Result<Option<Secret>> {
    let Ok(metadata) = fs::metadata(file) else {
        return Ok(None);
    };
    if !metadata.is_file() {
        return Ok(None);
    }
    check_private(&metadata, "password file", file)?;
    let text = fs::read_to_string(file).map_err(|error| {
        bad(format_args!(
            "the password file {} cannot be read: {error}",
            file.display()
        ))
    })?;
    let host = match &target.host {
        Host::Tcp { name, .. } => name.as_str(),
        // A socket in the default directory goes by the name of the machine it is on.
        Host::Unix(directory) if is_default(directory) => "localhost",
        Host::Unix(directory) => directory.to_str().unwrap_or_default(),
    };
    let wanted = [host, &target.port.to_string(), database, user];
    Ok(text
        .lines()
        .find_map(|line| password_of(line, &wanted))
        .map(Secret::new))
}

fn is_default(directory: &Path) -> bool {
    directory == Path::new("/var/run/postgresql") || directory == Path::new("/tmp")
}

fn password_of(line: &str, wanted: &[&str; 4]) -> Option<String> {
    if line.starts_with('#') {
        return None;
    }
    let mut rest = line;
    for want in wanted {
        let (field, after) = field(rest, true)?;
        if rest.split(':').next() != Some("*") && field != *want {
            return None;
        }
        rest = after;
    }
    let (password, _) = field(rest, false)?;
    (!password.is_empty()).then_some(password)
}

/// One field with its escapes undone, and what follows its colon. Only the last field may lack the
/// colon, and in it a colon that was not escaped is part of the password.
fn field(text: &str, colon: bool) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.chars();
    loop {
        match chars.next() {
            Some('\\') => value.extend(chars.next()),
            Some(':') if colon => return Some((value, chars.as_str())),
            Some(char) => value.push(char),
            None if colon => return None,
            None => return Some((value, "")),
        }
    }
}

#[cfg(test)]
mod tests {
    use walrelay_fuzz::fuzz_text;

    use super::*;

    fn parse_with(text: &str, variables: &[(&str, &str)]) -> Result<ConnInfo> {
        let env = |name: &str| {
            variables
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| (*value).to_owned())
        };
        ConnInfo::parse(Some(text), &env)
    }

    fn parse(text: &str) -> ConnInfo {
        parse_with(text, &[]).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn refusal(text: &str) -> String {
        match parse_with(text, &[]) {
            Ok(info) => panic!("{text} was taken as {info:?}"),
            Err(error) => {
                assert_eq!(error.kind(), Kind::Config);
                format!(
                    "{} / {}",
                    error.cause(),
                    error.what_to_do().unwrap_or_default()
                )
            }
        }
    }

    #[test]
    fn both_forms_say_the_same() {
        let forms = [
            "postgres://ann:s%40:crt@db.example:6432/orders",
            "postgresql://ann@db.example:6432/orders?password=s%40%3Acrt",
            "host=db.example port=6432 user=ann password='s@:crt' dbname=orders",
            r"host = db.example  port =6432 user= ann password=s@\:crt dbname='ord''ers'",
        ];
        for form in &forms[..3] {
            let info = parse(form);
            assert_eq!(info.describe(), "db.example:6432/orders as ann", "{form}");
            let password = info.password_for(&info.targets[0]).unwrap().unwrap();
            assert_eq!(password.expose(), "s@:crt", "{form}");
        }
        // A doubled quote ends the value in this form, and what follows is no key.
        assert!(refusal(forms[3]).contains("no value"));
    }

    #[test]
    fn hosts_are_kept_in_order_with_their_ports() {
        for (text, described) in [
            ("postgres://u@h1:1,h2:2/d", "h1:1,h2:2/d as u"),
            ("postgres://u@h1,h2:7/d", "h1:5432,h2:7/d as u"),
            ("host=h1,h2 port=7 user=u dbname=d", "h1:7,h2:7/d as u"),
            ("host=h1,h2 port=7,8 user=u dbname=d", "h1:7,h2:8/d as u"),
            (
                "postgres://u@[::1]:6000,[fe80::2]/d",
                "[::1]:6000,[fe80::2]:5432/d as u",
            ),
            ("postgres://u@%2Fvar%2Frun:6000/d", "/var/run:6000/d as u"),
            ("postgres:///d?host=/run/pg&user=u", "/run/pg:5432/d as u"),
            ("user=u hostaddr=10.0.0.1 dbname=d", "10.0.0.1:5432/d as u"),
            ("postgres://u@h", "h:5432/u as u"),
            (
                "host=h user=u keepalives=1 gssencmode=disable sslsni=0 client_encoding=auto",
                "h:5432/u as u",
            ),
        ] {
            assert_eq!(parse(text).describe(), described, "{text}");
            assert!(parse(text).names_server, "{text}");
        }
        assert!(!parse("postgres://ann@/shop").names_server);
        let target = parse("postgres:///d?host=/run/pg&user=u&port=77").targets[0].clone();
        assert_eq!(
            target.socket_path(),
            Some(PathBuf::from("/run/pg/.s.PGSQL.77"))
        );
    }

    #[test]
    fn an_address_replaces_the_lookup_and_not_the_name() {
        let info = parse("host=db.example hostaddr=10.0.0.1 user=u");
        let address = Some("10.0.0.1".parse().unwrap());
        assert_eq!(
            info.targets[0].host,
            Host::Tcp {
                name: "db.example".into(),
                address
            }
        );
    }

    #[test]
    fn variables_fill_in_what_is_missing_and_nothing_else() {
        let variables = [
            ("PGHOST", "env.example"),
            ("PGPORT", "77"),
            ("PGUSER", "env_user"),
            ("PGPASSWORD", "env_password"),
            ("PGDATABASE", "env_db"),
            ("PGSSLMODE", "require"),
            ("PGOPTIONS", "-c work_mem=1MB"),
            ("PGCONNECT_TIMEOUT", "3"),
        ];
        let info = parse_with("", &variables).unwrap();
        assert_eq!(info.describe(), "env.example:77/env_db as env_user");
        assert_eq!(
            info.password_for(&info.targets[0])
                .unwrap()
                .unwrap()
                .expose(),
            "env_password"
        );
        assert_eq!(info.tls.mode, SslMode::Require);
        assert_eq!(info.options.as_deref(), Some("-c work_mem=1MB"));
        assert_eq!(info.connect_timeout, Duration::from_secs(3));
        assert_eq!(parse_with("orders", &variables).unwrap().database, "orders");
        let info = parse_with("postgres://ann:x@h:1/d?sslmode=disable", &variables).unwrap();
        assert_eq!(info.describe(), "h:1/d as ann");
        assert_eq!(info.tls.mode, SslMode::Disable);
        let info = parse_with("host=h", &[("PGHOSTADDR", "10.9.9.9"), ("PGUSER", "u")]).unwrap();
        assert_eq!(
            info.targets[0].host,
            Host::Tcp {
                name: "h".into(),
                address: None
            }
        );
    }

    #[test]
    fn what_cannot_be_obeyed_is_refused_by_name() {
        for (key, variable, usage) in KEYWORDS {
            let taken = parse_with("host=h user=u", &[(variable, "x")]);
            match usage {
                Use::Reads => {}
                Use::Ignores | Use::IgnoresUnlessRequired => assert!(taken.is_ok(), "{variable}"),
                Use::Refuses(_) => {
                    assert!(refusal(&format!("host=h user=u {key}=x")).contains(key));
                    assert!(
                        variable.is_empty() || taken.unwrap_err().cause().contains(variable),
                        "{variable}"
                    );
                    assert!(
                        parse_with("host=h user=u", &[(variable, "")]).is_ok(),
                        "an empty {variable} is none"
                    );
                }
            }
        }
        for key in ["gssencmode", "sslcertmode"] {
            assert!(refusal(&format!("host=h user=u {key}=require")).contains(key));
        }
        assert!(refusal("host=h user=u hots=x").contains("hots"));
        assert!(refusal("postgres://u@h/d?hots=x").contains("hots"));
    }

    #[test]
    fn the_manual_names_every_keyword_and_its_variable() {
        let manual = include_str!("../docs/reference/configuration.md");
        let name = |(keyword, variable, _): &(&str, &str, Use)| match *variable {
            "" => format!("`{keyword}`"),
            variable => format!("`{keyword}` (`{variable}`)"),
        };
        let row = |title: &str, is_of_row: fn(&Use) -> bool| {
            let names: Vec<_> = KEYWORDS
                .iter()
                .filter(|(.., usage)| is_of_row(usage))
                .map(name)
                .collect();
            let row = format!("| {title} | {} |\n", names.join(", "));
            assert!(
                manual.contains(&row),
                "docs/reference/configuration.md lacks {row}"
            );
        };
        row("reads", |usage| *usage == Use::Reads);
        row("ignores", |usage| {
            matches!(usage, Use::Ignores | Use::IgnoresUnlessRequired)
        });
        row("refuses", |usage| matches!(usage, Use::Refuses(_)));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for text in [
            "host=h port=0 user=u",
            "host=h port=65536 user=u",
            "host=h port=x user=u",
            "host=a,b port=1,2,3 user=u",
            "host=a,b hostaddr=10.0.0.1 user=u",
            "hostaddr=name user=u",
            "host='h user=u",
            "host=h user",
            "host=@abstract user=u",
            "host=h user=u sslmode=full",
            "host=h user=u connect_timeout=soon",
            "host=h user=u channel_binding=maybe",
            "host=h user=u target_session_attrs=standby",
            "host=h user=u sslmode=verify-full",
            "host=h user=u sslrootcert=system sslmode=require",
            "host=h user=u sslcert=/x",
            "postgres://u@[::1/d",
            "postgres://u@[::1]x/d",
            "postgres://u@h/d%2",
            "postgres://u@h/%ff",
            "postgres://u@h/%00",
            "postgres://u@h/d?sslmode",
            "postgres://u@a%2Cb/d",
        ] {
            refusal(text);
        }
    }

    #[test]
    fn no_error_and_no_debug_text_shows_a_secret() {
        const CANARY: &str = "canary-7f";
        let info = parse(&format!("postgres://u:{CANARY}@h/d"));
        assert!(!format!("{info:?} {info:#?} {}", info.describe()).contains(CANARY));
        for text in [
            format!("postgres://u:{CANARY}/x@h:1/d"),
            format!("postgres://u:p@{CANARY}:w@h/d"),
            format!("host=h password='{CANARY}"),
            format!("host=h password=a {CANARY}=b user=u"),
            format!("host=h password=a {CANARY}"),
            format!("postgres://u@h/d?password={CANARY}%"),
            format!("postgres://u@h/d?{CANARY}=1"),
        ] {
            assert!(!refusal(&text).contains(CANARY), "{text}");
        }
    }

    #[test]
    fn trust_defaults_follow_libpq() {
        let tls = |text: &str| parse(text).tls.clone();
        assert_eq!(tls("host=h user=u").mode, SslMode::Prefer);
        assert_eq!(tls("host=h user=u sslmode=allow").mode, SslMode::Prefer);
        assert_eq!(
            tls("host=h user=u sslrootcert=system").mode,
            SslMode::VerifyFull
        );
        assert_eq!(tls("postgres://u@h/d?ssl=true").mode, SslMode::Require);
        assert!(tls("host=h user=u ssl_min_protocol_version=TLSv1.3").tls13_only);
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join(".postgresql")).unwrap();
        for file in ["root.crt", "postgresql.crt", "postgresql.key"] {
            std::fs::write(home.path().join(".postgresql").join(file), "").unwrap();
        }
        let info = parse_with(
            "host=h user=u sslmode=verify-full",
            &[("HOME", home.path().to_str().unwrap())],
        )
        .unwrap();
        assert_eq!(
            info.tls.root,
            Some(RootCert::File(home.path().join(".postgresql/root.crt")))
        );
        assert!(info.tls.client.is_some());
    }

    #[test]
    fn a_connection_that_an_attacker_could_read_is_told_from_one_he_could_not() {
        for (text, weak) in [
            ("host=db user=u", true),
            ("host=db user=u sslmode=require", true),
            ("host=db user=u sslrootcert=system", false),
            ("host=localhost user=u", false),
            ("host=127.0.0.1 user=u sslmode=disable", false),
            ("host=/run user=u", false),
            ("host=/run,db user=u", true),
        ] {
            assert_eq!(parse(text).weakness().is_some(), weak, "{text}");
        }
    }

    #[test]
    fn the_password_file_is_read_as_libpq_reads_it() {
        use std::os::unix::fs::PermissionsExt;
        let file = tempfile::NamedTempFile::new().unwrap();
        let lines = "# h:5432:d:u:comment\nshort:line\nother:*:*:*:wrong\nh:5433:*:*:port\n\
                     h:*:d:a\\:b:colon\\:\\\\end\n\
                     h:*:d:u:first\nh:*:d:u:second\n*:*:*:w:wild:card\nlocalhost:*:d:s:socket\n";
        std::fs::write(file.path(), lines).unwrap();
        let path = file.path().to_str().unwrap();
        let look_up = |text: &str| {
            let info = parse(&format!("{text} passfile={path}"));
            info.password_for(&info.targets[0])
                .map(|found| found.map(|password| password.expose().to_owned()))
        };
        assert_eq!(
            look_up("host=h dbname=d user=u").unwrap().as_deref(),
            Some("first")
        );
        assert_eq!(
            look_up("host=h port=5433 dbname=d user=u")
                .unwrap()
                .as_deref(),
            Some("port")
        );
        assert_eq!(
            look_up("host=h dbname=d user=a:b").unwrap().as_deref(),
            Some(r"colon:\end")
        );
        assert_eq!(
            look_up("host=x dbname=y user=w").unwrap().as_deref(),
            Some("wild:card")
        );
        assert_eq!(
            look_up("host=/tmp dbname=d user=s").unwrap().as_deref(),
            Some("socket")
        );
        assert_eq!(look_up("host=x dbname=y user=z").unwrap(), None);
        assert_eq!(
            look_up("host=h dbname=d user=u password=given")
                .unwrap()
                .as_deref(),
            Some("given")
        );
        let permit = |mode| {
            std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(mode)).unwrap()
        };
        permit(0o640);
        let is_of_root = std::fs::metadata(file.path()).unwrap().uid() == 0;
        assert_eq!(
            look_up("host=h dbname=d user=u").is_ok(),
            is_of_root,
            "readable by its group"
        );
        permit(0o644);
        let error = look_up("host=h dbname=d user=u").unwrap_err();
        assert!(error.what_to_do().unwrap().starts_with("chmod 600"));
        assert!(!error.cause().contains("first"));
    }

    #[test]
    fn fuzzed_connections() {
        let corpus = [
            "postgres://ann:s%40crt@db.example:6432,[::1]:7/orders?sslmode=require&options=-c%20a",
            r"host = db.example,/run  port =6432 user= ann password=s\:crt dbname='ord\'ers'",
            "postgresql:///d?host=/run/pg&user=u&connect_timeout=3&target_session_attrs=any",
            "host=h user=u hostaddr=10.0.0.1 sslmode=verify-full sslrootcert=system keepalives=0",
            r"h:*:d:a\:b:colon\:\\end",
            "*:*:*:*:wrong",
        ];
        fuzz_text("connections and password files", 1 << 20, &corpus, |text| {
            match parse_with(text, &[]) {
                Ok(info) => {
                    assert!(!info.targets.is_empty());
                    drop((info.describe(), info.weakness()));
                }
                Err(error) => assert_eq!(error.kind(), Kind::Config),
            }
            let password = password_of(text, &["h", "5432", "d", "u"]);
            assert_ne!(password.as_deref(), Some(""));
        });
    }
}
