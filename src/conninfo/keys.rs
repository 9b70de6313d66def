//! The keys of a connection string: which there are, which variable stands in for them, what their words mean.

use std::collections::BTreeMap;

use super::{ChannelBinding, SslMode, bad};
use crate::error::Result;

/// What becomes of a key.
enum Use {
    /// It has its effect.
    Used,
    /// It may be there and changes nothing that matters here.
    Ignored,
    /// Leaving it out would weaken what the operator asked for.
    Refused(&'static str),
}

/// Every key of libpq 18, the variable that stands in for it, and what becomes of it.
const KEYS: &[(&str, &str, Use)] = &[
    ("host", "PGHOST", Use::Used),
    ("hostaddr", "PGHOSTADDR", Use::Used),
    ("port", "PGPORT", Use::Used),
    ("user", "PGUSER", Use::Used),
    ("password", "PGPASSWORD", Use::Used),
    ("dbname", "PGDATABASE", Use::Used),
    ("passfile", "PGPASSFILE", Use::Used),
    ("options", "PGOPTIONS", Use::Used),
    ("connect_timeout", "PGCONNECT_TIMEOUT", Use::Used),
    ("sslmode", "PGSSLMODE", Use::Used),
    ("sslrootcert", "PGSSLROOTCERT", Use::Used),
    ("sslcert", "PGSSLCERT", Use::Used),
    ("sslkey", "PGSSLKEY", Use::Used),
    ("ssl_min_protocol_version", "PGSSLMINPROTOCOLVERSION", Use::Used),
    ("channel_binding", "PGCHANNELBINDING", Use::Used),
    ("target_session_attrs", "PGTARGETSESSIONATTRS", Use::Used),
    ("keepalives", "", Use::Used),
    ("keepalives_idle", "", Use::Used),
    ("keepalives_interval", "", Use::Used),
    ("keepalives_count", "", Use::Used),
    ("tcp_user_timeout", "", Use::Used),
    // Sessions are named after what they are for.
    ("application_name", "", Use::Ignored),
    ("fallback_application_name", "", Use::Ignored),
    ("client_encoding", "", Use::Ignored),
    ("gssencmode", "", Use::Ignored),
    ("gssdelegation", "", Use::Ignored),
    ("gsslib", "", Use::Ignored),
    ("krbsrvname", "", Use::Ignored),
    ("load_balance_hosts", "", Use::Ignored),
    ("max_protocol_version", "", Use::Ignored),
    ("min_protocol_version", "", Use::Ignored),
    ("ssl_max_protocol_version", "", Use::Ignored),
    ("sslcertmode", "", Use::Ignored),
    ("sslcompression", "", Use::Ignored),
    ("sslkeylogfile", "", Use::Ignored),
    ("sslsni", "", Use::Ignored),
    ("service", "PGSERVICE", Use::Refused("service files are not read; write the connection out")),
    ("servicefile", "", Use::Refused("service files are not read; write the connection out")),
    ("replication", "", Use::Refused("walrelay opens its replication session itself; leave it out")),
    ("require_auth", "PGREQUIREAUTH", Use::Refused("it is not supported; channel_binding=require comes nearest")),
    ("requirepeer", "PGREQUIREPEER", Use::Refused("it is not supported; protect the socket's directory instead")),
    ("sslcrl", "PGSSLCRL", Use::Refused("revocation lists are not supported")),
    ("sslcrldir", "PGSSLCRLDIR", Use::Refused("revocation lists are not supported")),
    ("sslpassword", "", Use::Refused("encrypted keys are not supported; protect the key's file instead")),
    ("sslnegotiation", "PGSSLNEGOTIATION", Use::Refused("TLS is always negotiated the traditional way; leave it out")),
    ("requiressl", "", Use::Refused("it is obsolete; use sslmode")),
    ("oauth_issuer", "", Use::Refused("OAuth is not supported")),
    ("oauth_client_id", "", Use::Refused("OAuth is not supported")),
    ("oauth_client_secret", "", Use::Refused("OAuth is not supported")),
    ("oauth_scope", "", Use::Refused("OAuth is not supported")),
    ("scram_client_key", "", Use::Refused("give the password itself")),
    ("scram_server_key", "", Use::Refused("give the password itself")),
];

/// Adds one key of a connection string; the last one of a kind counts.
pub(super) fn put(settings: &mut BTreeMap<&'static str, String>, key: &str, value: String) -> Result<()> {
    let Some((name, _, meaning)) = KEYS.iter().find(|(name, ..)| *name == key) else {
        // What looks like a key may be a piece of a password that was not escaped.
        let plain = key.len() <= 32 && key.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
        let shown = if plain { key } else { "(not shown)" };
        return Err(bad(format_args!("the Postgres connection has an unknown key: {shown}"))
            .remedy("see https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-PARAMKEYWORDS"));
    };
    match meaning {
        Use::Used => settings.insert(name, value),
        Use::Ignored => None,
        Use::Refused(why) => {
            return Err(bad(format_args!("{name} of the Postgres connection cannot be used")).remedy(*why));
        }
    };
    Ok(())
}

/// Fills in what the connection string left out.
pub(super) fn fill_from_environment(
    settings: &mut BTreeMap<&'static str, String>,
    env: &dyn Fn(&str) -> Option<String>,
) {
    let host_is_given = ["host", "hostaddr"].iter().any(|key| settings.get(key).is_some_and(|value| !value.is_empty()));
    for (name, variable, meaning) in KEYS {
        // An address from elsewhere must not be paired with a name given here.
        let foreign = matches!(*name, "host" | "hostaddr") && host_is_given;
        if variable.is_empty() || foreign || !matches!(meaning, Use::Used) {
            continue;
        }
        if settings.get(name).is_none_or(String::is_empty)
            && let Some(value) = env(variable).filter(|value| !value.is_empty())
        {
            settings.insert(name, value);
        }
    }
}

pub(super) fn ssl_mode(word: &str) -> Result<SslMode> {
    match word {
        "disable" => Ok(SslMode::Disable),
        "allow" | "prefer" => Ok(SslMode::Prefer),
        "require" => Ok(SslMode::Require),
        "verify-ca" => Ok(SslMode::VerifyCa),
        "verify-full" => Ok(SslMode::VerifyFull),
        _ => Err(bad("sslmode is none of disable, allow, prefer, require, verify-ca, verify-full")),
    }
}

pub(super) fn channel_binding(word: Option<&str>) -> Result<ChannelBinding> {
    match word {
        Some("disable") => Ok(ChannelBinding::Disable),
        None | Some("prefer") => Ok(ChannelBinding::Prefer),
        Some("require") => Ok(ChannelBinding::Require),
        Some(_) => Err(bad("channel_binding is none of disable, prefer, require")),
    }
}

pub(super) fn tls13_only(word: Option<&str>) -> Result<bool> {
    match word.map(str::to_ascii_lowercase).as_deref() {
        None | Some("tlsv1" | "tlsv1.1" | "tlsv1.2") => Ok(false),
        Some("tlsv1.3") => Ok(true),
        Some(_) => Err(bad("ssl_min_protocol_version is none of TLSv1, TLSv1.1, TLSv1.2, TLSv1.3")),
    }
}

/// A relay needs a server that a slot advances on; standbys are left to `any`.
pub(super) fn primary_only(word: Option<&str>) -> Result<bool> {
    match word {
        None | Some("any") => Ok(false),
        Some("read-write" | "primary") => Ok(true),
        Some(_) => Err(bad("target_session_attrs of the Postgres connection is none of any, read-write, primary")),
    }
}
